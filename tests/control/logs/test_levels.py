"""Which rows are written."""

import pytest

from framegate.control.errors import InvalidArgumentError
from framegate.control.logs.levels import Levels
from framegate.proxy.config.log import LEVELS, LogLevel
from tests.fakes.cases import each_of


@each_of("least", LEVELS)
def test_rows_from_the_level_on_are_written_and_those_below_are_not(least: LogLevel) -> None:
    levels = Levels(least)
    assert [levels.passes("closed", level) for level in LEVELS] == [LEVELS.index(level) >= LEVELS.index(least) for level in LEVELS]


def test_rows_about_changes_are_always_written() -> None:
    levels = Levels("error")
    assert levels.passes("audit", "info")
    with pytest.raises(InvalidArgumentError, match="audit are always written"):
        levels.change(None, {"audit": False})
    levels.change(None, {"audit": True})
    assert levels.passes("audit", "info")


def test_an_event_is_silenced_whatever_its_level_and_written_again() -> None:
    levels = Levels("debug")
    levels.change(None, {"closed": False, "access": False})
    assert [levels.passes(event, "error") for event in ("closed", "access", "opened")] == [False, False, True]
    levels.change("warning", {"closed": True})
    assert levels.silenced == {"access"}
    assert [levels.passes("closed", level) for level in ("info", "warning")] == [False, True]
    levels.change("info", {})
    assert levels.silenced == {"access"}, "what is not named stays"


def test_a_change_that_names_no_event_is_not_made_at_all() -> None:
    levels = Levels("info")
    with pytest.raises(InvalidArgumentError, match="there is no event 'clsoed'"):
        levels.change("error", {"closed": False, "clsoed": False})
    assert (levels.level, levels.silenced) == ("info", frozenset())
