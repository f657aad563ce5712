"""A channel: one connection as the proxy sees it. It joins a transport, a receive, a send, a state and a set of mute causes.

Rules
- At most one receive in progress and one pending send. One read and one write for each readiness event.
- Everything that can go wrong closes this channel only, with one cause; the first wins. ``close`` may be called from anywhere: booked
  memory goes back at once, the descriptor leaves the selector at once, the listener is told at the end of the poll.
- A mute does not touch the selector: when the next event comes for a muted channel, its read interest is dropped. A short mute is free.
- EPOLLHUP and EPOLLERR cannot be masked: a muted channel that gets one leaves the selector (``hung``) until it is unmuted, unless the
  socket has an error, which closes it.
"""

import errno
import select
import socket
from typing import TYPE_CHECKING, Final

from librt.vecs import vec
from mypy_extensions import i64

from proxy.errors import AuthenticationError, ConnectError, FrameTooLargeError, InternalError, NegativeSizeError, ProxyError, TlsError, TransportError, WrongProtocolError
from proxy.network import framing, mute, state
from proxy.network.cause import Cause
from proxy.network.listener import FdHandler
from proxy.network.memory_pool import MemoryPool, MemoryWaiter
from proxy.network.mute import MuteEvent, MuteState
from proxy.network.options import ChannelOptions
from proxy.network.receive import Receive
from proxy.network.run import Run
from proxy.network.send import Send
from proxy.network.state import ChannelEvent, ChannelState
from proxy.network.timer import NEVER, Timer
from proxy.network.transport import DONE, ENDED, WANT_WRITE, Identity, Transport

if TYPE_CHECKING:
    from proxy.network.selector import Selector

__all__ = ["Channel"]

EPOLLIN: Final = 1
EPOLLOUT: Final = 4
EPOLLERR: Final = 8
EPOLLHUP: Final = 16
BROKEN: Final = EPOLLERR | EPOLLHUP
assert (select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR, select.EPOLLHUP) == (EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP)

MIN_READ: Final = 2048
MAX_READ: Final = 131072
FIRST_READ: Final = 4096

READY: Final = ChannelState.READY
CLOSED: Final = ChannelState.CLOSED
CONNECTING: Final = ChannelState.CONNECTING
HANDSHAKE: Final = ChannelState.HANDSHAKE
MUTING: Final = MuteState.MUTING
HELD: Final = MuteState.HELD


class _LeaseWaiter(MemoryWaiter):
    """Stands in the pool's queue for a channel."""

    def __init__(self, channel: "Channel") -> None:
        self._channel: Final = channel

    def memory_available(self) -> None:
        self._channel.retry_lease()


class _Watchdog(Timer):
    """One timer for each channel: handshake, idle and stall times."""

    def __init__(self, channel: "Channel") -> None:
        super().__init__()
        self._channel: Channel | None = channel

    def fire(self, now_ns: i64) -> None:
        channel = self._channel
        if channel is not None:
            channel.check_times(now_ns)

    def release(self) -> None:
        self._channel = None


class Channel(FdHandler):
    """One connection.

    Attributes:
        id: see ``connection_id``; both channels of a pair may carry the same.
        attachment: the listener's own object for this channel; the channel never looks at it, and drops it when it was told ``closed``.
        options: shared with others of its side.
        peer, local: addresses as text.
        state, died_in: where the channel is in its life; in which state it was closed.
        causes, mute_state: why it is not read, as bits of ``mute``; and whether that is in force.
        hung: the descriptor left the selector because the peer is gone while we are muted.
        principal, identity: who the peer is; set before ``ready``.
        cause, detail, error: why it was closed.
        frames_received, bytes_received, frames_sent, bytes_sent: of frames, headers counted; bytes include parts of frames.
        lost_bytes: received bytes of a frame that never became whole; unsent_bytes: bytes of the pending send when it was closed.
        mute_count: causes that were set, ever.
        opened_ns, connected_ns, ready_ns, closed_ns, last_active_ns: on the selector's clock; 0 when it did not come to that.
    """

    def __init__(
        self, selector: "Selector", sock: socket.socket, transport: Transport, channel_id: i64, options: ChannelOptions, peer: str, local: str, *, connecting: bool
    ) -> None:
        self.id: Final[i64] = channel_id
        self.attachment: object = None
        self.options: Final = options
        self.peer: Final = peer
        self.local: Final = local
        self.fd: Final[i64] = sock.fileno()
        self.state: ChannelState = CONNECTING if connecting else HANDSHAKE
        self.died_in: ChannelState | None = None
        self.causes: i64 = 0
        self.mute_state: MuteState = mute.FLOWING
        self.hung: bool = False
        self.principal: str = ""
        self.identity: Identity | None = None
        self.cause: Cause | None = None
        self.detail: str = ""
        self.error: BaseException | None = None
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.frames_sent: i64 = 0
        self.bytes_sent: i64 = 0
        self.lost_bytes: i64 = 0
        self.unsent_bytes: i64 = 0
        self.mute_count: i64 = 0
        self.opened_ns: i64 = selector.now_ns
        self.connected_ns: i64 = 0 if connecting else selector.now_ns
        self.ready_ns: i64 = 0
        self.closed_ns: i64 = 0
        self.last_active_ns: i64 = selector.now_ns
        self._selector: Final = selector
        self._pool: Final[MemoryPool] = selector.pool
        self._listener: Final = selector.listener
        self._stats: Final = options.stats
        self._socket: Final = sock
        self._transport: Final = transport
        self._receive: Final = Receive(selector.pool, options.limit, options.stats)
        self._send: Final = Send(selector.pool)
        self._open: bool = False
        self._read_ended: bool = False
        self._shutting: bool = False
        self._read_size: i64 = FIRST_READ
        self._interest: i64 = 0
        self._registered: bool = False
        self._muted_since: vec[i64] = vec[i64]()
        self._waiter: _LeaseWaiter | None = None
        self._watchdog: Final = _Watchdog(self)
        self._stall: Final = _StallWindows()

    # What the listener calls.

    @property
    def is_open(self) -> bool:
        """READY or later, and not closed."""
        return self._open

    @property
    def can_send(self) -> bool:
        """No send is pending, and the stream is open for writing."""
        return self._open and not self._send.active and not self._shutting

    @property
    def pending_send(self) -> i64:
        """Bytes that wait for the socket, ciphertext included."""
        return self._send.remaining + self._transport.pending_write

    @property
    def staged(self) -> i64:
        """Bytes of the frame begun."""
        return self._receive.staged

    @property
    def leased(self) -> i64:
        """Bytes booked at the memory pool for this channel."""
        return self._receive.leased + self._send.booked + self._transport.pending_write

    @property
    def mute_in_force(self) -> bool:
        """No further size header will be read until a cause goes away."""
        return self.causes != 0 and self.mute_state is not MUTING and self.mute_state is not HELD

    def send(self, run: Run) -> bool:
        """Write a run, now; what the socket does not take is the pending send. Takes over the run's lease.

        Returns:
            True when it is out; False when ``sent`` will be told, or ``closed``.

        Raises:
            InternalError: a send is pending, or the channel is not open for writing. The run stays the caller's.
        """
        raise NotImplementedError

    def discard(self, run: Run) -> None:
        """Give up a run that is not sent on: its lease goes back."""
        self._pool.release(run.lease)
        run.lease = 0

    def mute(self, cause: i64) -> bool:
        """Add one cause (a bit of ``mute``); True when the mute is in force. Harmless when the cause is set, or the channel closed."""
        raise NotImplementedError

    def unmute(self, cause: i64) -> None:
        """Take one cause away; reading goes on when it was the last."""
        raise NotImplementedError

    def shut_write(self) -> None:
        """End our side of the stream: FIN, or TLS close-notify. ``write_ended`` is told when it is out.

        Raises:
            InternalError: a send is pending, or the channel is not open for writing.
        """
        raise NotImplementedError

    def close(self, cause: Cause, detail: str = "", error: BaseException | None = None) -> None:
        """Close, at once; harmless when it is closed. The first cause wins."""
        raise NotImplementedError


class _StallWindows:
    """Since when a receive or a send has been in progress without enough progress."""

    def __init__(self) -> None:
        self.receive_since_ns: i64 = NEVER
