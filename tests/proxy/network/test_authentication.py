"""proxy.network.authentication: a channel waits for its authenticator, whatever the peer and the socket do, on both sides of a connection."""

import contextlib
import gc
import socket

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.authenticator import Waker
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.epoll import UNREGISTERED
from framegate.proxy.network.frame_exchange import FrameExchange
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.timer import MAX_WAITING
from tests.fakes.authenticator import (
    Act,
    Await,
    Begun,
    Crash,
    Expect,
    Refuse,
    Say,
    ScriptedAuthenticator,
    ScriptedAuthenticators,
    begin,
    framed,
    settle,
    steps_in,
)
from tests.fakes.cases import each_of
from tests.fakes.clock import MS, SECOND
from tests.fakes.network import NetBench, Recorder, RecorderSink, frame, net_bench, reset, run_of, tcp_pair, trace_of
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import read_to_end

AUTHENTICATING = ChannelState.AUTHENTICATING
SIDES = ("downstream", "upstream")


def settle_after(net: NetBench, ms: float) -> None:
    """Let so much time pass, and poll until nothing more happens."""
    net.clock.advance_ms(ms)
    settle(net)


# Bytes.

TALK = (Expect(b"who"), Say(b"me"), Expect(b""), Say(b""), Expect(b"k" * 20))
SENT = framed(b"who") + framed(b"") + framed(b"k" * 20)
FIRST = frame(7) + frame(9)


@each_of("side", SIDES)
@each_of("split", range(len(SENT + FIRST) + 1), fresh={"net": net_bench})
def test_wherever_the_peers_bytes_are_cut_nothing_is_lost(net: NetBench, side: str, split: int) -> None:
    channel, peer, authenticator = begin(net, *TALK, side=side)
    data = SENT + FIRST
    peer.sendall(data[:split])
    settle(net)
    assert channel.state is (ChannelState.READY if split >= len(SENT) else AUTHENTICATING)
    assert channel.leased == net.pool.used
    peer.sendall(data[split:])
    net.poll_until(lambda: channel.frames_received == 2)
    assert net.listener.data[channel] == FIRST
    assert net.listener.words(channel)[0] == "ready"
    assert (channel.principal, channel.principal_type, authenticator.closed) == ("somebody", "User", 1)
    assert (channel.bytes_received, net.stats.frames_received) == (len(FIRST), 2), "what authenticates is no traffic"
    assert peer.recv(100) == framed(b"me") + framed(b"")


@each_of("side", SIDES, fresh={"net": net_bench})
def test_over_tls_what_came_in_one_record_with_the_last_frame_is_the_channels(net: NetBench, tls_world: TlsWorld, side: str) -> None:
    ours, theirs = tcp_pair()
    settings = {"downstream": tls_world.server_settings(), "upstream": tls_world.client_settings()}
    other = {"downstream": "upstream", "upstream": "downstream"}[side]
    factory = ScriptedAuthenticators(*TALK)
    channel = net.register(ours, 1, net.options(side=side, tls=settings[side], authenticators=factory))
    peer = net.register(theirs, 2, net.options(side=other, tls=settings[other]))
    net.poll_until(lambda: peer.is_open)
    data = SENT + FIRST
    peer.send(run_of(data, 5))
    net.poll_until(lambda: channel.frames_received == 2)
    assert net.listener.data[channel] == FIRST
    net.poll_until(lambda: peer.frames_received == 2)
    assert net.listener.data[peer] == framed(b"me") + framed(b"")


@each_of("side", SIDES, fresh={"net": net_bench})
def test_an_answer_that_the_socket_does_not_take_is_waited_for(net: NetBench, side: str) -> None:
    large = b"a" * 12_000_000
    channel, peer, authenticator = begin(net, Say(large), Expect(b"x"), Say(large), side=side)
    peer.sendall(framed(b"x") + frame(3))
    assert steps_in(net, authenticator) == 0, "nothing is read before it is out"
    assert channel.state is AUTHENTICATING
    assert channel.leased == net.pool.used == net.pool.pending > 1_000_000
    received = 0
    peer.setblocking(False)

    def read() -> bool:
        nonlocal received
        with contextlib.suppress(BlockingIOError):
            received += len(peer.recv(1 << 20))
        return received == 2 * (len(large) + 4)

    net.poll_until(read, 20_000)
    net.poll_until(lambda: channel.frames_received == 1)
    assert net.pool.used == 0


# Waiting.


@each_of("side", SIDES)
@each_of("waiting", [b"", frame(3)], fresh={"net": net_bench})
def test_an_outside_event_is_waited_for_without_a_step(net: NetBench, side: str, waiting: bytes) -> None:
    channel, peer, authenticator = begin(net, Expect(b"a"), Await(), Say(b"b"), Expect(b"c"), side=side)
    peer.sendall(framed(b"a"))
    settle(net)
    peer.sendall(framed(b"c") + waiting)
    assert steps_in(net, authenticator) == 0, "the peer's bytes do not make it spin"
    assert channel.state is AUTHENTICATING
    authenticator.tell()
    net.poll_until(lambda: channel.is_open)
    if waiting:
        net.poll_until(lambda: channel.frames_received == 1)


def test_time_may_be_waited_for(net: NetBench) -> None:
    channel, _, authenticator = begin(net, Await(ns=2 * SECOND), Await(ns=SECOND), Await())
    assert authenticator.waker is not None
    authenticator.waker.wake()
    settle_after(net, 1999)
    assert channel.state is AUTHENTICATING
    before = authenticator.steps
    settle_after(net, 1)
    assert authenticator.steps == before + 1
    settle_after(net, 1000)
    authenticator.tell()
    settle(net)
    assert channel.is_open
    waker = authenticator.waker
    waker.wake()
    waker.wake_at(net.clock.now)
    before = authenticator.steps
    settle_after(net, 10)
    assert authenticator.steps == before, "nobody is woken who is done"


def test_the_channel_knows_when_its_authentication_expires(net: NetBench) -> None:
    factory = ScriptedAuthenticators(Expect(b"a"), principal="token", principal_type="Token", expires_ns=77 * SECOND)
    channel, peer = net.pair(net.options(authenticators=factory))
    peer.sendall(framed(b"a"))
    net.poll_until(lambda: channel.is_open)
    assert (channel.principal, channel.principal_type, channel.expires_ns) == ("token", "Token", 77 * SECOND)


PHASES: dict[str, tuple[tuple[Act, ...], bytes]] = {
    "wants to read": ((Expect(b"abc"),), b""),
    "within a frame": ((Expect(b"abc"),), framed(b"abc")[:5]),
    "wants to write": ((Say(b"a" * 8_000_000),), b""),
    "waits": ((Await(),), b""),
    "waits, with bytes": ((Await(),), b"abc"),
    "is refused": ((Expect(b"x", answer=b"no"),), framed(b"y")),
}


def at_phase(net: NetBench, phase: str, side: str) -> Begun:
    script, sent = PHASES[phase]
    channel, peer, authenticator = begin(net, *script, side=side, delay_ms=5000)
    peer.sendall(sent)
    settle(net)
    assert (channel.state, channel.is_open, authenticator.closed) == (AUTHENTICATING, False, 0)
    return channel, peer, authenticator


@each_of("side", SIDES)
@each_of("phase", PHASES, fresh={"net": net_bench})
def test_an_authentication_that_takes_too_long_is_closed(net: NetBench, phase: str, side: str) -> None:
    channel, peer, authenticator = at_phase(net, phase, side)
    settle_after(net, 4999)
    assert channel.state is AUTHENTICATING
    cause = Cause.HANDSHAKE_TIMEOUT if side == "downstream" else Cause.UPSTREAM_TIMEOUT
    if phase == "is refused":
        channel.options.failed_authentication_delay_ns = 0
        cause = Cause.AUTH_FAILED
        settle_after(net, 1)
        assert peer.recv(10) == framed(b"no")
    settle_after(net, 5001)
    assert (channel.close_cause, authenticator.closed) == (cause, 1)
    assert net.listener.words(channel) == ["closed"]


@each_of("side", SIDES)
@each_of("cause", [Cause.ADMIN, Cause.DRAINED])
@each_of("phase", PHASES, fresh={"net": net_bench})
def test_a_channel_that_we_close_meanwhile_is_closed_at_once(net: NetBench, phase: str, side: str, cause: Cause) -> None:
    channel, _, authenticator = at_phase(net, phase, side)
    if cause is Cause.ADMIN:
        channel.close(cause, "because")
    else:
        net.selector.close_channels()
    settle(net)
    assert channel.close_cause is (Cause.AUTH_FAILED if phase == "is refused" else cause), "the first cause wins"
    assert (authenticator.closed, channel.leased, net.listener.words(channel)) == (1, 0, ["closed"])
    if authenticator.waker is not None:
        authenticator.waker.wake()
        authenticator.waker.wake_at(net.clock.now)
        net.clock.advance_ms(1)
    assert steps_in(net, authenticator) == 0
    assert authenticator.closed == 1


@each_of("side", SIDES)
@each_of("end", ["close", "reset"])
@each_of("phase", PHASES, fresh={"net": net_bench})
def test_a_peer_that_goes_away_is_noticed(net: NetBench, phase: str, side: str, end: str) -> None:
    channel, peer, authenticator = at_phase(net, phase, side)
    if end == "close" and phase != "wants to write":
        peer.close()
    else:
        reset(peer)
    settle(net)
    if end == "close" and phase == "waits, with bytes":
        assert channel.state is AUTHENTICATING, "it may yet be told that all is well"
        assert steps_in(net, authenticator) == 0
        authenticator.tell()
        settle(net)
        assert channel.ready_ns != 0
        assert "end_of_stream" in net.listener.words(channel)
        return
    expected = {
        ("wants to read", "close"): Cause.NO_DATA,
        ("wants to write", "close"): Cause.PEER_RESET,
        ("is refused", "close"): Cause.AUTH_FAILED,
        ("is refused", "reset"): Cause.AUTH_FAILED,
    }.get((phase, end), Cause.PEER_CLOSED if end == "close" else Cause.PEER_RESET)
    assert channel.close_cause is expected
    assert (authenticator.closed, net.pool.used) == (1, 0)


@each_of(("tcp", "interest"), [(True, 0), (False, UNREGISTERED)], fresh={"net": net_bench})
def test_a_peer_that_closed_behind_unread_bytes_is_not_announced_again(net: NetBench, tcp: bool, interest: int) -> None:
    channel, peer, authenticator = begin(net, Await(), tcp=tcp)
    peer.sendall(frame(3))
    peer.close()
    settle(net)
    assert channel._interest == interest, "a Unix socket says EPOLLHUP, which cannot be masked"
    assert authenticator.waker is not None
    authenticator.waker.wake()  # for nothing
    settle(net)
    assert (channel._interest, channel.state) == (interest, AUTHENTICATING)
    authenticator.tell()
    net.poll_until(lambda: "end_of_stream" in net.listener.words(channel))
    assert net.listener.words(channel) == ["ready", "received", "end_of_stream"]


# Refusal.


@each_of("side", SIDES)
@each_of("delay_ms", [0, 100])
@each_of("answer", [b"no", b""])
@each_of("behind", [b"", b"more" * 1000], fresh={"net": net_bench})
def test_a_refusal_is_answered_after_the_delay_and_then_closed(net: NetBench, side: str, delay_ms: int, answer: bytes, behind: bytes) -> None:
    channel, peer, authenticator = begin(net, Expect(b"right", answer=answer), side=side, delay_ms=delay_ms)
    peer.sendall(framed(b"wrong") + behind)
    net.poll_until(lambda: authenticator.received)
    settle(net)
    if delay_ms:
        peer.setblocking(False)
        net.clock.advance_ms(delay_ms - 1)
        assert steps_in(net, authenticator) == 0
        assert channel.state is AUTHENTICATING
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        peer.settimeout(5)
        settle_after(net, 1)
    assert (channel.close_cause, channel.detail) == (Cause.AUTH_FAILED, "not what was expected")
    assert read_to_end(peer) == (framed(b"no") if answer else b""), "and no reset"
    assert getattr(channel.error, "side", None) == side
    assert (authenticator.closed, channel.principal) == (1, "")


def test_so_many_refusals_wait_and_one_more_has_the_oldest_answered_at_once(net: NetBench) -> None:
    """Each that waits costs a descriptor: a flood must not take them all, and nobody is let off the delay but by those behind it."""
    answer = Refuse("no", answer=b"no")
    begun = [begin(net, answer, delay_ms=100, tcp=False) for _ in range(MAX_WAITING)]
    settle(net)
    assert all(channel.state is AUTHENTICATING for channel, _, _ in begun)
    begun[1][0].close(Cause.ADMIN)  # leaves its place
    net.clock.advance_ms(50)
    later = [begin(net, answer, delay_ms=100, tcp=False) for _ in range(3)]
    settle(net)
    assert len(net.selector.refusals) == MAX_WAITING
    assert [channel.is_open or channel.close_cause is None for channel, _, _ in begun[:4]] == [False, False, False, True]
    for channel, peer, _ in (begun[0], begun[2]):
        assert (channel.close_cause, read_to_end(peer)) == (Cause.AUTH_FAILED, framed(b"no"))
    assert begun[1][0].close_cause is Cause.AUTH_FAILED, "which came first"
    net.clock.advance_ms(50)
    net.poll(30)
    assert all(channel.close_cause is Cause.AUTH_FAILED for channel, _, _ in begun)
    assert [channel.state for channel, _, _ in later] == [AUTHENTICATING] * 3
    assert len(net.selector.refusals) == 3
    net.clock.advance_ms(50)
    net.poll(4)
    assert len(net.selector.refusals) == 0


def test_a_refusal_whose_answer_is_not_read_ends_with_the_time_for_the_handshake(net: NetBench) -> None:
    channel, _, _ = begin(net, Say(b"a" * 8_000_000), Refuse("no"), delay_ms=0)
    settle(net)
    channel2, peer2, _ = begin(net, Refuse("no", answer=b"b" * 8_000_000))
    settle(net)
    assert (channel.state, channel2.state) == (AUTHENTICATING, AUTHENTICATING)
    assert len(net.selector.refusals) == 0, "without a delay it does not count"
    assert len(peer2.recv(10)) == 10
    settle_after(net, 10_001)
    assert (channel.close_cause, channel2.close_cause) == (Cause.HANDSHAKE_TIMEOUT, Cause.AUTH_FAILED)


def test_a_bug_of_an_authenticators_costs_its_channel_only(net: NetBench) -> None:
    net.faults = 1
    channel, _, authenticator = begin(net, Crash())
    settle(net)
    assert (channel.close_cause, authenticator.closed) == (Cause.INTERNAL, 1)


class MadeBy(ScriptedAuthenticators):
    def __init__(self, kind: type[ScriptedAuthenticator], *script: Act) -> None:
        super().__init__(*script)
        self.kind = kind

    def make(self, identity: object) -> ScriptedAuthenticator:
        self.made.append(self.kind(self._script, *self._known))
        return self.made[-1]


def test_an_authenticator_that_cannot_be_closed_does_not_keep_its_channel(net: NetBench) -> None:
    class Stuck(ScriptedAuthenticator):
        def close(self) -> None:
            raise OSError("stuck")

    net.faults = 2
    first, peer = net.pair(net.options(authenticators=MadeBy(Stuck, Expect(b"a"))))
    second, _ = net.pair(net.options(authenticators=MadeBy(Stuck, Expect(b"a"))))
    peer.sendall(framed(b"a"))
    net.poll_until(lambda: net.listener.words(first))
    second.close(Cause.ADMIN)
    net.poll()
    assert (first.close_cause, second.close_cause) == (Cause.INTERNAL, Cause.ADMIN)
    assert net.listener.words() == ["closed", "closed"]


# Ends.


def test_a_channel_that_is_closed_from_within_a_step_is_closed(net: NetBench) -> None:
    closed: list[Channel] = []

    class Closes(ScriptedAuthenticator):
        def step(self) -> int:
            closed[0].close(Cause.ADMIN)
            return super().step() if not self.closed else 1

    channel, _ = net.pair(net.options(authenticators=MadeBy(Closes)))
    closed.append(channel)
    settle(net)
    assert (channel.close_cause, net.listener.words(channel)) == (Cause.ADMIN, ["closed"])


@each_of("script", [(), (Expect(b"x"),), (Await(),), (Refuse("no"),)], fresh={"net": net_bench})
def test_a_closed_channels_authenticator_goes_without_the_garbage_collector(net: NetBench, script: tuple[Act, ...]) -> None:
    factory = ScriptedAuthenticators(*script)
    sink = RecorderSink(Recorder())
    ours, theirs = socket.socketpair()
    sink.channel = net.selector.register(ours, 9, net.options(authenticators=factory, failed_authentication_delay_ns=SECOND), sink)
    net.poll()
    trace = trace_of(factory.made.pop())
    gc.disable()
    try:
        sink.channel.close(Cause.ADMIN)
        net.selector.close_channels()
        del sink
        assert trace() is None
    finally:
        gc.enable()
        theirs.close()


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


def test_when_memory_is_there_again_the_rest_is_read_as_it_comes_and_a_time_that_is_waited_for_comes(net: NetBench) -> None:
    class Hurries(ScriptedAuthenticator):
        def start(self, frames: FrameExchange, waker: Waker) -> None:
            super().start(frames, waker)
            waker.wake_at(waker.now_ns() + 50 * MS)

    factory = MadeBy(Hurries, Expect(b"b" * 5000))
    channel, peer = net.pair(net.options(authenticators=factory), tcp=True)
    net.pool.common.charge(BEGUN, net.pool.size)
    peer.sendall(framed(b"b" * 5000)[:4000])
    settle(net)
    net.pool.common.release(BEGUN, net.pool.size)
    settle_after(net, 10)
    assert channel.leased == 4000 + PIECE_OVERHEAD
    net.clock.advance_ms(39)
    assert steps_in(net, factory.made[0]) == 0
    net.clock.advance_ms(1)
    assert steps_in(net, factory.made[0]) == 1
    peer.sendall(framed(b"b" * 5000)[4000:])
    net.poll_until(lambda: channel.is_open)


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
