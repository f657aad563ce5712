"""Two that throttle one channel do not undo each other."""

import itertools

import pytest

from proxy.network import mute
from proxy.relay.throttle import QUOTA, REPLY, Throttle
from tests.fakes.network import frame, net_bench


@pytest.mark.parametrize("order", list(itertools.permutations([QUOTA, REPLY])))
def test_the_mute_lasts_until_the_last_holder_lets_go(order):
    with net_bench() as bench:
        channel, peer = bench.ready_pair()
        throttle = Throttle(channel)
        assert throttle.hold(order[0])
        assert throttle.hold(order[1])
        assert throttle.hold(order[1])
        peer.sendall(frame(10))
        throttle.let_go(order[1])
        bench.poll(3)
        assert (throttle.holders, channel.mute_causes, channel.frames_received) == (order[0], mute.THROTTLE, 0)
        throttle.let_go(order[0])
        bench.poll(3)
        assert (throttle.holders, channel.mute_causes, channel.frames_received) == (0, 0, 1)
        assert channel.mutes.summary()["throttle"]["count"] == 1


def test_who_does_not_hold_lets_nothing_go():
    with net_bench() as bench:
        channel, _ = bench.ready_pair()
        throttle = Throttle(channel)
        throttle.let_go(QUOTA)
        throttle.hold(REPLY)
        throttle.let_go(QUOTA)
        assert channel.mute_causes == mute.THROTTLE
        throttle.let_go(REPLY)
        throttle.let_go(REPLY)
        assert channel.mute_causes == 0


def test_a_frame_begun_is_finished_whoever_throttles():
    with net_bench() as bench:
        channel, peer = bench.ready_pair()
        peer.sendall(frame(10)[:6])
        bench.poll(2)
        throttle = Throttle(channel)
        assert not throttle.hold(REPLY)
        assert not throttle.hold(QUOTA)
        peer.sendall(frame(10)[6:] + frame(20))
        bench.poll(4)
        assert (channel.frames_received, channel.mute_in_force) == (1, True)
        throttle.let_go(REPLY)
        bench.poll(2)
        assert channel.frames_received == 1
        throttle.let_go(QUOTA)
        bench.poll(2)
        assert channel.frames_received == 2


def test_a_closed_channel_may_be_let_go():
    with net_bench() as bench:
        channel, _ = bench.ready_pair()
        throttle = Throttle(channel)
        throttle.hold(QUOTA)
        bench.selector.close_channels()
        throttle.let_go(QUOTA)
        assert throttle.holders == 0
