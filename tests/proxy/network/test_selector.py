"""proxy.network.selector: many connections, one wait."""

import contextlib
import errno
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.network import mute
from proxy.network.authenticator import AuthenticatorFactory, HandshakeAuthenticator
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.network.fd_handler import FdHandler
from proxy.network.plaintext import PlaintextTransport
from proxy.network.run import Run
from proxy.network.selector import BUDGET_NS, CLOCK_EACH, MAX_EVENTS, MAX_REGISTERED
from proxy.network.state import ChannelState
from proxy.network.timer import Timer
from proxy.network.transport import Identity
from tests.fakes.clock import SECOND
from tests.fakes.network import NetBench, frame, net_bench, tcp_pair
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import refusing_port


@pytest.fixture
def net() -> Iterator[NetBench]:
    with net_bench() as bench:
        yield bench


class Act(Timer):
    """A timer that does what the test says."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def fire(self, now_ns: int) -> None:
        self.action()


class Drain(FdHandler):
    """Reads a descriptor and keeps what came."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.seen = b""

    def on_event(self, events: int) -> None:
        self.seen += self.sock.recv(100)


# Opening.


def test_an_accepted_socket_is_ready_with_the_next_poll_and_never_within_register(net: NetBench) -> None:
    channel, _ = net.pair()
    assert (channel.state, net.listener.words()) == (ChannelState.HANDSHAKE, [])
    net.poll()
    assert (channel.state, net.listener.words(), channel.principal) == (ChannelState.READY, ["ready"], "ANONYMOUS")


def test_a_connection_is_opened_without_blocking(net: NetBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = net.connect(socket.AF_INET, server.getsockname(), 7, net.options(side="upstream"), peer="server")
        assert net.listener.words() == []
        net.poll_until(lambda: channel.is_open)
        peer, _ = server.accept()
        with peer:
            assert channel.send(Run(None, 0, frame(2), 0, 6, 1, 0))
            assert peer.recv(100) == frame(2)
    assert (channel.id, channel.peer) == (7, "server")
    assert channel.opened_ns <= channel.connected_ns <= channel.ready_ns


def test_a_connection_that_takes_its_time_is_ready_when_the_socket_says_so(net: NetBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.socket()
        ours.setblocking(False)
        assert ours.connect_ex(server.getsockname()) == errno.EINPROGRESS
        channel = net.adopt(ours, PlaintextTransport(ours), 1, net.options(side="upstream"), connecting=True)
        assert channel.state is ChannelState.CONNECTING
        net.clock.now += 5
        net.poll_until(lambda: channel.is_open)
    assert channel.opened_ns + 5 == channel.connected_ns == channel.ready_ns


def test_a_unix_socket_that_connects_at_once_is_told_later(net: NetBench, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        channel = net.connect(socket.AF_UNIX, path, 1, net.options(side="upstream"))
        assert net.listener.words() == []
        net.poll_until(lambda: channel.is_open)


def test_a_refused_connection_is_told_later_and_never_raised(net: NetBench, tmp_path: Path) -> None:
    with refusing_port() as port:
        refused = net.connect(socket.AF_INET, ("127.0.0.1", port), 1, net.options(side="upstream"))
        missing = net.connect(socket.AF_UNIX, str(tmp_path / "none"), 2, net.options(side="upstream"))
        assert net.listener.words() == []
        net.poll_until(lambda: net.selector.channel_count == 0)
    for channel in (refused, missing):
        assert (channel.close_cause, channel.closed_in) == (Cause.UPSTREAM_REFUSED, ChannelState.CONNECTING)
        assert channel.detail
    assert sorted(net.listener.words()) == ["closed", "closed"]


def test_a_unix_socket_whose_queue_is_full_refuses(net: NetBench, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        first, second = [net.connect(socket.AF_UNIX, path, number, net.options(side="upstream")) for number in (1, 2)]
        net.poll_until(lambda: first.is_open and second.close_cause)
        assert (second.close_cause, second.closed_in) == (Cause.UPSTREAM_REFUSED, ChannelState.CONNECTING)


def test_a_connection_that_takes_too_long_times_out(net: NetBench) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        others = [socket.create_connection(server.getsockname()) for _ in range(1)]
        channel = net.connect(socket.AF_INET, server.getsockname(), 1, net.options(side="upstream"))
        net.poll(3)
        opened = channel.state is not ChannelState.CONNECTING
        net.clock.advance_ms(10_000)
        net.poll()
        if not opened:
            assert (channel.close_cause, channel.closed_in) == (Cause.UPSTREAM_TIMEOUT, ChannelState.CONNECTING)
        for other in others:
            other.close()


def test_a_client_that_does_not_finish_its_handshake_times_out(net: NetBench, tls_world: TlsWorld) -> None:
    channel, _ = net.pair(net.options(tls=tls_world.server_settings()))
    net.poll(2)
    net.clock.advance_ms(9_999)
    net.poll()
    assert channel.state is ChannelState.HANDSHAKE
    net.clock.advance_ms(1)
    net.poll()
    assert (channel.close_cause, channel.closed_in) == (Cause.HANDSHAKE_TIMEOUT, ChannelState.HANDSHAKE)


def test_the_budget_for_new_sockets_is_renewed_by_each_poll(net: NetBench) -> None:
    for _ in range(3):
        net.pair()
    assert net.selector.register_budget == MAX_REGISTERED - 3
    net.poll()
    assert net.selector.register_budget == MAX_REGISTERED


# Events.


def test_a_negative_timeout_is_a_mistake(net: NetBench) -> None:
    with pytest.raises(ValueError, match="timeout"):
        net.selector.poll(-1)


def test_many_connections_keep_their_order(net: NetBench) -> None:
    pairs = [net.ready_pair(tcp=True) for _ in range(5)]
    for number in range(100):
        for index, (_, peer) in enumerate(pairs):
            peer.send(frame(number % 7, bytes([index])))
        net.poll()
    net.poll_until(lambda: all(channel.frames_received == 100 for channel, _ in pairs))
    for index, (channel, _) in enumerate(pairs):
        assert net.listener.data[channel] == b"".join(frame(number % 7, bytes([index])) for number in range(100))


def test_one_read_for_each_channel_in_each_poll(net: NetBench) -> None:
    busy, busy_peer = net.ready_pair()
    other, other_peer = net.ready_pair()
    busy_peer.send(frame(100) * 1000)
    other_peer.send(frame(1))
    net.poll()
    assert net.stats.reads == 2
    assert other.frames_received == 1
    assert 0 < busy.frames_received < 1000


def test_events_of_a_channel_that_died_in_the_batch_are_ignored(net: NetBench) -> None:
    pairs = [net.ready_pair() for _ in range(4)]
    for _, peer in pairs:
        peer.send(frame(1))

    def close_all_others(channel: Channel, run: Run) -> None:
        for other, _ in pairs:
            if other is not channel:
                other.close(Cause.ADMIN)

    net.listener.on_run = close_all_others
    net.poll()
    words = net.listener.words()
    assert words.count("received") == 1
    assert words[-3:] == ["closed"] * 3


def test_a_descriptor_is_not_reused_before_the_poll_has_ended(net: NetBench) -> None:
    first, peer = net.ready_pair()
    second, second_peer = net.ready_pair()
    fds: list[int] = []

    def replace(channel: Channel, run: Run) -> None:
        if fds:
            return
        other = second if channel is first else first
        fds.append(other.fd)
        other.close(Cause.ADMIN)
        fds.append(net.pair()[0].fd)

    net.listener.on_run = replace
    peer.send(frame(1))
    second_peer.send(frame(1))
    net.poll()
    assert len(fds) == 2
    assert fds[0] != fds[1]
    assert net.listener.words().count("received") == 1
    net.poll()


def test_no_callback_is_made_within_another(net: NetBench) -> None:
    depth: list[str] = []

    def enter(word: str) -> Callable[[Channel], None]:
        def check(channel: Channel) -> None:
            assert depth == [], f"{word} within {depth}"
            depth.append(word)
            channel.mute(mute.PEER)
            channel.unmute(mute.PEER)
            if word == "received":
                channel.shut_write()
            elif word == "write_ended":
                channel.close(Cause.ADMIN)
            depth.pop()

        return check

    for word in ("ready", "received", "sent", "end_of_stream", "write_ended", "closed"):
        net.listener.on[word] = enter(word)
    channel, peer = net.ready_pair()
    peer.send(frame(1))
    net.poll(3)
    assert net.listener.words(channel) == ["ready", "received", "write_ended", "closed"]
    assert net.selector.faults.total == 0


def test_closed_may_close_others_and_all_are_told(net: NetBench) -> None:
    channels = [net.ready_pair()[0] for _ in range(4)]
    net.listener.on["closed"] = lambda channel: (
        channels[channels.index(channel) + 1].close(Cause.UPSTREAM_CLOSED) if channel is not channels[-1] else None
    )
    channels[0].close(Cause.ADMIN)
    net.poll()
    assert [channel.close_cause for channel in channels] == [Cause.ADMIN] + [Cause.UPSTREAM_CLOSED] * 3
    assert net.listener.words()[-4:] == ["closed"] * 4


def test_an_error_in_closed_is_noted(net: NetBench) -> None:
    def fail(channel: Channel) -> None:
        raise RuntimeError("a bug")

    net.listener.on["closed"] = fail
    net.ready_pair()[0].close(Cause.ADMIN)
    net.poll()
    (fault,) = net.selector.faults.take()
    assert fault[:3] == ("callback", 1, "RuntimeError: a bug")
    net.faults = 1


# Interest.


def test_a_short_mute_costs_no_system_call(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    before = channel._interest
    for _ in range(3):
        channel.mute(mute.PEER)
        net.poll()
        channel.unmute(mute.PEER)
    assert channel._interest == before
    channel.mute(mute.PEER)
    peer.send(frame(1))
    net.poll()
    assert channel._interest == 0


# Descriptors of others, and timers.


def test_other_descriptors_may_be_watched(net: NetBench) -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        handler = Drain(ours)
        net.selector.watch(ours.fileno(), handler)
        peer.send(b"one")
        net.poll()
        assert handler.seen == b"one"
        net.selector.watch(ours.fileno(), handler, select.EPOLLPRI)
        peer.send(b"two")
        net.poll()
        assert handler.seen == b"one"
        net.selector.watch(ours.fileno(), handler, select.EPOLLIN)
        net.poll()
        assert handler.seen == b"onetwo"
        net.selector.unwatch(ours.fileno())
        net.selector.unwatch(ours.fileno())
        peer.send(b"three")
        net.poll()
        assert handler.seen == b"onetwo"


def test_timers_fire_in_a_poll_and_shorten_the_wait(net: NetBench) -> None:
    fired: list[str] = []
    timer, gone = Act(lambda: fired.append("timer")), Act(lambda: fired.append("gone"))
    net.selector.call_at(net.clock.now + 3 * SECOND, timer)
    net.selector.call_at(net.clock.now + SECOND, gone)
    net.selector.cancel(gone)
    net.poll()
    assert fired == []
    net.clock.advance_ms(3000)
    net.selector.poll(1_000_000)
    assert fired == ["timer"]


def test_busy_and_idle_time_are_told_apart(net: NetBench) -> None:
    net.listener.on["ready"] = lambda channel: net.clock.advance_ms(5)
    net.ready_pair()
    net.poll()
    assert (net.selector.busy_ns, net.selector.idle_ns, net.selector.polls) == (5_000_000, 0, 2)


def test_a_timer_that_raises_is_a_fault_and_the_others_fire(net: NetBench) -> None:
    fired: list[str] = []

    def fail() -> None:
        raise RuntimeError("a bug")

    for number, action in enumerate((fail, lambda: fired.append("timer"))):
        net.selector.call_at(net.clock.now + number, Act(action))
    net.clock.advance_ms(1)
    net.poll()
    assert fired == ["timer"]
    assert net.selector.faults.take()[0][:3] == ("timer", 1, "RuntimeError: a bug")
    net.faults = 1


def test_a_descriptor_whose_handler_raises_is_a_fault_and_the_channels_go_on(net: NetBench) -> None:
    class Failing(FdHandler):
        def on_event(self, events: int) -> None:
            raise RuntimeError("a bug")

    ours, peer = socket.socketpair()
    with ours, peer:
        net.selector.watch(ours.fileno(), Failing())
        channel, client = net.ready_pair()
        peer.send(b"one")
        client.send(frame(1))
        net.poll()
        net.selector.unwatch(ours.fileno())
        assert channel.frames_received == 1
    net.faults = 1
    assert net.selector.faults.take()[0].place == "descriptor"


# The time of a poll.


class Slow:
    """What every callback costs, on the clock of the test."""

    def __init__(self, net: NetBench, word: str, ms: float) -> None:
        self.net = net
        self.ms = ms
        self.who: list[Channel] = []
        net.listener.on[word] = self

    def __call__(self, channel: Channel) -> None:
        self.who.append(channel)
        self.net.clock.advance_ms(self.ms)

    def cost_of_a_poll_ms(self) -> float:
        before = self.net.clock.now
        self.net.poll()
        return (self.net.clock.now - before) / 1_000_000


BOUND_MS = (BUDGET_NS / 1_000_000) + CLOCK_EACH  # a step of these tests costs 1 ms


def test_a_poll_handles_events_for_a_bounded_time_and_each_in_its_turn(net: NetBench) -> None:
    """More ready channels than one wait tells of; nobody is read twice before all were read once."""
    pairs = [net.ready_pair() for _ in range(MAX_EVENTS + 44)]
    slow = Slow(net, "received", 1)
    for turn in range(1, 3):
        for _, peer in pairs:
            peer.send(frame(1))
        polls = 0
        while len(slow.who) < turn * len(pairs):
            assert slow.cost_of_a_poll_ms() <= BOUND_MS
            polls += 1
        assert set(slow.who) == {channel for channel, _ in pairs}
        assert len(slow.who) == turn * len(pairs)
    assert polls > len(pairs) / BOUND_MS


@pytest.mark.parametrize("count", [20, MAX_EVENTS + 44])
def test_a_poll_that_was_left_never_starves_who_stands_behind(net: NetBench, count: int) -> None:
    """Everybody is ready all the time: the turns of two channels never differ by more than one, whether one wait tells of all or not."""
    pairs = [net.ready_pair() for _ in range(count)]
    peers = dict(pairs)
    slow = Slow(net, "received", 1)
    for peer in peers.values():
        peer.send(frame(1))
    for _ in range(count):
        before = len(slow.who)
        net.poll()
        for channel in slow.who[before:]:
            peers[channel].send(frame(1))
    turns = [slow.who.count(channel) for channel, _ in pairs]
    assert min(turns) > 0
    assert max(turns) - min(turns) <= 1


def test_a_watched_descriptor_is_handled_before_the_channels_of_a_busy_selector(net: NetBench) -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        handler = Drain(ours)
        net.selector.watch(ours.fileno(), handler)
        pairs = [net.ready_pair() for _ in range(60)]
        slow = Slow(net, "received", 1)
        for _, client in pairs:
            client.send(frame(1))
        net.poll()
        assert len(slow.who) < 20
        peer.send(b"a command")
        seen: list[bytes] = []
        net.listener.on["received"] = lambda channel: seen.append(handler.seen)
        net.poll()
        assert seen
        assert set(seen) == {b"a command"}
        net.selector.unwatch(ours.fileno())


def test_a_watched_descriptor_waits_in_line_when_there_is_little_to_do(net: NetBench) -> None:
    """A look at the watched descriptors alone costs a call, which a selector with little to do does without."""
    ours, peer = socket.socketpair()
    with ours, peer:
        handler = Drain(ours)
        net.selector.watch(ours.fileno(), handler)
        _, client = net.ready_pair()
        client.send(frame(1))
        peer.send(b"a command")
        seen: list[bytes] = []
        net.listener.on["received"] = lambda channel: seen.append(handler.seen)
        net.poll()
        assert (seen, handler.seen) == ([b""], b"a command")
        net.selector.unwatch(ours.fileno())


def test_an_event_that_was_left_is_not_given_to_who_got_the_number_meanwhile(net: NetBench) -> None:
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for filler in [stack.enter_context(socket.socket()) for _ in range(4)]:
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        pairs = [net.ready_pair() for _ in range(20)]
        slow = Slow(net, "received", 1)
        for _, peer in pairs:
            peer.send(frame(1))
        net.poll()
        last = [channel for channel, _ in pairs[-4:]]
        fds = {channel.fd for channel in last}

        def close_the_last(channel: Channel, run: Run) -> None:
            for other in last:
                other.close(Cause.ADMIN)

        net.listener.on_run = close_the_last
        net.poll()
        assert not any(channel in slow.who for channel in last)
        fresh = [net.connect(socket.AF_INET, silent.getsockname(), 1, net.options(side="upstream")) for _ in range(4)]
        assert {channel.fd for channel in fresh} == fds
        net.poll(3)
        assert [channel.state for channel in fresh] == [ChannelState.CONNECTING] * 4


def test_visits_are_made_for_a_bounded_time_and_none_is_forgotten(net: NetBench, tls_world: TlsWorld) -> None:
    pairs = [tls_pair(net, tls_world) for _ in range(12)]
    first, rest = frame(50)[:30], frame(50)[30:] + frame(7)
    for server, client in pairs:
        client.send(Run(None, 0, first, 0, len(first), 0, 0))
        net.poll_until(lambda server=server: server.staged == 30)
        server.mute(mute.ADMIN)
        client.send(Run(None, 0, rest, 0, len(rest), 2, 0))
        net.poll_until(lambda server=server: server.frames_received == 1)
    slow = Slow(net, "received", 1)
    for server, _ in pairs:
        server.unmute(mute.ADMIN)
    while len(slow.who) < len(pairs):
        before = len(slow.who)
        assert slow.cost_of_a_poll_ms() <= BOUND_MS
        assert len(slow.who) > before
    assert set(slow.who) == {server for server, _ in pairs}


def test_timers_fire_for_a_bounded_time_and_the_rest_with_the_next_poll(net: NetBench) -> None:
    fired: list[int] = []

    def act(number: int) -> Callable[[], None]:
        def run() -> None:
            fired.append(number)
            net.clock.advance_ms(1)

        return run

    for number in range(100):
        net.selector.call_at(net.clock.now + number, Act(act(number)))
    net.clock.advance_ms(1)
    polls = 0
    while len(fired) < 100:
        before = len(fired)
        net.selector.poll(1_000_000)
        assert 0 < len(fired) - before <= 16
        polls += 1
    assert fired == list(range(100))


def test_ends_are_told_for_a_bounded_time_and_all_of_them(net: NetBench) -> None:
    channels = [net.ready_pair()[0] for _ in range(40)]
    slow = Slow(net, "closed", 1)
    for channel in channels:
        channel.close(Cause.ADMIN)
    while len(slow.who) < len(channels):
        assert slow.cost_of_a_poll_ms() <= BOUND_MS
    assert slow.who == channels
    assert net.selector.channel_count == 0


# TLS.


def tls_pair(net: NetBench, world: TlsWorld) -> tuple[Channel, Channel]:
    """A server's channel and a client's, both in the same selector."""
    ours, peer = tcp_pair()
    server = net.register(ours, 1, net.options(tls=world.server_settings()))
    client = net.register(peer, 2, net.options(side="upstream", tls=world.client_settings()))
    net.poll_until(lambda: server.is_open and client.is_open)
    return server, client


def test_frames_over_tls(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    data = frame(100_000) + frame(3)
    assert client.send(Run(None, 0, data, 0, len(data), 2, 0))
    net.poll_until(lambda: server.frames_received == 2)
    assert net.listener.data[server] == data
    assert server.bytes_received == len(data)
    assert server.identity is not None
    assert server.identity.version == "TLSv1.3"


def test_who_authenticates_sees_the_certificate_and_the_channel_does_not_keep_it(net: NetBench, tls_world: TlsWorld) -> None:
    seen: list[bytes | None] = []

    class Witness(AuthenticatorFactory):
        def make(self, identity: Identity) -> HandshakeAuthenticator:
            seen.append(identity.certificate)
            return HandshakeAuthenticator("somebody")

    ours, peer = tcp_pair()
    options = net.options(side="upstream", tls=tls_world.client_settings())
    options.authenticators = Witness()
    server = net.register(ours, 1, net.options(tls=tls_world.server_settings()))
    client = net.register(peer, 2, options)
    net.poll_until(lambda: server.is_open and client.is_open)
    assert [certificate is not None and ssl.DER_cert_to_PEM_cert(certificate)[:10] for certificate in seen] == ["-----BEGIN"]
    assert client.identity is not None
    assert (client.principal, client.identity.certificate) == ("somebody", None)
    assert server.identity is not None
    assert server.identity.version is client.identity.version, "the words are shared"
    assert server.identity.cipher is client.identity.cipher


def test_bytes_that_the_transport_holds_get_their_visit_after_an_unmute(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    first, rest = frame(50)[:30], frame(50)[30:] + frame(7) * 3
    client.send(Run(None, 0, first, 0, len(first), 0, 0))
    net.poll_until(lambda: server.staged == 30)
    server.mute(mute.ADMIN)
    client.send(Run(None, 0, rest, 0, len(rest), 4, 0))
    net.poll_until(lambda: server.frames_received == 1)
    assert server.mute_in_force
    net.poll(5)
    assert server.frames_received == 1
    server.unmute(mute.ADMIN)
    net.poll()
    assert server.frames_received == 4


def test_bytes_that_the_transport_holds_wait_for_the_gate(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    first, rest = frame(50)[:30], frame(50)[30:] + frame(7) * 3
    client.send(Run(None, 0, first, 0, len(first), 0, 0))
    net.poll_until(lambda: server.staged == 30)
    server.mute(mute.ADMIN)
    client.send(Run(None, 0, rest, 0, len(rest), 4, 0))
    net.poll_until(lambda: server.frames_received == 1)
    server.gated = True

    def close_gate(channel: Channel) -> bool:
        channel.mute(mute.TAP)
        return False

    net.listener.gate = close_gate
    server.unmute(mute.ADMIN)
    net.poll(5)
    assert (server.frames_received, server.mute_causes) == (1, mute.TAP)
    net.listener.gate = lambda channel: True
    server.unmute(mute.TAP)
    net.poll()
    assert server.frames_received == 4


def test_a_record_that_is_not_whole_does_not_make_the_loop_spin(net: NetBench, tls_world: TlsWorld) -> None:
    ours, peer = tcp_pair()
    server = net.register(ours, 1, net.options(tls=tls_world.server_settings()))
    relay_end, client_sock = tcp_pair()
    client = net.register(client_sock, 2, net.options(tls=tls_world.client_settings()))
    peer.setblocking(False)
    relay_end.setblocking(False)

    def shovel(most: int = 1 << 20) -> None:
        for source, target in ((peer, relay_end), (relay_end, peer)):
            with contextlib.suppress(BlockingIOError):
                target.send(source.recv(most))

    with peer, relay_end:
        for _ in range(100):
            net.poll()
            shovel()
        assert server.is_open
        client.send(Run(None, 0, frame(500), 0, 504, 1, 0))
        for _ in range(3):
            shovel(100)
            net.poll(3)
        assert not net.selector._buffered
        for _ in range(10):
            shovel()
            net.poll()
        assert server.frames_received == 1


def test_tls_ends_in_both_directions(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    client.shut_write()
    net.poll_until(lambda: server.state is ChannelState.READ_ENDED)
    assert server.detail == ""
    server.send(Run(None, 0, frame(9), 0, 13, 1, 0))
    net.poll_until(lambda: client.frames_received == 1)
    server.shut_write()
    net.poll_until(lambda: client.state is server.state is ChannelState.ENDED)


def test_handshakes_are_done_behind_the_frames_of_others_and_within_a_budget(net: NetBench) -> None:
    busy, busy_peer = net.ready_pair()
    order: list[str] = []
    net.listener.on["received"] = lambda channel: order.append("frame")

    def slow(channel: Channel) -> None:
        order.append("ready")
        net.clock.advance_ms(1)

    net.listener.on["ready"] = slow
    for _ in range(5):
        net.pair()
    for _ in range(3):
        busy_peer.send(frame(1))
        net.poll()
    assert order == ["frame", "ready", "ready"] * 2 + ["frame", "ready"]
    assert busy.frames_received == 3


# Ends.


def test_closing_the_selector_tells_everybody_and_leaves_nothing() -> None:
    with net_bench() as net:
        for _ in range(3):
            net.ready_pair()
        channel, peer = net.ready_pair()
        peer.send(frame(100)[:50])
        net.poll()
        net.pair()
    assert net.listener.words().count("closed") == 5
    assert channel.close_cause is Cause.DRAINED


def test_every_collection_is_empty_after_all_have_closed(net: NetBench, tls_world: TlsWorld) -> None:
    channels = [net.ready_pair(net.options(idle_ns=SECOND))[0] for _ in range(3)] + list(tls_pair(net, tls_world))
    for channel in channels:
        channel.close(Cause.ADMIN)
    net.poll(2)
    selector = net.selector
    assert not any(handler is not None for handler in selector._handlers)
    for collection in (selector._channels, selector._buffered, selector._handshakes, selector._closed, selector._write_ended):
        assert len(collection) == 0
    assert len(selector._timers) == 0
