"""The link between control and one processor: two Unix sockets, one codec, used by both sides.

Hand-over (SOCK_SEQPACKET): one message is one accepted connection, a line of words and exactly one descriptor (SCM_RIGHTS). It must be read
with ``recvmsg``; a plain ``recv`` drops descriptors without a word.

Commands (SOCK_STREAM): frames of a big-endian u32 length, then a UTF-8 JSON object with the key ``type``, and ``id`` where an answer is
expected. Neither end ever blocks: what a socket refuses waits in ``LinkWriter``. A message is never dropped once ``send`` took it; a
sender that may lose rows (most of ``log``) asks ``offer``, which refuses above a bound and counts.

Behind the object, in the same frame, may come lines, which the reader gives as ``rows``: the notice ``closed`` has one for each connection that
ended (``closed``). What the objects hold is declared, and judged, in ``messages`` and ``rows``: here they are any.
"""

import json
import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "HANDLER_PROCESS",
    "MAX_FRAME",
    "Handover",
    "LinkError",
    "LinkReader",
    "LinkWriter",
    "encode",
    "receive_handover",
    "send_handover",
]

Message = dict[str, Any]

MAX_FRAME: Final = 64 * 1024 * 1024
"""Bytes of one JSON body; a longer one means that the stream is out of step."""
_HEADER: Final = 4
_HANDOVER_SIZE: Final = 4096
_DESCRIPTOR_SIZE: Final = array("i").itemsize
_DESCRIPTOR_SPACE: Final = socket.CMSG_SPACE(4 * _DESCRIPTOR_SIZE)


class LinkError(Exception):
    """The other side broke the link's rules: our bug, and the link's end."""


_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode
"""Made once: ``json.dumps`` with arguments makes an encoder for each call."""
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
    """Turns the bytes of the command socket into messages, however they were cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Takes the next bytes and gives the messages they complete.

        Raises:
            LinkError: a length above ``MAX_FRAME``, or a body that is not an object with a ``type``.
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


class LinkWriter:
    """What waits to be written to the command socket, in order.

    Args:
        sock: non-blocking.
        row_bytes: ``offer`` refuses while at least this much waits.
    """

    def __init__(self, sock: socket.socket, row_bytes: int = 256 * 1024) -> None:
        self._socket = sock
        self._row_bytes = row_bytes
        self._buffer = bytearray()
        self.dropped_count = 0

    @property
    def pending(self) -> int:
        """Bytes the socket has not taken."""
        return len(self._buffer)

    def queue(self, message: Mapping[str, object], rows: Sequence[str] = ()) -> None:
        """Takes a message that must arrive; ``flush`` writes it, and whatever else was queued, in one go."""
        self._buffer += encode(message, rows)

    def send(self, message: Mapping[str, object]) -> bool:
        """Queues a message that must arrive, writes what the socket takes; True when nothing waits."""
        self.queue(message)
        return self.flush()

    def offer(self, message: Mapping[str, object]) -> bool:
        """Queues a row that may be lost: False, and counted, when too much waits already."""
        if len(self._buffer) >= self._row_bytes:
            self.dropped_count += 1
            return False
        self.send(message)
        return True

    def flush(self) -> bool:
        """Writes what the socket takes; True when nothing waits. A peer that is gone raises ConnectionError."""
        while self._buffer:
            try:
                count = self._socket.send(self._buffer)
            except (BlockingIOError, InterruptedError):
                return False
            del self._buffer[:count]
        return True


HANDLER_PROCESS: Final = "@handler"
"""Stands where a hand-over has the listener, in whose names there is no ``@``: the socket is one between a processor and a handler process."""


class Handover(NamedTuple):
    """The facts of one accepted connection.

    Attributes:
        accepted_ns: of the monotonic clock; no two connections of one control process have the same, and no two pairs of sockets between a
            processor and a handler process, whose ends have the same.
        family: of the socket, AF_INET, AF_INET6 or AF_UNIX.
        listener: name of the listener that accepted it.
        peer: the client, ``host:port``, or ``unix:`` for a Unix socket.
    """

    accepted_ns: int
    family: int
    listener: str
    peer: str


def send_handover(sock: socket.socket, handover: Handover, descriptor: int) -> bool:
    """Passes one connection on; the caller closes its own descriptor after True. False: the queue is full, try the next processor.

    Raises:
        OSError: the processor is gone.
    """
    accepted_ns, family, listener, peer = handover
    body = f"{accepted_ns} {family} {listener} {peer}".encode()  # a listener's name has no space
    try:
        sock.sendmsg((body,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (descriptor,))),))
    except (BlockingIOError, InterruptedError):
        return False
    return True


def receive_handover(sock: socket.socket) -> tuple[Handover, int] | None:
    """The next connection and its descriptor, which now belongs to the caller.

    Returns:
        None when nothing waits. The descriptor is -1 when it was lost on the way, because this process may not have more of them.

    Raises:
        EOFError: control closed the socket.
        LinkError: a message that is cut off, not ours, or with more descriptors than one; those it had are closed.
    """
    try:
        body, ancillary, flags, _ = sock.recvmsg(_HANDOVER_SIZE, _DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC)
    except (BlockingIOError, InterruptedError):
        return None
    descriptors = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_SIZE])
    if not body and not descriptors:
        raise EOFError("control closed the hand-over socket")
    try:
        if flags & socket.MSG_TRUNC or len(descriptors) > 1:
            raise LinkError(f"a hand-over with {len(descriptors)} descriptors and flags {flags:#x}")
        accepted_ns, family, listener, peer = body.decode().split(_SPACE, 3)
        handover = Handover(int(accepted_ns), int(family), listener, peer)
    except (LinkError, ValueError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise LinkError(f"a hand-over that cannot be read: {error}") from error
    return handover, descriptors[0] if descriptors else -1
