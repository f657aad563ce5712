"""The problems, found from inside: words, place, how much, and a command."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.control.steering import problems
from framegate.control.steering.problems import ALERTS, Watch
from framegate.proxy.cells.metrics import ERROR_TYPE, LISTENER, SERVER_ADDRESS, SERVER_PORT, UPSTREAM
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
    logins = [{"framegate.authentication.count": {((LISTENER, "kafka"), (ERROR_TYPE, "credentials")): count}} for count in (0.0, 60.0)]
    assert watched(monkeypatch, logins[0], {**logins[1], "framegate.upstream.request.age": {ENDPOINT: 31.0}}) == [
        "Requests wait long for their answer (orders kafka-1 9092): 31 s the oldest; `framegate upstreams list`",
        "Logins of clients are refused (kafka credentials): 6 in a second; `framegate channels list --closed --filter cause=auth_failed`",
    ]
    assert watched(monkeypatch, {"framegate.upstream.endpoint.count": {ENDPOINT: 0.0}}) == [
        "The names of an upstream are not resolved (orders): 0 addresses; `framegate upstreams list`"
    ]


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
