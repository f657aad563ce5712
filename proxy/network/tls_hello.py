"""Reads the host (SNI, RFC 6066 3) and the protocols (ALPN, RFC 7301 3.1) from a client's first message (ClientHello; RFC 8446 4.1.2).

They are read before OpenSSL gets the message, because the host decides the context. A change of context within OpenSSL's handshake changes the
certificate and the authorities, but neither the verify mode nor the keys and the cache of sessions: a session of one host could be resumed at another
host, without the client certificate that the other host requires. So the connections of each host use their own context from the first byte on.

No length is trusted. A message that cannot be read has no host; OpenSSL refuses it then.
"""

from typing import Final, NamedTuple

from mypy_extensions import i64

from framegate.proxy.errors import TlsError
from framegate.proxy.network.tls_record import RECORD_HEADER, is_refused

MAX_HELLO: Final = 32_768
"""The largest message. Today's clients send 200 bytes to 2 KiB, and some KiB more if they resume a session with a certificate in its ticket."""
MAX_CAME: Final = 65_536
"""The most bytes of the records of an incomplete message. Some clients split it, but not into records that are as short as their headers."""
HANDSHAKE: Final = 0x16
CLIENT_HELLO: Final = 1
MESSAGE_HEADER: Final = 4
BEFORE_SESSION: Final = 34  # version, random
SERVER_NAME: Final = 0
HOST_NAME: Final = 0
PROTOCOLS: Final = 16


class Hello(NamedTuple):
    """The contents of a ClientHello."""

    host: str  # in lower case, without a trailing dot; empty if the client names none
    protocols: list[str]  # in the client's order; empty if it names none


class HelloReader:
    """Reads a client's first message in any number of pieces. Each byte is parsed only once, so small pieces do not cause more work."""

    def __init__(self) -> None:
        self._came: Final = bytearray()
        self._position: i64 = 0  # of the next record
        self._message: Final = bytearray()
        self._size: i64 = MESSAGE_HEADER  # of the message, its header counted, as far as is known

    def take(self, data: bytes) -> Hello | None:
        """Take the next bytes. Returns the contents; None while the message is incomplete. Raises TlsError: the message is longer than
        ``MAX_HELLO``, or incomplete after ``MAX_CAME`` bytes of records.
        """
        self._came.extend(data)
        while len(self._message) < self._size:
            begin = self._position
            header = bytes(self._came[begin : begin + RECORD_HEADER])
            if (len(header) > 0 and header[0] != HANDSHAKE) or is_refused(header):
                return Hello("", [])
            end: i64 = begin + RECORD_HEADER
            if len(header) == RECORD_HEADER:
                end += header[3] << 8 | header[4]
            if end > len(self._came):
                if len(self._came) > MAX_CAME:
                    raise TlsError(f"the client's first message is not whole after {MAX_CAME} bytes of records", reason="hello_too_long")
                return None
            self._position = end
            self._message.extend(self._came[begin + RECORD_HEADER : end])
            if len(self._message) >= MESSAGE_HEADER and not self._is_hello():
                return Hello("", [])
        return _extensions(bytes(self._message[MESSAGE_HEADER : self._size]))

    def came(self) -> bytes:
        return bytes(self._came)

    def _is_hello(self) -> bool:
        """Whether the message is a ClientHello; sets its size."""
        header = bytes(self._message[:MESSAGE_HEADER])
        if header[0] != CLIENT_HELLO:
            return False
        self._size = MESSAGE_HEADER + (header[1] << 16 | header[2] << 8 | header[3])
        if self._size > MAX_HELLO:
            raise TlsError(f"the client's first message has {self._size} bytes, more than {MAX_HELLO}", reason="hello_too_long")
        return True


def _extensions(body: bytes) -> Hello:
    host = ""
    protocols: list[str] = []
    ciphers = _behind(body, BEFORE_SESSION, 1)
    position = _behind(body, _behind(body, ciphers, 2), 1) + 2  # behind the compressions, and the length of all extensions
    while position + 4 <= len(body):
        kind = body[position] << 8 | body[position + 1]
        end = _behind(body, position + 2, 2)
        content = body[position + 4 : end]
        if kind == SERVER_NAME and len(content) > 2 and content[2] == HOST_NAME:
            host = _text(content[5 : _behind(content, 3, 2)]).lower().rstrip(".")
        elif kind == PROTOCOLS:
            protocols = _names(content)
        position = end
    return Hello(host, protocols)


def _names(content: bytes) -> list[str]:
    names: list[str] = []
    position: i64 = 2
    while position < len(content):
        end = _behind(content, position, 1)
        names.append(_text(content[position + 1 : end]))
        position = end
    return names


def _behind(data: bytes, position: i64, width: i64) -> i64:
    """Return the end of a field whose first ``width`` bytes are its length; the end of ``data`` if that is less."""
    begin = position + width
    length: i64 = len(data)
    if begin > length:
        return length
    size: i64 = data[position] if width == 1 else data[position] << 8 | data[position + 1]
    return min(begin + size, length)


def _text(data: bytes) -> str:
    """Decode a name. A byte that is not ASCII becomes a character that no configured name has."""
    return data.decode("latin-1")
