"""The problems, found from inside: words, place, how much, and a command."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.control.steering import condition, problems
from framegate.control.steering.alerts import ALERTS
from framegate.control.steering.problems import Watch
from framegate.proxy.cells import HistogramValue
from framegate.proxy.cells.metrics import (
    CAUSE,
    CLIENT_ADDRESS,
    CLIENT_ID,
    DIRECTION,
    ERROR_TYPE,
    LISTENER,
    PRINCIPAL,
    SERVER_ADDRESS,
    SERVER_PORT,
    SIDE,
    UPSTREAM,
)
from tests.fakes import command_lines, deploying

written = deploying.module("dashboards.problems")
ENDPOINT = ((UPSTREAM, "orders"), (SERVER_ADDRESS, "kafka-1"), (SERVER_PORT, "9092"))
CALM = {
    "framegate.ready": {(("framegate.probe", "readiness"),): 1.0},
    "framegate.upstream.endpoint.count": {ENDPOINT: 1.0},
    "framegate.upstream.endpoint.down": {ENDPOINT: 0.0},
    "framegate.upstream.request.age": {ENDPOINT: 0.1},
}


def watched(monkeypatch: pytest.MonkeyPatch, *samples: dict[str, Any], apart_s: float = 10.0, histograms: Sequence[dict[str, Any]] = ()) -> list[str]:
    """What is found after samples, the last of which is taken because somebody asks."""
    now, left, measured, watch = [0.0], iter(samples), iter(histograms), Watch()
    monkeypatch.setattr(problems, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch.begin(lambda: SimpleNamespace(points=CALM | next(left), histograms=next(measured, {})))

    async def look() -> list[str]:
        for _ in samples[1:]:
            await watch.look()
            now[0] += apart_s
        return [[str(found) for found in await watch.found()] for _ in "two calls, of which the second needs no sample"][1]

    return asyncio.run(look())


def grows(metric: str, attributes: tuple[tuple[str, str], ...], by: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two samples of a counter."""
    return {metric: {attributes: 0.0}}, {metric: {attributes: by}}


def merged(*pairs: tuple[dict[str, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """The same of many series."""
    found: list[dict[str, Any]] = [{}, {}]
    for pair in pairs:
        for sample, part in zip(found, pair, strict=True):
            for metric, values in part.items():
                sample[metric] = sample.get(metric, {}) | values
    return found


def wanted(clients: float) -> list[dict[str, Any]]:
    """Two samples of a listener before the upstream, to which so many clients have come."""
    behind = {"framegate.listener.upstream": {((LISTENER, "kafka"), (UPSTREAM, "orders")): 1.0}}
    return [{**sample, **behind} for sample in grows("framegate.connection.accepted", ((LISTENER, "kafka"),), clients)]


def test_problems_are_named_with_place_extent_and_command_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, {}, {}) == []
    logins = [{"framegate.authentication.count": {((LISTENER, "kafka"), (ERROR_TYPE, "denied")): count}} for count in (0.0, 60.0)]
    assert watched(monkeypatch, logins[0], {**logins[1], "framegate.upstream.request.age": {ENDPOINT: 31.0}}) == [
        "warning: Some requests wait long for their answer (orders kafka-1:9092): 31 s the oldest; `framegate upstreams list`",
        "warning: Logins of clients are refused (kafka denied): 6 a second; `framegate channels list --closed --filter cause=auth_failed`",
    ]
    nameless = {"framegate.upstream.endpoint.count": {ENDPOINT: 0.0}}
    assert watched(monkeypatch, nameless, nameless) == [
        "warning: The name of an endpoint is not resolved (orders kafka-1:9092): 0 addresses; `framegate upstreams list`"
    ], "which no client wants"
    assert watched(monkeypatch, *({**sample, **nameless} for sample in wanted(1.0))) == [
        "critical: The names of an upstream are not resolved (orders): 0 addresses; `framegate upstreams list`"
    ]
    one_of_two = {ENDPOINT: 0.0, ((UPSTREAM, "orders"), (SERVER_ADDRESS, "kafka-2"), (SERVER_PORT, "9092")): 1.0}
    assert watched(monkeypatch, {"framegate.upstream.endpoint.count": one_of_two}) == [
        "warning: The name of an endpoint is not resolved (orders kafka-1:9092): 0 addresses; `framegate upstreams list`"
    ]


def client(*texts: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, text) for key, text in zip((LISTENER, PRINCIPAL, CLIENT_ID, CLIENT_ADDRESS), ("kafka", *texts), strict=True) if text)


def test_who_tries_passwords_is_named_and_a_dozen_mistyped_ones_an_hour_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(user: str, address: str, rate: float) -> list[str]:
        samples = [{"framegate.authentication.count": {((LISTENER, "kafka"),): count}} for count in (0.0, 100.0)]
        return watched(monkeypatch, samples[0], {**samples[1], "framegate.client.login.failures": {client(user, "", address): rate}})

    assert found("ann", "10.0.0.1", 12 / 3600) == found("ann", "10.0.0.1", 0.05) == found("ann", "10.0.0.1", 0.1) == []
    command = "`framegate channels list --closed --filter cause=auth_failed`"
    for user, address, words in (
        ("ann", "10.0.0.1", "Logins of one user fail, from one address"),
        ("", "10.0.0.1", "Logins of one user fail, from one address"),
        ("ann", "<many>", "Logins of one user fail, from many addresses"),
        ("<many>", "10.0.0.1", "Logins of many users fail, from one address"),
        ("<many>", "<many>", "Logins of many users fail, from many addresses"),
    ):
        place = " ".join(filter(None, ("kafka", user, address)))
        assert found(user, address, 0.11) == [f"warning: {words} ({place}): 0.11 a second; {command}"]


def test_a_client_with_more_than_half_of_the_bytes_is_named_if_its_upstream_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(share: float, age: float = 0.0, answered: float = 1.0) -> list[str]:
        most = (*client("ann", "loader", "10.0.0.1"), ("framegate.measure", "bytes"))
        return watched(
            monkeypatch,
            {
                "framegate.client.share": {most: share},
                "framegate.listener.upstream": {((LISTENER, "kafka"), (UPSTREAM, "orders")): 1.0},
                "framegate.upstream.answer.age": {ENDPOINT: age},
                "framegate.upstream.frame.count": {(*ENDPOINT, (DIRECTION, "receive")): answered},
            },
        )

    named = "info: One client has more than half of a listener's bytes (kafka ann loader 10.0.0.1): 60 % of all; `framegate top --sort bytes_rate`"
    assert (found(0.6), found(0.5), found(0.6, age=6.0)) == ([named], [], [])
    assert found(0.6, age=6.0, answered=0.0) == [named], "it never answers"


def fails(listener: str, cause: str, side: str, accepted: float = 30.0) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """All connections of a listener."""
    at = ((LISTENER, listener),)
    return [
        grows("framegate.connection.accepted", at, accepted),
        grows("framegate.connection.closed", (*at, (CAUSE, cause), (SIDE, side)), 30.0),
        grows("framegate.frame.count", (*at, (SIDE, "downstream"), (DIRECTION, "transmit")), 0.0),
        grows("framegate.connection.active", (*at, (SIDE, "downstream")), 30.0),
    ]


def test_a_dead_upstream_says_nothing_about_other_listeners_and_hides_none_of_their_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ((UPSTREAM, "stock"), (SERVER_ADDRESS, "stock-1"), (SERVER_PORT, "80"))
    now = {
        "framegate.listener.upstream": {((LISTENER, name), (UPSTREAM, upstream)): 1.0 for name, upstream in (("a", "orders"), ("b", "stock"))},
        "framegate.upstream.endpoint.count": {ENDPOINT: 1.0, other: 1.0},
        "framegate.upstream.endpoint.down": {ENDPOINT: 1.0, other: 0.0},
    }
    samples = merged(*fails("a", "upstream_refused", "upstream"), *fails("b", "peer_reset", "upstream"))
    found = watched(monkeypatch, *({**sample, **now} for sample in samples))
    assert [line for line in found if line.startswith("critical")] == [
        "critical: No endpoint of an upstream can be reached (orders): 1 address left out; `framegate upstreams list`",
        "critical: Every connection of a listener fails (b): 3 a second; `framegate channels list --closed --filter listener=b`",
    ]


def test_an_endpoint_that_only_one_of_the_processors_could_not_reach_and_that_answers_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(used: float, recent: float, clients: float = 1.0) -> list[str]:
        now = {
            "framegate.upstream.endpoint.down": {ENDPOINT: 1.0},
            "framegate.upstream.connection.count": {(*ENDPOINT, ("framegate.state", "used")): used},
            "framegate.upstream.answer.recent": {ENDPOINT: recent},
        }
        return [line.partition(" (")[0] for line in watched(monkeypatch, *({**sample, **now} for sample in wanted(clients)))]

    gone = ["critical: No endpoint of an upstream can be reached", "warning: An endpoint is left out"]
    assert (found(1, 1), found(0, 1), found(1, 0)) == ([], gone, gone)
    assert found(0, 0, clients=0.0) == gone[1:], "a standby that is only checked"


def test_half_of_the_endpoints_are_those_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(down: int, answering: int) -> list[str]:
        endpoints = [((UPSTREAM, "orders"), (SERVER_ADDRESS, f"kafka-{number}"), (SERVER_PORT, "9092")) for number in range(4)]
        lines = watched(
            monkeypatch,
            {
                "framegate.upstream.endpoint.count": dict.fromkeys(endpoints, 1.0),
                "framegate.upstream.endpoint.down": {at: float(number < down) for number, at in enumerate(endpoints)},
                "framegate.upstream.connection.count": {(*at, ("framegate.state", "used")): 1.0 for at in endpoints[:answering]},
                "framegate.upstream.answer.recent": dict.fromkeys(endpoints[:answering], 1.0),
            },
        )
        return [line for line in lines if "Half" in line]

    half = ["warning: Half of an upstream's endpoints are left out (orders): {} addresses left out; `framegate upstreams list`"]
    assert (found(1, 0), found(2, 0), found(3, 0)) == ([], [half[0].format(2)], [half[0].format(3)])
    assert found(2, 1) == [], "one of the two answers"


def test_what_a_killed_processor_ended_is_said_once_and_not_as_a_listener_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, *merged(*fails("kafka", "processor_died", "internal")))
    assert found == [
        "critical: Connections of clients fail (kafka): 100 % of those that end; `framegate channels list --closed --filter listener=kafka`"
    ]


def test_one_or_two_connections_that_fail_are_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(failed: float) -> list[str]:
        at = ((LISTENER, "kafka"), (CAUSE, "upstream_closed"), (SIDE, "upstream"))
        parts = [grows("framegate.connection.accepted", at[:1], 10.0), grows("framegate.connection.closed", at, failed)]
        parts += [grows("framegate.frame.count", (at[0], (SIDE, "downstream"), (DIRECTION, "transmit")), 90.0)]
        parts += [grows("framegate.connection.active", (at[0], (SIDE, "downstream")), 1.0)]
        return [line.partition(" (")[0] for line in watched(monkeypatch, *merged(*parts))]

    assert (found(2.0), found(3.0)) == ([], ["critical: Connections of clients fail"])


def test_nobody_gets_in_where_clients_came_until_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, before: float = 101.0, now: float = 0.0, failed: float = 30.0, checks: float = 0.0, came: float = 30.0) -> list[str]:
        at, way = ((LISTENER, "kafka"),), ((SIDE, "downstream"), (DIRECTION, "receive"))
        samples = []
        for frames, tries in ((0.0, 0.0), (before, 0.0), (before, 0.0), (before + now, 1.0)):
            closed = {"tls_failed": failed * tries, "no_data": checks * tries}
            samples.append(
                {
                    "framegate.connection.accepted": {at: (came + checks) * tries},
                    "framegate.connection.closed": {(*at, (CAUSE, cause), (SIDE, "downstream")): count for cause, count in closed.items()},
                    "framegate.frame.count": {(*at, *way): frames},
                }
            )
        lines = watched(monkeypatch, *samples, apart_s=60.0)
        return [line for line in lines if line.startswith("critical")]

    said = ["critical: Nobody gets in where clients came before (kafka): 0.5 a second; `framegate channels list --closed --filter listener=kafka`"]
    assert found() == said
    assert (found(before=100.0), found(now=1.0), found(failed=29.0)) == ([], [], []), "few came; one gets in; one in 30 is not refused"
    assert (found(failed=3.0, came=3.0), found(failed=4.0, came=4.0) != []) == ([], True), "a few scans"
    assert len(found(checks=60.0)) == 1, "the checks of a load balancer do not count"


def test_faults_at_the_door_are_those_of_clients_only_if_clients_made_them_and_the_command_has_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def door(side: str) -> list[str]:
        samples = merged(*fails("kafka", "wrong_protocol", side, 40.0))
        return [line for line in watched(monkeypatch, *samples) if "handshake" in line]

    command = "`framegate channels list --closed --filter cause=wrong_protocol`"
    assert door("downstream") == [f"warning: Clients fail at the handshake, or speak another protocol (kafka wrong_protocol): 3 a second; {command}"]
    assert door("upstream") == []
    broken = merged(grows("framegate.upstream.connection.closed", (*ENDPOINT, (ERROR_TYPE, "protocol")), 30.0))
    assert watched(monkeypatch, *broken) == [
        "warning: Connections end by a fault of their endpoint (orders kafka-1:9092 protocol): 100 % of those that end; `framegate upstreams list`"
    ]


def endpoint(before: dict[str, float], after: dict[str, float]) -> list[dict[str, Any]]:
    """Two samples of an endpoint's gauges and counters: ``receive`` and ``transmit`` are frames, ``ended`` and ``given_up`` connections."""

    def sample(values: dict[str, float]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            metric, attributes = {
                "receive": ("frame.count", ((DIRECTION, "receive"),)),
                "transmit": ("frame.count", ((DIRECTION, "transmit"),)),
                "ended": ("connection.closed", ()),
                "given_up": ("connection.closed", ((ERROR_TYPE, "unanswered"),)),
            }.get(name, (name.replace("_", "."), ()))
            found.setdefault(f"framegate.upstream.{metric}", {})[*ENDPOINT, *attributes] = value
        return found

    return [sample(before), sample(before | after)]


def test_an_endpoint_that_does_not_answer_is_named_critical_if_it_has_answered_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(answered: float, asked: float, then: Any = {}, **gauges: float) -> list[str]:  # noqa: B006 - it is not changed
        lines = watched(monkeypatch, *endpoint({"receive": answered, "answer_asked": asked, "answer_recent": 0.0, **gauges}, then))
        return [line.partition(";")[0] for line in lines]

    for age, asked, said, some in (
        (20.0, 0.0, "Requests wait long for their answer", "Some requests wait long for their answer"),
        (70.0, 100.0, "Connections wait long for an answer", "Some connections wait long for an answer"),
    ):
        old, count, how = ("answer_age", "answer_waiting", "the longest") if asked else ("request_age", "request_open", "the oldest")
        critical, warning = ([f"{level} (orders kafka-1:9092): {age + 1:g} s {how}"] for level in (f"critical: {said}", f"warning: {some}"))
        assert found(100.0, asked, **{old: age + 1, count: 2.0}) == critical
        assert found(100.0, asked, **{old: age + 1, count: 2.0, "answer_recent": 1.0}) == critical, "one of three has an answer"
        assert found(100.0, asked, **{old: age + 1, count: 2.0, "answer_recent": 2.0}) == warning, "one of two has an answer"
    assert found(100.0, 0.0, request_age=20.0, request_open=2.0) == []
    assert found(100.0, 100.0, answer_age=70.0, answer_waiting=2.0) == [warning[0].replace("71", "70")], "it may be a poll of 60 s"
    assert found(100.0, 100.0, answer_age=40.0, answer_waiting=2.0) == []
    waits = {"answer_age": 71.0, "answer_waiting": 2.0}
    assert (found(50.0, 100.0, **waits), found(49.0, 100.0, **waits)) == (critical, []), "it is sent what has no answer"
    assert found(0.0, 0.0, request_age=21.0, request_open=2.0) == [
        "critical: Requests wait long for their answer (orders kafka-1:9092): 21 s the oldest"
    ]
    assert (found(0.0, 7.0, **waits), found(0.0, 8.0, **waits)) == (warning, []), "it has never answered: clients wait, or go on"
    assert found(100.0, 100.0, **waits, then={"answer_age": 1.0}) == [], "they do not wait any more"
    for mean, expected in ((35.0, critical), (35.5, critical), (35.6, [])):
        assert found(100.0, 100.0, answer_time=mean * 100, **waits) == expected, "they wait for news"


def test_clients_that_give_up_tell_of_an_endpoint_that_answers_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(
        given_up: float, ended: float, *, answers: float = 0.0, asks: float = 20.0, answered: float = 1e5, asked: float = 1e5, **now: float
    ) -> Any:
        before = {"receive": answered, "transmit": 1e5, "answer_asked": asked, "answer_recent": 0.0, "given_up": 0.0, "ended": 0.0}
        after = {"receive": answered + answers, "transmit": 1e5 + asks, "given_up": given_up, "ended": ended - given_up, **now}
        return watched(monkeypatch, *endpoint(before, after))

    place = "(orders kafka-1:9092)"
    critical = f"critical: Most clients of an endpoint give up before it answers {place}: {{}} % of those that end; `framegate upstreams list`"
    rare = f"warning: Clients give up before an endpoint answers {place}: {{}} % of those that end; `framegate upstreams list`"
    assert found(6.0, 10.0) == [critical.format(60)]
    assert (found(5.0, 10.0), found(0.5, 10.0, answers=20.0), found(0.2, 0.2, answers=20.0)) == ([rare.format(50)], [], [])
    assert found(10.0, 10.0, answers=20.0, answer_recent=9.0) == [critical.format(100)], "in 10 s 10 give up"
    assert found(10.0, 10.0, answers=20.0, answer_recent=10.0) == [], "a client that does not wait for the last answer"
    few = [found(10.0, 10.0, answers=answers, answer_recent=79.0) for answers in (14.0, 16.0, 18.0, 20.0)]
    assert few == [[critical.format(100)], [rare.format(100)], [rare.format(100)], []], "each has an answer, and then none"
    assert found(10.0, 10.0, answers=14.0, answer_recent=80.0) == [rare.format(100)], "others, whose connections stay, have more"
    many = [found(10.0, 10.0, answers=100.0, asks=200.0, answer_recent=recent) for recent in (1999.0, 2000.0)]
    assert many == [[rare.format(100)], []], "1 % of all"
    half = [found(10.0, 10.0, answers=answers, answered=5e4, answer_recent=20.0) for answers in (9.0, 10.0)]
    assert half == [[rare.format(100)], []], "the same if half of the frames have no answer"
    assert found(10.0, 10.0, answered=0.0, asked=0.0) == [critical.format(100)], "a broker that has never answered"
    assert found(10.0, 10.0, answers=10.0, asked=0.0, answer_recent=20.0) == [critical.format(100)], "a broker that answers only the first request"
    never = [found(10.0, 10.0, answered=0.0, asks=asks) for asks in (39.0, 40.0)]
    assert never == [[rare.format(100)], []], "three frames each, or frames that have no answer"


def test_answers_that_take_far_longer_than_before_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(wait: float, before: float, oldest: float = 0.0) -> list[str]:
        first = {"receive": 1000.0, "answer_time": before * 1000, "answer_age": oldest}
        return watched(monkeypatch, *endpoint(first, {"receive": 1010.0, "answer_time": before * 1000 + wait * 10, "answer_age": 0.0}))

    named = "warning: Answers take far longer than before (orders kafka-1:9092): {:g} s on average; `framegate upstreams list`"
    assert (found(3.0, 0.01), found(3.1, 0.01)) == ([], [named.format(3.1)])
    assert (found(30.0, 7.2), found(30.0, 7.3)) == ([named.format(30)], []), "at most a quarter, these ones included"
    assert (found(30.0, 1.0, 40.0), found(30.0, 1.0, 41.0)) == ([named.format(30)], []), "one that was not answered at all until now"


def test_errors_in_answers_and_answers_without_a_request_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(error: str, count: float) -> list[str]:
        return watched(
            monkeypatch,
            *merged(
                grows("framegate.kafka.response.errors", (*ENDPOINT, (ERROR_TYPE, error)), count),
                grows("framegate.upstream.frame.count", (*ENDPOINT, (DIRECTION, "receive")), 100.0),
            ),
        )

    many = "{}: {} answers of an endpoint are errors (orders kafka-1:9092 {}): {} % of its answers; `framegate upstreams list`"
    assert found("coordinator_not_available", 60.0) == [many.format("critical", "Most", "coordinator_not_available", 60)]
    assert found("group_authorization_failed", 60.0) == [many.format("warning", "Many", "group_authorization_failed", 60)]
    assert found("coordinator_not_available", 5.0) == found("rebalance_in_progress", 100.0) == []
    assert watched(monkeypatch, *merged(grows("framegate.kafka.pairing_lost", ((LISTENER, "kafka"),), 1.0))) == [
        "warning: Answers do not belong to requests (kafka): 1 connection; `framegate channels list --closed --filter listener=kafka`"
    ]


def test_a_process_that_stood_still_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [watched(monkeypatch, *merged(grows("framegate.control.lag.time", (), lag))) for lag in (3.0, 19.5)]
    assert found == [[], ["warning: The control process stood still: 19.5 s in 10 minutes; `framegate doctor`"]]
    found = [watched(monkeypatch, *merged(grows("framegate.worker.lag.time", (("framegate.worker", "1"),), lag))) for lag in (3.0, 7.0)]
    assert found == [[], ["warning: A processor stood still (1): 7 s in 10 minutes; `framegate pool get`"]]


def test_requests_of_one_api_that_all_wait_are_named_critical(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(waiting: float, answered: int) -> list[str]:
        at = ((LISTENER, "kafka"), ("framegate.kafka.api", "Produce"))
        samples = [{"framegate.kafka.request.waiting": {at: waiting}}, {"framegate.kafka.request.waiting": {at: 0.0}}]
        counts = [{"framegate.kafka.request.duration": {at: HistogramValue((count,), 1.0)}} for count in (7, 7 + answered)]
        return watched(monkeypatch, *samples, histograms=counts)

    said = ["critical: No request of an API is answered (kafka Produce): 2 connections wait; `framegate channels list`"]
    assert (found(2.0, 0), found(1.0, 0), found(2.0, 1)) == (said, [], [])


def test_an_endpoint_that_reads_nothing_is_named_critical_if_half_of_its_connections_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(stalled: float, used: float) -> list[str]:
        used_by = {(*ENDPOINT, ("framegate.state", "used")): used}
        return watched(monkeypatch, {"framegate.upstream.send.stalled": {ENDPOINT: stalled}, "framegate.upstream.connection.count": used_by})

    critical = "critical: An endpoint does not read what it is sent (orders kafka-1:9092): {}; `framegate upstreams list`"
    warning = "warning: An endpoint does not read what it is sent on some connections (orders kafka-1:9092): {}; `framegate upstreams list`"
    assert (found(0.0, 1.0), found(1.0, 2.0), found(1.0, 3.0)) == ([], [critical.format("1 connection")], [warning.format("1 connection")])
    assert found(2.0, 4.0) == [critical.format("2 connections")]


def test_answers_that_are_missing_or_have_stopped_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(sent: float, asked: float, answers: float, before: float = 1e4) -> list[str]:
        first = {"receive": before, "answer_asked": before, "transmit": before, "answer_recent": 0.0}
        after = {"receive": before + answers, "answer_asked": before + asked, "transmit": before + sent}
        return watched(monkeypatch, *endpoint(first, after))

    lost = "warning: Answers are missing that came before (orders kafka-1:9092): {} % of them; `framegate upstreams list`"
    assert (found(50.0, 50.0, 45.0), found(50.0, 50.0, 44.0)) == ([], [lost.format(12)])
    assert (found(2.0, 2.0, 1.0), found(3.0, 3.0, 1.0)) == ([], [lost.format(66.7)]), "they are many"
    assert found(500.0, 50.0, 50.0) == [], "what others send is not meant to be answered"
    stopped = (
        "warning: Nothing is answered where requests were answered before (orders kafka-1:9092): {} frames sent a second; `framegate upstreams list`"
    )
    assert (found(0.5, 0.0, 0.0), found(0.6, 0.0, 0.0), found(50.0, 0.0, 1.0)) == ([], [stopped.format(0.06)], [])
    assert found(50.0, 0.0, 0.0, before=0.0) == [], "it has never answered"


def test_certificates_end_soon_by_their_own_life(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = 3_600.0

    def found(left: float, life: float, use: str = "listener/kafka") -> str:
        now, at = 1e9, (("framegate.certificate", use),)
        monkeypatch.setattr(condition, "time", SimpleNamespace(time=lambda: now))
        times = {f"framegate.tls.certificate.not_{when}": {at: now + time_s} for when, time_s in (("before", left - life), ("after", left))}
        return "".join(line.partition(" (")[0] for line in watched(monkeypatch, times))

    critical, warning = (f"{level}: A certificate ends {when}" for level, when in (("critical", "very soon"), ("warning", "soon")))
    day, year = 24 * hour, 365 * 24 * hour
    for life, critical_below, warning_below in ((day, 2.4 * hour, 4.8 * hour), (7 * day, 16.8 * hour, 33.6 * hour), (90 * day, 3 * day, 14 * day)):
        edges = [found(edge + more, life) for edge in (critical_below, warning_below) for more in (-1.0, 1.0)]
        assert edges == [critical, warning, warning, ""], life
    assert (found(3 * day - 1, year), found(14 * day + 1, year), found(-1.0, day)) == (critical, "", critical)
    lists = [found(left, life, "listener/kafka/crl") for life in (day, 30 * day) for left in (life / 10 + 1, min(life / 10, day) - 1)]
    assert [bool(line) for line in lists] == [False, True, False, True]


def test_rules_that_refuse_most_requests_of_an_api_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(refused: float, answered: int, kind: str = "api") -> list[str]:
        at = ((LISTENER, "kafka"), ("framegate.kafka.api", "Produce"))
        counts = [{"framegate.kafka.request.duration": {at: HistogramValue((count,), 1.0)}} for count in (0, answered)]
        return watched(monkeypatch, *grows("framegate.kafka.request.refused", (*at, ("framegate.kafka.refusal", kind)), refused), histograms=counts)

    said = ["warning: Rules refuse most requests of an API (kafka Produce api): 0.6 a second; `framegate kafka-rules get --listener kafka`"]
    assert (found(6.0, 5), found(6.0, 6), found(6.0, 5, "report_only"), found(0.5, 0)) == (said, [], [], [])
    assert found(6.0, 0) == said


def test_far_more_connections_than_an_hour_ago_need_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(minutes: int, now: float) -> list[str]:
        at, counts = ((LISTENER, "kafka"),), [60.0 * minute for minute in range(minutes)]
        samples = [{"framegate.connection.accepted": {at: count}} for count in (*counts, counts[-1] + now * 60)]
        return [line.partition(" (")[0] for line in watched(monkeypatch, *samples, apart_s=60.0)]

    more = ["warning: Far more connections come than an hour ago"]
    assert (found(2, 70.0), found(66, 70.0), found(66, 50.0)) == ([], more, [])


def test_a_problem_at_many_places_is_one_line_and_amounts_have_units(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(count: int) -> list[str]:
        lag = {(("framegate.consumer", f"job-{number}"),): 700.0 + number for number in range(count)}
        return [line.partition(";")[0] for line in watched(monkeypatch, {"framegate.tap.lag.time": lag})]

    behind = "warning: A reader of the tap is far behind"
    assert len(found(8)) == 8
    assert found(9) == [f"{behind} (job-8, and 8 others): 11.8 min"]
    disk = [watched(monkeypatch, {"framegate.tap.disk.time_left": {(): left}}) for left in (0.7, 60.0, 7_300.0)]
    assert [line.partition("hours: ")[2].partition(";")[0] for (line,) in disk] == ["less than a minute left", "60 s left", "2.03 hours left"]


def test_restarts_of_the_last_ten_minutes_are_named_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*counts: float) -> list[str]:
        died = (("framegate.reason", "died"),)
        return watched(monkeypatch, *({"framegate.worker.restarts": {died: count} if count else {}} for count in counts), apart_s=100.0)

    named = "warning: A processor was started again (died): {} in 10 minutes; `framegate channels list --closed --filter cause=processor_died`"
    once = [named.format("1 restart")]
    assert found(0, 1, 1, 1) == once
    assert found(0, 1, 1, 2, 2, 2, 3) == [named.format("3 restarts")]
    for later, said in ((5, once), (6, once), (7, [])):
        assert found(0, *[1] * later) == said, f"{later - 1} times 100 s after it"


def test_peers_that_do_not_read_are_named_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(pending: float) -> dict[str, Any]:
        at = ((SIDE, "downstream"), (LISTENER, "kafka"))
        return {"framegate.channel.pending": {at: pending}, "framegate.connection.active": {at: 9.0}}

    named = ["info: Peers do not take what is sent to them (kafka downstream): 3 channels; `framegate pool get --top 10`"]
    for pending, found in (((0, 0, 3), []), ((0, 3, 3), named), ((3, 3, 0), []), ((0, 0, 0, 0, 3, 4), named)):
        assert watched(monkeypatch, *map(sample, pending), apart_s=10.0 if len(pending) < 6 else 5.0) == found, pending


def test_before_it_begins_nothing_is_found() -> None:
    watch = Watch()
    assert asyncio.run(watch.found()) == []


def test_the_first_panel_has_the_same_words_and_their_commands_exist(tmp_path: Any) -> None:
    panel, seen = written.problem_words(), [problem.words for alert in ALERTS for problem in alert.problems]
    assert [words for words in seen if f'"{words}"' not in panel] == []
    for alert in ALERTS:
        for problem in alert.problems:
            command_lines.parse(problem.command, tmp_path)
