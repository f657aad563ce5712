"""framegate.proxy.network.authentication: a mute does not stop it, and what it holds is bounded while memory is short."""

import socket

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.authenticator import Waker
from framegate.proxy.network.frame_exchange import FrameExchange
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD
from tests.fakes.authenticator import Expect, ScriptedAuthenticator, ScriptedAuthenticators, begin, framed, settle, steps_in
from tests.fakes.cases import each_of
from tests.fakes.clock import MS
from tests.fakes.network import NetBench, frame, net_bench, reset

SIDES = ("downstream", "upstream")


@each_of("cause", [mute.PEER, mute.ADMIN], fresh={"net": net_bench})
def test_a_mute_does_not_stop_it_and_holds_from_the_first_frame(net: NetBench, cause: int) -> None:
    channel, peer, _ = begin(net, Expect(b"abc"))
    channel.mute(cause)
    peer.sendall(framed(b"abc") + frame(3))
    net.poll_until(lambda: channel.is_open)
    settle(net)
    assert (channel.frames_received, channel.mute_in_force) == (0, True)
    channel.unmute(cause)
    net.poll_until(lambda: channel.frames_received == 1)


@each_of("side", SIDES)
@each_of("tcp", [True, False], fresh={"net": net_bench})
def test_while_memory_is_short_a_body_stays_in_the_kernel_until_it_is_whole(net: NetBench, side: str, tcp: bool) -> None:
    channel, peer, authenticator = begin(net, Expect(b"b" * 5000), side=side, tcp=tcp)
    net.pool.common.charge(BEGUN, net.pool.size)
    try:
        peer.sendall(framed(b"b" * 5000)[:4000])
        settle(net)
        assert channel.leased == 4 + PIECE_OVERHEAD, "its header, and no more"
        assert steps_in(net, authenticator) == 0, "epoll does not announce what must not be read"
        net.clock.advance_ms(10)
        settle(net)
        assert channel.leased == 4 + PIECE_OVERHEAD
        peer.sendall(framed(b"b" * 5000)[4000:])
        net.clock.advance_ms(10)
        net.poll_until(lambda: channel.is_open)
    finally:
        net.pool.common.release(BEGUN, net.pool.size)


def test_when_memory_is_there_again_the_rest_is_read_as_it_comes(net: NetBench) -> None:
    channel, peer, _ = begin(net, Expect(b"b" * 5000))
    net.pool.common.charge(BEGUN, net.pool.size)
    peer.sendall(framed(b"b" * 5000)[:4000])
    settle(net)
    net.pool.common.release(BEGUN, net.pool.size)
    net.clock.advance_ms(10)
    settle(net)
    assert channel.leased == 4000 + PIECE_OVERHEAD
    peer.sendall(framed(b"b" * 5000)[4000:])
    net.poll_until(lambda: channel.is_open)


def test_a_time_that_is_waited_for_comes_though_memory_was_short_before(net: NetBench) -> None:
    class Hurries(ScriptedAuthenticator):
        def start(self, frames: FrameExchange, waker: Waker) -> None:
            super().start(frames, waker)
            waker.wake_at(waker.now_ns() + 50 * MS)

    class Makes(ScriptedAuthenticators):
        def make(self, identity: object) -> ScriptedAuthenticator:
            made = Hurries((Expect(b"b" * 5000),), "somebody", "User", 1, 5000)
            self.made.append(made)
            return made

    factory = Makes()
    channel, peer = net.pair(net.options(authenticators=factory), tcp=True)
    net.pool.common.charge(BEGUN, net.pool.size)
    peer.sendall(framed(b"b" * 5000)[:4000])
    settle(net)
    net.pool.common.release(BEGUN, net.pool.size)
    net.clock.advance_ms(10)
    settle(net)
    assert channel.leased == 4000 + PIECE_OVERHEAD
    authenticator = factory.made[0]
    net.clock.advance_ms(39)
    assert steps_in(net, authenticator) == 0
    net.clock.advance_ms(1)
    assert steps_in(net, authenticator) == 1


@each_of("end", ["close", "shut", "reset"], fresh={"net": net_bench})
def test_a_peer_that_ends_within_a_body_that_waits_for_memory_is_noticed(net: NetBench, end: str) -> None:
    channel, peer, _ = begin(net, Expect(b"b" * 5000))
    net.pool.common.charge(BEGUN, net.pool.size)
    try:
        peer.sendall(framed(b"b" * 5000)[:4000])
        settle(net)
        if end == "shut":
            peer.shutdown(socket.SHUT_WR)
        elif end == "close":
            peer.close()
        else:
            reset(peer)
        settle(net)
        assert channel.close_cause is (Cause.PEER_RESET if end == "reset" else Cause.PEER_CLOSED)
    finally:
        net.pool.common.release(BEGUN, net.pool.size)
