"""What Kafka's TLS transport does, and the one here likewise: see tests/conformance/KAFKA.md."""

import contextlib
import errno
import ssl
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from framegate.proxy.cause import Cause
from framegate.proxy.config.tls import ListenerTls
from framegate.proxy.errors import TlsError, TransportError
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.tls_context import client_context, server_context, server_store
from framegate.proxy.network.tls_state import TlsState
from framegate.proxy.network.transport import DONE, ENDED, WANT_WRITE
from tests.fakes.cases import each_of
from tests.fakes.certificates import Authority
from tests.fakes.network import NetBench, frame, net_bench, run_of, tcp_pair
from tests.fakes.tls import TlsWorld, tls_pair
from tests.proxy.network.conftest import Ends
from tests.proxy.network.test_tls import MakeEnds, failure, finished

VERSIONS = ("1.2", "1.3")
SPOKEN = [("1.2",), ("1.3",), ("1.2", "1.3")]


def spoken(settings: TlsSettings, versions: tuple[str, ...]) -> TlsSettings:
    number = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    settings.context.minimum_version, settings.context.maximum_version = number[versions[0]], number[versions[-1]]
    return settings


def pair(net: NetBench, server: TlsSettings, client: TlsSettings) -> tuple[Channel, Channel]:
    """Two channels of one selector, not open yet."""
    ours, peer = tcp_pair()
    return net.register(ours, 1, net.options(tls=server)), net.register(peer, 2, net.options(side="upstream", tls=client))


def send(channel: Channel, data: bytes, frames: int = 1) -> None:
    assert channel.send(run_of(data, frames)) or channel.pending_send


# Names and keys.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("names"))


def settings_of(authority: Authority, leaf: tuple[str, str], name: str, **client: Any) -> tuple[TlsSettings, TlsSettings]:
    """Of a server with this certificate, and of a client that expects this name."""
    context = client_context(ca=str(authority.path), **client)
    asked = server_context(*leaf, client_auth="requested", client_ca=str(authority.path))
    return TlsSettings(asked, server_side=True), TlsSettings(context, server_side=False, server_name=name)


@pytest.mark.parametrize(
    ("leaf", "name", "good"),
    [
        ({"hosts": ("broker.example.org",), "addresses": ()}, "broker.example.org", True),
        ({"hosts": ("*.example.org",), "addresses": ()}, "broker.example.org", True),
        ({"hosts": (), "addresses": ("10.1.2.3",)}, "10.1.2.3", True),
        ({"hosts": (), "addresses": ()}, "named", True),
        ({"hosts": ("broker.example.org",), "addresses": ()}, "10.1.2.3", False),
        ({"hosts": ("broker.example.org",), "addresses": ()}, "named", False),
    ],
)
def test_names_and_numbers_that_a_certificate_has_are_accepted(
    make_ends: MakeEnds, authority: Authority, leaf: dict[str, Any], name: str, good: bool
) -> None:
    both = make_ends(*settings_of(authority, authority.leaf("named", **leaf), name))
    if good:
        both.shake()
    else:
        assert "mismatch" in str(failure(both.client, other=both.server))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_does_not_verify_the_clients_host(make_ends: MakeEnds, authority: Authority, version: str) -> None:
    certificate, key = authority.leaf("elsewhere", hosts=("elsewhere.example.org",), addresses=("10.1.2.3",))
    both = make_ends(*settings_of(authority, authority.leaf("server"), "localhost", certificate=certificate, key=key, min_version=version))
    both.shake()
    assert both.server.identity().subject == "CN=elsewhere,O=Test"


@pytest.mark.parametrize("version", VERSIONS)
def test_rsa_keys_work_on_both_sides(make_ends: MakeEnds, authority: Authority, version: str) -> None:
    server, client = (authority.leaf(name, key=rsa.generate_private_key(65537, 2048)) for name in ("rsa-server", "rsa-client"))
    both = make_ends(*settings_of(authority, server, "localhost", certificate=client[0], key=client[1]))
    spoken(both.client._settings, (version,))
    both.shake()
    assert both.server.identity().subject == "CN=rsa-client,O=Test"


def test_a_chain_longer_than_a_record_and_than_the_sockets_buffer(make_ends: MakeEnds, authority: Authority) -> None:
    large = authority.leaf("large", hosts=("localhost", *(f"host-{number}.a-rather-long-name.example.org" for number in range(900))))
    assert len(ssl.PEM_cert_to_DER_cert(Path(large[0]).read_text())) > 32_768
    context = client_context(ca=str(authority.path))
    server = TlsSettings(server_context(*large), server_side=True)
    both = make_ends(server, TlsSettings(context, server_side=False, server_name="localhost"), capacity=1000)
    both.shake(rounds=200)


def test_pem_as_people_write_it(make_ends: MakeEnds, authority: Authority, tmp_path: Path) -> None:
    """Several authorities, text before headers, empty lines, CRLF; a key and its chain in one file."""
    other = Authority(tmp_path, "yet another")
    leaf = authority.leaf("server")
    together = tmp_path / "together.pem"
    text = "\n\nBag Attributes\n    friendlyName: server\n" + Path(leaf[1]).read_text() + "\n" + Path(leaf[0]).read_text() + "\n\n\n"
    together.write_bytes(text.replace("\n", "\r\n").encode())
    authorities = tmp_path / "authorities.pem"
    authorities.write_text("subject=one\n" + other.path.read_text() + "\n\nsubject=two\n\n" + authority.path.read_text() + "\n")
    asked = server_context(str(together), str(together), client_auth="required", client_ca=str(authorities))
    assert asked.cert_store_stats()["x509_ca"] == 2
    context = client_context(ca=str(authorities), certificate=leaf[0], key=leaf[1])
    both = make_ends(TlsSettings(asked, server_side=True), TlsSettings(context, server_side=False, server_name="localhost"))
    both.shake()


# Versions.


@each_of("ours", SPOKEN)
@each_of("theirs", SPOKEN, fresh={"net": net_bench})
def test_the_highest_version_of_both_and_every_byte_counted(
    net: NetBench, tls_world: TlsWorld, ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    settings = spoken(tls_world.client_settings(), theirs)
    server, client = pair(net, tls_world.listener_settings(min_version=ours[0], max_version=ours[-1]), settings)
    common = set(ours) & set(theirs)
    net.poll_until(lambda: (server.is_open and client.is_open) or (server.close_cause and client.close_cause))
    if not common:
        assert (server.close_cause, client.close_cause) == (Cause.TLS_FAILED, Cause.TLS_FAILED)
        return
    assert server.identity is not None
    assert server.identity.version == f"TLSv{max(common)}"
    data = frame(1 << 20)
    for sender, receiver in ((client, server), (server, client)):
        send(sender, data)
        net.poll_until(lambda receiver=receiver: receiver.frames_received == 1)
        assert receiver.bytes_received == len(data) == (1 << 20) + 4
        assert net.listener.data[receiver] == data


# Handshakes through a narrow wire: as many steps as there can be.


def narrow(make_ends: MakeEnds, world: TlsWorld, version: str) -> Ends:
    return make_ends(world.server_settings(client_auth="required"), world.client_settings(version=version, identity=world.client), capacity=200)


def steps(both: Ends) -> Iterator[None]:
    """One step of each side after the other, until both are done."""
    while not (finished(both.server) and finished(both.client)):
        if both.client.handshake() == DONE:
            both.client.read(100)
        yield
        both.server.handshake()
        yield


@each_of("version", VERSIONS)
@each_of("capacity", [10, 100])
def test_a_wire_of_a_few_bytes(make_ends: MakeEnds, tls_world: TlsWorld, version: str, capacity: int) -> None:
    settings = tls_world.client_settings(version=version, identity=tls_world.client)
    both = make_ends(tls_world.server_settings(client_auth="required"), settings, capacity=capacity)
    is_open, got = {both.client: False, both.server: False}, b""
    for _ in range(2000):
        for end in (both.client, both.server):
            if is_open[end]:
                end.flush()
                got += end.read(4096) or b""  # of the server nothing but tickets, which hold no data
            elif end.handshake() == DONE:
                is_open[end] = True
                if end is both.client:
                    end.write(b"x" * 3000)
    assert got == b"x" * 3000


@each_of("version", VERSIONS)
@each_of("call", ["recv", "send"])
@each_of("side", ["server", "client"])
def test_an_error_of_the_network_at_any_step_is_one_of_the_network(
    make_ends: MakeEnds, tls_world: TlsWorld, side: str, call: str, version: str
) -> None:
    met = 0
    for number in range(0, 100, 3):
        both = narrow(make_ends, tls_world, version)
        below = both.server_socket if side == "server" else both.client_socket
        ours = both.server if side == "server" else both.client
        found = error_of(both, number, below.errors[call])
        assert found is None or (type(found), found.errno, ours._failure) == (TransportError, errno.ECONNRESET, None)
        met += found is not None
    assert met > 5


def error_of(both: Ends, number: int, errors: "deque[int]") -> TransportError | None:
    """What the handshake fails with when there is an error at a step."""
    try:
        for count, _ in zip(range(200), steps(both), strict=False):
            if count == number:
                errors.append(errno.ECONNRESET)
    except TransportError as error:
        return error
    return None


@each_of("version", VERSIONS)
@each_of("side", ["server", "client"])
def test_a_peer_that_goes_at_any_step_is_no_failure_of_tls(make_ends: MakeEnds, tls_world: TlsWorld, side: str, version: str) -> None:
    met = 0
    for number in range(0, 100, 3):
        both = narrow(make_ends, tls_world, version)
        ours, theirs = (both.server, both.client) if side == "server" else (both.client, both.server)
        theirs_below = both.client_socket if side == "server" else both.server_socket
        for count, _ in enumerate(steps(both)):
            if count == number:
                break
        if finished(ours):
            break
        theirs.close()
        theirs_below.close()
        for _ in range(50):
            code = ours.handshake()
        assert code in (ENDED, DONE, WANT_WRITE)  # what still waits for the socket is told by the kernel
        assert ours._failure is None
        met += code == ENDED
    assert met > 3


@each_of("version", VERSIONS)
@each_of("delayed", range(4))
@each_of("slow", [1, 5])
def test_the_peer_is_told_why_however_late_the_alert_goes_out_and_however_slowly_it_reads(
    make_ends: MakeEnds, tls_world: TlsWorld, version: str, delayed: int, slow: int
) -> None:
    both = make_ends(tls_world.server_settings(client_auth="required"), tls_world.client_settings(version=version))
    told: list[TlsError] = []
    for number in range(100):
        if both.server._state is TlsState.FAILING and delayed:
            both.server_socket.errors["send"].append(errno.EAGAIN)
            delayed -= 1
        with contextlib.suppress(TlsError):
            both.server.handshake()
        if number % slow == 0:
            try:
                if both.client.handshake() == DONE:
                    both.client.read(100)
            except TlsError as error:
                told.append(error)
                break
    assert both.server._state is TlsState.FAILED
    assert "requires a certificate" in str(told[0]) if version == "1.3" else "handshake_failure" in told[0].reason


# Ends.


def test_frames_that_came_before_the_end_are_delivered_after_an_unmute(net: NetBench, tls_world: TlsWorld) -> None:
    server, client = tls_pair(net, tls_world)
    server.mute(mute.ADMIN)
    send(client, frame(100) * 20, 20)
    net.poll_until(lambda: client.pending_send == 0)
    client.close(Cause.ADMIN)
    net.poll(3)
    assert server.frames_received == 0
    server.unmute(mute.ADMIN)
    net.poll_until(lambda: server.frames_received == 20)


def test_a_second_close_is_harmless_and_without_room_there_is_no_close_notify(make_ends: MakeEnds, tls_world: TlsWorld) -> None:
    both = make_ends(tls_world.server_settings(), tls_world.client_settings(), capacity=4096)
    both.shake()
    both.client.read(100)
    both.server.write(b"x" * 100_000)
    both.client.read(1 << 16)  # now there is room for a close-notify, which would cut a record in two
    assert both.server.pending_write > 0
    on_the_wire = len(both.server_socket.outbound)
    both.server.close()
    both.server.close()
    assert len(both.server_socket.outbound) == on_the_wire
    both.server_socket.close()
    assert (both.pool.used, both.server.pending_write, both.server._held) == (0, 0, b"")
    while both.client.read(1 << 16) != b"":
        pass
    assert not both.client.clean_end


def test_a_handshake_that_cannot_begin_is_a_failure_of_tls(net: NetBench, tls_world: TlsWorld) -> None:
    ours, peer = tcp_pair()
    net.keep(peer)
    channel = net.register(ours, 1, net.options(side="upstream", tls=tls_world.client_settings(name="a..b")))
    net.poll_until(lambda: channel.close_cause)
    assert channel.close_cause is Cause.TLS_FAILED
    assert "TLS cannot start" in channel.detail


def test_a_refusal_that_was_sent_is_found_though_a_write_fails_first(make_ends: MakeEnds, tls_world: TlsWorld) -> None:
    """TLS 1.3: the client is ready before the server has looked at its certificate, and writes while the server goes away."""
    both = make_ends(tls_world.server_settings(client_auth="required"), tls_world.client_settings())
    while both.client.handshake() != DONE:
        both.server.handshake()
    assert both.client._state is TlsState.UNPROVEN
    with pytest.raises(TlsError):
        both.server.handshake()
    both.server.close()
    both.client_socket.errors["send"].append(errno.EPIPE)
    with pytest.raises(TlsError, match="requires a certificate, and we show none; it looked at what we showed behind the handshake"):
        both.client.write(b"request")


@each_of("version", VERSIONS)
def test_data_of_the_server_proves_that_it_accepted_us(make_ends: MakeEnds, tls_world: TlsWorld, version: str) -> None:
    both = make_ends(tls_world.server_settings(), tls_world.client_settings(version=version))
    both.shake()
    both.client.read(100)
    assert both.client._state is (TlsState.UNPROVEN if version == "1.3" else TlsState.READY)
    both.server.write(b"welcome")
    assert both.client.read(100) == b"welcome"
    assert both.client._state is TlsState.READY


def test_what_a_refused_client_had_sent_does_not_reset_the_connection(net: NetBench, tls_world: TlsWorld) -> None:
    """It has sent its request along with the end of its handshake: a close with that unread would be a reset, and the alert lost."""
    channel, peer = net.pair(net.options(tls=tls_world.server_settings(client_auth="required")), tcp=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls_world.client_settings().context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    peer.send(outgoing.read())
    net.poll(5)
    incoming.write(peer.recv(65536))
    client.do_handshake()
    end = outgoing.read()
    for _ in range(10):
        client.write(b"x" * 10_000)
    peer.sendall(end + outgoing.read())
    net.poll_until(lambda: channel.close_cause)
    net.poll(3)
    received = b""
    while piece := peer.recv(65536):  # a reset would raise
        received += piece
    incoming.write(received)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        client.read(100)


# What a client asks for.


def test_each_host_has_its_own_context_from_the_first_byte(make_ends: MakeEnds, tls_world: TlsWorld, authority: Authority) -> None:
    """Verify mode, sessions and authorities; with ``sni_callback`` only the last would change."""
    listener = ListenerTls(certificate=tls_world.server[0], key=tls_world.server[1])
    store = server_store(listener)
    strict = server_context(*authority.leaf("strict", hosts=("strict",)), client_auth="required", client_ca=str(authority.path))
    store._exact["strict"] = strict
    settings = TlsSettings(store.default, server_side=True, store=type(store)(store.default, {"strict": strict}))
    loose = make_ends(settings, tls_world.client_settings(identity=tls_world.client))
    loose.shake()
    assert loose.server.identity().subject is None
    context = client_context(ca=str(authority.path))
    both = make_ends(settings, TlsSettings(context, server_side=False, server_name="strict"))
    assert failure(both.server, other=both.client).reason == "peer_did_not_return_a_certificate"


@each_of("version", VERSIONS)
@each_of(("offered", "good"), [(["kafka"], True), (["h2", "other"], True), ([], True), (["h2"], False)])
def test_protocols_that_do_not_meet_end_the_connection_with_their_alert(
    make_ends: MakeEnds, tls_world: TlsWorld, version: str, offered: list[str], good: bool
) -> None:
    client = tls_world.client_settings(version=version)
    if offered:
        client.context.set_alpn_protocols(offered)
    both = make_ends(tls_world.listener_settings(alpn=("kafka", "other")), client)
    if good:
        both.shake()
        assert both.client._object is not None
        assert both.client._object.selected_alpn_protocol() == (offered[-1] if offered else None)
    else:
        refused = failure(both.server, other=both.client)
        assert (refused.reason, both.server._object) == ("alpn", None)
        assert "'h2'" in str(refused)
        assert "speaks none of our protocols" in str(failure(both.client))
