"""``framegate tap replay``: framings, the order of answers, and the reader ahead."""

import itertools
import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from framegate.control.cli import tap_replay
from framegate.control.cli.commands import main
from framegate.control.cli.tap_connections import header_of
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import FRAMINGS
from tests.fakes.captured import MS, Upstream, asked, broker, exchange, kafka_log
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.upstream import ScriptedUpstream, frame, read_exactly, read_frame

BODIES = [b"hello", b"x" * 300, b""]


def replay(log: Path, upstream: ScriptedUpstream, *words: str) -> tuple[int, dict[str, Any]]:
    timing = ("--timeout", "5s", "--speed", "max", "--output", "json")
    result = CliRunner().invoke(main, ["tap", "replay", str(log), "--to", upstream.address, *timing, *words])
    return result.exit_code, json.loads(result.stdout)


def captured(root: Path, requests: list[bytes], answers: list[bytes], framings: tuple[str, str], **tap: int) -> Path:
    """A connection of the listener ``main``; each request and answer as the tap stores it."""
    log = FakeProcessor(root, **tap)
    for way, direction in enumerate(("request", "response")):
        point = log._rules.match("main", "framed", way, None, "10.0.0.1:1", 1, framings[way])
        assert point is not None
        log._points[1, direction] = point
    for number, (request, answer) in enumerate(itertools.zip_longest(requests, answers)):
        for way, (direction, body) in enumerate((("request", request), ("response", answer))):
            if body is not None:
                log.send([body], direction=direction, at_ns=START_NS + (2 * number + way) * MS)
    log.flush()
    log.close()
    return root


def stored(framing: Framing, body: bytes) -> bytes:
    """A body as the tap stores it: what the header says besides the size is in front."""
    return b"\x01" * int(framing.others) + body


def wire(framing: Framing, body: bytes, others: int | None = None) -> bytes:
    kept = stored(framing, body) if others is None else bytes([others] * int(framing.others)) + body
    return header_of(framing, framing, len(kept), kept) + body + framing.delimiter


@pytest.mark.parametrize("name", FRAMINGS)
def test_requests_are_sent_and_answers_read_in_the_framing_of_the_captured_answers(tmp_path: Path, name: str) -> None:
    framing = FRAMINGS[name]
    bodies = [stored(framing, body) for body in BODIES]
    expected = b"".join(wire(framing, body) for body in BODIES)
    seen: list[bytes] = []

    def script(sock: socket.socket) -> None:
        for body in BODIES:
            request = wire(framing, body)
            seen.append(read_exactly(sock, len(request)))
            sock.sendall(request)

    with ScriptedUpstream(script) as upstream:
        code, found = replay(captured(tmp_path, bodies, bodies, (name, name)), upstream)
    assert (code, b"".join(seen), found["apis"][0]["equal"]) == (0, expected, 3)


@pytest.mark.parametrize("name", FRAMINGS)
def test_another_framing_of_the_upstream_is_translated_and_only_bodies_are_compared(tmp_path: Path, name: str) -> None:
    framing = FRAMINGS[name]

    def script(sock: socket.socket) -> None:
        for body in BODIES:
            request = wire(framing, body, 0)
            assert read_exactly(sock, len(request)) == request
            sock.sendall(request)

    with ScriptedUpstream(script) as upstream:
        code, found = replay(captured(tmp_path / "int32", BODIES, BODIES, ("int32", "int32")), upstream, "--framing", name)
        assert (code, found["apis"][0]["equal"]) == (0, 3)
        bodies = [b"\x01" + body for body in BODIES]
        log = captured(tmp_path / "grpc", bodies, bodies, ("grpc_message", "grpc_message"))
    with Upstream(lambda body: body) as echo:
        assert replay(log, echo, "--framing", "int32")[1]["apis"][0]["equal"] == 3


def test_the_framing_of_the_captured_answers_is_that_of_the_upstream(tmp_path: Path) -> None:
    with Upstream(lambda body: body) as upstream:
        code, found = replay(captured(tmp_path, BODIES, BODIES, ("lines", "int32")), upstream)
    assert (code, found["apis"][0]["equal"], upstream.received) == (0, 3, BODIES)


@pytest.mark.parametrize(
    ("framings", "to", "bodies"),
    [
        (("header", "header"), "int32", [b"abc"]),
        (("int32", "header"), None, [b"abc"]),
        (("int32", "int32"), "lines", [b"a\nb", b"\n"]),
        (("int32", "int32"), "lines_crlf", [b"a\r\nb"]),
        (("int32", "int32"), "int16", [bytes(32_768)]),
    ],
)
def test_what_a_framing_cannot_express_is_not_sent(tmp_path: Path, framings: tuple[str, str], to: str | None, bodies: list[bytes]) -> None:
    with Upstream(lambda body: body) as upstream:
        code, found = replay(captured(tmp_path, bodies, bodies, framings), upstream, *(("--framing", to) if to else ()))
    assert (code, found["not_sent"], found["apis"]) == (1, {"framing": len(bodies)}, [])


@pytest.mark.parametrize(("sent", "words"), [(b"\xff\xff\xff\xff", "int32"), (b"x" * 200, "lines")])
def test_an_answer_that_is_no_frame_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, words: str) -> None:
    monkeypatch.setattr(tap_replay, "_MOST_LINE", 100)

    def script(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(sent)
        sock.recv(1)

    with ScriptedUpstream(script) as upstream:
        code, found = replay(captured(tmp_path, [b"a"], [b"b"], (words, words)), upstream)
    assert (code, found["failures"], found["apis"][0]["unanswered"]) == (6, {f"an answer is no frame of {words}": 1}, 1)


def test_a_server_that_speaks_first_is_compared_from_its_first_frame_on(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path)
    log.send([b"hello"], direction="response")
    for number, body in enumerate((b"a", b"b")):
        log.send([body], at_ns=START_NS + (2 * number + 1) * MS)
        log.send([body], direction="response", at_ns=START_NS + (2 * number + 2) * MS)
    log.flush()
    log.close()
    with Upstream(lambda body: body, begin=b"hello") as upstream:
        code, found = replay(tmp_path, upstream)
        assert (code, found["apis"][0]["equal"]) == (0, 3)
    with Upstream(lambda body: body) as upstream:
        code, found = replay(tmp_path, upstream, "--timeout", "300ms")
        assert (code, found["apis"][0]["unanswered"]) == (6, 1)


def test_answers_keep_their_requests_when_some_are_not_sent(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 20 for number in range(4)]
    bodies[1] += b"longer"
    with Upstream(lambda body: body) as upstream:
        code, found = replay(captured(tmp_path, bodies, bodies, ("int32", "int32")), upstream, "--max-size", "20")
    assert (code, len(upstream.received), found["apis"][0]["equal"], found["not_sent"]) == (0, 3, 3, {})


def test_produce_without_acks_waits_for_no_answer(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path)
    quiet = struct.pack(">hhihhhii", 0, 3, 7, -1, -1, 0, 1000, 0)
    for number in range(3):
        log.send([quiet], protocol="kafka", at_ns=START_NS + number * MS)
        exchange(log, number, at_ns=START_NS + number * MS)
    log.send([quiet], protocol="kafka", at_ns=START_NS + 9 * MS)
    log.flush()
    log.close()

    def script(sock: socket.socket) -> None:
        for number in range(6):
            body = read_frame(sock)
            if body != quiet:
                sock.sendall(frame(struct.pack(">ihi", number // 2, 0, 1) + struct.pack(">hhh", 3, 0, 9)))
        assert read_frame(sock) == quiet
        sock.recv(1)

    with ScriptedUpstream(script) as upstream:
        code, found = replay(tmp_path, upstream)
    produce, versions = found["apis"]
    assert (code, produce["api"], produce["requests"], produce["unanswered"], versions["equal"]) == (0, "Produce", 4, 0, 3)


def test_the_reader_of_the_log_waits_when_too_much_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_replay, "_AHEAD", 1)
    monkeypatch.setattr(tap_replay, "_BATCH", 1)
    kafka_log(tmp_path, exchanges=20, connections=3)
    with Upstream(broker) as upstream:
        code, found = replay(tmp_path, upstream)
    assert (code, found["connections"], found["apis"][0]["equal"]) == (0, 3, 20)


def test_max_opens_no_more_connections_at_a_time_than_were_captured(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path)
    for number in range(20):
        exchange(log, number, connection=number, at_ns=START_NS + number * MS)
    log.flush()
    log.close()
    with Upstream(broker) as upstream:
        code, _ = replay(tmp_path, upstream)
    assert (code, upstream.connections, upstream.received) == (0, 20, [asked(number) for number in range(20)])


def test_an_upstream_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    ended = threading.Event()
    bodies = [bytes(8 << 20)] * 3
    with ScriptedUpstream(lambda sock: ended.wait(20) and None) as upstream:
        code, found = replay(captured(tmp_path, bodies, bodies, ("int32", "int32"), queue_size=64 << 20), upstream, "--timeout", "300ms")
        ended.set()
    assert (code, found["requests"], found["apis"][0]["unanswered"]) == (6, 1, 1)
    assert (found["failures"], found["not_sent"]) == ({"the upstream did not read in time": 1}, {"connection_failed": 2})
