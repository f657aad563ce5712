"""The records between a processor and a handler process: bytes, and nothing else.

A stream socket, both ways ``[int32 size][body]``, integers big-endian. The first byte of a body is its kind::

    HELLO    handler process → processor, first of all    kind u8, JSON ``Hello``
    OPEN     processor → handler process                  kind u8, connection u64, JSON ``Facts``
    REQUEST  processor → handler process                  kind u8, direction u8, header_length u16, connection u64, sequence u64,
                                                          the frame's header as it came, the frame's body
    CLOSED   processor → handler process                  kind u8, connection u64
    SEND     processor → handler process                  kind u8, direction u8, connection u64
    REPLY    handler process → processor                  kind u8, action u8, direction u8, reserved u8, throttle_ms u32, connection u64,
                                                          sequence u64, began_ns u64, ended_ns u64, the frame's body; of FAILED the error's text,
                                                          UTF-8; of HELD how many bytes wait, u64

A reply whose body is longer than ``LONG`` stays in the handler process, with the replies after it of its connection and direction, and is announced
by a REPLY with the action HELD. When the processor has memory for it, it sends SEND, and the reply leaves; then the next long one is announced.

OPEN comes before the first request of a connection, CLOSED after its last. A sequence counts the frames of a connection in one direction, from 0.
Times are CLOCK_MONOTONIC. Replies of one connection and direction leave in the order of their requests. An end of file means that the other process
has ended. A connection and a sequence are below 2**63.

The processor does not trust a process that runs users' code: all that is read is checked, and after a ``WireError`` the socket is closed. A reader
loops over what ``RecordReader.take`` returns: ``record_end``, then the ``read_`` function of the kind; at the end ``RecordReader.keep`` once. Only
bodies are copied. ``read_requests`` and ``encode_replies`` do all records of one read at once.
"""

import json
import struct
from typing import Any, Final, TypedDict, cast

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

WIRE: Final = 4  # the version of the records, sent in HELLO

# The kinds.
HELLO: Final = 0
OPEN: Final = 1
REQUEST: Final = 2
CLOSED: Final = 3
REPLY: Final = 4
SEND: Final = 5

# The actions of a reply.
PASS: Final = 0  # pass the frame on unchanged; only with an upstream
FRAME: Final = 1  # pass this body on in its place; only with an upstream
NOTHING: Final = 2  # pass nothing on; without an upstream: no response
ANSWER: Final = 3  # to a request: send this body to the client
CLOSE: Final = 4  # end the connection
FAILED: Final = 5  # the handler raised, or its result is not allowed
HELD: Final = 6  # nothing yet: the reply waits
ACTIONS: Final = ("pass", "frame", "nothing", "answer", "close", "failed")  # the actions' names, as metrics have them

DIRECTIONS: Final = ("request", "response")  # a direction is an index of this

MAX_BODY: Final = (1 << 31) - 1 - (1 << 16) - 64  # bytes of the longest body that a record can carry with any header
LONG: Final = 16_384  # bytes of the longest body that a reply carries without SEND
MAX_HEADER: Final = 0xFFFF
MAX_THROTTLE_MS: Final = 0x7FFFFFFF
MAX_ERROR: Final = 1024  # bytes of an error's text

_REQUEST_HEAD: Final = struct.Struct(">iBBHQQ")  # Size, kind, direction, header_length, connection, sequence
_CONNECTION_HEAD: Final = struct.Struct(">iBQ")
_SEND: Final = struct.Struct(">iBBQ")  # Size, kind, direction, connection
_HELD_BODY: Final = struct.Struct(">Q")
_SIZE: Final = struct.Struct(">i")
_SIZE_BYTES: Final = 4
_REQUEST_BYTES: Final = 24
_REPLY_BYTES: Final = 44
_CONNECTION_BYTES: Final = 13
_NOT_COPIED: Final = 16_384
_LEAST: Final = (1, 9, 20, 9, 40, 10)  # bytes of the shortest body of each kind

_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, check_circular=False).encode


class WireError(Exception):
    """The other side broke the rules of the records. The socket is to be closed."""


class TlsFacts(TypedDict, total=False):
    """The result of a client's TLS handshake. ``server_name`` and ``peer_certificate`` (its subject) are present if they are known."""

    version: str
    cipher: str
    server_name: str
    peer_certificate: str


Request = tuple[int, int, int, bytes, bytes, int]  # Connection, direction, sequence, the frame's header, its body, and where the record ends
Reply = tuple[int, int, int, int, int, int, int, bytes]  # Action, direction, throttle_ms, connection, sequence, began_ns, ended_ns, body


class Facts(TypedDict):
    """What a handler process knows about a connection."""

    id: str  # the connection's, as text
    listener: str
    peer: str
    principal: str
    principal_type: str
    tls: TlsFacts | None  # None: plaintext
    upstream: bool  # whether the listener has one


class HandlerFacts(TypedDict):
    """What a processor must know about a handler; ``directions`` are words of ``DIRECTIONS``."""

    directions: list[str]


class Hello(TypedDict):
    """The first record of a handler process; ``handlers`` by listener."""

    wire: int
    slot: int
    handlers: dict[str, HandlerFacts]


# Processor → handler process.


def encode_open(connection: int, facts: Facts) -> bytes:
    """The record OPEN."""
    text = _to_json(facts).encode()
    return _CONNECTION_HEAD.pack(_CONNECTION_BYTES - _SIZE_BYTES + len(text), OPEN, connection) + text


def request_head(direction: int, header_length: int, connection: int, sequence: int, body_length: int) -> bytes:
    """The beginning of a request, before the frame's header and body. Raises WireError: the record would be too long."""
    if body_length > MAX_BODY or header_length > MAX_HEADER:
        raise WireError(f"a frame of {header_length} + {body_length} bytes does not fit a record")
    size = _REQUEST_BYTES - _SIZE_BYTES + header_length + body_length
    return _REQUEST_HEAD.pack(size, REQUEST, direction, header_length, connection, sequence)


def encode_closed(connection: int) -> bytes:
    """The record CLOSED."""
    return _CONNECTION_HEAD.pack(_CONNECTION_BYTES - _SIZE_BYTES, CLOSED, connection)


def encode_send(connection: int, direction: int) -> bytes:
    """The record SEND."""
    return _SEND.pack(_SEND.size - _SIZE_BYTES, SEND, direction, connection)


# Handler process → processor.


def encode_hello(hello: Hello) -> bytes:
    """The record HELLO."""
    text = _to_json(hello).encode()
    return _SIZE.pack(1 + len(text)) + bytes((HELLO,)) + text


def encode_replies(replies: list[Reply]) -> bytes:
    """The records of some replies, whose bodies have at most ``MAX_BODY`` bytes each."""
    pieces: list[bytes] = []
    writer = BytesWriter()
    for action, direction, throttle_ms, connection, sequence, began_ns, ended_ns, body in replies:
        rest: i64 = len(body)
        word: i64 = REPLY << 24 | action << 16 | direction << 8
        rest += _REPLY_BYTES - _SIZE_BYTES
        write_i64_be(writer, rest << 32 | word)
        write_i32_be(writer, i32(throttle_ms))
        write_i64_be(writer, connection)
        write_i64_be(writer, sequence)
        write_i64_be(writer, began_ns)
        write_i64_be(writer, ended_ns)
        if rest < _NOT_COPIED:
            writer.write(body)
        else:  # a long body is copied once only
            pieces += (writer.getvalue(), body)
            writer = BytesWriter()
    if not pieces:
        return writer.getvalue()
    pieces.append(writer.getvalue())
    return b"".join(pieces)


def held(reply: Reply) -> Reply:
    """The announcement of a reply that waits."""
    _, direction, _, connection, sequence, began_ns, ended_ns, body = reply
    return HELD, direction, 0, connection, sequence, began_ns, ended_ns, _HELD_BODY.pack(len(body))


def error_text(text: str) -> bytes:
    """The body of FAILED: UTF-8, cut to ``MAX_ERROR`` bytes between characters."""
    data = text.encode(errors="backslashreplace")
    return data if len(data) <= MAX_ERROR else data[:MAX_ERROR].decode(errors="ignore").encode()


# Reading.


class RecordReader:
    """Splits the bytes of a socket into whole records; the pieces of a long one are joined once.

    ::

        data = reader.take(sock.recv(n))
        position = 0
        while (end := record_end(data, position)) >= 0:
            ...  # the record is data[position:end]
            position = end
        reader.keep(data, position)
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._here = 0
        self._needed = 0

    @property
    def missing(self) -> int:
        """The bytes that must come before ``take`` returns something; 0: it does at once."""
        return max(0, self._needed - self._here)

    def take(self, data: bytes) -> bytes:
        """What was kept, and the next bytes; empty if that is known to be no whole record."""
        if not self._pieces and len(data) >= self._needed:
            return data
        if data:
            self._pieces.append(data)
            self._here += len(data)
        if self._here < self._needed:
            return b""
        if len(self._pieces) > 1:
            data = b"".join(self._pieces)
        elif self._pieces:
            data = self._pieces[0]
        self._pieces.clear()
        self._here = 0
        return data

    def keep(self, data: bytes, position: int) -> None:
        """Keep the rest of what ``take`` returned, which may have whole records. Not to be called if that was empty."""
        self._here = len(data) - position
        self._needed = 1
        if self._here:
            self._pieces.append(data[position:] if position else data)
            self._needed = _SIZE_BYTES
            if self._here >= _SIZE_BYTES:
                size: int = _SIZE.unpack_from(data, position)[0]
                self._needed = _SIZE_BYTES + max(1, size)


def record_end(data: bytes, position: i64) -> i64:
    """The end of the record that begins at a position; -1: it is not whole. Raises WireError: no such kind, or a size that a record of the kind
    cannot have.
    """
    here = i64(len(data)) - position
    if here <= _SIZE_BYTES:
        return -1
    kind = i64(data[position + _SIZE_BYTES])
    size = i64(read_i32_be(data, position))
    if kind > SEND:
        raise WireError(f"no record is of kind {kind}")
    if size < _LEAST[kind] or (kind in (CLOSED, SEND) and size != _LEAST[kind]):
        raise WireError(f"a record of kind {kind} cannot have {size} bytes")
    return position + _SIZE_BYTES + size if here >= _SIZE_BYTES + size else -1


def read_requests(data: bytes, position: int) -> list[Request]:
    """The consecutive whole REQUESTs from a position on, up to a record that is another, is not whole, or is wrong."""
    found: list[Request] = []
    length: i64 = len(data)
    at: i64 = position
    while length - at >= _REQUEST_BYTES:
        word = read_i64_be(data, at)
        direction = word >> 16 & 0xFF
        header = at + _REQUEST_BYTES
        body = header + (word & 0xFFFF)
        end = at + _SIZE_BYTES + (word >> 32)
        if word >> 24 & 0xFF != REQUEST or direction > 1 or body > end or end > length:
            break
        found.append((read_i64_be(data, at + 8), direction, read_i64_be(data, at + 16), data[header:body], data[body:end], end))
        at = end
    return found


def read_closed(data: bytes, position: int) -> int:
    """A whole CLOSED: the connection."""
    connection: int = _CONNECTION_HEAD.unpack_from(data, position)[2]
    return connection


def read_send(data: bytes, position: int) -> tuple[int, int]:
    """A whole SEND: the connection, and the direction."""
    _, _, direction, connection = _SEND.unpack_from(data, position)
    return connection, direction


def read_open(data: bytes, position: int, end: int) -> tuple[int, Facts]:
    """A whole OPEN: the connection, and the facts. Raises WireError: they are not facts."""
    connection: int = _CONNECTION_HEAD.unpack_from(data, position)[2]
    return connection, cast(Facts, _read_object(data[position + _CONNECTION_BYTES : end], "OPEN"))


def read_reply(data: bytes, position: i64, end: i64) -> tuple[i64, i64, i64, i64, i64, i64, i64, i64]:
    """A whole REPLY: action, direction, throttle_ms, connection, sequence, began_ns, ended_ns, and the beginning of its body, which ends at ``end``.
    Raises WireError: no such action or direction, or a body that the action does not have.
    """
    word = read_i64_be(data, position)
    action = word >> 16 & 0xFF
    direction = word >> 8 & 0xFF
    body: i64 = position + _REPLY_BYTES
    if action > HELD or direction > 1:
        raise WireError(f"a reply has action {action} and direction {direction}")
    if body != end and action in (PASS, NOTHING, CLOSE):
        raise WireError(f"a reply that says {ACTIONS[action]} has a body of {end - body} bytes")
    if action == HELD and end - body != _HELD_BODY.size:
        raise WireError(f"a reply that waits has {end - body} bytes that say how long it is")
    throttle_ms = read_i64_be(data, position + 8) >> 32 & 0xFFFFFFFF
    connection = read_i64_be(data, position + 12)
    sequence = read_i64_be(data, position + 20)
    return action, direction, throttle_ms, connection, sequence, read_i64_be(data, position + 28), read_i64_be(data, position + 36), body


def held_size(data: bytes, body: int) -> int:
    """How many bytes wait, by the body of HELD that begins there. Raises WireError: so many bytes need not wait, or do not fit a record."""
    size: int = _HELD_BODY.unpack_from(data, body)[0]
    if not LONG < size <= MAX_BODY:
        raise WireError(f"a reply of {size} bytes waits")
    return size


def read_hello(data: bytes, position: int, end: int) -> Hello:
    """A whole HELLO. Raises WireError: it is wrong, or of another version."""
    hello = _read_object(data[position + _SIZE_BYTES + 1 : end], "HELLO")
    if hello.get("wire") != WIRE:
        raise WireError(f"the handler process speaks version {hello.get('wire')!r:.20} of the records, and this processor version {WIRE}")
    handlers = hello.get("handlers")
    if type(hello.get("slot")) is not int or not isinstance(handlers, dict):
        raise WireError("HELLO has no slot, or no handlers")
    for facts in handlers.values():
        if not isinstance(facts, dict) or not _are_directions(facts.get("directions")):
            raise WireError("HELLO has a handler that is not what it should be")
    return cast(Hello, hello)


def _read_object(body: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (RecursionError, ValueError) as error:
        raise WireError(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise WireError(f"{name} is no object")
    return found


def _are_directions(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(word in DIRECTIONS for word in value)
