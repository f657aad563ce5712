import asyncio
import socket
from typing import Any

import pytest

from control import resolver as module
from control.resolver import Resolution, Resolver, resolve
from proxy.config.model import UpstreamConfig


def upstream(*endpoints: str) -> UpstreamConfig:
    return UpstreamConfig(name="u", endpoints=endpoints)


def test_literal_addresses_go_through_as_they_are() -> None:
    resolution = resolve(upstream("10.0.0.1:9092", "[::1]:9092", "unix:/run/u.sock", "10.0.0.1:9092"))
    assert resolution.addresses == [[2, "10.0.0.1", 9092], [10, "::1", 9092], [1, "/run/u.sock"]]
    assert resolution.texts() == ("10.0.0.1:9092", "[::1]:9092", "unix:/run/u.sock")
    assert resolution.error == ""


def test_a_name_becomes_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, 1, 6, "", ("10.0.0.1", 1)), (socket.AF_INET6, 1, 6, "", ("fd00::1", 1, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **keywords: answer)
    assert resolve(upstream("broker:1")).addresses == [[2, "10.0.0.1", 1], [10, "fd00::1", 1]]


def test_a_failed_lookup_keeps_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **keywords: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    resolution = resolve(upstream("10.0.0.1:1", "gone:1"), Resolution([[2, "10.9.9.9", 1]]))
    assert resolution.addresses == [[2, "10.0.0.1", 1], [2, "10.9.9.9", 1]]
    assert resolution.error == "gone:1: Name or service not known"
    assert resolve(upstream("gone:1")).addresses == []


def test_a_change_is_told_on_the_loop_and_a_new_order_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["10.0.0.2", "10.0.0.1"], ["10.0.0.3"]])
    done = False

    def answer(*arguments: Any, **keywords: Any) -> list[Any]:
        hosts = next(answers, ["10.0.0.3"])
        return [(socket.AF_INET, 1, 6, "", (host, 1)) for host in hosts]

    async def scenario() -> None:
        nonlocal done
        changed = asyncio.Event()
        names = (upstream("broker:1"),)
        resolver = Resolver(names, {"u": Resolution([[2, "10.0.0.1", 1], [2, "10.0.0.2", 1]])}, changed.set)
        async with asyncio.timeout(5):
            await changed.wait()
        assert resolver.current["u"].texts() == ("10.0.0.3:1",)
        resolver.stop()
        done = True

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    asyncio.run(scenario())
    assert done


def test_without_names_nothing_is_looked_up() -> None:
    async def scenario() -> None:
        resolver = Resolver((upstream("127.0.0.1:1"),), {}, lambda: None)
        assert not resolver._thread.is_alive()
        resolver.stop()

    asyncio.run(scenario())
