"""What handlers are written with."""

import pytest

import framegate.proxy.handler
from framegate.proxy.handler import CLOSE, DROP, PASS, Answer, Close, Context, Drop, Pass, Replace, Verdict, api, handler
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.cases import each_of


def test_the_package_exports_what_the_module_does():
    assert framegate.proxy.handler.__all__ == api.__all__
    assert all(getattr(framegate.proxy.handler, name) is getattr(api, name) for name in api.__all__)


def test_each_verdict_has_its_action():
    made = [(PASS, wire.PASS), (Replace(b"x"), wire.FRAME), (DROP, wire.NOTHING), (Answer(b"x"), wire.ANSWER), (CLOSE, wire.CLOSE)]
    for verdict, action in made:
        assert isinstance(verdict, Verdict)
        assert (verdict.action, verdict.throttle_ms) == (action, 0)
        assert verdict.frame == (b"x" if action in (wire.FRAME, wire.ANSWER) else b"")


@each_of(("throttle", "milliseconds"), [(0, 0), (0.0, 0), (0.0001, 1), (0.5, 500), (1, 1000), (2_147_483, 2_147_483_000)])
def test_a_throttle_is_in_seconds_and_never_rounded_down(throttle, milliseconds):
    for verdict in (Pass(throttle=throttle), Drop(throttle=throttle), Replace(b"", throttle=throttle), Answer(b"", throttle=throttle)):
        assert verdict.throttle_ms == milliseconds


@each_of("throttle", [-0.001, -1, float("nan"), float("inf"), 2_147_484])
def test_a_throttle_that_is_none_is_told_where_it_is_made(throttle):
    for make in (lambda: Pass(throttle=throttle), lambda: Answer(b"", throttle=throttle)):
        with pytest.raises(ValueError, match="throttle is in seconds, from 0 to 2147483"):
            make()


def test_a_frame_is_copied_from_a_buffer_and_nothing_else_is_one():
    buffer = bytearray(b"abc")
    made = Replace(buffer), Answer(memoryview(buffer)[1:])
    buffer[:] = b"xyz"
    assert [verdict.frame for verdict in made] == [b"abc", b"bc"]
    assert all(type(verdict.frame) is bytes for verdict in made)
    for wrong in ("abc", 3, None, [1]):
        with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
            Answer(wrong)  # type: ignore[arg-type]


def test_verdicts_compare_and_show_what_they_are():
    assert Answer(b"x", throttle=1) == Answer(b"x", throttle=1.0) != Answer(b"x")
    assert Replace(b"x") != Answer(b"x")
    assert {PASS, Pass(), DROP, Drop(), CLOSE, Close()} == {PASS, DROP, CLOSE}
    assert list(map(repr, (PASS, Answer(b"x", throttle=0.5), Replace(b"")))) == ["Pass()", "Answer(b'x', throttle=0.5)", "Replace(b'')"]


def test_a_context_needs_nothing_to_be_made_and_shares_its_state_with_the_next_frame():
    context = Context(listener="in", state={"a": 1})
    other = context.at("response", 4, b"head")
    assert (other.listener, other.direction, other.sequence, other.header) == ("in", "response", 4, b"head")
    assert (context.direction, context.sequence, context.header) == ("request", 0, b"")
    assert other.state is context.state
    assert Context().state == {}
    assert Context().state is not Context().state
    assert repr(other) == "<Context 0-0-0 in  response 4>"
    assert {name: getattr(context, name) for name in Context.__slots__} | {"direction": "response", "sequence": 4, "header": b"head"} == {
        name: getattr(other, name) for name in Context.__slots__
    }


def test_the_decorator_marks_and_leaves_what_it_marks():
    def handle(frame: bytes, context: Context) -> None: ...

    assert handler()(handle) is handle
    assert vars(handle) == {"directions": ("request", "response")}
    assert handler(directions=("response",))(handle) is handle
    assert handle.directions == ("response",)  # type: ignore[attr-defined]

    @handler()
    class Mine:
        async def handle(self, frame: bytes, context: Context) -> bytes:
            return frame

    assert Mine.directions == ("request", "response")  # type: ignore[attr-defined]
