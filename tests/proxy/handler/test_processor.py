"""The socket to one processor: batches, order, back-pressure, turns, and what no processor sends."""

import asyncio
import errno
import gc
import socket
import weakref

import pytest

from framegate.proxy.handler import Context
from framegate.proxy.handler.activity import Interrupted
from framegate.proxy.handler.processor import HOLD_NS, TURN_NS
from framegate.proxy.handler.reply_buffer import MOST_BYTES
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.handler_process import facts, request
from tests.fakes.handling import Handled, in_loop
from tests.proxy.handler.conftest import until


def echo(frame: bytes, context: Context) -> bytes:
    return frame


def long_or_same(frame: bytes, context: Context) -> bytes:
    """As many bytes as all long answers of a process may have, or the frame."""
    return bytes(MOST_BYTES) if frame == b"long" else frame


class Ticking:
    """A clock that goes on by a step at every look."""

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


# Records.


@in_loop
async def test_partial_records_at_every_split():
    stream = wire.encode_open(1, facts()) + request(1, 0, b"first") + request(1, 1, b"") + wire.encode_closed(1) + wire.encode_open(1, facts())
    stream += request(1, 0, b"last")
    async with Handled({"in": echo}) as handled:
        for cut in range(len(stream)):
            await handled.send(stream[:cut])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await handled.send(stream[cut:])
            assert [reply.body for reply in await handled.replies(3)] == [b"first", b"", b"last"]
            await handled.send(wire.encode_closed(1))


@in_loop
async def test_frames_larger_than_a_read_and_than_a_socket():
    body = bytes(range(256)) * 12_000  # 3 MB
    async with Handled({"in": echo}) as handled:
        sending = asyncio.create_task(handled.send(wire.encode_open(1, facts()) + request(1, 0, body) + request(1, 1, b"next")))
        large, small = await handled.replies(2)
        await sending
        assert (large.body == body, small.body) == (True, b"next")


OPEN = wire.encode_open(1, facts())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1", "no record is of kind 47"),
        (request(2, 0, b"x"), "a request of the connection 2, which is not open"),
        (OPEN, "the connection 1 of the listener in is open"),
        (wire.encode_open(2, facts("out")), "there is no handler for it"),
        (wire.encode_closed(2), "a connection that is not open is closed"),
        (wire.encode_closed(1) + request(1, 0, b"x"), "which is not open"),
        (request(1, 0, b"x", direction=2), "a record of kind 2"),
        (wire.encode_hello({"wire": wire.WIRE, "slot": 0, "handlers": {}}) + bytes(40), "a processor sent a record of kind 0"),
        (wire.encode_replies([(0, 0, 0, 1, 0, 0, 0, b"")]), "a processor sent a record of kind 4"),
        (b"\xff\xff\xff\xff\x02" + bytes(40), "cannot have -1 bytes"),
        (b"\x00\x00\x00\x05\x02" + bytes(40), "cannot have 5 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # the records have a time
)
@in_loop
async def test_what_no_processor_sends_ends_the_socket(data, text):
    async with Handled({"in": echo}) as handled:
        await handled.send(OPEN + request(1, 0, b"before") + data + request(1, 1, b"behind"))
        assert await handled.ended()
        (error,) = handled.errors
        with pytest.raises(wire.WireError, match=text):
            raise error
        assert (handled.ends, handled.processor.is_open) == (1, False)


@in_loop
async def test_the_end_of_the_file_ends_everything_that_was_the_processors():
    cancelled = asyncio.Event()

    async def patient(frame: bytes, context: Context) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cancelled.set()

    async with Handled({"in": patient}) as handled:
        await handled.send(OPEN + request(1, 0, b"x") + request(1, 1, b"y"))
        await until(lambda: handled.activity.tasks)
        handled.ours.shutdown(socket.SHUT_WR)
        await cancelled.wait()
        await until(lambda: not handled.activity.tasks)
        assert (handled.ends, handled.errors, handled.activity.waiting, handled.rows) == (1, [], 0, [])
        handled.processor.end()
        assert handled.ends == 1


@in_loop
async def test_a_reset_and_an_error_of_the_system_are_ends():
    """A reset with a reply unread, and with one that waits for room."""
    for size in (1, 1_000_000):
        async with Handled({"in": lambda frame, context, size=size: bytes(size)}) as handled:
            await handled.send(OPEN + request(1, 0, b"x"))
            await until(lambda: handled.activity.handled)
            handled.ours.close()
            await until(lambda: not handled.processor.is_open)
            assert (handled.ends, handled.errors) == (1, [])
    async with Handled({"in": echo}) as handled:
        real = handled.processor._socket

        class Broken:
            def recv(self, size: int) -> bytes:
                raise OSError(errno.ENOMEM, "no memory")

            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

        handled.processor._socket = Broken()  # type: ignore[misc, assignment]
        await handled.send(OPEN)
        await until(lambda: not handled.processor.is_open)
        assert handled.ends == 1


@in_loop
async def test_a_processor_that_goes_while_its_requests_are_handled():
    seen: list[bytes] = []

    def closing(frame: bytes, context: Context) -> bytes:
        seen.append(frame)
        handled.ours.close()
        return frame

    async with Handled({"in": closing}, Ticking(HOLD_NS)) as handled:
        await handled.send(OPEN + b"".join(request(1, index, b"x" * 1000) for index in range(60)))
        await until(lambda: not handled.processor.is_open)
    assert 0 < len(seen) < 60  # nobody is there to answer
    assert (handled.ends, handled.errors) == (1, [])


# Connections.


class Token:
    """Something that a handler keeps."""


@pytest.mark.parametrize("kind", ["plain", "async"])
@in_loop
async def test_what_a_connection_keeps_goes_with_it_and_with_the_processor(kind):
    kept: list[weakref.ref[Token]] = []

    def keep(frame: bytes, context: Context) -> bytes:
        token = context.state["token"] = Token()
        kept.append(weakref.ref(token))
        return frame

    async def keep_later(frame: bytes, context: Context) -> bytes:
        await asyncio.sleep(0)
        return keep(frame, context)

    async with Handled({"in": keep if kind == "plain" else keep_later}) as handled:
        await handled.send(OPEN + request(1, 0, b"x") + wire.encode_open(2, facts()) + request(2, 0, b"y"))
        await handled.replies(2)
        assert [token() is None for token in kept] == [False, False]
        await handled.send(wire.encode_closed(1) + request(2, 1, b"z"))
        await handled.reply()
        gc.collect()
        assert [token() is None for token in kept] == [True, True, False]  # the third is in the place of the second
    del handled
    gc.collect()
    assert [token() is None for token in kept] == [True, True, True]


# Turns and back-pressure.


@pytest.mark.parametrize(("each_ns", "together"), [(HOLD_NS + 1, [0, 0, 0]), (1, [0, 1, 2])])
@in_loop
async def test_replies_of_a_slow_handler_leave_one_by_one_and_those_of_a_fast_one_together(each_ns, together):
    waiting: list[int] = []

    def watching(frame: bytes, context: Context) -> bytes:
        waiting.append(len(handled.processor._out))
        return frame

    async with Handled({"in": watching}, Ticking(each_ns)) as handled:
        await handled.send(OPEN + request(1, 0, b"a") + request(1, 1, b"b") + request(1, 2, b"c"))
        await handled.replies(3)
    assert waiting == together


@in_loop
async def test_after_its_turn_a_processor_lets_others_go_first():
    order: list[str] = []

    def noting(frame: bytes, context: Context) -> bytes:
        if not order:
            asyncio.get_running_loop().call_soon(order.append, "other")
        order.append(frame.decode())
        return frame

    async with Handled({"in": noting}, Ticking(TURN_NS // 3 + 1)) as handled:
        await handled.send(OPEN)
        await until(lambda: handled.processor.connections)
        await handled.send(b"".join(request(1, index, b"%d" % index) for index in range(6)))
        await handled.replies(6)
        await handled.send(request(1, 6, b"6"))  # and it is read again
        await handled.reply()
    assert order == ["0", "1", "other", "2", "3", "4", "5", "6"]


@in_loop
async def test_a_processor_that_takes_no_replies_is_not_read_until_it_does():
    big = bytes(16_000)
    calls = 0

    def large(frame: bytes, context: Context) -> bytes:
        nonlocal calls
        calls += 1
        return big

    async with Handled({"in": large}) as handled:
        await handled.send(OPEN + b"".join(request(1, index, b"x") for index in range(500)))
        for _ in range(200):
            await asyncio.sleep(0)
        stopped = calls
        assert stopped < 50  # some were held, some are in the socket, the others were not even begun
        await handled.send(b"".join(request(1, index, b"x") for index in range(500, 520)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert calls == stopped  # nor is what comes now
        replies = await handled.replies(520)
        assert [reply.sequence for reply in replies] == list(range(520))
        await handled.send(request(1, 520, b"x"))
        assert (await handled.reply()).sequence == 520


@in_loop
async def test_an_interrupted_handle_ends_the_socket_without_a_word():
    def interrupted(frame: bytes, context: Context) -> bytes:
        raise Interrupted

    async with Handled({"in": interrupted}) as handled:
        await handled.send(OPEN + request(1, 0, b"x"))
        assert await handled.ended()
        assert (handled.ends, handled.errors, handled.activity.failed, handled.activity.began_ns) == (1, [], 0, 0)


@in_loop
async def test_a_long_reply_waits_until_it_is_asked_for_and_holds_up_no_other_connection():
    def handle(frame: bytes, context: Context) -> bytes:
        return bytes(100_000) if frame == b"long" else frame

    async with Handled({"in": handle}) as handled:
        await handled.send(OPEN + wire.encode_open(2, facts("in")))
        await handled.send(
            request(1, 0, b"long") + request(1, 1, b"behind") + request(1, 2, b"long") + request(1, 3, b"last") + request(2, 0, b"other")
        )

        assert [await handled.raw_reply(), await handled.raw_reply()] == [(wire.HELD, 1, 0, 8), (wire.ANSWER, 2, 0, 5)]
        await handled.send(wire.encode_send(1, 0))
        wanted = [(wire.ANSWER, 1, 0, 100_000), (wire.ANSWER, 1, 1, 6), (wire.HELD, 1, 2, 8)]
        assert [await handled.raw_reply() for _ in wanted] == wanted
        await handled.send(wire.encode_closed(1) + request(2, 1, b"other"))
        assert await handled.raw_reply() == (wire.ANSWER, 2, 1, 5), "what waited is forgotten with its connection"
        await handled.send(wire.encode_send(1, 0))
        assert await handled.ended()
        assert "nothing of the connection 1 and direction 0 waits" in str(handled.errors)


@in_loop
async def test_while_many_long_answers_wait_no_frame_is_handled_and_then_all_are_in_order():
    """Of two processors of one process; frames of a connection that ends meanwhile are forgotten."""
    seen: list[bytes] = []

    def handle(frame: bytes, context: Context) -> bytes:
        seen.append(frame)
        return bytes(MOST_BYTES // 2) if frame.startswith(b"long") else frame

    async with Handled({"in": handle}) as one, Handled({"in": handle}, answers=one.answers) as other:
        await one.send(OPEN + b"".join(wire.encode_open(number, facts("in")) for number in (2, 3, 4)))
        await one.send(b"".join(request(number, 0, b"long%d" % number) for number in (1, 2, 3)) + request(4, 0, b"short") + request(4, 1, b"more"))
        assert [(await one.raw_reply())[:3] for _ in range(2)] == [(wire.HELD, 1, 0), (wire.HELD, 2, 0)]
        await other.send(OPEN + request(1, 0, b"others"))
        await until(lambda: other.activity.waiting + one.activity.waiting >= 4)
        assert seen == [b"long1", b"long2"]
        await one.send(wire.encode_closed(3))
        await until(lambda: one.activity.waiting <= 2)
        await one.send(wire.encode_send(2, 0))
        assert [(await one.raw_reply())[:3] for _ in range(3)] == [(wire.ANSWER, 2, 0), (wire.ANSWER, 4, 0), (wire.ANSWER, 4, 1)]
        assert (await other.raw_reply())[:3] == (wire.ANSWER, 1, 0)
        assert [frame for frame in seen if frame != b"others"] == [b"long1", b"long2", b"short", b"more"]
        assert seen.count(b"others") == 1
        assert (one.activity.waiting, other.activity.waiting) == (0, 0)
        await one.send(wire.encode_closed(1))
        await until(lambda: not one.answers._bytes)


@in_loop
async def test_answers_of_coroutines_wait_likewise_and_a_processor_that_goes_leaves_room():
    async def handle(frame: bytes, context: Context) -> bytes:
        return long_or_same(frame, context)

    async with Handled({"in": handle}) as other:
        async with Handled({"in": handle}, answers=other.answers) as one:
            await one.send(OPEN + request(1, 0, b"long"))
            assert (await one.raw_reply())[0] == wire.HELD
            await other.send(OPEN + request(1, 0, b"others"))
            await until(lambda: other.activity.waiting)
        assert (await other.raw_reply())[:3] == (wire.ANSWER, 1, 0)


@in_loop
async def test_clients_that_do_not_read_hold_up_others_for_a_while_only():
    async with Handled({"in": long_or_same}) as one:
        await one.send(OPEN + b"".join(wire.encode_open(number, facts("in")) for number in (2, 3)))
        await one.send(request(1, 0, b"long") + request(2, 0, b"long") + request(3, 0, b"short"))
        assert (await one.raw_reply())[:3] == (wire.HELD, 1, 0)
        await until(lambda: one.activity.waiting >= 2)
        one.answers._time_out_waiting()
        assert [(await one.raw_reply())[:3] for _ in range(2)] == [(wire.FAILED, 2, 0), (wire.ANSWER, 3, 0)]
        await one.send(wire.encode_closed(2) + wire.encode_send(1, 0) + request(3, 1, b"long"))
        assert [(await one.raw_reply())[:3] for _ in range(2)] == [(wire.ANSWER, 1, 0), (wire.HELD, 3, 1)]
