"""The frames of an authenticator: one at a time in each direction, through the transport, before the frames of the channel.

They do not count as traffic: they have no statistics, no tap, and a size limit of their own. Each frame is read exactly to its last byte, by a read
for its header and one for its body, so that no bytes must be passed on to the channel. The size is checked before the body is read. The bytes are
booked at the memory pool; those of a frame until the next one begins or is sent, because the authenticator may keep parts of it until it answers.
While memory is short, a body is read only when it is whole in the kernel (``MEMORY.md``).
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.errors import AuthenticationError, InternalError, Side, WrongProtocolError
from framegate.proxy.network.int32 import HEADER, INT32
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, Account
from framegate.proxy.network.send import Send
from framegate.proxy.network.transport import MAX_READ, Transport

MAX_FRAME: Final = 524288  # Kafka's sasl.server.max.receive.size
SASL_HANDSHAKE: Final = 17  # Kafka's api keys of the requests of an authentication
SASL_AUTHENTICATE: Final = 36


def is_sasl(key: i64) -> bool:
    """Whether a request with this api key belongs to an authentication."""
    return key == SASL_AUTHENTICATE if key != SASL_HANDSHAKE else True


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameExchange(abc.ABC):
    """Frames from and to one peer, in the framing ``int32``, whatever the framing of the traffic that follows."""

    def __init__(self) -> None:
        # the largest body in bytes; the value at the time when the header is complete decides. An authenticator may set it.
        self.max_size: i64 = MAX_FRAME

    @property
    @abc.abstractmethod
    def is_sending(self) -> bool:
        """Whether a frame is not sent to its last byte."""

    @abc.abstractmethod
    def receive(self) -> bytes | None:
        """Return the body of the next frame; None while it is incomplete. Raises AuthenticationError: the frame is larger than ``max_size``, or its
        size is negative; WrongProtocolError: the first bytes belong to another protocol; TransportError: the network failed.
        """

    @abc.abstractmethod
    def send(self, body: bytes) -> bool:
        """Send a frame. Returns True if all of it was sent. Raises InternalError: the last frame is not sent completely; TransportError: the network
        failed.
        """


class TransportFrames(FrameExchange):
    """Frames through a transport, before the frames of the channel."""

    def __init__(self, transport: Transport, account: Account, side: Side) -> None:
        super().__init__()
        self.ended: bool = False  # the peer ended its stream; no other frame will come
        self.awaits_memory: bool = False  # the last ``receive`` returned None because memory is short
        self.reads_out: bool = False  # read although memory is short, because no more bytes will come
        self.received: i64 = 0  # the number of whole frames
        self._transport: Final = transport
        self._account: Final = account
        self._side: Final[Side] = side
        self._is_upstream: Final = side == "upstream"
        self._staged: bytearray = bytearray()  # the frame in progress, with its header
        self._size: i64 = -1  # of its body, once the header is complete
        self._booked: i64 = 0
        self._send: Final = Send(account)
        if account.pool.finds_leaks:
            account.pool.watch("an authentication", self, self._send)

    @property
    def booked(self) -> i64:
        """Bytes booked at the memory pool, without ciphertext."""
        return self._booked + self._send.booked

    @property
    def is_sending(self) -> bool:
        return self._send.active or self._transport.pending_write != 0

    def receive(self) -> bytes | None:
        self.awaits_memory = False
        if self._size < 0 and (not self._read(HEADER - i64(len(self._staged))) or not self._check()):
            return None
        missing: i64 = HEADER + self._size - len(self._staged)
        if missing != 0 and self._must_wait(missing):
            self.awaits_memory = True
            return None
        if not self._read(missing):
            return None
        body = bytes(memoryview(self._staged)[HEADER:])
        self._size = -1
        self._staged = bytearray()
        self.received += 1
        return body

    def send(self, body: bytes) -> bool:
        if self.is_sending:
            raise InternalError("one frame at a time")
        if not self._staged:
            self._drop()
        data = INT32.header_of(len(body)) + body
        taken = self._transport.write(data)
        if taken < i64(len(data)):
            self._send.begin([data], taken, 1, 0)
            return False
        return not self.is_sending

    def flush(self) -> bool:
        """Send pending bytes. Returns True if none are left."""
        send = self._send
        if send.active:
            send.write_to(self._transport)
            if send.remaining != 0:
                return False
            send.finish()
        return self._transport.pending_write == 0 or self._transport.flush()

    def discard_input(self) -> None:
        """Read and drop input, because a close with unread bytes would send a reset, which can overtake the answer."""
        self._drop()
        left: i64 = self.max_size
        while left > 0:
            data = self._transport.read(MAX_READ)
            if not data:
                return
            left -= len(data)

    def close(self) -> None:
        """Release everything booked. May be called twice."""
        self._drop()
        self._send.finish()
        pool = self._account.pool
        if pool.finds_leaks:
            pool.check_released(self)

    def _must_wait(self, missing: i64) -> bool:
        short = not self.reads_out and self._account.is_short(answers=self._is_upstream)
        return short and self._transport.obtainable(missing) < missing

    def _read(self, missing: i64) -> bool:
        """Read the missing bytes of the header or body. Returns whether it is complete."""
        while missing > 0:
            data = self._transport.read(min(missing, MAX_READ))
            if data is None:
                return False
            length: i64 = len(data)
            if length == 0:
                self.ended = True
                return False
            if not self._staged:
                self._drop()
            booked = length if self._staged else length + PIECE_OVERHEAD
            self._staged += data
            self._account.charge(BEGUN, booked, self)
            self._booked += booked
            missing -= length
        return True

    def _check(self) -> bool:
        header = bytes(self._staged)
        size = INT32.body_size(header, 0)
        if 0 <= size <= self.max_size:
            self._size = size
            return True
        foreign = INT32.foreign(header) if self.received == 0 else ""
        if foreign:
            raise WrongProtocolError(foreign, side=self._side)
        raise AuthenticationError(f"frame of {size} bytes where at most {self.max_size} are taken before the peer is known", side=self._side)

    def _drop(self) -> None:
        booked = self._booked
        self._booked = 0
        self._size = -1
        self._staged = bytearray()
        self._account.release(BEGUN, booked, self)
