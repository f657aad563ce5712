"""Each TLS handshake is counted once, as what it came to; what OpenSSL says of failures is OpenSSL's own here."""

import contextlib
import datetime
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.cells import PROCESSOR_BLOCK, TLS_ERRORS
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.tls_context import client_context, server_context
from framegate.proxy.relay.counters import HANDSHAKING, LoopCounters
from tests.fakes.cases import each_of
from tests.fakes.certificates import Authority
from tests.fakes.network import NetBench, net_bench, tcp_pair
from tests.fakes.tls import TlsWorld

DAY = datetime.timedelta(days=1)
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


class World:
    """Who meets whom."""

    def __init__(self, folder: Any) -> None:
        self.authority, self.other = Authority(folder), Authority(folder, "other authority")
        self.server = self.authority.leaf("server")

    def contexts(self, server: tuple[str, str] | None = None, client: tuple[str, str] | None = None, ca: str = "", **keys: Any) -> Contexts:
        """A server that asks for certificates if the client may show one, and a client."""
        ours = server_context(*(server or self.server), **({"client_auth": "required", "client_ca": str(self.authority.path)} | keys))
        return ours, client_context(ca=ca or str(self.authority.path), certificate=client[0] if client else None, key=client[1] if client else None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("handshakes"))


def meet(net: NetBench, contexts: Contexts, name: str = "localhost") -> tuple[Channel, Channel]:
    """A server's channel and a client's; both end."""
    ours, peer = tcp_pair()
    server = net.register(ours, 1, net.options(tls=TlsSettings(contexts[0], server_side=True)))
    client = net.register(peer, 2, net.options(side="upstream", tls=TlsSettings(contexts[1], server_side=False, server_name=name)))
    channels = server, client
    net.poll_until(lambda: all(channel.is_open or channel.close_cause is not None for channel in channels))
    for channel in channels:
        channel.close(Cause.DRAINED)
    return channels


def counted(channel: Channel) -> tuple[dict[str, int], int, int]:
    """Of one channel that came to its end: durations by reason, successes, and what is under way."""
    loop = LoopCounters()
    loop.begin_handshake(channel)
    loop.end_handshake(channel)
    side = channel.options.side
    histograms = loop.downstream_handshakes if side == "downstream" else loop.upstream_handshakes
    at = PROCESSOR_BLOCK.at("framegate.tls.handshake.count", side, "1.2", "true")
    found = {error: int(histogram.count) for error, histogram in zip(TLS_ERRORS, histograms, strict=True) if histogram.count}
    return found, sum(int(loop.counts.cells[at + number]) for number in range(4)), int(loop.counts.cells[HANDSHAKING[side]])


def no_version(world: World) -> Contexts:
    server, client = world.contexts(client_auth="none", client_ca=None, min_version="1.3")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    return server, client


def no_cipher(world: World) -> Contexts:
    server, client = world.contexts(client_auth="none", client_ca=None)
    server.maximum_version = client.maximum_version = ssl.TLSVersion.TLSv1_2
    server.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    client.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    return server, client


def revoked_client(world: World) -> Contexts:
    revoked = world.authority.leaf("revoked")
    return world.contexts(client=revoked, crl=(world.authority.revocations(revoked[0]),))


def with_server(world: World, certificate: tuple[str, str]) -> Contexts:
    return world.contexts(certificate, client_auth="none", client_ca=None)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
@pytest.mark.parametrize(
    ("make", "ours", "theirs"),
    [
        (lambda world: world.contexts(), "certificate_missing", "peer_alert"),
        (lambda world: world.contexts(client=world.other.leaf("stranger")), "unknown_authority", "peer_alert"),
        (lambda world: world.contexts(client=world.authority.leaf("expired", lifetime=(-9 * DAY, -DAY))), "certificate_expired", "peer_alert"),
        (lambda world: world.contexts(client=world.authority.leaf("early", lifetime=(DAY, 9 * DAY))), "certificate_refused", "peer_alert"),
        (revoked_client, "certificate_revoked", "peer_alert"),
        (lambda world: with_server(world, world.other.leaf("other")), "peer_alert", "unknown_authority"),
        (lambda world: with_server(world, world.authority.leaf("named", hosts=("named.example.org",), addresses=())), "peer_alert", "name_mismatch"),
    ],
)
def test_each_side_counts_why_it_refused_or_that_it_was_refused(
    world: World, make: Callable[[World], Contexts], ours: str, theirs: str, version: ssl.TLSVersion
) -> None:
    server, client = make(world)
    client.maximum_version = version
    with net_bench() as net:
        channels = meet(net, (server, client))
    assert counted(channels[0]) == ({ours: 1}, 0, 0)
    if theirs == "peer_alert" and version is ssl.TLSVersion.TLSv1_3:
        assert counted(channels[1]) == ({"": 1}, 1, 0), "a client of TLS 1.3 is told when it is done, and did its part"
    else:
        assert counted(channels[1]) == ({theirs: 1}, 0, 0)


@pytest.mark.parametrize(("make", "ours", "theirs"), [(no_version, "version", "version"), (no_cipher, "cipher", "peer_alert")])
def test_without_a_common_version_or_cipher_the_error_says_so(world: World, make: Callable[[World], Contexts], ours: str, theirs: str) -> None:
    with net_bench() as net:
        server, client = meet(net, make(world))
    assert (counted(server), counted(client)) == (({ours: 1}, 0, 0), ({theirs: 1}, 0, 0))


@pytest.mark.parametrize(("said", "reason"), [(b"GET / HTTP/1.1\r\n\r\n", "not_tls"), (b"", "closed"), (b"\x16\x03\x01\x00\x05\x01", "closed")])
def test_what_a_peer_does_instead(world: World, said: bytes, reason: str) -> None:
    with net_bench() as net:
        server, peer = net.pair(net.options(tls=TlsSettings(world.contexts()[0], server_side=True)))
        peer.sendall(said)
        peer.close()
        net.poll_until(lambda: server.close_cause is not None)
    assert counted(server) == ({reason: 1}, 0, 0)


def test_a_handshake_timeout_is_counted_as_such_and_a_close_of_ours_as_other(world: World) -> None:
    found = []
    with net_bench() as net:
        for ends_itself in (True, False):
            server, _ = net.pair(net.options(tls=TlsSettings(world.contexts()[0], server_side=True)))
            net.poll()
            if ends_itself:
                net.clock.advance_ms(10_001)
            else:
                server.close(Cause.DRAINED)
            net.poll_until(lambda channel=server: channel.close_cause is not None)  # type: ignore[misc]
            found.append(counted(server))
    assert found == [({"handshake_timeout": 1}, 0, 0), ({"other": 1}, 0, 0)]


@each_of("resumes", [False, True])
def test_a_handshake_that_succeeds_says_its_version_and_whether_a_session_went_on(tls_world: TlsWorld, *, resumes: bool) -> None:
    """Sessions are taken up again by other people's clients only: what a server says of one is enough."""
    context = ssl.create_default_context(cafile=tls_world.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    settings = tls_world.server_settings()
    session: ssl.SSLSession | None = None
    for _ in range(2 if resumes else 1):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
        with net_bench() as net:
            server, peer = net.pair(net.options(tls=settings))
            peer.setblocking(False)
            while not server.is_open:
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                peer.sendall(outgoing.read())
                net.poll()
                with contextlib.suppress(BlockingIOError):
                    incoming.write(peer.recv(65536))
            client.do_handshake()
            session = client.session
            loop = LoopCounters()
            loop.begin_handshake(server)
            assert loop.counts.cells[HANDSHAKING["downstream"]] == 1
            loop.end_handshake(server)
    at = PROCESSOR_BLOCK.at("framegate.tls.handshake.count", "downstream", "1.2", "true")
    assert [int(loop.counts.cells[at + number]) for number in range(4)] == ([1, 0, 0, 0] if resumes else [0, 1, 0, 0])


def test_what_comes_behind_the_handshake_is_not_in_its_time_and_without_tls_nothing_is_counted(world: World) -> None:
    with net_bench() as net:
        channel, _ = net.ready_pair()
        assert counted(channel) == ({}, 0, 0)
        server, client = meet(net, world.contexts(client_auth="none", client_ca=None))
        server.ready_ns = server.secured_ns + 5_000_000_000
        server.connected_ns = server.secured_ns - 2_000_000
        loop = LoopCounters()
        loop.begin_handshake(server)
        loop.end_handshake(server)
    assert (client.secured_ns != 0, int(loop.downstream_handshakes[0].sum)) == (True, 2_000_000)
