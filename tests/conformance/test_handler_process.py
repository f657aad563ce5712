"""What control and processors rely on, of a handler process: the real one and the fake of control's tests say the same over the same sockets."""

import signal
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from framegate.control.fleet.handler_process import COMMAND
from framegate.proxy.handler.runtime import Runtime
from framegate.proxy.relay.handler_wire import encode_closed, request_head
from framegate.proxy.server.protocol import WIRE_VERSION
from tests.fakes import fleet
from tests.fakes.conformance import Kind
from tests.fakes.handler import FakeHandlerProcess
from tests.fakes.handler_process import HandlerProcess, Records

INTERFACE: Final = object
"""No class: what a process says on its two sockets, and on those to processors."""
KINDS: Final = {"fake": Kind(FakeHandlerProcess, lambda: fleet.HANDLER_COMMAND), "real": Kind(Runtime, lambda: COMMAND)}


def first_words(process: HandlerProcess, handlers: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    """Start it; what it says then."""
    process.start(handlers or {"in": fleet.ECHO}, **changes)
    return process.message()


def joined(process: HandlerProcess, peer: str = "0.9") -> Records:
    """Join it with a processor, which it greets."""
    records = process.processor(peer)
    hello = records.hello()
    assert (hello["slot"], hello["handlers"]["in"]) == (3, {"directions": ["request", "response"]})
    return records


def answered(records: Records) -> tuple[int, int, bytes]:
    """Connection, sequence and body of the next reply, which is an answer to a request."""
    reply = records.reply()
    assert (reply.action, reply.direction, reply.throttle_ms) == ("answer", "request", 0)
    assert 0 < reply.began_ns <= reply.ended_ns <= time.monotonic_ns()
    return reply.connection, reply.sequence, reply.body


def assert_answers(records: Records, connection: int = 5) -> None:
    records.open(connection)
    records.request(connection, 0, b"x")
    assert answered(records) == (connection, 0, b"x")


@pytest.fixture(params=KINDS)
def unstarted(request: pytest.FixtureRequest) -> Iterator[HandlerProcess]:
    with HandlerProcess(KINDS[request.param].make()) as made:
        yield made


@pytest.fixture
def process(unstarted: HandlerProcess) -> HandlerProcess:
    assert first_words(unstarted)["type"] == "ready"
    return unstarted


def test_it_says_what_its_handlers_are_and_that_it_lives(unstarted: HandlerProcess) -> None:
    ready = first_words(unstarted, {"in": fleet.ECHO, "b": fleet.ECHO})
    assert ready["pid"] == unstarted.process.pid
    facts = {"directions": ["request", "response"], "description": "Answers every frame with itself."}
    assert ready["handlers"] == {"in": facts, "b": facts}
    assert unstarted.beat() == (0, 0, 0, 0, 0, 0)
    assert unstarted.beat() == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("wire", [WIRE_VERSION - 1, WIRE_VERSION + 1, None])
def test_a_control_of_another_release_is_refused_in_words_and_the_process_ends(unstarted: HandlerProcess, wire: int | None) -> None:
    failed = first_words(unstarted, wire=wire)
    assert failed["type"] == "failed"
    assert f"control speaks {'no version' if wire is None else f'version {wire}'} of the link" in failed["error"]
    assert unstarted.process.wait(10) == 1


def test_a_handler_that_is_not_there_is_said_with_its_listener_and_the_process_ends(unstarted: HandlerProcess) -> None:
    failed = first_words(unstarted, {"in": "framegate.proxy.handler.nowhere:echo"})
    assert failed["type"] == "failed"
    assert failed["error"].startswith("listener in, handler framegate.proxy.handler.nowhere:echo: ")
    assert unstarted.process.wait(10) == 1


def test_it_greets_each_processor_and_answers_each_in_order(process: HandlerProcess) -> None:
    one, other = joined(process, "0.9"), joined(process, "1.9")
    one.open(5)
    bodies = [b"", b"x", bytes(100_000)]
    for sequence, body in enumerate(bodies):
        one.request(5, sequence, body)
    assert_answers(other)
    assert [answered(one) for _ in bodies] == [(5, sequence, body) for sequence, body in enumerate(bodies)]
    while process.beat().handled != 4:
        pass


def test_a_connection_that_is_closed_is_forgotten_and_its_number_may_come_again(process: HandlerProcess) -> None:
    records = joined(process)
    for _ in range(2):
        assert_answers(records)
        records.send(encode_closed(5))


@pytest.mark.parametrize("when", ["at once", "after hello", "within a record"])
def test_a_processor_that_goes_costs_nobody_else(process: HandlerProcess, when: str) -> None:
    gone = process.processor("0.9")
    if when != "at once":
        gone.hello()
    if when == "within a record":
        gone.open(5)
        gone.send(request_head(0, 4, 5, 0, 1000))
    gone.socket.close()
    assert_answers(joined(process, "1.9"), 6)


def test_what_no_processor_sends_ends_that_socket_and_control_hears_which_and_why(process: HandlerProcess) -> None:
    records = joined(process)
    records.send(b"GET / HTTP/1.1\r\n\r\n")
    parted = process.message("parted")
    assert (parted["pair"], "no record is of kind 47" in parted["error"]) == (records.pair, True)
    with pytest.raises((EOFError, ConnectionError)):
        records.record()
    assert_answers(joined(process))  # as control does then


def test_a_socket_that_did_not_arrive_is_told_and_another_is_taken(process: HandlerProcess) -> None:
    process.handover.send(b"%d 1 -1 @handler 0.9" % 77)
    assert process.message("parted") == {"type": "parted", "pair": 77, "error": "its descriptor was lost"}
    joined(process)


def test_a_processor_that_goes_is_not_told(process: HandlerProcess) -> None:
    """Its own end is what control hears of."""
    process.processor("0.9").socket.close()
    process.handover.send(b"%d 1 -1 @handler 0.9" % 78)
    assert process.message("parted")["pair"] == 78


def test_stop_ends_it_and_the_processors_see_the_end(process: HandlerProcess) -> None:
    records = joined(process)
    process.tell({"type": "stop"})
    assert process.process.wait(10) == 0
    with pytest.raises(EOFError):
        records.record()


def test_the_end_of_control_is_its_own(process: HandlerProcess) -> None:
    process.command.close()
    assert process.process.wait(10) == 0


def test_sigterm_ends_it_and_what_a_terminal_sends_does_not(process: HandlerProcess) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        process.process.send_signal(number)
    assert_answers(joined(process))
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(10) == 0
