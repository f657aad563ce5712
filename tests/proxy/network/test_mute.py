"""framegate.proxy.network.mute: every state meets every event, and the table agrees with the sets of causes it stands for."""

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network import mute
from framegate.proxy.network.mute import CAUSES, TRANSITIONS, MuteEvent, MuteSet, MuteState, cause_names, position
from framegate.proxy.network.state import transition
from framegate.proxy.network.stats import SideStats


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
            state = transition(TRANSITIONS, state, MuteEvent.HARD_ON if hard else MuteEvent.HARD_OFF)
        elif step == "soft":
            soft = not soft
            within = soft and begun
            event = (MuteEvent.SOFT_ON_WITHIN if begun else MuteEvent.SOFT_ON_BETWEEN) if soft else MuteEvent.SOFT_OFF
            state = transition(TRANSITIONS, state, event)
        elif state is MuteState.FLOWING or state is MuteState.MUTING:
            begun = not begun
            if within and not begun:
                within = False
                state = transition(TRANSITIONS, state, MuteEvent.BOUNDARY)
        assert state is meaning(hard, soft, within)


def test_causes_are_bits_in_order() -> None:
    assert [bit for _, bit in CAUSES] == [1 << index for index in range(mute.CAUSE_COUNT)]
    assert [position(bit) for _, bit in CAUSES] == list(range(mute.CAUSE_COUNT))
    assert sum(bit for _, bit in CAUSES) == mute.HARD | mute.SOFT
    assert mute.HARD & mute.SOFT == 0


def test_causes_have_names() -> None:
    assert cause_names(0) == []
    assert cause_names(mute.PEER | mute.ADMIN) == ["peer", "admin"]


def test_a_set_counts_and_times_each_cause() -> None:
    stats = SideStats()
    mutes = MuteSet(stats)
    assert (mutes.of(position(mute.PEER)), mutes.first_ns) == ((0, 0), 0)
    mutes.add(mute.PEER, 100, within=False)
    mutes.add(mute.ADMIN, 200, within=True)
    assert (mutes.state, mutes.in_force, mutes.count) == (MuteState.HELD, False, 2)
    assert (mutes.since_ns(mute.PEER), mutes.since_ns(mute.TAP), mutes.first_ns) == (100, 0, 100)
    mutes.remove(mute.PEER, 150)
    assert (mutes.state, mutes.first_ns) == (MuteState.MUTING, 200)
    assert mutes.pass_boundary()
    assert not mutes.pass_boundary()
    assert mutes.in_force
    mutes.end(1000)
    assert (mutes.causes, mutes.first_ns) == (0, 0)
    assert [mutes.of(position(cause)) for cause in (mute.PEER, mute.ADMIN, mute.TAP)] == [(1, 50), (1, 800), (0, 0)]
    assert list(stats.muted) == [0] * mute.CAUSE_COUNT
    assert sum(stats.mute_ns) == 850


def test_a_cause_that_goes_leaves_the_others_in_force() -> None:
    for one, other, held in ((mute.PEER, mute.TAP, MuteState.PAUSED), (mute.ADMIN, mute.DRAIN, MuteState.MUTED)):
        mutes = MuteSet(SideStats())
        mutes.add(one, 100, within=False)
        mutes.add(other, 200, within=False)
        mutes.remove(one, 300)
        assert mutes.state is held
        mutes.remove(other, 400)
        assert mutes.state is MuteState.FLOWING
