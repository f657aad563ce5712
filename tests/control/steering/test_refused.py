"""framegate.control.steering.refused: the last refused frames of each listener."""

from typing import Any

import pytest

from framegate.control.errors import NotFoundError
from framegate.control.steering.refused import KEPT
from tests.fakes.fleet import Fleet, run
from tests.fakes.rows import refused_frame_row
from tests.fakes.scenario import run_by


@run_by(run)
async def test_the_last_hundred_of_a_listener_are_kept_the_latest_first(made: Fleet) -> None:
    refused: Any = made.steering.refused_frames
    assert refused.latest("a") == []
    for size in range(KEPT + 1):
        made.supervisor.on_refused(refused_frame_row(listener="a", size=size))
        assert [row["size"] for row in refused.latest("a")] == list(range(size, max(size - KEPT, -1), -1))
    for name in ("gone", "gone too"):  # of connections that outlive their listener
        made.supervisor.on_refused(refused_frame_row(listener=name))
        assert list(refused._kept) == ["a", name]
        with pytest.raises(NotFoundError):
            refused.latest(name)
