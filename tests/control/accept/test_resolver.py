import asyncio
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from framegate.control.accept import resolver as module
from framegate.control.accept.resolver import Names, Resolution, Resolver, in_thread, system_lookup
from framegate.proxy.config.model import UpstreamConfig
from tests.fakes.fleet import MemoryLog


class Server:
    """A name server: answers are lists of addresses, errors, or events that are waited for first."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[tuple[int, str]]:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, threading.Event):
            answer.wait(10)
            answer = self.answers[f"{host}_then"]
        if isinstance(answer, Exception):
            raise answer
        return [(int(socket.AF_INET6 if ":" in item else socket.AF_INET), item) for item in answer]


def upstream(*endpoints: str, name: str = "u") -> UpstreamConfig:
    return UpstreamConfig(name=name, endpoints=endpoints)


def unknown() -> OSError:
    return socket.gaierror(-2, "Name or service not known")


def test_literal_addresses_go_through_as_they_are() -> None:
    names = Names([upstream("10.0.0.1:9092", "[0:0::1]:9092", "unix:/run/u.sock", "10.0.0.1:9092")], Server())
    resolution = names.ask()["u"]
    assert resolution.addresses == [["10.0.0.1", 2, "10.0.0.1", 9092], ["::1", 10, "::1", 9092], ["", 1, "/run/u.sock"]]
    assert resolution.texts() == ("10.0.0.1:9092", "[::1]:9092", "unix:/run/u.sock")
    assert (resolution.error, names.any) == ("", False)


def test_a_name_becomes_all_of_its_addresses_each_with_its_host() -> None:
    names = Names([upstream("broker-a:1", "broker-b:1")], Server(**{"broker-a": ["10.0.0.1", "fd00::1"], "broker-b": ["10.0.0.1"]}))
    resolution = names.ask()["u"]
    assert resolution.addresses == [["broker-a", 2, "10.0.0.1", 1], ["broker-a", 10, "fd00::1", 1], ["broker-b", 2, "10.0.0.1", 1]]
    assert resolution.texts() == ("10.0.0.1:1", "[fd00::1]:1")


def test_the_system_knows_localhost() -> None:
    resolution = Names([upstream("localhost:7")], system_lookup).ask()["u"]
    assert resolution.error == ""
    assert {row[0] for row in resolution.addresses} == {"localhost"}
    assert {"127.0.0.1:7", "[::1]:7"} & set(resolution.texts())


def test_a_name_that_fails_keeps_its_own_addresses_while_others_move() -> None:
    server = Server(a=["10.0.0.1"], b=["10.0.1.1"])
    names = Names([upstream("a:1", "b:1", "10.9.9.9:1")], server)
    assert names.ask()["u"].texts() == ("10.0.0.1:1", "10.0.1.1:1", "10.9.9.9:1")
    server.answers.update(a=unknown(), b=["10.0.1.2"])
    for _ in range(2):
        resolution = names.ask()["u"]
        assert resolution.texts() == ("10.0.0.1:1", "10.0.1.2:1", "10.9.9.9:1")
        assert resolution.errors == {"a:1": "Name or service not known"}
        assert resolution.error == "a:1: Name or service not known"
    server.answers.update(a=["10.0.0.3"], b=unknown())
    resolution = names.ask()["u"]
    assert (resolution.texts(), resolution.error) == (("10.0.0.3:1", "10.0.1.2:1", "10.9.9.9:1"), "b:1: Name or service not known")


def test_a_name_that_never_resolves_holds_nobody_elses_addresses() -> None:
    server = Server(gone=unknown(), b=["10.0.1.1"])
    names = Names([upstream("gone:1", "b:1"), upstream("gone:1", name="v")], server)
    names.ask()
    server.answers["b"] = ["10.0.1.2"]
    found = names.ask()
    assert found["u"].texts() == ("10.0.1.2:1",)
    assert (found["v"].addresses, found["v"].error) == ([], "gone:1: Name or service not known")
    assert server.asked.count("gone") == 2, "once a round, however many upstreams name it"


def test_an_answer_without_an_address_and_an_error_of_any_kind_are_that_names_alone() -> None:
    names = Names([upstream("empty:1", "odd:1", "b:1")], Server(empty=[], odd=UnicodeError("label too long"), b=["10.0.1.1"]))
    resolution = names.ask()["u"]
    assert resolution.texts() == ("10.0.1.1:1",)
    assert resolution.errors == {"empty:1": "no address", "odd:1": "label too long"}


def test_a_name_whose_server_hangs_delays_the_others_by_the_patience_alone_and_is_not_asked_twice() -> None:
    answered = threading.Event()
    server = Server(slow=answered, slow_then=["10.0.0.1"], b=["10.0.1.1"])
    names = Names([upstream("slow:1", "b:1")], server, patience_s=0.05)
    for address in ("10.0.1.1", "10.0.1.2"):
        server.answers["b"] = [address]
        resolution = names.ask()["u"]
        assert (resolution.texts(), resolution.errors) == ((f"{address}:1",), {"slow:1": "no answer within 0.05 s"})
    assert server.asked.count("slow") == 1
    answered.set()
    for thread in [item for item in threading.enumerate() if item.name == "framegate-lookup"]:
        thread.join(5)
    resolution = names.ask()["u"]
    assert (resolution.texts(), resolution.error) == (("10.0.0.1:1", "10.0.1.2:1"), "")


@contextlib.contextmanager
def resolving(names: Names, first: dict[str, Resolution], log: MemoryLog, **options: Any) -> Iterator[tuple[Resolver, asyncio.Queue[None]]]:
    rounds: asyncio.Queue[None] = asyncio.Queue()
    resolver = Resolver(names, first, lambda: rounds.put_nowait(None), log, **options)
    try:
        yield resolver, rounds
    finally:
        resolver.stop()
        if names.any:
            resolver._thread.join(5)


def test_every_round_is_told_on_the_loop_and_errors_when_they_change() -> None:
    server = Server(broker=unknown())
    log = MemoryLog()

    async def scenario() -> None:
        names = Names([upstream("broker:1")], server)
        with resolving(names, names.ask(), log, interval_s=0.01, first_pause_s=0.01) as (resolver, rounds):
            async with asyncio.timeout(5):
                await rounds.get()
                await rounds.get()
                server.answers["broker"] = ["10.0.0.3"]
                while not log.events("resolved"):
                    await rounds.get()
            assert resolver.current["u"].texts() == ("10.0.0.3:1",)

    asyncio.run(scenario())
    assert [(row["upstream"], row["endpoint"], row["error"]) for row in log.events("resolve_failed")] == [
        ("u", "broker:1", "Name or service not known")
    ]
    assert [(row["upstream"], row["endpoint"]) for row in log.events("resolved")] == [("u", "broker:1")]


def test_a_loop_that_is_closed_ends_the_thread() -> None:
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def lookup(host: str, port: int) -> list[tuple[int, str]]:
        asked.put(host)
        return [(2, "10.0.0.1")]

    async def scenario() -> Resolver:
        return Resolver(Names([upstream("broker:1")], lookup), {}, lambda: None, MemoryLog(), interval_s=0.01)

    resolver = asyncio.run(scenario())
    asked.get(timeout=5)
    resolver._thread.join(5)
    assert not resolver._thread.is_alive()


def test_work_on_a_thread_gives_its_result_or_its_error_and_is_left_behind_when_cancelled() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def scenario() -> None:
        assert await in_thread(lambda: 7) == 7
        with pytest.raises(ValueError, match="no"):
            await in_thread(fail)
        done = threading.Event()
        waiting = asyncio.create_task(in_thread(done.wait))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        done.set()

    asyncio.run(scenario())


def test_other_endpoints_are_looked_up_without_forgetting_those_that_stay() -> None:
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[tuple[int, str]]:
        asked.append(host)
        if host == "gone" or asked.count(host) > 1:
            raise OSError("no such name")
        return [(int(socket.AF_INET), f"10.0.0.{port}")]

    names = Names((), lookup)
    assert not names.any
    assert names.ask() == {}
    names.watch({"1": ["a:1"], "2": ["b:2"], "3": ["127.0.0.1:3"]})
    assert {name: found.texts() for name, found in names.ask().items()} == {"1": ("10.0.0.1:1",), "2": ("10.0.0.2:2",), "3": ("127.0.0.1:3",)}
    names.watch({"1": ["a:1"], "4": ["gone:4"]})
    found = names.ask()
    assert (found["1"].texts(), found["1"].error) == (("10.0.0.1:1",), "a:1: no such name"), "the last good address stays"
    assert (found["4"].texts(), found["4"].error) == ((), "gone:4: no such name")
    names.watch({"2": ["b:2"]})
    assert names.ask()["2"].texts() == (), "what is not watched is forgotten"


def test_an_upstream_that_is_added_keeps_its_addresses_when_the_first_look_up_fails() -> None:
    added = upstream("a:1", name="added")
    found = Names([added], Server(a=["10.0.0.1"])).ask()

    async def main() -> None:
        with resolving(Names([], Server(a=unknown())), {}, MemoryLog(), interval_s=0.01) as (resolver, rounds):
            resolver.start()
            resolver.follow([added], found)
            resolver.follow([added, upstream("10.0.0.2:1", name="other")], {"other": Resolution([["10.0.0.2", 2, "10.0.0.2", 1]])})
            await asyncio.wait_for(rounds.get(), 10)
            assert (resolver.current["added"].texts(), resolver.current["added"].error) == (("10.0.0.1:1",), "a:1: Name or service not known")

    asyncio.run(main())


def test_thousands_of_names_need_few_threads() -> None:
    here = {"now": 0, "most": 0}
    lock = threading.Lock()

    def lookup(host: str, port: int) -> list[tuple[int, str]]:
        with lock:
            here["now"] += 1
            here["most"] = max(here.values())
        time.sleep(0.0005)
        with lock:
            here["now"] -= 1
        return [(int(socket.AF_INET), "10.0.0.1")]

    names = Names((), lookup)
    names.watch({str(node): [f"b{node}:1"] for node in range(300)})
    assert all(item.addresses for item in names.ask().values())
    assert here["most"] <= module.MOST_AT_ONCE
