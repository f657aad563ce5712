"""Two that throttle one channel do not undo each other."""

import itertools

from framegate.proxy.network import mute
from framegate.proxy.network.run import Run
from framegate.proxy.relay.bucket import WHOLE, Bucket
from framegate.proxy.relay.throttle import QUOTA, REPLY, Meter, Throttle
from tests.fakes.cases import each_of
from tests.fakes.limited import MeteredSink
from tests.fakes.network import frame, net_bench, tcp_pair


@each_of("order", list(itertools.permutations([QUOTA, REPLY])), fresh={"net": net_bench})
def test_the_mute_lasts_until_the_last_holder_lets_go(net, order):
    channel, peer = net.ready_pair()
    throttle = Throttle(channel)
    assert throttle.hold(order[0])
    assert throttle.hold(order[1])
    assert throttle.hold(order[1])
    peer.sendall(frame(10))
    throttle.let_go(order[1])
    net.poll(3)
    assert (throttle.holders, channel.mute_causes, channel.frames_received) == (order[0], mute.THROTTLE, 0)
    throttle.let_go(order[0])
    net.poll(3)
    assert (throttle.holders, channel.mute_causes, channel.frames_received) == (0, 0, 1)
    assert channel.mutes.of(mute.position(mute.THROTTLE))[0] == 1


def test_letting_go_without_holding_changes_nothing_also_of_a_closed_channel(net):
    channel, _ = net.ready_pair()
    throttle = Throttle(channel)
    throttle.let_go(QUOTA)
    throttle.hold(REPLY)
    throttle.let_go(QUOTA)
    assert channel.mute_causes == mute.THROTTLE
    throttle.let_go(REPLY)
    throttle.let_go(REPLY)
    assert channel.mute_causes == 0
    throttle.hold(QUOTA)
    net.selector.close_channels()
    throttle.let_go(QUOTA)
    assert throttle.holders == 0


def test_a_frame_begun_is_finished_while_the_channel_is_throttled(net):
    channel, peer = net.ready_pair()
    peer.sendall(frame(10)[:6])
    net.poll(2)
    throttle = Throttle(channel)
    assert not throttle.hold(REPLY)
    assert not throttle.hold(QUOTA)
    peer.sendall(frame(10)[6:] + frame(20))
    net.poll(4)
    assert (channel.frames_received, channel.mute_in_force) == (1, True)
    throttle.let_go(REPLY)
    net.poll(2)
    assert channel.frames_received == 1
    throttle.let_go(QUOTA)
    net.poll(2)
    assert channel.frames_received == 2


def test_over_tls_what_the_transport_holds_waits_for_its_turn_too(net, tls_world):
    ours, peer = tcp_pair()
    sink = MeteredSink(net.listener)
    server = sink.channel = net.selector.register(ours, 1, net.options(tls=tls_world.server_settings()), sink)
    client = net.register(peer, 2, net.options(side="upstream", tls=tls_world.client_settings()))
    net.poll_until(lambda: server.is_open and client.is_open)
    throttle = Throttle(server)
    throttle.meter = sink.meter = Meter(throttle, net.selector, [Bucket(net.selector, 10_000, WHOLE, frames=False)])
    server.gated = True
    data = frame(996) * 60
    client.send(Run(None, 0, data, 0, len(data), 60, 0))
    seen = []
    for _ in range(7 * 50):
        net.poll(4)
        seen.append(int(server.bytes_received))
        net.clock.advance_ms(20)
    assert max(after - before for before, after in zip(seen, seen[50:], strict=False)) <= 1.05 * 10_000 + 1000
    assert server.frames_received == 60
    assert net.listener.data[server] == data
    assert seen[3 * 50] <= 1.05 * 30_000 + 1000
