"""proxy.network.mute_set: the causes that hold a channel now, counted and timed."""

from proxy.network import mute
from proxy.network.mute import MuteState
from proxy.network.mute_set import MuteSet
from proxy.network.stats import SideStats


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
