"""The PROXY protocol, versions 1 and 2: a header before all other bytes of a connection, TLS included, with the address of the client behind a proxy.

Theory of operation. A channel has a ``Preamble`` until its header has passed; afterwards nothing is left of it. ``HeaderReader`` never reads a byte
behind the header, since these are the transport's: the first ``FIRST`` bytes belong to each header, the rest of version 2 states its length, and the
end of version 1 is looked for with a peek. Bytes that do not end the header are read, so a part of one does not wake the loop again.

``LOCAL``, ``UNKNOWN`` and families other than TCP keep the socket's address. Extensions (TLVs) are skipped.

Source: HAProxy's ``doc/proxy-protocol.txt``.
"""

import abc
import ipaddress
import socket
from typing import Final

from mypy_extensions import i64

from framegate.proxy.config.address import format_peer
from framegate.proxy.errors import AuthenticationError, TransportError, WrongProtocolError
from framegate.proxy.network.framing import foreign_protocol
from framegate.proxy.network.transport import DONE, ENDED, WANT_READ, WANT_WRITE

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1: Final = b"PROXY "
FIRST: Final = 15  # bytes of the shortest header, ``PROXY UNKNOWN`` with its end of line
FIXED: Final = 16  # bytes of version 2 before the addresses
MAX_V1: Final = 107
MAX_V2: Final = 4096  # behind the fixed part; HAProxy takes 16 KiB with it, senders send some hundred
LOCAL: Final = 0x20
PROXIED: Final = 0x21
TCP4: Final = 0x11
TCP6: Final = 0x21
ADDRESSES: Final = {TCP4: (socket.AF_INET, 4), TCP6: (socket.AF_INET6, 16)}  # by family and protocol: the family, and the bytes of an address
MAPPED: Final = bytes(10) + b"\xff\xff"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxyProtocol:
    """What a listener takes: ``version`` is ``v1``, ``v2`` or ``any``; ``trusted``: the networks of the proxies, CIDR."""

    def __init__(self, version: str, trusted: tuple[str, ...]) -> None:
        self.version: Final = version
        self._trusted: Final[list[Network]] = [ipaddress.ip_network(text) for text in trusted]

    def trusts(self, peer: str) -> bool:
        """Whether a peer, as text, may say who its client is. Who can open a Unix socket may."""
        host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
        if not host or peer.startswith("unix:"):
            return True
        address = ipaddress.ip_address(host)
        return any(address in network for network in self._trusted)


class Preamble(abc.ABC):
    """What passes on a connection before its transport has it."""

    def __init__(self) -> None:
        self.source: str = ""  # the client's address as text; empty: that of the socket
        self.destination: str = ""  # where it connected to; empty: the socket's own
        self.begun: bool = False  # a byte has passed

    @abc.abstractmethod
    def step(self, sock: socket.socket) -> i64:
        """Continue as far as possible now; returns what a transport's ``handshake`` does. Raises TransportError, AuthenticationError,
        WrongProtocolError: the connection is to be closed.
        """


class HeaderWriter(Preamble):
    """Sends a header to an upstream."""

    def __init__(self, header: bytes) -> None:
        super().__init__()
        self._left: bytes = header

    def step(self, sock: socket.socket) -> i64:
        try:
            self._left = self._left[sock.send(self._left) :]
        except BlockingIOError:
            return WANT_WRITE
        except OSError as error:
            raise TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) from error
        return WANT_WRITE if self._left else DONE


class HeaderReader(Preamble):
    """Reads the header of a client's connection. ``peer``: the address of its socket."""

    def __init__(self, settings: ProxyProtocol, peer: str) -> None:
        super().__init__()
        self._settings: Final = settings
        self._peer: Final = peer
        self._data: bytes = b""

    def step(self, sock: socket.socket) -> i64:
        try:
            while True:
                wanted = self._wanted()
                if wanted == 0:
                    return DONE
                if wanted < 0:  # version 1, whose end is to be found
                    wanted = self._until_end(sock.recv(int(-wanted), socket.MSG_PEEK))
                data = sock.recv(int(wanted)) if wanted != 0 else b""
                if not data:
                    return ENDED
                if not self.begun and not self._settings.trusts(self._peer):  # later than at once, because a probe of the port is no fault
                    raise AuthenticationError(f"{self._peer} is in none of proxy_protocol.trusted, so it may not say who its client is")
                self.begun = True
                self._data += data
        except BlockingIOError:
            return WANT_READ
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error

    def _wanted(self) -> i64:
        """How many bytes the header lacks; 0: none, and it is read; negative: so many of version 1 at most. Raises WrongProtocolError."""
        data = self._data
        size: i64 = len(data)
        version = self._settings.version
        if version != "v1" and data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
            return self._rest_of_v2() if size >= FIXED else (FIXED if size >= FIRST else FIRST) - size
        if version != "v2" and data[: len(V1)] == V1[: len(data)]:
            if data.endswith(b"\r\n"):
                self._read_v1(data[:-2])
                return 0
            if size >= MAX_V1:
                raise _malformed(1, f"no end within {MAX_V1} bytes")
            return FIRST - size if size < FIRST else size - MAX_V1
        known = foreign_protocol(data[:4])
        raise WrongProtocolError(data[:8].hex(" ") + (f", as of {known}" if known else ""), side="downstream", expected="a PROXY protocol header")

    def _until_end(self, ahead: bytes) -> i64:
        """How many of the bytes ahead belong to the header of version 1."""
        if self._data.endswith(b"\r") and ahead.startswith(b"\n"):
            return 1
        end: i64 = ahead.find(b"\r\n")
        return end + 2 if end >= 0 else len(ahead)

    def _read_v1(self, line: bytes) -> None:
        fields = line.split(b" ")
        if fields[1:2] == [b"UNKNOWN"]:
            return
        family = {b"TCP4": socket.AF_INET, b"TCP6": socket.AF_INET6}.get(fields[1]) if len(fields) == 6 else None
        if family is None:
            raise _malformed(1, "not TCP4, TCP6 or UNKNOWN with two addresses and two ports")
        texts: list[str] = []
        for host, port in ((fields[2], fields[4]), (fields[3], fields[5])):
            if not port.isdigit() or len(port) > 5 or int(port) > 65_535 or (port.startswith(b"0") and port != b"0"):
                raise _malformed(1, "a port is no number from 0 to 65535")
            try:
                packed = socket.inet_pton(family, host.decode("ascii"))
            except (OSError, ValueError):
                raise _malformed(1, "an address is not one of its family") from None
            texts.append(format_peer(int(family), (socket.inet_ntop(family, packed), int(port))))
        self.source, self.destination = texts

    def _rest_of_v2(self) -> i64:
        data = self._data
        command, kind = data[12], data[13]
        length: i64 = int.from_bytes(data[14:16], "big")
        if command != LOCAL and command != PROXIED:
            raise _malformed(2, f"command {command:#04x}")
        if length > MAX_V2:
            raise _malformed(2, f"{length} bytes, and at most {MAX_V2} are taken")
        if len(data) < FIXED + length:
            return FIXED + length - len(data)
        if command == PROXIED and kind in ADDRESSES:
            family, size = ADDRESSES[kind]
            if length < 2 * size + 4:
                raise _malformed(2, f"{length} bytes for two addresses and two ports")
            ends = FIXED + 2 * size
            hosts = [socket.inet_ntop(family, data[at : at + size]) for at in (FIXED, FIXED + size)]
            ports = [int.from_bytes(data[at : at + 2], "big") for at in (ends, ends + 2)]
            self.source, self.destination = [format_peer(int(family), (hosts[at], ports[at])) for at in (0, 1)]
        return 0


def _malformed(version: int, why: str) -> WrongProtocolError:
    return WrongProtocolError(f"a malformed header of version {version} ({why})", side="downstream", expected="a PROXY protocol header")


def header_bytes(version: str, source: str, destination: str) -> bytes:
    """A header for an upstream. ``version``: ``v1`` or ``v2``. ``source``, ``destination``: addresses as text. If one of them is no IP address (a
    client on a Unix socket, a check of our own), the header is ``UNKNOWN`` or ``LOCAL``. An IPv4 address beside an IPv6 one is mapped.
    """
    ends = [_packed(source), _packed(destination)]
    packed = [end[0] for end in ends]
    if not all(packed):
        return b"PROXY UNKNOWN\r\n" if version == "v1" else SIGNATURE + bytes([LOCAL, 0, 0, 0])
    if len(packed[0]) != len(packed[1]):
        packed = [host if len(host) == 16 else MAPPED + host for host in packed]
    ports = [end[1] for end in ends]
    is_v4 = len(packed[0]) == 4
    if version == "v1":
        hosts = [socket.inet_ntop(socket.AF_INET if is_v4 else socket.AF_INET6, host) for host in packed]
        return f"PROXY {'TCP4' if is_v4 else 'TCP6'} {hosts[0]} {hosts[1]} {ports[0]} {ports[1]}\r\n".encode()
    body = packed[0] + packed[1] + ports[0].to_bytes(2, "big") + ports[1].to_bytes(2, "big")
    return SIGNATURE + bytes([PROXIED, TCP4 if is_v4 else TCP6]) + len(body).to_bytes(2, "big") + body


def _packed(text: str) -> tuple[bytes, int]:
    """An address and its port; no bytes: it is no IP address."""
    host, _, port = text.rpartition(":")
    if text.startswith("unix:") or not host:
        return b"", 0
    if host.startswith("["):
        return socket.inet_pton(socket.AF_INET6, host[1:-1].partition("%")[0]), int(port)
    return socket.inet_pton(socket.AF_INET, host), int(port)


def own_address(sock: socket.socket) -> str:
    """The address of our end of a connection, as text."""
    return format_peer(int(sock.family), sock.getsockname())
