"""framegate.proxy.network.mute_set: the causes that hold a channel now, counted and timed."""

from framegate.proxy.network import mute
from framegate.proxy.network.mute import MuteState
from framegate.proxy.network.mute_set import MuteSet
from framegate.proxy.network.stats import SideStats


def test_a_set_counts_and_times_each_cause() -> None:
    stats = SideStats()
    mutes = MuteSet(stats)
    assert (mutes.summary(), mutes.first_ns) == ({}, 0)
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
    assert mutes.summary() == {"peer": {"count": 1, "ns": 50}, "admin": {"count": 1, "ns": 800}}
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
