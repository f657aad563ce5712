"""framegate.proxy.network.mute: every state meets every event, and the table agrees with the sets of causes it stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.errors import IllegalTransitionError
from framegate.proxy.network import mute
from framegate.proxy.network.mute import CAUSES, TRANSITIONS, MuteEvent, MuteState, cause_names, next_state, position
from tests.fakes.cases import each_of


@each_of("event", MuteEvent)
@each_of("state", MuteState)
def test_every_state_meets_every_event(state: MuteState, event: MuteEvent) -> None:
    expected = TRANSITIONS.get((state, event))
    if expected is None:
        with pytest.raises(IllegalTransitionError):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


def meaning(hard: bool, soft: bool, within: bool) -> MuteState:
    """What a set of causes comes to: the table written as a function."""
    if soft and within:
        return MuteState.HELD if hard else MuteState.MUTING
    if soft:
        return MuteState.SEALED if hard else MuteState.MUTED
    return MuteState.PAUSED if hard else MuteState.FLOWING


@given(st.lists(st.sampled_from(["hard", "soft", "frame"]), max_size=30))
def test_the_table_never_leaves_what_the_causes_mean(steps: list[str]) -> None:
    hard = soft = begun = False
    within = False  # a frame was begun when the soft cause came, and is not finished
    state = MuteState.FLOWING
    for step in steps:
        if step == "hard":
            hard = not hard
            state = next_state(state, MuteEvent.HARD_ON if hard else MuteEvent.HARD_OFF)
        elif step == "soft":
            soft = not soft
            within = soft and begun
            event = (MuteEvent.SOFT_ON_WITHIN if begun else MuteEvent.SOFT_ON_BETWEEN) if soft else MuteEvent.SOFT_OFF
            state = next_state(state, event)
        elif state is MuteState.FLOWING or state is MuteState.MUTING:
            begun = not begun
            if within and not begun:
                within = False
                state = next_state(state, MuteEvent.BOUNDARY)
        assert state is meaning(hard, soft, within)


def test_causes_are_bits_in_order() -> None:
    assert [bit for _, bit in CAUSES] == [1 << index for index in range(mute.CAUSE_COUNT)]
    assert [position(bit) for _, bit in CAUSES] == list(range(mute.CAUSE_COUNT))
    assert sum(bit for _, bit in CAUSES) == mute.HARD | mute.SOFT
    assert mute.HARD & mute.SOFT == 0


def test_causes_have_names() -> None:
    assert cause_names(0) == []
    assert cause_names(mute.PEER | mute.ADMIN) == ["peer", "admin"]
