"""The link between control and one processor: two Unix sockets, one codec, used by both sides.

Hand-over (SOCK_SEQPACKET): one message is a few accepted connections, each a line of words and one descriptor (SCM_RIGHTS). It must be read with
``recvmsg``, because ``recv`` drops descriptors silently.

Commands (SOCK_STREAM): frames of a big-endian u32 length and a UTF-8 JSON object with the key ``type``, and ``id`` if an answer is expected. Neither
end blocks: bytes that a socket refuses wait in ``LinkWriter``. A message that ``send`` or ``queue`` took is never dropped; ``offer``, for rows that
may be lost, drops and counts them above a bound.

In the same frame, after the object, may come lines, which the reader returns as ``rows``: the notices ``opened``, ``access`` and ``closed`` have one
for each connection. A line is two numbers and the row as the log prints it: it is encoded once (``pair_rows``), and decoded only if a reader needs
its keys. The objects are declared in ``messages`` and ``rows`` and checked by ``protocol``, not here.
"""

import json
import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from framegate.proxy.network.authenticator import ANONYMOUS
from framegate.proxy.server.rows import AccessRow, ClosedRow, OpenedRow
from framegate.proxy.server.schema import schema_of

Message = dict[str, Any]

MAX_FRAME: Final = 64 * 1024 * 1024  # bytes of one frame's body; a longer one means that the stream is out of step
_HEADER: Final = 4
MAX_TOGETHER: Final = 10  # Connections in one message
_HANDOVER_SIZE: Final = MAX_TOGETHER * 1024  # a line is shorter: a Unix socket's name, escaped, has 432 characters at most
_DESCRIPTOR_SIZE: Final = array("i").itemsize
_DESCRIPTOR_SPACE: Final = socket.CMSG_SPACE((MAX_TOGETHER + 1) * _DESCRIPTOR_SIZE)
SOL_SOCKET: Final = int(socket.SOL_SOCKET)  # these four as plain numbers: an operation with an enumeration is a Python call
SCM_RIGHTS: Final = int(socket.SCM_RIGHTS)
MSG_TRUNC: Final = int(socket.MSG_TRUNC)
MSG_CMSG_CLOEXEC: Final = int(socket.MSG_CMSG_CLOEXEC)


class LinkError(Exception):
    """The other side broke the link's rules: our bug; the link ends."""


_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode
"""Made once, because ``json.dumps`` with arguments makes an encoder for each call."""
_from_json: Final = json.JSONDecoder().raw_decode
_SPACE: Final = " "
_LINE: Final = "\n"


def encode(message: Mapping[str, object], rows: Sequence[str] = ()) -> bytes:
    """One frame: u32 length, then the object as compact JSON, then the rows, each on a line of its own."""
    body = _LINE.join((_to_json(message), *rows)).encode(errors="backslashreplace")  # half a surrogate pair is the same in JSON when it is escaped
    if len(body) > MAX_FRAME:
        raise LinkError(f"a link message of {len(body)} bytes exceeds {MAX_FRAME}")
    return len(body).to_bytes(_HEADER, "big") + body


class LinkReader:
    """Turns the bytes of the command socket into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def wait(self, command: socket.socket) -> list[Message]:
        """The first messages, ``start`` and those that came with it, from a blocking socket; none: control is gone."""
        messages: list[Message] = []
        while not messages:
            try:
                data = command.recv(65536)
            except ConnectionError:
                return []
            if not data:
                return []
            messages = self.feed(data)
        return messages

    def feed(self, data: bytes) -> list[Message]:
        """Takes the next bytes and gives the messages they complete. Raises LinkError: a length above ``MAX_FRAME``, or a body that is not an object
        with a ``type``.
        """
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        start = 0
        while len(buffer) - start >= _HEADER:
            length = int.from_bytes(buffer[start : start + _HEADER], "big")
            if length > MAX_FRAME:
                raise LinkError(f"a link frame claims {length} bytes, above {MAX_FRAME}")
            end = start + _HEADER + length
            if len(buffer) < end:
                break
            messages.append(_decode(bytes(buffer[start + _HEADER : end])))
            start = end
        del buffer[:start]
        return messages


def _decode(body: bytes) -> Message:
    try:
        head, *rows = body.decode().split(_LINE)
        message, end = _from_json(head)
    except (RecursionError, ValueError) as error:
        raise LinkError(f"a link frame is not JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str) or end != len(head):
        raise LinkError("a link message must be an object with a type, and nothing behind it")
    if rows:
        message["rows"] = rows
    return message


_ROWS: Final[Mapping[str, Any]] = {"opened": OpenedRow, "access": AccessRow, "closed": ClosedRow}


def split_line(event: str, line: str) -> tuple[int, int, str]:
    """The parts of a line of the notice ``event``: when the connection was accepted, which identifies it to control, its id, and the row as the log
    prints it. Raises LinkError if it is malformed.
    """
    try:
        accepted_ns, number, text = line.split(_SPACE, 2)
        found = (int(accepted_ns), int(number), text)
    except ValueError as error:
        raise LinkError(f"the {event} row cannot be read: {error}") from error
    if not text.startswith('{"') or not text.endswith("}"):
        raise LinkError(f"the {event} row cannot be read: {text!r:.100} is no object")
    return found


def row_of(line: str) -> str:
    """The row of a line that this process has made."""
    return line.split(_SPACE, 2)[2]


def decode_row(event: str, number: int, text: str) -> dict[str, Any]:
    """The row of a line, with the number as its id: an ``OpenedRow``, ``AccessRow`` or ``ClosedRow``, by event. Raises LinkError: it cannot be read,
    or is not as declared; then the error names the key.
    """
    try:
        row, end = _from_json(text)
    except (RecursionError, ValueError) as error:
        raise LinkError(f"the {event} row cannot be read: {error}") from error
    if type(row) is not dict or end != len(text):
        raise LinkError(f"the {event} row cannot be read: {text!r:.100} is no object, or has something behind it")
    row["id"] = number
    complete(event, row)
    fault = schema_of(_ROWS[event]).fault(row)
    if fault:
        raise LinkError(f"the {event} row cannot be read: {event}{fault}")
    return row


def complete(event: str, row: dict[str, Any]) -> None:
    """Add the keys that the line of a row leaves out (``rows.LEFT_OUT``): there is none, it is empty, or it repeats other keys."""
    for name in ("mechanism", "tls", "handshake_ns", "connect_ns"):
        row.setdefault(name, None)
    row.setdefault("principal", ANONYMOUS)
    row.setdefault("attempts", 1)
    row.setdefault("connect_started_ns", _after(row, row.pop("connect_after_ns", None), 1))
    connect_ns = row["connect_ns"] if row["attempts"] == 1 else None
    row.setdefault("attempt_started_ns", None if connect_ns is None else row["connect_started_ns"])
    row.setdefault("tcp_ns", connect_ns)
    for name in ("tls_ns", "login_ns"):
        row.setdefault(name, None if connect_ns is None else 0)
    if event != "opened":
        row.setdefault("lost", {"bytes": 0, "request": 0, "response": 0})
        row.setdefault("mutes", {})
    if event == "closed":
        row.setdefault("detail", "")
        row.setdefault("state", "half_closed")
        row.setdefault("closed_ns", _after(row, row.get("duration_ms"), 1e6))


def _after(row: Mapping[str, Any], later: Any, unit: float) -> int | None:
    """A time after the begin of a row's connection; None where it is not known: the row's schema says whether that is a fault."""
    opened_ns = row.get("opened_ns")
    return opened_ns + round(later * unit) if isinstance(opened_ns, int) and isinstance(later, int | float) else None


class LinkWriter:
    """The bytes that wait to be written to the command socket, in order. ``sock``: non-blocking. ``row_bytes``: ``offer`` refuses while at least this
    much waits.
    """

    def __init__(self, sock: socket.socket, row_bytes: int = 256 * 1024) -> None:
        self._socket = sock
        self._row_bytes = row_bytes
        self._buffer = bytearray()
        self.dropped_count = 0

    @property
    def pending(self) -> int:
        """Bytes that wait."""
        return len(self._buffer)

    def queue(self, message: Mapping[str, object], rows: Sequence[str] = ()) -> None:
        """Takes a message that must arrive; ``flush`` writes all that is queued."""
        self._buffer += encode(message, rows)

    def send(self, message: Mapping[str, object]) -> bool:
        """Queues a message that must arrive, writes what the socket takes; True when nothing waits."""
        self.queue(message)
        return self.flush()

    def offer(self, message: Mapping[str, object]) -> bool:
        """Sends a row that may be lost: drops and counts it, and returns False, if too much waits."""
        if len(self._buffer) >= self._row_bytes:
            self.dropped_count += 1
            return False
        self.send(message)
        return True

    def flush(self) -> bool:
        """Writes what the socket takes; True when nothing waits. Raises ConnectionError if the peer is gone."""
        while self._buffer:
            try:
                count = self._socket.send(self._buffer)
            except (BlockingIOError, InterruptedError):
                return False
            del self._buffer[:count]
        return True


HANDLER_PROCESS: Final = "@handler"
"""Takes the place of the listener's name if the socket leads to a handler process; names of listeners have no ``@``."""


class Handover(NamedTuple):
    """The facts of one accepted connection."""

    # of the monotonic clock; unique among the connections of one control process. Both ends of a pair of sockets between a processor and a handler
    # process have the same.
    accepted_ns: int
    family: int  # of the socket, AF_INET, AF_INET6 or AF_UNIX
    listener: str  # name of the listener that accepted it
    peer: str  # the client, ``host:port``, or ``unix:`` for a Unix socket
    broker: int = -1  # node id of the Kafka broker that the listening socket stands for; -1: the bootstrap, or no cluster


def send_handovers(sock: socket.socket, handovers: Sequence[Handover], descriptors: Sequence[int]) -> bool:
    """Passes connections on, all or none: 1 to ``MAX_TOGETHER``, each with its descriptor. After True the caller closes its own descriptors. False:
    the queue is full, try the next processor. Raises OSError: the processor is gone.
    """
    lines = [f"{item.accepted_ns} {item.family} {item.broker} {item.listener} {item.peer}" for item in handovers]  # a listener's name has no space
    try:
        sock.sendmsg((_LINE.join(lines).encode(),), ((SOL_SOCKET, SCM_RIGHTS, array("i", descriptors)),))
    except (BlockingIOError, InterruptedError):
        return False
    return True


def receive_handovers(sock: socket.socket) -> list[tuple[Handover, int]]:
    """The connections of the next message, each with its descriptor, which now belongs to the caller. Returns: Empty if no message waits. A
    descriptor is -1 if it was lost, because this process may not have more of them. Raises EOFError: control closed the socket; LinkError: a message
    that is truncated, malformed, or has more descriptors than connections; its descriptors are closed.
    """
    try:
        body, ancillary, flags, _ = sock.recvmsg(_HANDOVER_SIZE, _DESCRIPTOR_SPACE, MSG_CMSG_CLOEXEC)
    except (BlockingIOError, InterruptedError):
        return []
    descriptors = array("i")
    for level, kind, data in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_SIZE])
    if not body and not descriptors:
        raise EOFError("control closed the hand-over socket")
    try:
        handovers = [_read_handover(line) for line in body.decode().split(_LINE)]
        if flags & MSG_TRUNC or len(descriptors) > len(handovers):
            raise LinkError(f"a hand-over of {len(handovers)} connections with {len(descriptors)} descriptors and flags {flags:#x}")
    except (LinkError, ValueError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise LinkError(f"a hand-over that cannot be read: {error}") from error
    for _ in range(len(handovers) - len(descriptors)):  # lost are the last ones
        descriptors.append(-1)
    return [(handover, descriptors[place]) for place, handover in enumerate(handovers)]


def _read_handover(line: str) -> Handover:
    accepted_ns, family, broker, listener, peer = line.split(_SPACE, 4)
    return Handover(int(accepted_ns), int(family), listener, peer, int(broker))
