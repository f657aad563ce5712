import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

from framegate.control.accept.resolver import Names, Resolution, Resolver, system_lookup
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
