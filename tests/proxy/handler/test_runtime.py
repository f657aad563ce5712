"""A real handler process: its first words, its handlers' start and stop, and how it ends whatever they do."""

import contextlib
import itertools
import signal
import subprocess
import time
from pathlib import Path

import pytest

from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.server.link import encode
from framegate.proxy.server.protocol import WIRE_VERSION
from tests.fakes.handler_process import HandlerProcess, Reply, facts, request

FAKES = Path(__file__).resolve().parents[2] / "fakes"


@pytest.fixture
def process():
    with HandlerProcess(stderr=subprocess.PIPE) as started:
        yield started


@pytest.fixture
def scripted(process):
    """A process with the scripted handler on two listeners; the handler of both is one function."""
    process.serve({"in": "sample_handlers:scripted", "up": "sample_handlers:scripted"}, [FAKES])
    return process


def journal(folder: Path) -> list[str]:
    return (folder / "journal").read_text().splitlines()


def what(replies: list[Reply]) -> list[tuple[str, bytes]]:
    return [(reply.action, reply.body) for reply in replies]


def opened(process, *connections: int):
    """A socket to a processor with some connections."""
    processor = process.processor()
    processor.hello()
    for number in connections:
        processor.open(number)
    return processor


def wait_for_journal(folder: Path, lines: int) -> None:
    while not (folder / "journal").exists() or len(journal(folder)) < lines:
        time.sleep(0.01)


def test_an_echo_from_the_first_words_to_the_last(process):
    ready = process.serve({"in": "framegate.proxy.handler.echo:echo", "one": "sample_handlers:OneWay"}, [FAKES])
    handler, one = {"directions": ["request", "response"]}, {"directions": ["request"]}
    assert ready["pid"] == process.process.pid
    said = {"in": {**handler, "description": "Answers every frame with itself."}, "one": {**one, "description": "Sees requests only."}}
    assert ready["handlers"] == said
    processor = process.processor()
    assert processor.hello() == {"wire": 4, "slot": 3, "handlers": {"in": handler, "one": one}}
    processor.open(7)
    processor.send(*(request(7, index, b"frame %d" % index) for index in range(64)))
    replies = processor.replies(64)
    assert [(reply.action, reply.sequence, reply.body) for reply in replies] == [("answer", index, b"frame %d" % index) for index in range(64)]
    assert all(before.ended_ns <= after.began_ns <= after.ended_ns for before, after in itertools.pairwise(replies))
    while process.beat().handled < 64:
        pass
    process.tell({"type": "stop"})
    assert process.wait() == 0
    assert processor.ended()


# What a handler returns.


ANSWERS = [  # a frame, and what comes of it without an upstream and with one; all that a handler may return is in ``test_connection``
    (b"view abc", ("answer", b"ac"), ("frame", b"ac")),
    (b"none", ("nothing", b""), ("pass", b"")),
    (b"drop", ("nothing", b""), ("nothing", b"")),
    (b"answer x", ("answer", b"x"), ("answer", b"x")),
    (b"close", ("close", b""), ("close", b"")),
    (b"pass", ("failed", b"ValueError: Pass on the listener in, which has no upstream: there is nowhere to go on to"), ("pass", b"")),
    (b"number", *2 * (("failed", b"TypeError: a handler returns bytes, None or a verdict of framegate.proxy.handler, not int"),)),
    (b"coroutine", *2 * (("failed", b"TypeError: sample_handlers:scripted is not async def, and gave a coroutine"),)),
    (b"raise x y", *2 * (("failed", b"RuntimeError: x y"),)),
    (b"exit", *2 * (("failed", b"SystemExit: 3"),)),
]
THROTTLES = {b"pass-slowly": 500, b"drop-slowly": 250, b"answer-slowly x": 1500, b"pass": 0}


def test_each_answer_with_and_without_an_upstream(scripted):
    processor = opened(scripted, 1)
    processor.open(2, "up", upstream=True)
    for sequence, (frame, without, with_one) in enumerate(ANSWERS):
        processor.send(request(1, sequence, frame), request(2, sequence, frame))
        assert what(processor.replies(2)) == [without, with_one]
    processor.send(*(request(2, len(ANSWERS) + index, word) for index, word in enumerate(THROTTLES)))
    assert [reply.throttle_ms for reply in processor.replies(4)] == list(THROTTLES.values()), "milliseconds"


def test_a_handler_sees_whose_frame_it_is_and_each_connection_has_a_state_of_its_own(scripted):
    processor = opened(scripted, 1, 2)
    tls: wire.TlsFacts = {"version": "TLSv1.3", "cipher": "X"}
    processor.send(wire.encode_open(1 << 62, {**facts("up", True, "9-9-9"), "tls": tls}), request(1 << 62, 41, b"facts", 1, header=b"\x05"))
    assert processor.reply().body.decode() == (
        '{"connection": "9-9-9", "listener": "up", "peer": "127.0.0.1:5", "principal": "ANONYMOUS", "principal_type": "User", '
        '"tls": {"version": "TLSv1.3", "cipher": "X"}, "direction": "response", "sequence": 41, "has_upstream": true, "header": "05"}'
    )
    processor.send(*(request(connection, index, b"count") for index in range(2) for connection in (1, 2)))
    assert [reply.body for reply in processor.replies(4)] == [b"1", b"1", b"2", b"2"]
    processor.send(wire.encode_closed(1))
    processor.open(1)  # the number of another connection now
    processor.request(1, 0, b"count")
    assert processor.reply().body == b"1"


def test_what_a_handler_raises_is_told_with_its_traceback(scripted):
    processor = opened(scripted, 5)
    processor.send(*(request(5, index, b"raise one") for index in range(10)))
    assert what(processor.replies(10)) == [("failed", b"RuntimeError: one")] * 10
    row = scripted.row("handler_raised")
    where = row.pop("traceback")
    assert row == {"listener": "in", "handler": "sample_handlers:scripted", "connection": "0-1-5", "error": "RuntimeError: one", "suppressed": 0}
    assert where.splitlines()[-1] == "RuntimeError: one"
    assert f'File "{FAKES / "sample_handlers.py"}"' in where
    assert "proxy/handler" not in where
    while scripted.beat().failed < 10:
        pass


def test_what_a_handler_prints_is_there_at_once():
    with HandlerProcess(stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        process.serve({"in": "sample_handlers:scripted"}, [FAKES])
        processor = process.processor()
        processor.open(1)
        processor.request(1, 0, b"print hello from a handler")
        assert process.process.stdout is not None
        assert process.process.stdout.readline() == b"hello from a handler\n"


# What keeps it from starting.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere:h", "listener in, handler nowhere:h: there is no module nowhere on the path ("),
        ("sample_handlers:Nobody", "listener in, handler sample_handlers:Nobody: module 'sample_handlers' has no attribute 'Nobody'"),
        ("sample_handlers:FailsAtStart", "listener in, handler sample_handlers:FailsAtStart: start: ValueError: no table ("),
        ("sample_handlers:WORDS", "listener in, handler sample_handlers:WORDS is neither a function nor has it a handle to call"),
    ],
)
def test_what_does_not_start_is_told(process, name, text):
    process.start({"in": name}, [FAKES])
    message = process.message()
    assert message["type"] == "failed"
    assert message["error"].startswith(text)
    assert process.wait() == 1


def test_those_that_were_started_are_stopped_when_another_fails(process, tmp_path):
    process.start({"a": "sample_handlers:Journal", "b": "sample_handlers:FailsAtStart"}, [FAKES, tmp_path])
    assert process.message()["error"].startswith("listener b, handler sample_handlers:FailsAtStart: start: ValueError: no table")
    assert process.wait() == 1
    assert journal(tmp_path) == ["journal start", "journal stop"]


def test_control_of_another_release_is_told_so(process):
    process.tell({"type": "start", "wire": WIRE_VERSION + 1})
    message = process.message()
    assert message["type"] == "failed"
    assert "they are of different releases" in message["error"]
    assert process.wait() == 1


def test_it_ends_when_control_goes_away_before_the_first_words(process):
    process.command.close()
    assert process.wait() == 0


def test_a_stop_that_follows_the_first_words_at_once_is_heard(process):
    start = {"type": "start", "wire": WIRE_VERSION, "slot": 3, "generation": 1, "node": "n", "path": []}
    process.command.sendall(encode({**start, "handlers": {"a": "framegate.proxy.handler.echo:echo"}}) + encode({"type": "stop"}))
    assert process.wait() == 0


# Its end.


@pytest.mark.parametrize("how", ["stop", "command socket", "SIGTERM"])
def test_each_handler_is_started_and_stopped_once(process, tmp_path, how):
    process.serve({"a": "sample_handlers:Journal", "b": "sample_handlers:AsyncJournal", "c": "framegate.proxy.handler.echo:echo"}, [FAKES, tmp_path])
    if how == "stop":
        process.tell({"type": "stop"})
        process.tell({"type": "stop"})
    elif how == "SIGTERM":
        process.process.terminate()
        process.process.terminate()
    else:
        process.command.close()
    assert process.wait() == 0
    assert journal(tmp_path)[:2] == ["journal start", "async start"]
    assert sorted(journal(tmp_path)[2:]) == ["async stop", "journal stop"]  # side by side


def test_an_object_that_two_listeners_name_is_stopped_once_and_a_stop_that_raises_keeps_no_other_from_its_own(process, tmp_path):
    process.serve({"a": "sample_handlers:shared", "b": "sample_handlers:shared", "c": "sample_handlers:FailsAtStop"}, [FAKES, tmp_path])
    process.tell({"type": "stop"})
    row = process.row("internal_error")
    assert (row["place"], row["error"]) == ("stop of the handler sample_handlers:FailsAtStop", "ValueError: no end")
    assert process.wait() == 0
    assert journal(tmp_path)[:2] == ["journal start", "failing start"]
    assert sorted(journal(tmp_path)[2:]) == ["failing stop", "journal stop"]


def test_signals_of_a_terminal_are_for_control(process):
    process.serve({"in": "framegate.proxy.handler.echo:echo"})
    for number in (signal.SIGINT, signal.SIGHUP):
        process.process.send_signal(number)
    process.processor().hello()
    process.beat()


HANGS = {
    "handle": "sample_handlers:scripted",
    "async handle": "sample_handlers:Patient",
    "start": "sample_handlers:HangsAtStart",
    "stop": "sample_handlers:HangsAtStop",
    "stubborn": "sample_handlers:Stubborn",
}


@pytest.mark.slow  # it waits for the processes, which have five seconds
def test_it_ends_within_five_seconds_whatever_hangs_and_stops_what_was_started(tmp_path):
    with contextlib.ExitStack() as stack:
        processes = {hangs: stack.enter_context(HandlerProcess(stderr=subprocess.PIPE)) for hangs in HANGS}
        for hangs, process in processes.items():
            (folder := tmp_path / hangs).mkdir()
            process.start({"a": "sample_handlers:AsyncJournal", "b": HANGS[hangs]}, [FAKES, folder])
            if hangs == "start":
                wait_for_journal(folder, 2)
            else:
                assert process.message()["type"] == "ready"
                processor = process.processor()
                processor.hello()
                processor.open(1, "b")
                if hangs != "stop":
                    processor.request(1, 0, b"block" if hangs != "handle" else b"block now")
                    while process.beat().in_handler == 0:
                        pass
        began = time.monotonic()
        for process in processes.values():
            process.process.terminate()
        codes = {hangs: process.wait() for hangs, process in processes.items()}
        assert time.monotonic() - began < 5.5
    assert [journal(tmp_path / hangs).count("async stop") for hangs in HANGS] == [1] * len(HANGS)
    assert codes == {**dict.fromkeys(HANGS, 0), "stubborn": 1}  # nothing ends what takes every cancellation: it is ended from outside


def test_an_async_start_that_hangs_is_cancelled(process, tmp_path):
    process.start({"a": "sample_handlers:Journal", "b": "sample_handlers:HangsAtAsyncStart"}, [FAKES, tmp_path])
    wait_for_journal(tmp_path, 2)
    process.process.terminate()
    assert process.wait() == 0
    assert journal(tmp_path) == ["journal start", "journal start", "journal stop"]


def test_a_module_that_never_ends_its_import_is_interrupted(process, tmp_path):
    (tmp_path / "endless.py").write_text("import time\nopen(__file__ + '.began', 'w').close()\ntime.sleep(1000)\n")
    process.start({"a": "endless:h"}, [tmp_path])
    while not (tmp_path / "endless.py.began").exists():
        time.sleep(0.01)
    process.process.terminate()
    assert process.wait() == 0


# What control hears.


def test_control_hears_of_a_handle_that_never_returns(scripted):
    processor = opened(scripted, 1)
    processor.send(request(1, 0, b"echo x"), request(1, 1, b"block now"), *(request(1, 2 + index, b"echo x") for index in range(5)))
    while (beat := scripted.beat()).oldest_ns < 300_000_000:
        pass
    assert (beat.in_handler, beat.queued, beat.failed) == (1, 5, 0)
    assert beat.busy_ns >= 300_000_000
    later = scripted.beat()
    assert later.oldest_ns - beat.oldest_ns >= 200_000_000


def test_control_hears_of_the_oldest_of_tasks(process):
    process.serve({"in": "sample_handlers:Patient"}, [FAKES])
    processor = process.processor()
    processor.open(1)
    processor.open(2)
    processor.request(1, 0, b"first")
    while (beat := process.beat()).oldest_ns < 100_000_000:
        pass
    assert (beat.in_handler, beat.queued, beat.handled) == (1, 0, 0)
    processor.request(2, 0, b"go")
    while (beat := process.beat()).handled < 2:
        pass
    assert (beat.in_handler, beat.queued, beat.oldest_ns) == (0, 0, 0)
    assert process.beat().busy_ns == beat.busy_ns


# Sockets to processors.


def test_what_no_processor_sends_is_told_and_ends_that_socket_alone(scripted):
    good, bad = scripted.processor("0.1"), scripted.processor("1.4")
    for processor in (good, bad):
        processor.hello()
        processor.open(1)
    bad.send(b"GET / HTTP/1.1\r\n\r\n")
    row = scripted.row("internal_error")
    assert (row["place"], row["error"]) == ("socket to processor 1.4", "framegate.proxy.relay.handler_wire.WireError: no record is of kind 47")
    assert bad.ended()
    parted = scripted.message("parted")
    assert (parted["pair"], parted["error"]) == (bad.pair, "no record is of kind 47")
    good.request(1, 0, b"echo fine")
    assert good.reply().body == b"fine"
    wrong = scripted.processor(listener="in")
    assert scripted.row("handover_failed") == {"error": "the socket to processor 0.1: it is for in"}
    assert wrong.ended()
    scripted.processor().hello()


def test_a_processor_that_goes_costs_nobody_else_and_is_not_told(scripted):
    for when in ("at once", "after hello", "within a record"):
        gone = scripted.processor("0.9")
        if when != "at once":
            gone.hello()
        if when == "within a record":
            gone.open(5)
            gone.send(wire.request_head(0, 4, 5, 0, 1000))
        gone.socket.close()
        other = opened(scripted, 6)
        other.request(6, 0, b"echo fine")
        assert other.reply().body == b"fine", when
    scripted.handover.send(b"%d 1 -1 @handler 0.9" % 77)
    assert scripted.message("parted") == {"type": "parted", "pair": 77, "error": "its descriptor was lost"}, "the first that control hears of"
