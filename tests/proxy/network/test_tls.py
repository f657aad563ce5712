"""framegate.proxy.network.tls: handshakes that fail, alerts, and memory. What all transports share is in tests/conformance/test_transport.py."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.errors import TlsError
from framegate.proxy.network import mute
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.tls import AHEAD, TlsTransport
from framegate.proxy.network.tls_record import LONGEST
from framegate.proxy.network.tls_state import TlsState
from framegate.proxy.network.transport import DONE, WANT_READ
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench, run_of
from tests.fakes.tls import TlsWorld, tls_pair
from tests.proxy.network.conftest import Ends

MakeEnds = Callable[..., Ends]


def failure(transport: TlsTransport, rounds: int = 20, other: TlsTransport | None = None) -> TlsError:
    """Drive both until ``transport`` fails, in the handshake or with its first read."""
    for _ in range(rounds):
        try:
            if transport.handshake() == DONE:
                transport.read(100)
        except TlsError as error:
            return error
        if other is not None:
            try:
                other.handshake()
            except TlsError:
                other = None
    raise AssertionError("it does not fail")


def finished(transport: TlsTransport) -> bool:
    """Whether its handshake is over, its last bytes out or not."""
    return transport._state in (TlsState.FINISHING, TlsState.UNPROVEN, TlsState.READY)


# Who is there.


@each_of("version", ["1.2", "1.3"])
@each_of(
    ("client_auth", "shows", "subject"),
    [("none", True, None), ("requested", True, "CN=client,O=Test"), ("required", True, "CN=client,O=Test"), ("requested", False, None)],
)
def test_a_certificate_that_was_shown_and_verified_names_the_peer(
    make_ends: MakeEnds, tls_world: TlsWorld, client_auth: str, shows: bool, subject: str | None, version: str
) -> None:
    client = tls_world.client_settings(identity=tls_world.client if shows else None, version=version)
    ends = make_ends(tls_world.server_settings(client_auth=client_auth), client)
    ends.shake()
    identity = ends.server.identity()
    assert (identity.subject, identity.version) == (subject, f"TLSv{version}")
    assert identity.cipher
    server = ends.client.identity()
    assert server.subject == "CN=server,O=Test"
    assert server.certificate


def test_a_client_trusts_only_its_authorities(make_ends: MakeEnds, tls_world: TlsWorld) -> None:
    ends = make_ends(tls_world.server_settings(), tls_world.client_settings(ca=tls_world.other_authority))
    assert failure(ends.client, other=ends.server).reason == "certificate_verify_failed"
    assert "alert" in failure(ends.server).reason


# Handshakes.


def test_a_silent_client_costs_no_tls_object(ends: Ends) -> None:
    assert ends.server.handshake() == WANT_READ
    assert ends.server._object is None


@each_of(
    ("first", "known"),
    [
        (b"\0\0\0\5hello", ", as of a frame in plain text"),
        (b"GET / HTTP/1.1\r\n\r\n", ", as of HTTP"),
        (b"\xff", "are ff"),
        (b"\x80\x2e\x01\x03\x01", "are 80 2e 01 03 01"),
    ],
)
def test_bytes_that_are_not_tls_are_known_at_once(make_ends: MakeEnds, tls_world: TlsWorld, first: bytes, known: str) -> None:
    ends = make_ends(tls_world.server_settings(), tls_world.client_settings())
    ends.client_socket.send(first)
    with pytest.raises(TlsError) as caught:
        ends.server.handshake()
    assert caught.value.reason == "not_tls"
    assert first[:4].hex(" ") in str(caught.value)
    assert str(caught.value).endswith(known)


def test_bytes_that_came_with_the_end_of_the_handshake_are_announced(ends: Ends) -> None:
    while ends.client.handshake() != DONE:
        ends.server.handshake()
    ends.client.write(b"early")
    assert ends.server.handshake() == DONE
    assert ends.server.has_buffered()
    assert ends.server.read(100) == b"early"


# Records.


def test_good_bytes_before_a_broken_record_are_given_first_then_the_failure_stays(shaken: Ends) -> None:
    shaken.client.write(b"good")
    shaken.client_socket.send(b"\x17\x03\x03\x00\x40" + b"x" * 64)
    assert shaken.server.read(1000) == b"good"
    assert shaken.server.has_buffered()
    for _ in range(2):
        with pytest.raises(TlsError):
            shaken.server.read(1000)


def test_a_bare_fin_is_an_end_and_is_told_apart(shaken: Ends) -> None:
    shaken.client.write(b"last")
    shaken.client_socket.shutdown(socket.SHUT_WR)
    assert shaken.server.read(100) == b"last"
    assert shaken.server.read(100) == b""
    assert not shaken.server.clean_end


def test_plaintext_is_encrypted_only_so_far_ahead_of_the_socket(make_ends: MakeEnds, tls_world: TlsWorld) -> None:
    ends = make_ends(tls_world.server_settings(), tls_world.client_settings(), capacity=8192)
    ends.shake()
    ends.client.read(100)
    taken = ends.server.write(b"x" * (4 * AHEAD))
    assert taken == AHEAD
    assert AHEAD - 8192 < ends.server.pending_write < AHEAD + 8192
    assert ends.pool.used >= ends.server.pending_write
    assert (ends.pool.tls, ends.pool.begun, ends.pool.pending) == (ends.pool.used, 0, 0)
    assert ends.server.write(b"more") == 0
    ends.server.close()
    assert (ends.pool.used, ends.pool.tls) == (0, 0)


def test_our_end_waits_until_what_came_in_is_read(shaken: Ends) -> None:
    shaken.client.write(b"0123456789")
    assert shaken.server.read(4) == b"0123"
    assert not shaken.server.shut_write()
    assert shaken.server.read(100) == b"456789"
    assert shaken.server.shut_write()
    assert shaken.client.read(100) == b""


def test_closing_says_close_notify_when_it_can(shaken: Ends) -> None:
    shaken.client.read(100)
    shaken.server.close()
    shaken.server_socket.close()
    assert shaken.client.read(100) == b""
    assert shaken.client.clean_end


# Whole channels.


@each_of(("data", "cause"), [(b"", Cause.NO_DATA), (b"\x16\x03\x01\x02\x00", Cause.PEER_CLOSED)], fresh={"net": net_bench})
def test_a_client_that_goes_before_the_handshake_has_ended(net: NetBench, tls_world: TlsWorld, data: bytes, cause: Cause) -> None:
    channel, peer = net.pair(net.options(tls=tls_world.server_settings()), tcp=True)
    net.poll()
    peer.send(data)
    peer.close()
    net.poll_until(lambda: channel.close_cause)
    assert channel.close_cause is cause


def test_a_channel_without_close_notify_says_so(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    client._socket.shutdown(socket.SHUT_WR)
    net.poll_until(lambda: server.state is ChannelState.READ_ENDED)
    assert server.detail == "no_close_notify"


class BioPeer:
    """A TLS peer in the test's hands, which decides what goes over the wire together."""

    def __init__(self, sock: socket.socket, settings: TlsSettings) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if settings.server_side else "localhost"
        self.tls = settings.context.wrap_bio(self.incoming, self.outgoing, server_side=settings.server_side, server_hostname=name)
        sock.setblocking(False)

    def shake(self) -> bool:
        """Go on with the handshake; True when it is done. What follows its end, such as tickets, stays in ``outgoing``."""
        with contextlib.suppress(BlockingIOError):
            self.incoming.write(self.sock.recv(65536))
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            return False
        return True

    def flush(self) -> None:
        self.sock.send(self.outgoing.read())

    def end(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()


@each_of("reset", [False, True], fresh={"net": net_bench})
def test_a_client_that_goes_when_it_has_been_shown_our_certificate_refuses_it(net: NetBench, tls_world: TlsWorld, *, reset: bool) -> None:
    channel, sock = net.pair(net.options(tls=tls_world.server_settings()), tcp=True)
    peer = BioPeer(sock, tls_world.client_settings())
    assert not peer.shake()
    net.poll_until(lambda: channel.transport.wire_sent)
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    net.poll_until(lambda: channel.close_cause)
    assert channel.close_cause is Cause.TLS_FAILED


@each_of("version", ["1.2", "1.3"], fresh={"net": net_bench})
def test_an_end_that_comes_with_the_last_frame_is_seen_although_no_fin_follows(net: NetBench, tls_world: TlsWorld, version: str) -> None:
    channel, sock = net.pair(net.options(tls=tls_world.server_settings()), tcp=True)
    peer = BioPeer(sock, tls_world.client_settings(version=version))
    net.poll_until(peer.shake)
    peer.flush()
    net.poll_until(lambda: channel.is_open)
    peer.tls.write(frame(9))
    peer.end()
    peer.flush()
    net.poll_until(lambda: channel.state is ChannelState.READ_ENDED)
    assert net.listener.data[channel] == frame(9)
    assert channel.detail == ""


def test_what_is_read_off_is_read_to_its_end_and_our_end_goes_out(net: NetBench, tls_world: TlsWorld) -> None:
    """More than one read gives, part of which is here already, and a frame begun."""
    channel, sock = net.pair(net.options(tls=tls_world.server_settings()), tcp=True)
    peer = BioPeer(sock, tls_world.client_settings())
    net.poll_until(peer.shake)
    peer.flush()
    net.poll_until(lambda: channel.is_open)
    channel.mute(mute.PEER)
    peer.tls.write(frame(9) * 3 + frame(9)[:5])
    for _ in range(20):
        peer.tls.write(frame(16_000))
    peer.flush()
    channel.discard_input(mute.DRAIN)
    channel.shut_write()
    net.poll_until(lambda: channel.state is ChannelState.WRITE_ENDED)
    peer.end()
    peer.flush()
    net.poll_until(lambda: channel.state is ChannelState.ENDED)
    assert (channel.frames_received, channel.bytes_received, channel.lost_bytes, channel.detail) == (0, 0, 0, "")


def test_an_end_of_ours_goes_out_beside_half_a_ticket(net: NetBench, tls_world: TlsWorld) -> None:
    channel, sock = net.pair(net.options(side="upstream", tls=tls_world.client_settings()), tcp=True)
    peer = BioPeer(sock, tls_world.server_settings())
    net.poll_until(peer.shake)
    peer.tls.write(frame(9))
    rest = peer.outgoing.read()
    sock.send(rest[:20])
    net.poll_until(lambda: channel.is_open)
    net.poll(3)
    channel.shut_write()
    net.poll_until(lambda: channel.state is ChannelState.WRITE_ENDED)
    sock.send(rest[20:])
    net.poll_until(lambda: net.listener.data.get(channel))
    assert net.listener.data[channel] == frame(9)


@each_of("size", [4, 4096, 1 << 18])
def test_what_is_held_of_a_record_begun_is_less_than_a_record(make_ends: MakeEnds, tls_world: TlsWorld, size: int) -> None:
    ends = make_ends(tls_world.server_settings(), tls_world.client_settings())
    ends.shake()
    for _ in range(40):
        ends.client.write(b"x" * 16384)
    ends.server_socket.inbound.split = 16_000  # most of a record, then as much as is asked for
    seen = 0
    while seen < 40 * 16384:
        seen += len(ends.server.read(size) or b"")
        assert len(ends.server._held) <= LONGEST
        ends.server_socket.inbound.split = None


@each_of("shaken", [False, True])
@each_of("header", [b"\x16\x03\x03\xff\xff", b"\x16\x03\x03\x44\x00", b"\x16\x0a\x0a\x00\x40"])
def test_a_header_that_cannot_be_good_is_not_waited_for(make_ends: MakeEnds, tls_world: TlsWorld, header: bytes, shaken: bool) -> None:
    ends = make_ends(tls_world.server_settings(), tls_world.client_settings())
    if shaken:
        ends.shake()
    ends.client_socket.send(header)
    assert failure(ends.server, rounds=2).reason
    assert len(ends.server._held) == 0


def test_nothing_stays_buffered_after_a_burst_each_way(tls_world: TlsWorld) -> None:
    with net_bench(pool=1 << 26) as net:
        pairs = [tls_pair(net, tls_world) for _ in range(10)]
        data = frame(1 << 20)
        for server, client in pairs:
            for sender, receiver in ((client, server), (server, client)):
                before = receiver.frames_received
                sender.send(run_of(data))
                net.poll_until(lambda receiver=receiver, before=before: receiver.frames_received > before)
        assert net.pool.used == 0
        for channel in (channel for pair in pairs for channel in pair):
            transport = channel.transport
            assert isinstance(transport, TlsTransport)
            assert transport._held == b""
