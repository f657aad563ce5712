from pathlib import Path

import pytest

from control.doctor.clock import ClockState, kernel_clock, look, stepped
from tests.fakes.surroundings import around, levels, one


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (ClockState(True, 0.02), "ok"),
        (ClockState(True, 1.0), "ok"),
        (ClockState(True, 1.001), "warning"),
        (ClockState(False, 0.0), "warning"),
    ],
)
def test_a_clock_that_is_not_known_for_right_is_told(tmp_path: Path, state: ClockState, level: str) -> None:
    found = one(look(around(tmp_path), lambda: state, lambda: 0.0), "synchronisation")
    assert (found.level, found.figures["most_error_s"]) == (level, state.most_error_s)


def test_a_kernel_that_may_not_be_asked_is_said(tmp_path: Path) -> None:
    def refuse() -> ClockState:
        raise PermissionError(1, "Operation not permitted")

    assert levels(look(around(tmp_path), refuse, lambda: 0.0)) == ["unknown", "ok"]


@pytest.mark.parametrize(("by", "level"), [(0.0, "ok"), (0.019, "ok"), (-0.019, "ok"), (0.02, "warning"), (-5.0, "warning")])
def test_a_clock_that_is_set_meanwhile_is_told(tmp_path: Path, by: float, level: str) -> None:
    assert one(look(around(tmp_path), lambda: ClockState(True, 0.0), lambda: by), "steps").level == level


def test_a_step_is_what_one_clock_moved_more_than_the_other() -> None:
    wall, grown = [1000.0], [5.0]

    def wait(seconds: float) -> None:
        grown[0] += seconds
        wall[0] += seconds - 30

    assert stepped(wait, lambda: wall[0], lambda: grown[0]) == pytest.approx(-30)


def test_this_machines_kernel_is_asked() -> None:
    """Whatever it says: an error is below its own bound, which grows when nobody synchronises it."""
    assert 0 <= kernel_clock().most_error_s < 1e6
