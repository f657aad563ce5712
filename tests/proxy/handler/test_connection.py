"""What results and failures of a handler mean on a connection; and handlers that are ``async def``: their order and their end."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.handler import CLOSE, DROP, PASS, Answer, Context, Drop, Pass, Replace, Verdict
from framegate.proxy.handler import connection as module
from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.connection import EVERY_NS, MOST_TEXT, Connection, Failures
from framegate.proxy.handler.load import LoadedHandler
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handler_wire import MAX_ERROR
from tests.fakes.cases import each_of
from tests.fakes.handler_process import facts, request
from tests.fakes.handling import Handled, in_loop
from tests.proxy.handler.conftest import until


def connection(upstream: bool = False) -> Connection:
    return Connection(7, LoadedHandler("m:h", lambda frame, context: frame), facts("in", upstream))


def test_the_facts_are_in_the_context():
    made = Connection(7, LoadedHandler("m:h", lambda frame, context: frame), {**facts("in", True, "0-1-9"), "tls": {"version": "x"}})
    context = made.context
    who = (context.connection, context.listener, context.peer, context.principal, context.principal_type)
    assert who == ("0-1-9", "in", "127.0.0.1:5", "ANONYMOUS", "User")
    assert (context.tls, context.has_upstream, context.state) == ({"version": "x"}, True, {})


@each_of(
    ("result", "without", "with_one"),
    [
        (b"x", (wire.ANSWER, 0, b"x"), (wire.FRAME, 0, b"x")),
        (bytearray(b"x"), (wire.ANSWER, 0, b"x"), (wire.FRAME, 0, b"x")),
        (None, (wire.NOTHING, 0, b""), (wire.PASS, 0, b"")),
        (DROP, (wire.NOTHING, 0, b""), (wire.NOTHING, 0, b"")),
        (CLOSE, (wire.CLOSE, 0, b""), (wire.CLOSE, 0, b"")),
        (Answer(b"x", throttle=2), (wire.ANSWER, 2000, b"x"), (wire.ANSWER, 2000, b"x")),
    ],
)
def test_what_fits_both(result, without, with_one):
    assert connection().decide(result, 0) == without
    assert connection(upstream=True).decide(result, 0) == with_one


def test_what_needs_an_upstream_and_an_answer_that_is_not_answered():
    served, relayed = connection(), connection(upstream=True)
    assert relayed.decide(Pass(throttle=1), 1) == (wire.PASS, 1000, b"")
    assert relayed.decide(Replace(b"x"), 1) == relayed.decide(b"x", 1) == (wire.FRAME, 0, b"x")
    for verdict in (PASS, Replace(b"x")):
        with pytest.raises(ValueError, match="the listener in, which has no upstream"):
            served.decide(verdict, 0)
    with pytest.raises(ValueError, match="Answer to an answer"):
        relayed.decide(Answer(b"x"), 1)


def test_a_coroutine_is_closed_and_told():
    coroutine = asyncio.sleep(0)
    with pytest.raises(TypeError, match="m:h is not async def, and gave a coroutine"):
        connection().decide(coroutine, 0)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)


def test_a_frame_that_no_record_holds_is_told(monkeypatch):
    monkeypatch.setattr(module, "MAX_BODY", 3)
    assert connection().decide(bytearray(b"xyz"), 0)[2] == b"xyz"
    for result in (bytearray(4), Answer(b"four")):
        with pytest.raises(ValueError, match="a frame of 4 bytes is above 3"):
            connection().decide(result, 0)


class Odd(Answer):
    action = 77


def changed(verdict: Verdict, **attributes: object) -> Verdict:
    for name, value in attributes.items():
        setattr(verdict, name, value)
    return verdict


@each_of(
    ("result", "error", "text"),
    [
        *((result, TypeError, "a handler returns bytes, None or a verdict") for result in ("x", 5, True, [b"x"], Answer, object())),
        (changed(Answer(b"x"), frame="text"), TypeError, "Answer has a frame that is str, not bytes"),
        (changed(Answer(b"x"), frame=None), TypeError, "a frame that is NoneType"),
        (changed(Answer(b"x"), frame=bytearray(b"x")), TypeError, "a frame that is bytearray"),
        (changed(Answer(b"x"), throttle_ms=1 << 70), ValueError, "Answer has the throttle_ms 1180591620717411303424, which is not from 0 to"),
        (changed(Answer(b"x"), throttle_ms=-5), ValueError, "the throttle_ms -5"),
        (changed(Answer(b"x"), throttle_ms=0.5), ValueError, "the throttle_ms 0.5"),
        (Odd(b"x"), ValueError, "Odd has the action 77, which is none"),
        (changed(Pass(), frame=b"xy"), ValueError, "Pass has a frame of 2 bytes, and sends none"),
        (changed(Drop(), frame=b"xy"), ValueError, "Drop has a frame of 2 bytes, and sends none"),
    ],
)
def test_what_is_no_answer_and_a_verdict_with_anything_in_it_are_failures(result, error, text):
    with pytest.raises(error, match=text):
        connection(upstream=True).decide(result, 0)


# Failures.


CONTEXT = Context(connection="0-1-2", listener="in")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def failures():
    activity, times, rows = Activity(), [5], []
    return Failures(activity, lambda: times[0], rows.append), activity, times, rows


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_one_row_a_second_says_how_many_have_none():
    told, activity, times, rows = failures()
    bodies = []
    for now in (5, 6, 5 + EVERY_NS - 1, 5 + EVERY_NS, 6 + EVERY_NS, 7 + 2 * EVERY_NS):
        times[0] = now
        bodies.append(told.raised("m:h", CONTEXT, ValueError(str(now))))
    assert bodies == [f"ValueError: {now}".encode() for now in (5, 6, 5 + EVERY_NS - 1, 5 + EVERY_NS, 6 + EVERY_NS, 7 + 2 * EVERY_NS)]
    assert [(row["error"], row["suppressed"]) for row in rows] == [
        ("ValueError: 5", 0),
        (f"ValueError: {5 + EVERY_NS}", 2),
        (f"ValueError: {7 + 2 * EVERY_NS}", 1),
    ]
    assert activity.failed == 6
    assert (rows[0]["listener"], rows[0]["handler"], rows[0]["connection"]) == ("in", "m:h", "0-1-2")


def test_texts_are_bounded_and_always_there():
    told, _, times, rows = failures()
    assert told.raised("m:h", CONTEXT, ValueError("x" * 100_000)) == b"ValueError: " + b"x" * (MAX_ERROR - 12)
    assert len(rows[0]["error"]) == len(rows[0]["traceback"]) == MOST_TEXT
    times[0] += EVERY_NS
    assert told.raised("m:h", CONTEXT, UnprintableError()).endswith(b"UnprintableError: <exception str() failed>")
    times[0] += EVERY_NS
    assert told.raised("m:h", CONTEXT, raised(KeyError("a"))) == b"KeyError: 'a'"
    assert "raise error" not in rows[2]["traceback"]  # the first step is the caller's


# Tasks.


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
FRAMES = st.tuples(st.integers(0, 5), st.integers(0, 1), st.tuples(st.integers(0, 255), st.integers(0, 6)).map(bytes))  # Connection, direction, frame


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
        await until(lambda: handled.activity.handled and not handled.activity.tasks)
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
        await until(lambda: len(begun) >= 2)
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
        await until(lambda: handled.activity.tasks)
        await asyncio.sleep(0)
        await handled.send(wire.encode_closed(1) + request(2, 0, b"y"))
        assert (await handled.reply()).body == b"y"
        assert len(handled.activity.tasks) == 1  # control sees that it is there
        release.set()
        await until(lambda: not handled.activity.tasks)
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
