import inspect

import pytest

from proxy.tap.frame_tap import FrameTap
from proxy.tap.point import TapPoint
from proxy.tap.selection import SelectingTap


@pytest.mark.parametrize("kind", [TapPoint, SelectingTap])
def test_every_tap_is_told_the_same(kind: type[FrameTap]) -> None:
    wanted = [name for name in vars(FrameTap) if not name.startswith("_") and callable(getattr(FrameTap, name))]
    assert set(wanted) >= {"append", "append_part", "cut_short", "may_read", "drop", "lose"}
    for name in wanted:
        assert inspect.signature(getattr(kind, name)).parameters.keys() == inspect.signature(getattr(FrameTap, name)).parameters.keys()


def test_it_is_nothing_by_itself() -> None:
    with pytest.raises(TypeError):
        FrameTap(mutes=False, asks=False)  # type: ignore[abstract]
