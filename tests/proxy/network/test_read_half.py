"""framegate.proxy.network.read_half and write_half: what can be read of a channel at each point of its life."""

import itertools

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench


def test_what_is_urgent_is_read_while_memory_is_short() -> None:
    with net_bench(pool=1 << 20) as net:
        channel, peer = net.ready_pair()
        net.pool.common.charge(0, 2 << 20)
        net.listener.room = (0, False)
        peer.send(frame(100))
        net.poll(3)
        assert channel not in net.listener.frames
        channel.unmute(mute.PEER)
        channel.read_half.is_urgent = True
        net.poll(2)
        assert net.listener.frames[channel] == 1
        net.pool.common.release(0, 2 << 20)


@each_of("most", [1, 7, 26, 27, 1000], fresh={"net": net_bench})
def test_a_gated_read_has_no_more_than_the_sink_says(net: NetBench, most: int) -> None:
    channel, peer = net.ready_pair()
    channel.gated = True
    net.listener.most = most
    data = frame(3) * 10
    peer.send(data)
    net.poll_until(lambda: channel.frames_received == 10, step_ms=1)
    assert net.listener.data[channel] == data
    assert net.listener.reads == [min(most * (number + 1), len(data)) for number in range(-(-len(data) // most))], "told of each"
    net.listener.most = 1 << 20
    channel.gated = False
    peer.send(data * 100)
    net.poll(2)
    assert channel.frames_received == 1010, "and what suits the traffic is not forgotten"


def test_a_limit_of_none_is_one_frame(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.gated = True
    net.listener.most = 0
    peer.send(frame(3) + frame(0) + frame(70_000) + frame(5))
    seen: list[int] = []
    for _ in range(40):
        net.poll()
        seen.append(int(channel.frames_received))
    assert seen[-1] == 4
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


def test_a_throttled_channel_reads_the_frame_begun_and_the_sink_is_told(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.gated = True
    net.listener.most = 10
    peer.send(frame(20) + frame(1))
    net.poll()
    assert (channel.staged, net.listener.reads) == (10, [10])
    assert not channel.mute(mute.THROTTLE)
    net.poll(3)
    assert (channel.frames_received, net.listener.reads[-1], channel.mute_in_force) == (1, 24, True)
    net.poll(3)
    assert net.listener.reads[-1] == 24
    channel.unmute(mute.THROTTLE)
    net.poll(2)
    assert (channel.frames_received, net.listener.reads[-1]) == (2, 29)


def test_a_sink_is_told_of_the_end_and_of_a_read_that_closed(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.gated = True
    peer.send(frame(1))
    peer.close()
    net.poll(3)
    assert net.listener.reads == [5, 5]
    other, peer = net.ready_pair()
    other.gated = True
    net.listener.on["received"] = lambda channel: channel.close(Cause.ADMIN)
    peer.send(frame(1))
    net.poll(2)
    assert net.listener.reads == [5, 5, 5]
