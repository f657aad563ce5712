from collections.abc import Callable
from typing import Any

import pytest

from framegate.proxy.handler.reply_buffer import MOST_BYTES, PATIENCE_S, ReplyBuffer


class Loop:
    """Has one timer at most."""

    def __init__(self) -> None:
        self.timer: Callable[[], None] | None = None
        self.delay = 0.0

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        assert self.timer is None
        self.timer, self.delay = callback, delay
        return self

    def cancel(self) -> None:
        self.timer = None

    def fire(self) -> None:
        timer, self.timer = self.timer, None
        assert timer is not None
        timer()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def answers(loop: Loop) -> ReplyBuffer:
    return ReplyBuffer(loop)  # type: ignore[arg-type]


def test_frames_are_put_off_at_the_bound_and_waiting_callbacks_run_once_below_it(answers: ReplyBuffer, loop: Loop) -> None:
    told: list[str] = []

    def go_on() -> None:
        told.append("one")

    def other() -> None:
        told.append("other")

    answers.add(MOST_BYTES - 1)
    assert (answers.puts_off, loop.timer) == (False, None)
    answers.add(1)
    assert (answers.puts_off, loop.delay) == (True, PATIENCE_S)
    answers.wait(go_on)
    answers.wait(other)
    answers.leave(other)
    answers.leave(other)
    answers.add(5)
    answers.remove(5)
    assert (answers.puts_off, told) == (True, [])
    answers.remove(1)
    assert (answers.puts_off, told, loop.timer) == (False, ["one"], None)
    answers.add(1)
    answers.remove(MOST_BYTES)
    assert told == ["one"]


def test_one_answer_may_be_larger_than_the_bound(answers: ReplyBuffer) -> None:
    answers.add(3 * MOST_BYTES)
    assert answers.puts_off
    answers.remove(3 * MOST_BYTES)
    assert not answers.puts_off


def test_where_none_leaves_for_a_while_frames_are_handled_and_long_answers_dropped_until_there_is_room(answers: ReplyBuffer, loop: Loop) -> None:
    told: list[str] = []
    answers.add(2 * MOST_BYTES)
    answers.wait(lambda: told.append("one"))
    answers.remove(1)
    loop.fire()
    assert (answers.puts_off, answers.drops, told) == (False, True, ["one"])
    answers.add(1)
    assert (answers.puts_off, answers.drops, loop.timer) == (False, True, None)
    answers.remove(MOST_BYTES + 1)
    assert (answers.puts_off, answers.drops) == (False, False)
