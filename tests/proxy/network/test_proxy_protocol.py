"""Headers of the PROXY protocol: every cut, every limit, and what is refused; then on pairs, with TLS and quotas."""

import contextlib
import ipaddress
import itertools
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.config.limits import RateLimits
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.errors import AuthenticationError, TransportError, WrongProtocolError
from framegate.proxy.network.proxy_protocol import MAX_V1, MAX_V2, SIGNATURE, HeaderReader, HeaderWriter, ProxyProtocol, header_bytes, own_address
from framegate.proxy.network.transport import DONE, ENDED, WANT_READ, WANT_WRITE
from tests.fakes.limited import limits
from tests.fakes.tls import TlsWorld
from tests.fakes.world import World, frame

ANY = ProxyProtocol("any", ("192.0.2.0/24", "2001:db8::/32"))
PROXY = "192.0.2.1:1"
V4 = ("10.1.2.3:40000", "10.9.9.9:9092")
V6 = ("[2001:db8::1]:65535", "[2001:db8::2]:0")


def v2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2, "big") + body


class Scripted:
    """A socket that has received ``data``."""

    def __init__(self) -> None:
        self.data = b""

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.data:
            raise BlockingIOError
        found = self.data[:size]
        self.data = self.data if flags else self.data[size:]
        return found


def read_in(pieces: list[bytes], settings: ProxyProtocol = ANY, peer: str = PROXY) -> tuple[str, str, bytes]:
    """Read a header that comes in pieces: both addresses, and the bytes that are left for the transport."""
    sock = Scripted()
    reader = HeaderReader(settings, peer)
    for number, piece in enumerate(pieces):
        sock.data += piece
        code = reader.step(sock)  # type: ignore[arg-type]
        if code == DONE:
            return reader.source, reader.destination, sock.data + b"".join(pieces[number + 1 :])
        assert (code, sock.data) == (WANT_READ, b""), "a part that stayed in the socket would wake the loop again"
    raise AssertionError("the header did not end")


def test_a_header_is_read_at_every_cut_and_what_follows_is_left() -> None:
    tlv = v2(0x21, 0x11, bytes(12) + b"\x04\x00\x03abc")
    headers = [
        *(header_bytes(version, *ends) for version in ("v1", "v2") for ends in (V4, V6, ("unix:", "unix:/x"))),
        b"PROXY UNKNOWN 1.2.3.4 whatever\r\n", b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", tlv,
        v2(0x21, 0x12, bytes(12)), v2(0x21, 0x31, bytes(216)), v2(0x20, 0x11, bytes(12)), v2(0x21, 0, b""),
    ]  # fmt: skip
    found = []
    for header in headers:
        whole = read_in([header + b"\r\n\x16rest"])
        found.append(whole[:2])
        data = header + b"\r\n\x16rest"
        cuts = [read_in([data[:cut], data[cut:]]) for cut in range(1, len(header) + 3)]
        single = read_in([data[at : at + 1] for at in range(len(data))])
        assert {*cuts, single} == {whole}, header
        assert whole[2] == b"\r\n\x16rest"
    none = ("", "")
    longest = ("255.255.255.255:65535",) * 2
    assert found == [V4, V6, none, V4, V6, none, none, longest, ("0.0.0.0:0",) * 2, none, none, none, none]


ADDRESSES = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda address: f"[{address}]"))
ENDS = st.builds("{}:{}".format, ADDRESSES, st.integers(0, 65_535))


@given(st.sampled_from(["v1", "v2"]), ENDS, ENDS)
def test_what_we_send_is_read_back(version: str, source: str, destination: str) -> None:
    header = header_bytes(version, source, destination)
    assert version == "v2" or len(header) <= MAX_V1
    found = read_in([header], ProxyProtocol(version, ("192.0.2.0/24",)))[:2]
    assert [_parsed(text) for text in found] == [_parsed(source), _parsed(destination)]


def _parsed(text: str) -> tuple[Any, int]:
    host, _, port = text.rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    return getattr(address, "ipv4_mapped", None) or address, int(port)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=3))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes, cuts: list[int]) -> None:
    for begin in (b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\x00"):
        whole = begin + data
        sock, reader = Scripted(), HeaderReader(ANY, PROXY)
        with contextlib.suppress(WrongProtocolError):
            for at, until in itertools.pairwise([0, *sorted(cuts), len(whole)]):
                sock.data += whole[at:until]
                if sock.data and reader.step(sock) == DONE:  # type: ignore[arg-type]
                    break


def test_what_is_no_header_is_refused_with_what_is_wrong() -> None:
    line = b"PROXY UNKNOWN " + b"x" * (MAX_V1 - 16)
    assert read_in([line + b"\r\n"])[2] == b"", "the longest line"
    assert read_in([v2(0x20, 0, bytes(MAX_V2))])[2] == b""
    assert read_in([v2(0x21, 0x11, bytes(12))])[0]
    cases = [
        (line + b"x\r\n", "no end within 107 bytes"),
        (line + b"x\r", "no end within 107 bytes"),
        (v2(0x20, 0, bytes(MAX_V2 + 1)), "4097 bytes, and at most 4096"),
        (v2(0x21, 0x11, bytes(11)), "11 bytes for two addresses"),
        (v2(0x21, 0x21, bytes(35)), "35 bytes for two addresses"),
        (v2(0x22, 0x11, bytes(12)), "command 0x22"),
        (v2(0x11, 0x11, bytes(12)), "command 0x11"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "two addresses and two ports"),
        (b"PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n", "two addresses and two ports"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", "not TCP4, TCP6 or UNKNOWN"),
        (b"PROXY \r\nxxxxxxx\r\n", "not TCP4, TCP6 or UNKNOWN"),
        (b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n", "an address is not one of its family"),
        (b"PROXY TCP4 ::1 1.2.3.4 1 2\r\n", "an address is not one of its family"),
        (b"PROXY TCP6 ::1 \xff 1 2\r\n", "an address is not one of its family"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n", "a port is no number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", "a port is no number"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n", "a port is no number"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00", "16 03 01"),
        (b"GET / HTTP/1.1\r\n", "as of HTTP"),
        (b"PROXYTCP4 1.2.3.4", "50 52 4f 58 59 54"),
    ]
    wrong = []
    for data, why in cases:
        with pytest.raises(WrongProtocolError) as raised:
            read_in([data])
        if why not in str(raised.value):
            wrong.append((data, str(raised.value)))
    assert wrong == []


def test_a_listener_takes_its_version_only_and_from_trusted_proxies_only() -> None:
    found = {}
    for version in ("v1", "v2", "any"):
        for sent in ("v1", "v2"):
            try:
                found[version, sent] = read_in([header_bytes(sent, *V4)], ProxyProtocol(version, ("192.0.2.0/24",)))[0] == V4[0]
            except WrongProtocolError:
                found[version, sent] = False
    assert [key for key, taken in found.items() if not taken] == [("v1", "v2"), ("v2", "v1")]
    peers = {"192.0.2.255:9": True, "192.0.3.0:9": False, "[2001:db8::9]:1": True, "[2001:db9::9]:1": False, "unix:": True, "unix:/a:b": True}
    assert {peer: ANY.trusts(peer) for peer in peers} == peers
    with pytest.raises(AuthenticationError, match=r"192.0.3.1:9 is in none of proxy_protocol.trusted"):
        read_in([header_bytes("v1", *V4)], peer="192.0.3.1:9")
    assert not ProxyProtocol("any", ()).trusts(PROXY)


class Narrow:
    """A socket that is full at first, and then takes ten bytes at a time."""

    full = True

    def send(self, data: bytes) -> int:
        if self.full:
            self.full = False
            raise BlockingIOError
        return min(len(data), 10)


def test_a_socket_that_ends_or_fails_says_so_and_one_that_is_full_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        assert own_address(theirs) == f"127.0.0.1:{server.getsockname()[1]}"
        ours.sendall(b"PROXY TCP4 1.2.3.4 ")
        ours.shutdown(socket.SHUT_WR)
        reader = HeaderReader(ANY, PROXY)
        assert (reader.step(theirs), reader.begun) == (ENDED, True)
        theirs.close()
        for preamble in (HeaderReader(ANY, PROXY), HeaderWriter(b"x")):
            with pytest.raises(TransportError, match="failed"):
                preamble.step(theirs)
    writer, narrow = HeaderWriter(header_bytes("v2", *V4)), Narrow()
    assert [writer.step(narrow) for _ in range(4)] == [WANT_WRITE, WANT_WRITE, WANT_WRITE, DONE]  # type: ignore[arg-type]


# On pairs.


def test_the_client_of_the_header_is_in_rows_quotas_and_the_next_header_with_and_without_tls(tls_world: TlsWorld) -> None:
    for version, secure, onward in itertools.product(("v1", "v2"), (False, True), (False, True)):
        with contextlib.closing(
            World(
                proxy_protocol=ANY,
                client_tls=tls_world.server_settings() if secure else None,
                upstream_tls=tls_world.client_settings() if onward else None,
                upstream=UpstreamConfig(name="u", send_proxy_protocol=version),
            )
        ) as world:
            client, pair = world.client(PROXY)
            world.relay.pairs.quotas.set_limits(limits(address=RateLimits(request_bytes_rate=1 << 30)))
            client.sendall(header_bytes("v2" if version == "v1" else "v1", *V4) + (b"" if secure else frame(b"question")))
            if secure:
                client = world.shake(client, tls_world.client_settings().context)
                client.sendall(frame(b"question"))
            world.until(lambda pair=pair: pair.upstream.channel is not None)  # type: ignore[misc]
            upstream, _ = world.server.accept()
            expected = header_bytes(version, *V4)
            assert world.read(upstream, len(expected)) == expected
            assert world.read(upstream, 3) == (b"\x16\x03\x01" if onward else frame(b"question")[:3]), "nothing between them"
            throttle = pair.client.throttle
            assert throttle is not None
            assert throttle.meter is not None
            assert ["10.1.2.3" in repr(bucket.key) for bucket in throttle.meter.buckets] == [True]
            client.close()
            upstream.close()
            world.pass_time(2)
            world.until(lambda world=world: world.rows)  # type: ignore[misc]
            assert world.row["peer"] == V4[0]


def test_what_is_no_header_ends_the_connection_with_a_cause_and_a_silent_one_in_time() -> None:
    header = header_bytes("v1", *V4)
    cases: list[tuple[str, bytes, float, str, str]] = [
        (PROXY, b"GET / HTTP/1.1\r\n", 0, "wrong_protocol", "as of HTTP"),
        (PROXY, b"PROXY TCP4 1.2.3.4", 0, "peer_closed", "within the PROXY protocol header"),
        (PROXY, b"PROXY TCP4 1.2.3.4", 10.1, "handshake_timeout", ""),
        (PROXY, b"", 0, "no_data", ""),
        ("198.51.100.1:1", header, 0, "auth_failed", "198.51.100.1:1 is in none of proxy_protocol.trusted"),
        ("198.51.100.1:1", b"", 0, "no_data", ""),
    ]
    for peer, data, later_s, cause, part in cases:
        with contextlib.closing(World(proxy_protocol=ANY)) as world:
            client, _ = world.client(peer)
            client.sendall(data)
            world.poll()
            world.pass_time(later_s)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
            world.until(lambda world=world: world.rows)  # type: ignore[misc]
            assert (world.row["cause"], world.row["peer"]) == (cause, peer), data
            assert part in world.row["detail"]


def test_a_header_that_names_no_client_keeps_the_address_of_the_socket() -> None:
    for version in ("v1", "v2"):
        with contextlib.closing(World(proxy_protocol=ANY, upstream=UpstreamConfig(name="u", send_proxy_protocol="v1"))) as world:
            client, pair = world.client(PROXY)
            client.sendall(header_bytes(version, "unix:", ""))
            world.until(lambda pair=pair: pair.state.value == "open")  # type: ignore[misc]
            channel = pair.client.channel
            assert channel is not None
            assert (channel.peer, channel.own_address) == (PROXY, "{}:{}".format(*client.getpeername()))
            client.close()
            world.pass_time(2)
