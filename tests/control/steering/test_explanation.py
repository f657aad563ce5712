"""framegate.control.steering.explanation: what channels wait for, from their rows."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.errors import NotFoundError
from framegate.control.steering.explanation import SHOWN, SLOW_NS, UNSENT, Explanation
from framegate.proxy.config.limits import LimitOverride, LimitRule, LimitsConfig, ListenerLimits
from framegate.proxy.network.connection_id import parse_connection_id
from tests.fakes.plane import FakePlane, channel_row, fake_config, holder
from tests.fakes.rows import OPENED_NS

S = 10**9
QUIET = {"muted_upstream": [], "muted_upstream_ns": 0, "unsent": {"request": 0, "response": 0}, "in_flight": 0, "oldest_ns": 0, "leased": 0}
WHO = "client 10.0.0.9:51000 (channel 0-1-7, client id billing-7)"


def explain(ask: Callable[[FakePlane], Awaitable[Explanation]], *rows: Any, **attributes: Any) -> Explanation:
    """Explain over a plane with rows, 10 s after they were opened."""

    async def main() -> Explanation:
        plane = FakePlane(fake_config("unix:/nowhere/admin.sock"))
        try:
            for name, value in attributes.items():
                setattr(plane, name, value)
            plane.add(*rows)
            return await ask(plane)
        finally:
            plane.close()

    return asyncio.run(main())


def of_channel(plane: FakePlane) -> Awaitable[Explanation]:
    return plane.parts.explanations.channel(int(parse_connection_id("0-1-7")))


def of_listener(plane: FakePlane) -> Awaitable[Explanation]:
    return plane.parts.explanations.listener("kafka")


def test_each_cause_has_a_sentence_with_who_holds_the_channel_up_and_since_when() -> None:
    muted = {"muted_ns": OPENED_NS + 7 * S}
    cases: list[tuple[dict[str, Any], list[tuple[str, str, str]]]] = [
        ({}, []),
        ({"oldest_ns": OPENED_NS + 10 * S - SLOW_NS + 1, "in_flight": 1}, []),
        (
            {"oldest_ns": OPENED_NS + 10 * S - SLOW_NS, "in_flight": 3},
            [
                (
                    "answer",
                    "upstream",
                    f"endpoint 10.1.0.1:9092 has not answered 3 requests of {WHO}; the oldest is 1s old; on average its first answer takes 3ms",
                )
            ],
        ),
        ({"oldest_ns": OPENED_NS + 10 * S - SLOW_NS + 1}, []),
        (
            {"oldest_ns": OPENED_NS + 10 * S - SLOW_NS},
            [
                (
                    "answer",
                    "upstream",
                    f"endpoint 10.1.0.1:9092 has not answered {WHO}; the oldest wait is 1s old; on average its first answer takes 3ms",
                )
            ],
        ),
        ({"unsent": {"request": UNSENT - 1, "response": UNSENT - 1}}, []),
        (
            {"unsent": {"request": 0, "response": 3 << 20}, "leased": 2 << 20, "oldest_ns": OPENED_NS, "in_flight": 1},
            [("client", "downstream", f"{WHO} has not taken 3MiB of answers, and 2MiB of the memory pool is held for that")],
        ),
        (
            {"muted_upstream": ["peer"], "muted_upstream_ns": OPENED_NS + 8 * S, "unsent": {"request": 0, "response": 20 << 20}},
            [("client", "downstream", f"{WHO} has not taken 20MiB of answers; framegate has not read further answers for 2s")],
        ),
        (
            {"muted": ["peer"], **muted, "unsent": {"request": 70_000, "response": 0}},
            [("endpoint", "upstream", f"endpoint 10.1.0.1:9092 has not taken 68KiB of requests; framegate has not read from {WHO} for 3s")],
        ),
        (
            {"muted": ["admin"], **muted, "mute_reason": "incident 7"},
            [("operator", "internal", f"an operator has muted {WHO} for 3s, for the reason: incident 7")],
        ),
        ({"muted": ["handler"], **muted}, [("handler", "internal", f"a handler works on frames; framegate has not read from {WHO} for 3s")]),
        (
            {"muted": ["tap"], **muted},
            [("tap", "internal", f"the tap's queue is full, and a tap rule says on_full: mute; framegate has not read from {WHO} for 3s")],
        ),
        ({"muted": ["drain"], **muted}, [("drain", "internal", f"framegate drains; framegate has not read from {WHO} for 3s")]),
        ({"state": "handshaking"}, [("handshake", "downstream", f"{WHO} has not completed the TLS handshake or the login for 10s")]),
        (
            {"state": "connecting_upstream", "endpoint": "10.1.0.2:9092"},
            [
                (
                    "connect",
                    "upstream",
                    f"upstream brokers is not connected at 10.1.0.2:9092 for {WHO}; it is down: Connection refused; the oldest waits for 10s",
                )
            ],
        ),
        (
            {"muted": ["throttle"], **muted},
            [
                (
                    "quota",
                    "internal",
                    "a quota is used up (address 10.0.0.9: request_frames_rate 10/s; node: request_bytes_rate 1MiB/s; node: response_bytes_rate "
                    f"2MiB/s); framegate has not read from {WHO} for 3s",
                )
            ],
        ),
        (
            {"muted": ["throttle"], **muted, "throttle": {"request_rate": 2048, "response_rate": 0, "reason": ""}, "peer": "unix:"},
            [
                (
                    "quota",
                    "internal",
                    "a quota is used up (an operator's throttle: request_bytes_rate 2KiB/s; node: request_bytes_rate 1MiB/s; node: "
                    "response_bytes_rate 2MiB/s); framegate has not read from client unix: (channel 0-1-7, client id billing-7) for 3s",
                )
            ],
        ),
        (
            {"muted": ["memory"], **muted},
            [
                (
                    "memory",
                    "internal",
                    f"the memory pool is short: processor 0 holds 5B of its 128MiB; framegate has not read from {WHO} for 3s; most is held by "
                    "channel 0-1-9 of 10.0.0.9:51000 (20MiB: answers that it has not taken)",
                )
            ],
        ),
    ]
    quotas = LimitsConfig(
        request_bytes_rate=1 << 20, response_bytes_rate=2 << 20, overrides=(LimitOverride(network="10.0.0.0/8", request_frames_rate=10),)
    )
    wrong = {}
    for changes, wanted in cases:
        row = channel_row("0-1-7", **{**QUIET, **changes})
        found = explain(of_channel, row, node_quotas=quotas, holders=[holder("0-1-9", 20 << 20, kind="pending")])
        said = [(wait.kind, wait.side, wait.text) for wait in found.waits]
        if said != wanted:
            wrong[str(changes)] = said
    assert wrong == {}


def test_the_summary_says_whose_channel_it_is_and_when_a_byte_last_passed() -> None:
    found = explain(of_channel, channel_row("0-1-7", **QUIET))
    assert found.summary == (
        "channel 0-1-7: 10.0.0.9:51000 (CN=client; client id billing-7; apache-kafka-java 3.7.0) on listener kafka, to brokers 10.1.0.1:9092; open, "
        "accepted 10s ago, 0 requests in flight; the last byte passed 9s ago"
    )
    waits = explain(of_channel, channel_row("0-1-7", **{**QUIET, "oldest_ns": OPENED_NS}))
    assert waits.summary.endswith("open, accepted 10s ago, it waits for an answer; the last byte passed 9s ago"), "its requests are not counted"
    ruled = channel_row("0-1-7", **{**QUIET, "limit_rule": "etl", "muted": ["throttle"], "listener": "plain"})
    rules = (LimitRule(name="all", response_frames_rate=2), LimitRule(name="etl", request_bytes_rate=1 << 20))

    async def with_rules(plane: FakePlane) -> Explanation:
        first, second = plane.config.listeners
        plane.desired.config = dataclasses.replace(
            plane.config, listeners=(first, dataclasses.replace(second, limits=ListenerLimits(rules=rules, request_frames_rate=3)))
        )
        return await of_channel(plane)

    found = explain(with_rules, ruled)
    assert " on listener plain, limit rule etl, to brokers " in found.summary
    assert "(limit rule etl: request_bytes_rate 1MiB/s; listener plain: request_frames_rate 3/s)" in found.waits[0].text
    with pytest.raises(NotFoundError):
        explain(of_channel)


def test_waits_of_a_listener_are_put_together_by_kind_and_endpoint_with_the_largest_first() -> None:
    slow = {**QUIET, "in_flight": 2}
    rows = [
        channel_row(f"0-1-{number}", **{**QUIET, "unsent": {"request": 0, "response": number << 20}, "muted_upstream": ["peer"], "leased": 1024})
        for number in range(1, SHOWN + 2)
    ]
    rows += [channel_row(f"1-1-{number}", **{**slow, "oldest_ns": OPENED_NS + number * S}) for number in (2, 1)]
    rows += [channel_row("1-1-3", **{**slow, "endpoint": "10.1.0.3:9092", "oldest_ns": OPENED_NS}), channel_row("1-1-4", **QUIET)]
    rows += [channel_row("1-1-5", "plain", muted=["admin"])]
    found = explain(of_listener, *rows)
    assert found.summary == "listener kafka: 10 channels open, 9 of them wait"
    client, answer, other, failed = found.waits
    assert (client.kind, client.waiting, client.unsent, client.held) == ("client", SHOWN + 1, sum(range(1, SHOWN + 2)) << 20, (SHOWN + 1) * 1024)
    assert client.channels == tuple(int(parse_connection_id(f"0-1-{number}")) for number in range(SHOWN + 1, 1, -1))
    assert client.text.startswith(
        "6 clients, the largest of them client 10.0.0.9:51000 (channel 0-1-6, client id billing-7) have not taken 21MiB of answers"
    )
    assert (answer.endpoint, answer.since_ns, answer.waiting) == ("10.1.0.1:9092", OPENED_NS + S, 2)
    assert answer.text.startswith("endpoint 10.1.0.1:9092 has not answered 4 requests of 2 clients")
    assert other.endpoint == "10.1.0.3:9092"
    assert failed.text == "endpoint 10.1.0.2:9092 of upstream brokers has been down for 500000h (refused: Connection refused)"


def test_channels_that_wait_without_requests_that_can_be_counted_are_named() -> None:
    found = explain(of_listener, *(channel_row(f"0-1-{number}", **{**QUIET, "oldest_ns": OPENED_NS + number * S}) for number in (1, 2, 3, 4)))
    assert found.summary == "listener kafka: 4 channels open, 4 of them wait"
    answer = found.waits[0]
    assert (answer.kind, answer.since_ns, answer.waiting, len(answer.channels)) == ("answer", OPENED_NS + S, 4, 4)
    assert answer.text.startswith("endpoint 10.1.0.1:9092 has not answered 4 clients, the largest of them client 10.0.0.9:51000 (channel 0-1-1, ")
    assert "; the oldest wait is 9s old" in answer.text


def test_a_listener_that_takes_no_connections_says_so_and_one_that_does_not_exist_is_not_found() -> None:
    assert [wait.text for wait in explain(of_listener, accepting=False).waits if wait.kind == "accept"] == [
        "the listener accepts no connections: framegate drains or has not started"
    ]
    with pytest.raises(NotFoundError):
        explain(lambda plane: plane.parts.explanations.listener("none"))
