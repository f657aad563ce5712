"""What control relies on, of a processor: the real one and the fake of control's tests give the same answers over the same sockets."""

import contextlib
import dataclasses
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from framegate.control.fleet.processor import COMMAND
from framegate.proxy.config.model import MIB, ProxyConfig, TapConfig, TapRule
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.relay.handler_wire import WIRE, HandlerFacts, Hello, encode_closed, encode_hello
from framegate.proxy.server.link import HANDLER_PROCESS, Handover, send_handovers
from framegate.proxy.server.loop import Loop
from framegate.proxy.server.protocol import WIRE_VERSION, Request, read_notice, read_ready
from tests.fakes import fleet
from tests.fakes.cases import each_of
from tests.fakes.changes import change, change_to, edited
from tests.fakes.conformance import Kind
from tests.fakes.processor import FakeProcessor
from tests.fakes.rows import decode_line
from tests.fakes.server import ServerProcess
from tests.fakes.upstream import ScriptedUpstream, frame

Row = dict[str, Any]
CONFIG = fleet.fleet_config(1)
INTERFACE: Final = object  # no class: what a process says on its two sockets and in its cells
KINDS: Final = {"fake": Kind(FakeProcessor, lambda: fleet.COMMAND), "real": Kind(Loop, lambda: COMMAND)}
REFUSED = "refused"


class Processor(ServerProcess):
    """A process and control's ends of what connects it. ``closed`` holds the closed rows, ``told`` of all rows of connections their notice and id.
    Whatever comes is judged as control judges it.
    """

    def __init__(self, command: tuple[str, ...], upstream: ScriptedUpstream, config: ProxyConfig = CONFIG) -> None:
        super().__init__(config, start=False, command=command)
        self.closed: list[Row] = []
        self.told: list[tuple[str, str]] = []
        self.open: defaultdict[int, deque[str]] = defaultdict(deque)  # what was asked under an id and is not answered
        self.accepted_ns = 0
        self.pair = 0
        self.heard = 0  # of what was told of handler processes
        self.clients: list[socket.socket] = []
        self.endpoints = {"u": [["127.0.0.1", int(socket.AF_INET), "127.0.0.1", upstream.port]]}

    def send(self, *messages: Row) -> None:
        for message in messages:
            self.open[message.get("id", 0)].append(message["type"])
        super().send(*messages)

    def receive(self, timeout_s: float = 10.0) -> bool:
        if not super().receive(timeout_s):
            raise EOFError("the processor closed its link")
        return True

    def take(self, message: Row) -> None:
        kind = message["type"]
        if message.get("id") is not None:
            asked = self.open[message["id"]].popleft()
            assert Request[Any](cast(Any, {"type": asked})).read(message) == message
        elif kind in ("opened", "access", "closed"):
            rows = [decode_line(line, kind) for line in message["rows"]]
            self.told += [(kind, format_connection_id(row["id"])) for row in rows]
            self.closed += rows if kind == "closed" else ()
            return
        elif kind == "ready":
            read_ready(message)
        elif kind != "failed":
            read_notice(message)
        super().take(message)

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self.receive()

    def start(self, **changes: Any) -> None:
        """Say the first words; a change to None leaves a word out."""
        message = {**self.start_message(generation=7, share=12 * MIB, endpoints=self.endpoints), **changes}
        self.send({key: value for key, value in message.items() if value is not None})
        self.until(lambda: self.notices)

    def prepare(self, **change: Any) -> tuple[int, str]:
        number = self.begin("prepare", change=change)
        return number, str(self.answer(number)["type"])

    def decide(self, verb: str, number: int) -> str:
        self.send({"type": verb, "id": number})
        return str(self.answer(number)["type"])

    def connect(self) -> socket.socket:
        """A client of listener a, handed over; its echo has come back, so it is open on both sides."""
        ours, theirs = socket.socketpair()
        self.clients.append(ours)
        ours.settimeout(10)
        self.accepted_ns = max(time.monotonic_ns(), self.accepted_ns + 1)
        handover = Handover(self.accepted_ns, int(socket.AF_UNIX), "a", f"client-{len(self.clients)}")
        with theirs:
            assert send_handovers(self.handover, [handover], [theirs.fileno()])
        ours.sendall(frame(b"hello"))
        assert ours.recv(100) == frame(b"hello")
        return ours

    def join(self, name: str) -> socket.socket:
        """A handler process's end of a socket to it, which has greeted it; ``pair`` is the number from then on."""
        ours, theirs = socket.socketpair()
        self.clients.append(ours)
        ours.settimeout(10)
        self.pair = time.monotonic_ns()
        with theirs:
            assert send_handovers(self.handover, [Handover(self.pair, int(socket.AF_UNIX), HANDLER_PROCESS, name)], [theirs.fileno()])
        facts = HandlerFacts(directions=["request", "response"])
        ours.sendall(encode_hello(Hello(wire=WIRE, slot=0, handlers={"a": facts})))
        return ours

    def parted(self) -> Row:
        """What it says next of a handler process that it is not joined with any more."""
        self.heard += 1
        self.until(lambda: sum(notice["type"] == "parted" for notice in self.notices) >= self.heard)
        return [notice for notice in self.notices if notice["type"] == "parted"][self.heard - 1]

    def gauge(self, name: str, *values: str) -> int:
        return self.cells.cell(f"framegate.{name}", *values)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        super().close()


@contextlib.contextmanager
def started(kind: str, upstream: ScriptedUpstream, config: ProxyConfig = CONFIG, **changes: Any) -> Iterator[Processor]:
    made = Processor(KINDS[kind].make(), upstream, config)
    try:
        made.start(**changes)
        yield made
    finally:
        made.close()


@pytest.fixture(params=KINDS)
def processor(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[Processor]:
    with started(request.param, upstream) as made:
        yield made


def test_it_says_that_it_is_ready_and_its_heart_beats(processor: Processor) -> None:
    (ready,) = processor.notices
    assert (ready["type"], ready["pid"]) == ("ready", processor.popen.pid)
    assert ready["modules"]
    assert (processor.cells.pid, processor.cells.generation) == (processor.popen.pid, 7)
    beat = processor.cells.heartbeat_ns
    deadline = time.monotonic() + 5
    while processor.cells.heartbeat_ns == beat:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wire", [WIRE_VERSION - 1, WIRE_VERSION + 1, None])
def test_a_control_of_another_release_is_refused_in_words_and_the_process_ends(kind: str, wire: int | None, upstream: ScriptedUpstream) -> None:
    with started(kind, upstream, wire=wire) as processor:
        (failed,) = processor.notices
        assert failed["type"] == "failed"
        assert f"control speaks {'no version' if wire is None else f'version {wire}'} of the link" in failed["error"]
        assert processor.popen.wait(10) == 1


def test_a_change_is_kept_until_it_is_decided_and_there_is_one_at_a_time(processor: Processor) -> None:
    first, answer = processor.prepare(**change(CONFIG, sizes={"a": 1000}))
    assert answer == "prepared"
    second = processor.begin("prepare", change=change(CONFIG, sizes={"a": 2000}))
    assert processor.answer(second) == {"type": REFUSED, "id": second, "reason": f"change {first} is prepared and not decided"}
    assert processor.decide("abort", second) == "aborted"
    assert processor.decide("commit", second) == REFUSED
    assert processor.decide("commit", first) == "committed"
    processor.begin("list")
    deadline = time.monotonic() + 5
    while processor.gauge("frame.size.limit", "a") != 1000:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert processor.decide("commit", first) == REFUSED
    third, answer = processor.prepare(share=2 * MIB)
    assert answer == "prepared"
    assert processor.decide("abort", third) == "aborted"
    fourth, answer = processor.prepare(share=3 * MIB, endpoints=processor.endpoints)
    assert (answer, processor.decide("commit", fourth)) == ("prepared", "committed")


def test_an_abort_that_follows_at_once_leaves_nothing_prepared(processor: Processor) -> None:
    asked = change(CONFIG, sizes={"a": 1000})
    processor.send({"type": "prepare", "id": 91, "change": asked}, {"type": "abort", "id": 91}, {"type": "prepare", "id": 92, "change": asked})
    assert processor.answer(92)["type"] == "prepared"


@each_of(
    "asked",
    [
        {"config": {"listeners": ["none"]}},
        change(CONFIG, sizes={"a": 0}),
        change(CONFIG, sizes={"a": 2**31}),
        change(CONFIG, sizes={"a": 12 * MIB + 1}),
        {"share": MIB - 1},
        {"endpoints": {"none": []}},
        {"colour": "red"},
        {"share": "12MiB"},
        change(CONFIG, sizes={"a": "1000"}),  # type: ignore[dict-item]
        {"endpoints": {"u": ["127.0.0.1"]}},
        {"cells": []},
    ],
)
def test_what_cannot_be_is_refused_and_not_kept(processor: Processor, asked: Row) -> None:
    assert processor.prepare(**asked)[1] == REFUSED
    number, answer = processor.prepare(share=2 * MIB)
    assert (answer, processor.decide("abort", number)) == ("prepared", "aborted")


RULE = TapRule(name="requests", directions=("request",))
BAD_RULES = {"network": [TapRule(name="x", networks=("10.0.0.0/33",))], "listener": [TapRule(name="x", listeners=("none",))], "name": [RULE, RULE]}


@pytest.mark.parametrize("kind", KINDS)
def test_tap_rules_are_judged_kept_and_put_in_force(kind: str, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    config = fleet.fleet_config(1, TapConfig(directory=str(tmp_path), rules=(RULE,)))
    with started(kind, upstream, config) as processor:
        for rules in BAD_RULES.values():
            assert processor.prepare(**change(config, rules=tuple(rules)))[1] == REFUSED
        half = {**dataclasses.asdict(config.tap), "rules": [{"name": "half of a rule"}]}
        assert processor.prepare(config={"tap": half})[1] == REFUSED
        number, answer = processor.prepare(**change(config, rules=(TapRule(name="x", apis=("Fetch",), sample_frames=0.5), RULE)))
        assert (answer, processor.decide("abort", number)) == ("prepared", "aborted")
        for some in ((), (TapRule(name="x", listeners=("a",)), RULE)):
            number, answer = processor.prepare(**change(config, rules=some))
            assert (answer, processor.decide("commit", number)) == ("prepared", "committed")
            processor.connect()
        number, answer = processor.prepare(**change_to(edited(config, rules=()), config, share=3 * MIB))
        assert (answer, processor.decide("commit", number)) == ("prepared", "committed")


@each_of(
    "kind, fields",
    [
        ("dance", {}),
        ("describe", {}),
        ("drain", {}),
        ("close", {}),
        ("holders", {}),
        ("drain", {"timeout_ms": "5s"}),
        ("list", {"after": None}),
        ("mute", {"connections": "all"}),
        ("upstreams", {"colour": "red"}),
        *(("holders", {"limit": limit}) for limit in (0, 101)),
        *(("evict", {"count": count, "spared": None}) for count in (0, 10_001)),
        *(("access", {"after": 0, "limit": limit, "every_ms": every, "since_ns": 0, "until_ns": 1}) for limit, every in ((0, 1), (1, 0))),
        ("access", {"after": 0, "limit": 1, "every_ms": 1}),
        ("evict", {"count": 5}),
    ],
)
def test_what_is_no_command_is_an_error_and_the_next_is_answered(processor: Processor, kind: str, fields: Row) -> None:
    assert processor.ask(kind, **fields)["type"] == "error"
    assert processor.ask("list", after=0, limit=5, listener=None)["type"] == "result"


def test_connections_are_listed_page_by_page_under_ids_that_count_the_hand_overs(processor: Processor) -> None:
    for _ in range(3):
        processor.connect()
    seen: list[Row] = []
    after = 0
    while True:
        answer = processor.ask("list", after=after, limit=2, listener="a")
        seen += answer["rows"]
        after = answer["next"]
        if not after:
            break
        assert after == seen[-1]["id"]
    assert [format_connection_id(row["id"]) for row in seen] == ["3-7-1", "3-7-2", "3-7-3"]
    assert [(row["listener"], row["peer"]) for row in seen] == [("a", f"client-{number}") for number in (1, 2, 3)]
    assert processor.ask("list", after=0, limit=5, listener="none")["rows"] == []
    assert processor.ask("describe", connection=seen[1]["id"])["row"]["peer"] == "client-2"
    assert processor.ask("describe", connection=5)["row"] is None


@pytest.mark.parametrize(("starts", "tells"), [(True, True), (False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_of_a_connection_it_tells_that_it_opened_where_that_is_wanted_then_that_it_is_open_then_that_it_closed(
    kind: str, starts: bool, tells: bool, upstream: ScriptedUpstream
) -> None:
    with started(kind, upstream, rows_at_open=starts) as processor:
        number, answer = processor.prepare(rows_at_open=tells)
        assert (answer, processor.decide("commit", number)) == ("prepared", "committed")
        clients = [processor.connect() for _ in range(3)]
        day_ns = 86_400 * 10**9
        asked = {"limit": 2, "every_ms": 10_000, "since_ns": time.monotonic_ns(), "until_ns": time.monotonic_ns() + day_ns}
        first = processor.ask("access", after=0, **asked)
        assert format_connection_id(first["next"]) == "3-7-2"
        assert processor.ask("access", after=first["next"], **asked)["next"] == 0
        assert processor.ask("access", after=0, **{**asked, "until_ns": time.monotonic_ns() + 5 * 10**9})["next"] == 0, (
            "none is ten seconds old by then"
        )
        for client in clients:
            client.close()
        processor.until(lambda: len(processor.closed) == 3)
        ids = ["3-7-1", "3-7-2", "3-7-3"]
        told = {name: [number for event, number in processor.told if event == name] for name in ("opened", "access", "closed")}
        assert told == {"opened": ids if tells else [], "access": ids, "closed": told["closed"]}
        assert sorted(told["closed"]) == ids
        assert [event for event, number in processor.told if number == "3-7-1"] == ["opened", "access", "closed"][0 if tells else 1 :]


def test_the_idlest_are_closed_unless_their_listener_is_spared(processor: Processor) -> None:
    clients = [processor.connect() for _ in range(3)]
    assert processor.ask("evict", count=2, spared="a")["affected"] == []
    assert [format_connection_id(number) for number in processor.ask("evict", count=2, spared="b")["affected"]] == ["3-7-1", "3-7-2"]
    processor.until(lambda: len(processor.closed) == 2)
    assert [(row["peer"], row["cause"]) for row in processor.closed] == [("client-1", "limit"), ("client-2", "limit")]
    clients[2].sendall(frame(b"still"))
    assert clients[2].recv(100) == frame(b"still")
    assert len(processor.ask("evict", count=9, spared=None)["affected"]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_who_holds_memory_is_told_with_what_and_since_when(kind: str, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PROCESSOR", "holding")  # which then says so of every connection; the real one knows nothing of it
    with started(kind, upstream) as processor:
        assert processor.ask("holders", limit=5)["rows"] == []
        client = processor.connect()
        client.sendall(frame(bytes(20_000))[:10_000])
        rows: list[Row] = []
        while not rows or (kind == "real" and rows[0]["bytes"] < 10_000):
            rows = processor.ask("holders", limit=5)["rows"]
        (row,) = rows
        assert set(row) == {"id", "listener", "side", "peer", "kind", "bytes", "muted", "muted_ns", "last_active_ns"}
        assert (format_connection_id(row["id"]), row["listener"], row["side"], row["peer"], row["kind"]) == (
            "3-7-1", "a", "downstream", "client-1", "begun",
        )  # fmt: skip
        assert row["bytes"] > 0
        if kind == "real":
            assert processor.gauge("memory_pool.usage", "frames", "begun") >= 0
            assert (row["muted"], row["muted_ns"]) == ([], 0)


def test_a_hand_over_that_cannot_be_used_takes_one_id_too(upstream: ScriptedUpstream) -> None:
    """So that control, which counts them, can tell the ids of those that go with their processor. The real one only: the fake takes what it gets."""
    with started("real", upstream) as processor:
        with open(__file__, "rb") as no_socket:
            assert send_handovers(processor.handover, [Handover(5, int(socket.AF_UNIX), "a", "no-socket")], [no_socket.fileno()])
        processor.connect()
        processor.until(lambda: processor.closed)
        assert [(format_connection_id(row["id"]), row["peer"]) for row in processor.closed] == [("3-7-1", "no-socket")]
        (row,) = processor.ask("list", after=0, limit=5, listener="a")["rows"]
        assert format_connection_id(row["id"]) == "3-7-2"


def test_mute_unmute_and_close_say_for_whom_they_are_in_force(processor: Processor) -> None:
    for _ in range(2):
        processor.connect()
    first, second = [row["id"] for row in processor.ask("list", after=0, limit=5, listener=None)["rows"]]
    answer = processor.ask("mute", connections=[first, 5], reason="test")
    assert (answer["affected"], answer["missing"], answer["undone"]) == ([first], [5], [])
    rows = processor.ask("list", after=0, limit=5, listener=None)["rows"]
    assert [row["muted"] for row in rows] == [["admin"], []]
    processor.ask("mute", connections=[first, second], reason="test", action=7)
    assert processor.ask("unmute", lifts=8)["affected"] == []
    assert sorted(processor.ask("unmute", lifts=7)["affected"]) == [first, second]
    assert processor.ask("throttle", connections=[first], request_rate=5)["affected"] == [first]
    assert processor.ask("close", connections=[second], reason="test")["affected"] == [second]
    processor.until(lambda: processor.closed)
    assert [(row["id"], row["cause"], row["listener"], row["peer"]) for row in processor.closed] == [(second, "admin", "a", "client-2")]
    assert processor.clients[1].recv(1) == b""


def test_a_client_that_leaves_has_its_row_with_what_passed(processor: Processor) -> None:
    processor.connect().close()
    processor.until(lambda: processor.closed)
    (row,) = processor.closed
    assert (format_connection_id(row["id"]), row["cause"]) == ("3-7-1", "peer_closed")
    assert {"frames", "bytes", "lost", "mutes", "detail", "side"} <= set(row)


def test_a_drain_is_answered_at_once_and_its_end_is_told(processor: Processor) -> None:
    processor.connect()
    assert processor.ask("drain", timeout_ms=5000)["type"] == "result"
    processor.until(lambda: processor.notices[-1]["type"] == "drained")
    assert (processor.notices[-1]["open"], processor.notices[-1]["cut_off"]) == (0, 0)
    assert [row["cause"] for row in processor.closed] == ["drained"]


def test_told_to_stop_it_tells_of_its_connections_and_ends(processor: Processor) -> None:
    processor.connect()
    processor.send({"type": "stop"})
    with contextlib.suppress(EOFError, ConnectionError):
        processor.until(lambda: False)
    assert [row["cause"] for row in processor.closed] == ["drained"]
    assert processor.popen.wait(10) == 0


def test_it_ends_when_control_is_gone(processor: Processor) -> None:
    processor.command.close()
    assert processor.popen.wait(10) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_to_a_handler_process_is_no_connection_and_ends_with_either_of_the_two(kind: str, upstream: ScriptedUpstream) -> None:
    with started(kind, upstream, fleet.fleet_config(1, handler=fleet.ECHO)) as processor:
        ends = [processor.join(f"0.{generation}") for generation in (7, 8)]
        assert processor.ask("list")["rows"] == []
        assert (processor.gauge("connection.accepted", "a"), processor.gauge("connection.active", "downstream", "a")) == (0, 0)
        ends.pop().close()
        assert processor.ask("list")["rows"] == []
        assert processor.popen.poll() is None
        processor.popen.kill()
        with contextlib.suppress(ConnectionResetError):  # when it has not read what we sent
            assert ends[0].recv(1) == b""
        ends[0].close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_to_a_handler_process_that_ends_or_does_not_come_is_told_by_its_number_and_why(kind: str, upstream: ScriptedUpstream) -> None:
    """Control judges whether the handler process has ended, too."""
    with started(kind, upstream, fleet.fleet_config(1, handler=fleet.ECHO)) as processor:
        processor.join("0.7").close()
        assert processor.parted() == {"type": "parted", "pair": processor.pair, "error": ""}
        broken = processor.join("0.7")
        broken.sendall(encode_closed(5))  # which no handler process says
        parted = processor.parted()
        assert (parted["pair"], "a record of kind 3" in parted["error"]) == (processor.pair, True)
        with contextlib.suppress(ConnectionResetError):
            assert broken.recv(1) == b""
        broken.close()
        processor.handover.send(b"%d 1 -1 @handler 0.7" % 77)
        assert processor.parted() == {"type": "parted", "pair": 77, "error": "no descriptor to be had"}
        processor.join("0.7")
        processor.send({"type": "stop"})  # its own end is none that it tells of
        with contextlib.suppress(EOFError, ConnectionError):
            processor.until(lambda: False)
        assert [notice["type"] for notice in processor.notices if notice["type"] != "log"] == ["ready", "parted", "parted", "parted"]
