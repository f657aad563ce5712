"""The writing half of a channel: runs that are written at once, the pending send, waiting for room, and the end of our stream.

Every run is measured (``SideStats.forwards``), from its arrival, as far as the poll that read it knows that (``Selector.arrived_ns``). One that is
written at once is measured until the end of its poll, so that one reading of the clock serves all of them; one that waits, until the socket has taken
its last byte. A run from a handler is measured from the poll in which it came back. Each piece of a frame that is cut through is a run.
"""

import os
import socket
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.errors import InternalError, TransportError
from framegate.proxy.network import socket_buffers
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.pipe import Pipe
from framegate.proxy.network.run import Run
from framegate.proxy.network.send import Send
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.network.transport import Transport

if TYPE_CHECKING:
    from framegate.proxy.network.channel import Channel
    from framegate.proxy.network.selector import Selector

LONGEST_WHILE_NS: Final = 80_000_000  # the time between two checks for room doubles up to this
HELD_MOST: Final = 1 << 18  # bytes that ``hold`` keeps


class WriteHalf:
    """The writing half."""

    __deletable__ = ("_channel", "_sink")

    def __init__(
        self, channel: "Channel", sink: ChannelSink, loop: "Selector", sock: socket.socket, transport: Transport, account: Account, stats: SideStats
    ) -> None:
        self._account: Final = account
        self.pending: Final = Send(account)  # the pending send
        self.holding: bool = False  # runs are kept in the pending send and not written (``hold``)
        self.room_wanted: bool = False  # the other side waits for room
        self.retry_armed: bool = False  # a timer checks for room, not epoll
        self.first_ns: i64 = 0  # when the poll began in which it wrote first, on the selector's clock; 0: never
        # frames_sent, bytes_sent: whole frames; bytes, with headers and parts of frames
        self.frames_sent: i64 = 0
        self.bytes_sent: i64 = 0
        self.unsent_bytes: i64 = 0  # bytes of the pending send when the channel was closed
        self._channel: Channel = channel
        self._sink: ChannelSink = sink
        self._loop: Final = loop
        self._socket: Final = sock
        self._transport: Final = transport
        self._stats: Final = stats
        self._phase: str = "in its handshake"  # for errors
        self._writable: bool = False  # from READY until ``shut``, or until the channel is closed
        self._ended: bool = False  # the end of our stream was sent
        self._corked: bool = False
        self._counted: bool = False  # in ``stats.pending``
        self._arrived_ns: i64 = 0  # when the pending send came
        self._room_held: i64 = 0  # bytes that the side that waits for room holds
        self._room_seen: i64 = 0  # the room at the last check
        self._room_wait_ns: i64 = 0
        self._retry: CallbackTimer | None = None  # checks for room for which epoll gives no event

    @property
    def can_send(self) -> bool:
        """Whether no send is pending, and the stream is open for writing; or runs are held, and more may be."""
        return (self._writable and not self.pending.active) or (self.holding and self.pending.remaining < HELD_MOST)

    @property
    def is_closed(self) -> bool:
        return self._phase == "closed"

    @property
    def pending_bytes(self) -> i64:
        """Bytes that wait for the socket, ciphertext included."""
        return self.pending.remaining + self._transport.pending_write

    @property
    def booked_tls(self) -> i64:
        """Bytes booked at the memory pool for waiting ciphertext."""
        return self._transport.booked

    @property
    def is_sending(self) -> bool:
        """Whether bytes wait for the peer to take them, here or, while memory is short, on the other side."""
        return self.pending.active or self._transport.pending_write != 0 or self.room_wanted

    @property
    def held_for_peer(self) -> i64:
        """Bytes booked at the memory pool that wait for this channel's peer, here or on the other side."""
        return self.pending.booked + self._transport.booked + (self._room_held if self.room_wanted else 0)

    @property
    def wire_sent(self) -> i64:
        """Bytes that the socket took; over TLS ciphertext."""
        return self._transport.wire_sent

    @property
    def wire_taken(self) -> i64:
        """Bytes that the peer's kernel took; of a Unix socket, bytes that the socket took."""
        return self._transport.wire_sent - socket_buffers.unsent(self._socket)

    def count_cut_short(self) -> None:
        """Count a frame that was cut through and written here without its end."""
        self._stats.cut_short += 1

    def open(self) -> None:
        """Permit writes: the channel is READY."""
        self._phase = "open"
        self._writable = True

    def send(self, run: Run) -> bool:
        """Write a run now. The rest that the socket does not take becomes the pending send. Takes over the run's lease. Returns: True if the whole
        run was sent; False if the sink's ``sent`` or ``closed`` will be called. Raises InternalError: a send is pending, or the channel is not open
        for writing. The caller keeps the run.
        """
        if not self._writable or self.pending.active:
            if self.holding:
                return self._keep(run)
            raise InternalError(f"send on a channel that is {self._phase}, send pending: {self.pending.active}")
        transport = self._transport
        before = transport.wire_sent
        try:
            taken = transport.write(run.tail()) if run.head is None else transport.write_gather(run.pieces())
        except TransportError as error:
            self.unsent_bytes = run.size
            self._channel.discard(run)
            self._channel.fail(error)
            return False
        self.bytes_sent += taken
        stats = self._stats
        stats.bytes_sent += taken
        if transport.wire_sent != before:
            stats.writes += 1
            self._channel.last_active_ns = self._loop.now_ns
        if taken == run.size and transport.pending_write == 0:
            if run.lease != 0:
                self._channel.discard(run)
            self.frames_sent += run.frames
            stats.frames_sent += run.frames
            if stats.runs == 0 or self.first_ns == 0:
                self._time_run()
            stats.runs += 1
            return True
        self.pending.begin(run.pieces(), taken, run.frames, run.lease, run)
        run.lease = 0
        self._begin_waiting()
        self._channel.sync_interest()
        return False

    def send_rest(self, run: Run, taken: i64, code: i64, rest: bytes | None) -> None:
        """Go on with a run of which the fast path has written ``taken`` bytes, which are counted. ``code``: the errno of the write; 0: the socket
        is full. ``rest``: those of their ciphertext that it did not take.
        """
        if code != 0:
            self.unsent_bytes = run.size
            self._channel.fail(TransportError(f"write failed: {os.strerror(code)}", errno=code))
            return
        if rest is not None:
            self._transport.keep_rest(rest)
        self.pending.begin(run.pieces(), taken, run.frames, 0, run)
        self._begin_waiting()
        self._channel.sync_interest()

    @property
    def has_pending_send(self) -> bool:
        """Whether ``send_behind`` may be called: a send is pending, and the stream is open for writing."""
        return self._writable and self.pending.active

    def send_behind(self, run: Run) -> None:
        """Add a run to the pending send. Takes over its lease."""
        lease = run.lease
        run.lease = 0
        self.pending.add(run.pieces(), run.frames, lease, run)

    def accepts_pipe(self) -> bool:
        """Whether ``send_pipe`` may be called."""
        return self._transport.is_plain and not self.holding and self.can_send

    def send_pipe(self, pipe: Pipe, size: i64, frames: i64) -> bool:
        """As ``send``, for the ``size`` bytes in a pipe, which is empty afterwards. ``frames``: 1 if they complete a frame."""
        try:
            taken = pipe.empty(self._channel.fd, size)
            rest = pipe.read_out(size - taken) if taken < size else b""
        except TransportError as error:
            self._loop.drop_pipe()
            self.unsent_bytes = size
            self._channel.fail(error)
            return False
        self._transport.wire_sent += taken
        self.bytes_sent += taken
        stats = self._stats
        stats.bytes_sent += taken
        if taken != 0:
            stats.writes += 1
            self._channel.last_active_ns = self._loop.now_ns
        if taken == size:
            self.frames_sent += frames
            stats.frames_sent += frames
            if stats.runs == 0 or self.first_ns == 0:
                self._time_run()
            stats.runs += 1
            return True
        self.pending.begin([rest], 0, frames, 0)
        self._begin_waiting()
        self._channel.sync_interest()
        return False

    @property
    def may_hold(self) -> bool:
        """Whether runs may be held: what is held is not too large, and memory is not short."""
        return self.pending.remaining < HELD_MOST and not self._account.is_short(answers=True)

    def hold(self) -> bool:
        """Keep further runs until ``release_held`` writes them together. False: not now, because a send is pending, or runs may not be held."""
        if not self._writable or self.pending.active or self._transport.pending_write != 0 or not self.may_hold:
            return False
        self.holding = True
        self._writable = False
        return True

    def release_held(self) -> None:
        """Write the runs that are held, corked, and write as before. The sink's ``sent`` is called. No effect if ``hold`` is not in force."""
        if not self.holding:
            return
        self.holding = False
        self._writable = True
        self.cork()
        if not self.pending.active:
            self._sink.sent()
            return
        try:
            self.on_writable()
        except TransportError as error:
            self._channel.fail(error)

    def _keep(self, run: Run) -> bool:
        """Hold a run; False: no more may be held."""
        if self.pending.active:
            self.send_behind(run)
        else:
            lease = run.lease
            run.lease = 0
            self.pending.begin(run.pieces(), 0, run.frames, lease, run)
            self._begin_waiting()
        return self.pending.remaining < HELD_MOST

    def cork(self) -> None:
        """Have TCP keep the last, partial segment of what is written, for 200 ms at most, so that the stream's end can be in the same segment."""
        if not self._corked and self._writable and socket_buffers.is_tcp(self._socket):
            self._corked = True
            socket_buffers.cork(self._socket, corked=True)

    def uncork(self) -> None:
        """Have TCP send what it keeps."""
        if self._corked and not self.is_closed:
            self._corked = False
            socket_buffers.cork(self._socket, corked=False)

    def round_trip_ns(self) -> i64:
        """The round-trip time to the peer, as the kernel has measured it; 0 for Unix sockets."""
        return socket_buffers.round_trip_ns(self._socket)

    def room(self) -> tuple[i64, bool]:
        """Return how many bytes ``send`` would write as a whole now, 0 if the socket is not writable; and whether the send buffer is empty."""
        if not self.can_send or self.holding or self._transport.pending_write != 0:
            return 0, False
        return socket_buffers.room(self._socket)

    def want_room(self, held: i64) -> None:
        """Have the sink's ``sent`` called when there is more room, or there may be. ``held``: bytes booked at the memory pool that wait for it."""
        if self.room_wanted or not self._writable:
            return
        self.room_wanted = True
        self._count_waiting()
        self._room_held = held
        self._room_wait_ns = socket_buffers.A_WHILE_NS
        self._room_seen, _ = self.room()
        if self._room_seen != 0:  # it is writable, so epoll gives no event for more room
            self._retry_later()
        else:
            self._channel.sync_interest()

    def shut(self) -> None:
        """End our stream: FIN, or TLS close-notify. The sink's ``write_ended`` is called when it was sent. Raises InternalError: a send is pending,
        or the channel is not open for writing.
        """
        if not self._writable or self.pending.active:
            raise InternalError(f"shut_write on a channel that is {self._phase}, send pending: {self.pending.active}")
        self._phase = "shut"
        self._writable = False
        self._channel.shutting = True
        self.room_wanted = False  # nothing more will be sent
        self._count_waiting()
        try:
            self.try_shut()
        except TransportError as error:
            self._channel.fail(error)

    def try_shut(self) -> None:
        if self._ended:
            return
        if self._transport.shut_write():
            self._ended = True
            self._channel.on_output_ended()
        self._channel.sync_interest()

    def on_writable(self) -> None:
        send = self.pending
        transport = self._transport
        if send.active and not self.holding:
            before = transport.wire_sent
            taken = send.write_to(transport)
            self._stats.bytes_sent += taken
            self.bytes_sent += taken
            done = send.remaining == 0 and (transport.pending_write == 0 or transport.flush())
            if transport.wire_sent != before:
                self._stats.writes += 1
                self._channel.last_active_ns = self._loop.now_ns
            if done:
                self._finish()
        elif transport.pending_write != 0:
            transport.flush()
        if self.room_wanted and not self.retry_armed and self.can_send:
            self._notify_room()
        channel = self._channel
        if channel.shutting and channel.is_open:
            self.try_shut()
        channel.sync_interest()

    def on_retry(self) -> None:
        """Check for room again, when the retry timer fires."""
        self.retry_armed = False
        channel = self._channel
        try:
            if self.room_wanted:
                self._check_room()
            channel.sync_interest()
        except Exception as error:
            channel.crash(error)

    def close(self) -> None:
        """End writing, because the channel is closed. The pending send is dropped."""
        self._phase = "closed"
        self._writable = self.holding = False
        self.room_wanted = False
        if self._retry is not None:
            self._loop.cancel(self._retry)
            self._retry.release()
        self.unsent_bytes += self.pending.remaining
        self.pending.finish()
        self._count_waiting()

    def release(self) -> None:
        del self._channel
        del self._sink

    def _retry_later(self) -> None:
        retry = self._retry
        if retry is None:
            retry = self._retry = CallbackTimer(self.on_retry)
        due_ns = self._loop.now_ns + self._room_wait_ns
        if not self.retry_armed or due_ns < retry.deadline_ns:
            self.retry_armed = True
            self._loop.call_at(due_ns, retry)

    def _check_room(self) -> None:
        """Tell the sink if there is more room; else check again after a longer time."""
        room, drained = self.room()
        if room == 0 and self.can_send:
            return  # epoll will give an event
        if room > self._room_seen or drained:
            self._notify_room()
            return
        self._room_seen = room
        self._room_wait_ns = min(self._room_wait_ns << 1, LONGEST_WHILE_NS)
        self._retry_later()

    def _count_waiting(self) -> None:
        waits = self.pending.active or self.room_wanted
        if waits != self._counted:
            self._counted = waits
            self._stats.pending += 1 if waits else -1

    def _notify_room(self) -> None:
        self.room_wanted = False
        self._count_waiting()
        self._sink.sent()

    def _time_run(self) -> None:
        """Have the runs that were sent at once measured at the end of this poll."""
        if self.first_ns == 0:
            self.first_ns = self._loop.now_ns
        if self._stats.runs == 0:
            self._loop.time_runs(self._stats)

    def _begin_waiting(self) -> None:
        self._arrived_ns = self._loop.arrived_ns
        if self.first_ns == 0:
            self.first_ns = self._loop.now_ns
        self._count_waiting()

    def _finish(self) -> None:
        self._stats.forwards.observe(self._loop.read_clock() - self._arrived_ns)
        frames = self.pending.frames
        self.frames_sent += frames
        self._stats.frames_sent += frames
        self.pending.finish()
        self.room_wanted = False  # ``sent`` tells that there is room
        self._count_waiting()
        self._sink.sent()
