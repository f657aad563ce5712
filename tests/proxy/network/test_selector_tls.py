"""framegate.proxy.network.selector: TLS holds bytes that no event announces, and its handshakes wait."""

import contextlib
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.authenticator import AuthenticatorFactory, HandshakeAuthenticator
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.tls_context import server_context
from framegate.proxy.network.transport import Identity
from tests.fakes.certificates import Authority
from tests.fakes.network import NetBench, frame, run_of, tcp_pair
from tests.fakes.tls import TlsWorld, hold_frames, tls_pair


def test_the_authenticator_gets_the_certificate_and_the_channel_does_not_keep_it(net: NetBench, tls_world: TlsWorld) -> None:
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
    hold_frames(net, server, client)
    assert server.mute_in_force
    net.poll(5)
    assert server.frames_received == 1
    server.unmute(mute.ADMIN)
    before = time.monotonic()
    net.selector.poll(5000)  # no socket has an event
    assert server.frames_received == 4
    assert time.monotonic() - before < 4


def test_bytes_that_the_transport_holds_wait_for_the_gate(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    hold_frames(net, server, client)
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
        client.send(run_of(frame(500)))
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
    server.send(run_of(frame(9)))
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


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_client_whose_subject_cannot_be_decoded_is_refused(net: NetBench, tls_world: TlsWorld, tmp_path: Path, version: str) -> None:
    """Its authority wrote UTF-8 into a PrintableString, which OpenSSL lets pass."""
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("client", organization="Tést")
    good = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    text = "Tést".encode()
    signed = good.tbs_certificate_bytes.replace(b"\x0c\x05" + text, b"\x13\x05" + text)
    signature = b"\0" + authority._key.sign(signed, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    body = signed + algorithm + b"\x03" + bytes((len(signature),)) + signature
    made = b"\x30\x82" + len(body).to_bytes(2, "big") + body
    Path(certificate).write_text(ssl.DER_cert_to_PEM_cert(made))
    settings = TlsSettings(server_context(*tls_world.server, client_auth="required", client_ca=str(authority.path)), server_side=True)
    ours, peer = tcp_pair()
    server = net.register(ours, 1, net.options(tls=settings))
    net.register(peer, 2, net.options(side="upstream", tls=tls_world.client_settings(identity=(certificate, key), version=version)))
    net.poll_until(lambda: server.close_cause is not None)
    assert (server.close_cause, server.principal) == (Cause.AUTH_FAILED, "")
    assert server.detail == "the certificate cannot be read: O of its subject is not ascii: 54c3a97374"
