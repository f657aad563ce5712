"""What an answer of a handler means on a connection."""

import asyncio

import pytest

from framegate.proxy.handler import CLOSE, DROP, PASS, Answer, Drop, Pass, Replace, Verdict
from framegate.proxy.handler import connection as module
from framegate.proxy.handler.connection import Connection
from framegate.proxy.handler.load import LoadedHandler
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.handler_process import facts


def connection(upstream: bool = False) -> Connection:
    return Connection(7, LoadedHandler("m:h", lambda frame, context: frame), facts("in", upstream))


def test_the_facts_are_in_the_context():
    made = Connection(7, LoadedHandler("m:h", lambda frame, context: frame), {**facts("in", True, "0-1-9"), "tls": {"version": "x"}})
    context = made.context
    assert (context.connection, context.listener, context.peer, context.principal, context.principal_type) == (
        "0-1-9",
        "in",
        "127.0.0.1:5",
        "ANONYMOUS",
        "User",
    )
    assert (context.tls, context.has_upstream, context.state) == ({"version": "x"}, True, {})


@pytest.mark.parametrize(
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


def test_what_needs_an_upstream():
    assert connection(upstream=True).decide(Pass(throttle=1), 1) == (wire.PASS, 1000, b"")
    assert connection(upstream=True).decide(Replace(b"x"), 1) == (wire.FRAME, 0, b"x")
    for verdict in (PASS, Replace(b"x")):
        with pytest.raises(ValueError, match="the listener in, which has no upstream"):
            connection().decide(verdict, 0)


def test_an_answer_is_not_answered():
    with pytest.raises(ValueError, match="Answer to an answer"):
        connection(upstream=True).decide(Answer(b"x"), 1)
    assert connection(upstream=True).decide(b"x", 1) == (wire.FRAME, 0, b"x")


@pytest.mark.parametrize("result", ["x", 5, True, [b"x"], Answer, object()])
def test_what_is_no_answer(result):
    with pytest.raises(TypeError, match="a handler returns bytes, None or a verdict"):
        connection().decide(result, 0)


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


def test_only_async_handles_keep_requests():
    async def later(frame, context): ...

    kept = Connection(7, LoadedHandler("m:h", later), facts())
    assert (kept.is_async, list(kept.order[0]), kept.tasks) == (True, [], set())
    assert not connection().is_async


class Odd(Answer):
    action = 77


def changed(verdict: Verdict, **attributes: object) -> Verdict:
    for name, value in attributes.items():
        setattr(verdict, name, value)
    return verdict


@pytest.mark.parametrize(
    ("verdict", "error", "text"),
    [
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
def test_a_verdict_with_anything_in_it_is_a_failure_and_breaks_no_record(verdict, error, text):
    with pytest.raises(error, match=text):
        connection(upstream=True).decide(verdict, 0)
