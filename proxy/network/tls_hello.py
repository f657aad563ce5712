"""What a client asks for in its first message (ClientHello; RFC 8446 4.1.2): a host (SNI, RFC 6066 3) and protocols (ALPN, RFC 7301 3.1).

It is read before OpenSSL sees it, because the host decides which context OpenSSL is given. To change the context within OpenSSL's handshake changes
its certificate and its authorities, but neither its verify mode nor the keys and the cache of its sessions: a session that was made under one host
would be resumed under another, and the client would not be asked for a certificate that the other host wants. So each host's connections have their
own context from the first byte on.

Nothing here is believed. What cannot be read names no host, and is OpenSSL's to refuse; nothing that OpenSSL reads there decides anything.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.errors import TlsError
from framegate.proxy.network.tls_record import RECORD_HEADER, is_refused

__all__ = ["MAX_CAME", "MAX_HELLO", "Hello", "HelloReader"]

MAX_HELLO: Final = 32_768
"""Of the message. Clients of today send 200 bytes to 2 KiB, one that resumes with a certificate in its ticket some KiB more."""
MAX_CAME: Final = 65_536
"""Of the records that the message comes in, while it is not whole. Some clients cut it; nobody's records have headers as long as what is in them."""
HANDSHAKE: Final = 0x16
CLIENT_HELLO: Final = 1
MESSAGE_HEADER: Final = 4
BEFORE_SESSION: Final = 34  # version, random
SERVER_NAME: Final = 0
HOST_NAME: Final = 0
PROTOCOLS: Final = 16


class Hello:
    """What it says.

    Attributes:
        host: in lower case, without a dot at its end; empty when the client asks for none.
        protocols: in the client's order; empty when it names none.
    """

    def __init__(self, host: str, protocols: list[str]) -> None:
        self.host: Final = host
        self.protocols: Final = protocols


class HelloReader:
    """Reads a client's first message as it comes. What has been looked at is not looked at again, however small the records or the pieces in which it
    comes: whoever sends it has proved nothing yet.
    """

    def __init__(self) -> None:
        self._came: Final = bytearray()
        self._position: i64 = 0  # of the next record
        self._message: Final = bytearray()
        self._size: i64 = MESSAGE_HEADER  # of the message, its header counted, as far as is known

    def take(self, data: bytes) -> Hello | None:
        """Go on reading.

        Args:
            data: what has come behind what was taken before.

        Returns:
            What it asks for; None when not all of the message is here.

        Raises:
            TlsError: it is longer than ``MAX_HELLO``, or comes in records so small that all of them are longer than ``MAX_CAME``.
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
        """Everything that was taken: OpenSSL's to begin with."""
        return bytes(self._came)

    def _is_hello(self) -> bool:
        """Whether the message is what a client begins with; its size is known then."""
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
    """Where a field ends that says its length in its first ``width`` bytes; the end of all when it says more than there is."""
    begin = position + width
    length: i64 = len(data)
    if begin > length:
        return length
    size: i64 = data[position] if width == 1 else data[position] << 8 | data[position + 1]
    return min(begin + size, length)


def _text(data: bytes) -> str:
    """A name as text; what is no ASCII keeps its bytes, so that it equals no name of ours."""
    return data.decode("latin-1")
