"""Handles that are ``async def``: their order, whatever they take, and their end."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.handler import CLOSE, DROP, Answer, Context
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.handler_process import facts, request
from tests.fakes.handling import Handled, in_loop

OPEN = wire.encode_open(1, facts())


def echo(frame: bytes, context: Context) -> bytes:
    return frame


# Any sequence of answers keeps its order.


def _answers(frame: bytes) -> object:
    kind = frame[0] % 6
    if kind == 5:
        raise ValueError("five")
    return (frame, None, DROP, Answer(frame), CLOSE)[kind]


def plain(frame: bytes, context: Context) -> object:
    return _answers(frame)


class Slow:
    """Takes as many turns of the loop as a frame's second byte says; notes how many of a connection are under way at a time."""

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self.most = 0

    async def handle(self, frame: bytes, context: Context) -> object:
        self.under_way[context.connection] = self.under_way.get(context.connection, 0) + 1
        self.most = max(self.most, self.under_way[context.connection])
        for _ in range(frame[1]):
            await asyncio.sleep(0)
        self.under_way[context.connection] -= 1
        return _answers(frame)


LISTENERS = ("plain", "slow")
FRAMES = st.tuples(st.integers(0, 5), st.integers(0, 1), st.tuples(st.integers(0, 255), st.integers(0, 6)).map(bytes))
"""Connection, direction, frame."""


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAMES, min_size=1, max_size=60), st.lists(st.integers(1, 400), max_size=8))
def test_replies_leave_in_the_order_of_their_requests_whatever_the_handlers_do(frames, cuts):
    async def main():
        async with Handled({"plain": plain, "slow": Slow()}) as handled:
            stream = b"".join(wire.encode_open(number, facts(LISTENERS[number % 2], True, f"0-1-{number}")) for number in range(6))
            sequences: dict[tuple[int, int], int] = {}
            for number, direction, frame in frames:
                sequence = sequences.get((number, direction), 0)
                sequences[number, direction] = sequence + 1
                stream += request(number, sequence, frame, direction)
            for cut in cuts:
                await handled.send(stream[:cut])
                stream = stream[cut:]
                await asyncio.sleep(0)
            await handled.send(stream)
            replies = await handled.replies(len(frames))
            for (number, direction), count in sequences.items():
                mine = [reply for reply in replies if (reply.connection, reply.direction) == (number, wire.DIRECTIONS[direction])]
                assert [reply.sequence for reply in mine] == list(range(count))
                sent = [frame for *of, frame in frames if of == [number, direction]]
                for frame, reply in zip(sent, mine, strict=True):
                    kind = frame[0] % 6
                    if kind == 3 and direction:
                        kind = 5  # an answer to an answer is a failure
                    assert reply.action == ("frame", "pass", "nothing", "answer", "close", "failed")[kind]
                    assert (reply.body == frame) == (kind in (0, 3))
            assert (handled.activity.waiting, handled.activity.tasks, handled.activity.handled) == (0, {}, len(frames))

    asyncio.run(main())


@in_loop
async def test_several_of_a_connection_are_under_way_and_leave_in_order_and_a_lock_has_them_one_at_a_time():
    class Locked(Slow):
        async def handle(self, frame: bytes, context: Context) -> object:
            async with context.state.setdefault("lock", asyncio.Lock()):
                return await super().handle(frame, context)

    slow, locked = Slow(), Locked()
    async with Handled({"slow": slow, "locked": locked}) as handled:
        for number, listener in enumerate(("slow", "locked")):
            waits = (5, 3, 1)  # the last is done first
            await handled.send(wire.encode_open(number, facts(listener)) + b"".join(request(number, i, bytes((0, n))) for i, n in enumerate(waits)))
            assert [(reply.sequence, reply.body) for reply in await handled.replies(3)] == [(i, bytes((0, n))) for i, n in enumerate(waits)]
    assert (slow.most, locked.most) == (3, 1)


@in_loop
async def test_replies_of_tasks_wait_for_room_in_their_order():
    class Large(Slow):
        async def handle(self, frame: bytes, context: Context) -> bytes:
            await super().handle(b"\0" + frame, context)
            return bytes(100_000)

    async with Handled({"in": Large()}) as handled:
        await handled.send(OPEN + b"".join(request(1, index, bytes((index % 5,))) for index in range(100)))
        while handled.activity.tasks or not handled.activity.handled:
            await asyncio.sleep(0)
        assert [reply.sequence for reply in await handled.replies(100)] == list(range(100))
        await handled.send(request(1, 100, b"\0"))
        assert (await handled.reply()).sequence == 100


# Connections.


@in_loop
async def test_closing_cancels_what_is_under_way():
    begun: list[bytes] = []
    ended: list[bytes] = []

    class Patient:
        async def handle(self, frame: bytes, context: Context) -> bytes:
            begun.append(frame)
            context.state["mine"] = frame
            try:
                await asyncio.sleep(0 if frame == b"go" else 1000)
            finally:
                ended.append(frame)
            return frame

    async with Handled({"in": Patient()}) as handled:
        await handled.send(OPEN + request(1, 0, b"long") + request(1, 1, b"later"))
        while len(begun) < 2:
            await asyncio.sleep(0)
        await handled.send(wire.encode_closed(1) + OPEN + request(1, 0, b"go"))
        assert (await handled.reply()).body == b"go"
        assert (begun, sorted(ended)) == ([b"long", b"later", b"go"], [b"go", b"later", b"long"])
        assert (handled.activity.waiting, handled.rows, handled.errors) == (0, [], [])


@in_loop
async def test_a_connection_that_is_closed_before_its_handle_begins():
    begun: list[bytes] = []

    async def patient(frame: bytes, context: Context) -> bytes:
        begun.append(frame)
        return frame

    async with Handled({"in": patient}) as handled:
        await handled.send(OPEN + request(1, 0, b"x") + wire.encode_closed(1) + OPEN + request(1, 0, b"y"))
        assert (await handled.reply()).body == b"y"
        assert begun == [b"y"]


@in_loop
async def test_a_handle_that_takes_its_cancellation_ends_in_its_own_time_and_is_not_answered():
    release = asyncio.Event()

    async def stubborn(frame: bytes, context: Context) -> bytes:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await release.wait()
        return context.state.setdefault("mine", frame)

    async with Handled({"in": stubborn, "echo": echo}) as handled:
        await handled.send(OPEN + request(1, 0, b"x") + wire.encode_open(2, facts("echo")))
        while not handled.activity.tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await handled.send(wire.encode_closed(1) + request(2, 0, b"y"))
        assert (await handled.reply()).body == b"y"
        assert len(handled.activity.tasks) == 1  # control sees that it is there
        release.set()
        while handled.activity.tasks:
            await asyncio.sleep(0)
        await handled.send(request(2, 1, b"z"))
        assert (await handled.reply()).body == b"z"


@in_loop
async def test_whatever_an_async_handle_raises_is_its_connections_failure():
    async def raising(frame: bytes, context: Context) -> None:
        raise {b"exit": SystemExit(1), b"cancel": asyncio.CancelledError(), b"key": KeyboardInterrupt(), b"value": ValueError("x")}[frame]

    words = (b"exit", b"cancel", b"key", b"value")
    async with Handled({"in": raising}) as handled:
        await handled.send(OPEN + b"".join(request(1, index, word) for index, word in enumerate(words)))
        replies = await handled.replies(4)
        assert [reply.action for reply in replies] == ["failed"] * 4
        assert [reply.body for reply in replies] == [b"SystemExit: 1", b"asyncio.exceptions.CancelledError", b"KeyboardInterrupt", b"ValueError: x"]
        assert handled.activity.failed == 4


@in_loop
async def test_a_handle_that_other_code_cancels_before_it_begins_is_a_failure_and_the_next_goes_on():
    async with Handled({"in": Slow()}) as handled:
        create = handled.processor.tasks._loop.create_task

        class Once:
            """Cancels the first task it makes."""

            done = False

            def create_task(self, coroutine):
                task = create(coroutine)
                if not self.done:
                    self.done = True
                    task.cancel()
                return task

        handled.processor.tasks._loop = Once()  # type: ignore[misc, assignment]
        await handled.send(OPEN + request(1, 0, b"\0\0") + request(1, 1, b"\0\1"))
        assert [(reply.sequence, reply.action) for reply in await handled.replies(2)] == [(0, "failed"), (1, "answer")]


@in_loop
async def test_async_frames_have_contexts_of_their_own_and_one_state():
    contexts: list[Context] = []

    async def keeping(frame: bytes, context: Context) -> bytes:
        contexts.append(context)
        await asyncio.sleep(0)
        return json.dumps([context.direction, context.sequence, context.header.hex()]).encode()

    async with Handled({"in": keeping}) as handled:
        await handled.send(wire.encode_open(1, facts(upstream=True)) + request(1, 4, b"x", 0, b"a") + request(1, 9, b"y", 1, b"b"))
        bodies = sorted(reply.body for reply in await handled.replies(2))
        assert bodies == [b'["request", 4, "61"]', b'["response", 9, "62"]']
        assert contexts[0] is not contexts[1]
        assert contexts[0].state is contexts[1].state
