"""The problems, found from inside: words, place, how much, and a command."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.control.steering import problems
from framegate.control.steering.problems import ALERTS, Watch
from framegate.proxy.cells.metrics import (
    CLIENT_ADDRESS,
    CLIENT_ID,
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


def watched(monkeypatch: pytest.MonkeyPatch, *samples: dict[str, Any]) -> list[str]:
    """What is found after samples, ten seconds apart."""
    now = iter(range(0, 1_000, 10))
    monkeypatch.setattr(problems, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    watch, left = Watch(), iter(samples)
    watch.begin(lambda: SimpleNamespace(points=CALM | next(left), histograms={}))

    async def look() -> None:
        for _ in samples:
            await watch.look()

    asyncio.run(look())
    return [str(found) for found in watch.found()]


def test_problems_are_named_with_place_extent_and_command_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, {}, {}) == []
    logins = [{"framegate.authentication.count": {((LISTENER, "kafka"), (ERROR_TYPE, "denied")): count}} for count in (0.0, 60.0)]
    assert watched(monkeypatch, logins[0], {**logins[1], "framegate.upstream.request.age": {ENDPOINT: 31.0}}) == [
        "Requests wait long for their answer (orders kafka-1 9092): 31 s the oldest; `framegate upstreams list`",
        "Logins of clients are refused (kafka denied): 6 in a second; `framegate channels list --closed --filter cause=auth_failed`",
    ]
    assert watched(monkeypatch, {"framegate.upstream.endpoint.count": {ENDPOINT: 0.0}}) == [
        "The names of an upstream are not resolved (orders): 0 addresses; `framegate upstreams list`"
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
        assert found(user, address, 0.11) == [f"{words} ({place}): 0.11 in a second; {command}"]


def test_a_client_with_more_than_half_of_the_bytes_is_named_if_it_is_one_of_ten_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(rate: float, clients: float = 10.0) -> list[str]:
        passed = ((SIDE, "downstream"), (LISTENER, "kafka"))
        samples = [{"framegate.io": {passed: count}, "framegate.connection.active": {passed: clients}} for count in (0.0, 1e7)]
        return watched(monkeypatch, samples[0], {**samples[1], "framegate.client.io": {client("ann", "loader", "10.0.0.1"): rate}})

    named = "One client has more than half of a listener's bytes (kafka ann loader 10.0.0.1): 0.6 of all; `framegate top --sort bytes_rate`"
    assert (found(6e5), found(5e5), found(6e5, 9.0)) == ([named], [], [])


def test_before_it_begins_nothing_is_found() -> None:
    watch = Watch()
    asyncio.run(watch.look())
    assert watch.found() == []


def test_the_first_panel_has_the_same_words_and_their_commands_exist(tmp_path: Any) -> None:
    panel, seen = written.problem_words(), [problem.words for alert in ALERTS for problem in alert.problems]
    assert [words for words in seen if f'"{words}"' not in panel] == []
    for alert in ALERTS:
        for problem in alert.problems:
            command_lines.parse(problem.command, tmp_path)
