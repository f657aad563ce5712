"""A channel: one connection as the proxy sees it. It joins a transport, a receive, a send, a state and a set of mute causes.

Rules
- At most one receive in progress and one pending send. One read and one write for each readiness event.
- Everything that can go wrong closes this channel only, with one cause; the first wins. ``close`` may be called from anywhere: booked
  memory goes back at once, the descriptor leaves the selector at once, the sink is told at the end of the poll.
- While memory is short nothing is read that would have to be held (``careful``, ``MEMORY.md``).
- A mute does not touch the selector: when the next event comes for a muted channel, its read interest is dropped. A short mute is free.
- ``discard_input`` ends reading for good: what still comes is thrown away unseen. It works on a muted channel: the path of a read need not know.
- EPOLLHUP and EPOLLERR cannot be masked: a muted channel that gets one leaves the selector (``hung``) until it is unmuted, unless the
  socket has an error, which closes it.
"""

import os
import select
import socket
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from proxy.errors import AuthenticationError, ConnectError, InternalError, TransportError
from proxy.network import framing, mute, socket_buffers, state
from proxy.network.careful import WAIT_A_WHILE, WAIT_FOR_BYTES, WAIT_FOR_ROOM, WAIT_FOR_TURN, Careful
from proxy.network.cause import Cause
from proxy.network.channel_facts import ChannelFacts
from proxy.network.channel_sink import ChannelSink
from proxy.network.memory_pool import BEGUN
from proxy.network.options import ChannelOptions
from proxy.network.pipe import Pipe
from proxy.network.run import Run
from proxy.network.state import ChannelEvent, ChannelState
from proxy.network.timer import NEVER, Timer
from proxy.network.transport import DONE, ENDED, WANT_WRITE, Transport
from proxy.network.turns import TurnOwner
from proxy.network.verdict import cause_of, refusal
from proxy.network.watchdog import Watchdog

if TYPE_CHECKING:
    from proxy.network.selector import Selector

__all__ = ["Channel"]

EPOLLIN: Final = 1
EPOLLOUT: Final = 4
EPOLLERR: Final = 8
EPOLLHUP: Final = 16
EPOLLRDHUP: Final = 8192
BROKEN: Final = EPOLLERR | EPOLLHUP
UNREGISTERED: Final = -1  # in place of an interest: epoll does not know the descriptor
assert (select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR) == (EPOLLIN, EPOLLOUT, EPOLLERR)
assert (select.EPOLLHUP, select.EPOLLRDHUP) == (EPOLLHUP, EPOLLRDHUP)

MIN_READ: Final = 448  # with the head of a ``bytes`` still a small block of the interpreter's own, which costs a tenth of what malloc takes
MAX_READ: Final = 262144  # 64 KiB frames cost 0.92 (plain) and 0.96 (TLS) of what they do with 131072, in one run beside HAProxy
FIRST_READ: Final = 8 * MIN_READ
A_WHILE_NS: Final = 10_000_000  # until a socket is asked again that epoll does not announce
LONGEST_WHILE_NS: Final = 80_000_000  # while it has no more room than before: the time doubles up to this

CLOSED: Final = ChannelState.CLOSED
CONNECTING: Final = ChannelState.CONNECTING
HANDSHAKE: Final = ChannelState.HANDSHAKE


class _ChannelTurn(TurnOwner):
    """Is told for a channel that its large frame may go on."""

    def __init__(self, channel: "Channel") -> None:
        self._channel: Final = channel

    def turn_given(self) -> None:
        self._channel.on_turn()

    def is_dry(self) -> bool:
        return self._channel.is_dry()

    def is_held_up(self) -> bool:
        return self._channel.mute_causes & mute.HARD & ~mute.MEMORY != 0  # the soft ones let a frame begun finish


class _RetryTimer(Timer):
    """Has a channel try again with a socket that epoll does not announce."""

    def __init__(self, channel: "Channel") -> None:
        super().__init__()
        self._channel: Channel | None = channel

    def fire(self, now_ns: i64) -> None:
        if self._channel is not None:
            self._channel.on_retry()

    def release(self) -> None:
        self._channel = None


class Channel(ChannelFacts):
    """One connection. What can be read of it is described in ``ChannelFacts``."""

    def __init__(
        self,
        selector: "Selector",
        sock: socket.socket,
        transport: Transport,
        channel_id: i64,
        options: ChannelOptions,
        sink: ChannelSink,
        peer: str,
        *,
        connecting: bool,
    ) -> None:
        super().__init__(selector, sock, transport, channel_id, options, sink, peer, connecting=connecting)
        self._read_size: i64 = FIRST_READ
        self._interest: i64 = UNREGISTERED
        self._room_seen: i64 = 0  # when it was asked for, or last looked at
        self._room_wait_ns: i64 = 0
        self._retry: _RetryTimer | None = None
        self._retry_armed: bool = False
        self._retries_read: bool = False  # it is armed for a read
        self._watchdog: Final = Watchdog(self)
        self._buffered_queued: bool = False
        self._handshake_queued: bool = False

    # What others call.

    def send(self, run: Run) -> bool:
        """Write a run, now; what the socket does not take is the pending send. Takes over the run's lease.

        Returns:
            True when it is out; False when ``sent`` will be told, or ``closed``.

        Raises:
            InternalError: a send is pending, or the channel is not open for writing. The run stays the caller's.
        """
        if not self._open or self._send.active or self._shutting:
            raise InternalError(f"send on a channel that is {self.state.value}, send pending: {self._send.active}, shut: {self._shutting}")
        transport = self._transport
        before = transport.wire_sent
        try:
            taken = transport.write(run.tail()) if run.head is None else transport.write_gather(run.pieces())
        except TransportError as error:
            self.unsent_bytes = run.size
            self.discard(run)
            self._fail(error)
            return False
        self.bytes_sent += taken
        stats = self._stats
        stats.bytes_sent += taken
        if transport.wire_sent != before:
            stats.writes += 1
            self.last_active_ns = self._selector.now_ns
        if taken == run.size and transport.pending_write == 0:
            if run.lease != 0:
                self.discard(run)
            self.frames_sent += run.frames
            stats.frames_sent += run.frames
            return True
        self._send.begin(run.pieces(), taken, run.frames, run.lease)
        run.lease = 0
        self._sync_interest()
        return False

    @property
    def takes_pipe(self) -> bool:
        """Whether ``send_pipe`` may be called."""
        return self._transport.is_plain and self.can_send

    def send_pipe(self, pipe: Pipe, size: i64, frames: i64) -> bool:
        """As ``send``, of the ``size`` bytes that are in a pipe, which is empty afterwards; ``frames``: 1 when they complete one."""
        try:
            taken = pipe.empty(self.fd, size)
            rest = pipe.read_out(size - taken) if taken < size else b""
        except TransportError as error:
            self._selector.drop_pipe()
            self.unsent_bytes = size
            self._fail(error)
            return False
        self._transport.wire_sent += taken
        self.bytes_sent += taken
        stats = self._stats
        stats.bytes_sent += taken
        if taken != 0:
            stats.writes += 1
            self.last_active_ns = self._selector.now_ns
        if taken == size:
            self.frames_sent += frames
            stats.frames_sent += frames
            return True
        self._send.begin([rest], 0, frames, 0)
        self._sync_interest()
        return False

    def discard(self, run: Run) -> None:
        """Give up a run that is not sent on: its lease goes back. Harmless when somebody has taken it over."""
        lease = run.lease
        run.lease = 0
        self._account.release(BEGUN, lease)

    def mute(self, cause: i64) -> bool:
        """Add one cause (a bit of ``mute``); True when the mute is in force. Harmless when the cause is set, or the channel closed."""
        if not self._mutes.causes & cause and self.state is not CLOSED:
            within = self._receive.within and not self._read_ended
            self._mutes.add(cause, self._selector.now_ns, within=within)
        return self._mutes.in_force

    def unmute(self, cause: i64) -> None:
        """Take one cause away; reading goes on when it was the last. Harmless when the cause is not set."""
        if not self._mutes.causes & cause or self.state is CLOSED:
            return
        self._mutes.remove(cause, self._selector.now_ns)
        if self._may_read():
            self._sync_interest()
            if self._transport.has_buffered() or self._receive.has_part:
                self._queue_buffered()

    def discard_input(self, cause: i64) -> None:
        """End reading: mute for ``cause``, a soft one that stays, and throw away what the peer still sends, unseen and uncounted, whatever else
        mutes, until its end, which is told. To be followed by the end of our side: a close with unread bytes would be a reset, which can
        overtake what the peer was sent. A frame begun is lost. Harmless when the peer's end was seen, or the channel is not open.
        """
        if not self._open or self._read_ended or self.discards_input:
            return
        self._lose_frame()
        self.mute(cause)
        self._pass_boundary()
        self.discards_input = True
        if self._care is not None:
            self._care.before_read()
        self._sync_interest()
        if self._transport.has_buffered():
            self._queue_buffered()

    def room(self) -> tuple[i64, bool]:
        """How many bytes ``send`` would pass on now with no rest, 0 when the socket is not writable; and whether nothing waits in it."""
        if not self.can_send or self._transport.pending_write != 0:
            return 0, False
        return socket_buffers.room(self._socket)

    def want_room(self, held: i64 = 0) -> None:
        """Have ``sent`` told when there is more room, or there may be. ``held``: bytes booked at the memory pool that wait for it."""
        if self._room_wanted or not self._open or self._shutting:
            return
        self._room_wanted = True
        self._room_held = held
        self._room_wait_ns = A_WHILE_NS
        self._room_seen, _ = self.room()
        if self._room_seen != 0:  # writable, and so never told to be
            self._retry_later(A_WHILE_NS)
        else:
            self._sync_interest()

    def shut_write(self) -> None:
        """End our side of the stream: FIN, or TLS close-notify. ``write_ended`` is told when it is out.

        Raises:
            InternalError: a send is pending, or the channel is not open for writing.
        """
        if not self._open or self._send.active or self._shutting:
            raise InternalError(f"shut_write on a channel that is {self.state.value}, send pending: {self._send.active}, shut: {self._shutting}")
        self._shutting = True
        self._room_wanted = False  # nothing more will be sent
        try:
            self._try_shut()
        except TransportError as error:
            self._fail(error)

    def close(self, cause: Cause, detail: str = "", error: BaseException | None = None) -> None:
        """Close, at once; harmless when it is closed. The first cause wins. May be called from anywhere; ``closed`` is told later."""
        if self.state is CLOSED:
            return
        self.closed_in = self.state
        self.state = state.next_state(self.state, ChannelEvent.CLOSE)
        self._open = False
        self._room_wanted = False
        self.close_cause = cause
        self.detail = detail or self.detail
        self.error = error
        self.closed_ns = self._selector.now_ns
        if self._care is not None:
            self._care.leave()
        if self._retry is not None:
            self._selector.cancel(self._retry)
            self._retry.release()
        self._lose_frame()
        self.unsent_bytes += self._send.remaining
        self._send.finish()
        self._mutes.end(self.closed_ns)
        self._selector.cancel(self._watchdog)
        self._watchdog.release()
        self._transport.close()
        self._set_interest(UNREGISTERED)
        self._selector.defer_closed(self)

    # What the selector calls.

    def on_event(self, events: i64) -> None:
        """The socket is readable, writable or broken."""
        try:
            if not self._open:
                self._on_opening()
                return
            if events & EPOLLOUT:
                self._on_writable()
            if events & (EPOLLIN | BROKEN) and self._open:
                self._on_readable(events)
        except TransportError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, it is this channel's end and nobody else's
            self.crash(error)

    def poll_buffered(self) -> None:
        """Read what the transport holds although the socket is silent."""
        self._buffered_queued = False
        try:
            if self.discards_input:
                if self._open and not self._read_ended:
                    self._throw_away()
                return
            if not self._open or not self._may_read():
                return
            if self._receive.has_part:
                self._pass_part()
            elif not self.gated or self.sink.may_read():
                self._read_some(0)
        except TransportError as error:
            self._fail(error)
        except Exception as error:
            self.crash(error)

    def start(self) -> None:
        """The first step of a channel whose socket was just given to the selector."""
        try:
            if self.state is CONNECTING:
                self._watchdog.check(self.opened_ns)
                self._set_interest(EPOLLOUT)
            else:
                self._queue_handshake()
        except Exception as error:  # epoll takes no more descriptors
            self.crash(error)

    def step_handshake(self) -> None:
        """Take the handshake as far as it goes now."""
        self._handshake_queued = False
        try:
            if self.state is not HANDSHAKE:
                return
            code = self._transport.handshake()
            if code == DONE:
                self._become_ready()
            elif code == ENDED:
                self.close(Cause.NO_DATA if self._transport.wire_received == 0 else Cause.PEER_CLOSED, "within the handshake")
            else:
                self._set_interest(EPOLLOUT if code == WANT_WRITE else EPOLLIN)
                if self._watchdog.deadline_ns == NEVER:  # not before: a handshake of one step needs nobody to watch it
                    self._watchdog.check(self._selector.now_ns)
        except TransportError as error:
            self._fail(error)
        except AuthenticationError as error:
            self.close(Cause.AUTH_FAILED, str(error), error)
        except Exception as error:
            self.crash(error)

    def on_turn(self) -> None:
        """The large frame begun may go on. Called from within a release, of anybody: changes interest, nothing else."""
        try:
            self.unmute(mute.MEMORY)
        except Exception as error:
            self.crash(error)

    def is_dry(self) -> bool:
        """Whether nothing lies in the kernel, or here, that could be read."""
        return not self._transport.has_buffered() and socket_buffers.queued(self._socket) == 0

    def on_retry(self) -> None:
        """It is time to try again with a socket that epoll does not announce."""
        self._retry_armed = False
        self._retries_read = False
        try:
            if not self._open:
                return
            if self._room_wanted:
                self._check_room()
            if self._open:
                self._sync_interest()
                if self._may_read() and self._transport.has_buffered():
                    self._queue_buffered()
        except Exception as error:
            self.crash(error)

    def arm(self, timer: Timer, deadline_ns: i64) -> None:
        """Arm the watchdog."""
        self._selector.call_at(deadline_ns, timer)

    def notify_write_ended(self) -> None:
        """Tell the sink that our end of the stream is out. A sink that raises is the end of this channel."""
        try:
            self.sink.write_ended()
        except Exception as error:
            self.crash(error, "callback")

    def notify_closed(self) -> None:
        """Tell the sink that the channel is closed. When it raises, there is none left to tell."""
        try:
            self.sink.closed()
        except Exception as error:
            self.crash(error, "callback")

    def close_socket(self) -> None:
        """Close the socket, after the batch of events in which the channel was closed."""
        del self.sink  # it may hold the channel
        self._socket.close()

    # Opening.

    def _on_opening(self) -> None:
        if self.state is CONNECTING:
            number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number != 0:
                raise ConnectError(os.strerror(number), side="upstream", errno=number)
            self.state = state.next_state(self.state, ChannelEvent.CONNECTED)
            self.connected_ns = self._selector.now_ns
        self._queue_handshake()

    def _queue_handshake(self) -> None:
        if not self._handshake_queued:
            self._handshake_queued = True
            self._selector.defer_handshake(self)

    def _become_ready(self) -> None:
        self.state = state.next_state(self.state, ChannelEvent.SECURED)
        self.identity = self._transport.identity()
        self.principal = self.options.authenticator.authenticate(self.identity)
        self.identity.certificate = None  # half a KiB and more, for as long as the connection lasts
        self.state = state.next_state(self.state, ChannelEvent.AUTHENTICATED)
        self._open = True
        self.ready_ns = self.last_active_ns = self._selector.now_ns
        self._watchdog.check(self.ready_ns)
        self.sink.ready()
        if self._open:
            if self._mutes.causes == 0:
                self._sync_interest()
            else:
                self._set_interest(EPOLLIN)  # as after any mute: most are over before the first event
            if self._transport.has_buffered() and self._may_read():
                self._queue_buffered()

    # Reading.

    def _on_readable(self, events: i64) -> None:
        if (self._mutes.causes != 0 or self._read_ended) and not self._may_read():
            self._on_unwanted(events)
        elif not self.gated or self.sink.may_read():
            self._read_some(events)

    def _read_some(self, events: i64) -> None:
        """Read what suits the traffic; only what belongs to the frame begun when muting, or if it is cut through; with care while memory is short."""
        if self._account.is_short(answers=self._is_upstream):
            if self._receive.passed == 0 or not self._pass_by():
                self._read_carefully(events)
        elif self._mutes.causes == 0 and not self._receive.cut:
            self._read(self._read_size)
        elif self._receive.passed == 0:
            self._read(min(self._receive.missing(), MAX_READ))
        elif not self._pass_by():
            self._read_by_room()

    def _pass_by(self) -> bool:
        """Pass on the next of a frame that is cut through without looking at it, as far as the other side has room; False: it must be read."""
        target = self.sink.passes_to() if self._transport.is_plain else None
        if target is None or not target.takes_pipe:
            return False
        room, _ = target.room()
        if room == 0:
            self.sink.wait_for_room()
            return True
        if self._care is not None:
            self._care.before_read()
        try:
            pipe = self._selector.pipe()
        except OSError:  # no descriptors are left for one
            return False
        size = pipe.fill(self.fd, min(self._receive.missing(), room))
        if size < 0:
            return True
        if size == 0:
            self._end_stream()
            return True
        try:
            frames = self._receive.pass_by(size)
            if not target.send_pipe(pipe, size, frames):
                self.mute(mute.PEER)
        except Exception:
            self._selector.drop_pipe()
            raise
        self._count_passed_by(size, frames)
        return True

    def _read_by_room(self) -> None:
        """The next piece of a frame that is cut through: no more of it than the other side takes, or a slow one would have us hold it."""
        room, _ = self.sink.room_for()
        if room == 0:
            self.sink.wait_for_room()
        else:
            self._read(min(self._receive.missing(), room, MAX_READ))

    def _count_passed_by(self, size: i64, frames: i64) -> None:
        self._transport.wire_received += size
        self.last_active_ns = self._selector.now_ns
        self.bytes_received += size
        self.frames_received += frames
        stats = self._stats
        stats.reads += 1
        stats.bytes_received += size
        stats.frames_received += frames
        self.sink.passed_by(size, frames)
        if frames != 0:
            self._read_size = FIRST_READ  # the head of the next one: the rest of it passes by, too
            if self._open:
                self._pass_boundary()

    def _read_carefully(self, events: i64) -> None:
        care = self._care
        if care is None:
            turns = self._account.pool.answers if self._is_upstream else self._account.pool.requests
            care = self._care = Careful(self._socket, self._transport, self._receive, turns, _ChannelTurn(self))
        elif events & (EPOLLRDHUP | BROKEN) and care.is_in_vain():
            self._read_out()
            return
        room, drained = self.sink.room_for()
        size = care.plan_read(room, drained=drained, readable=events & EPOLLIN != 0)
        if size > 0:
            self._read(size)
            while not self._transport.is_plain and self._open and self._may_read():
                size = care.rest()
                if size == 0:
                    break
                self._read(size)
        elif size == WAIT_FOR_ROOM:
            self.sink.wait_for_room()
        elif size == WAIT_FOR_TURN:
            self.mute(mute.MEMORY)
            self._selector.watch_turns()
        elif size == WAIT_A_WHILE:
            self._retries_read = True
            self._retry_later(A_WHILE_NS)
            self._sync_interest()
        elif size == WAIT_FOR_BYTES:
            self._sync_interest()

    def _read_out(self) -> None:
        """The rest of the frame that lies in the kernel will never come: read what there is of it, and the end."""
        receive = self._receive
        while self._open and not self._read_ended and self._may_read():
            before = self.bytes_received
            self._read(max(min(receive.missing(), MAX_READ), 1))
            if self.bytes_received == before or not receive.within:
                return

    def _retry_later(self, wait_ns: i64) -> None:
        retry = self._retry
        if retry is None:
            retry = self._retry = _RetryTimer(self)
        due_ns = self._selector.now_ns + wait_ns
        if not self._retry_armed or due_ns < retry.deadline_ns:
            self._retry_armed = True
            self._selector.call_at(due_ns, retry)

    def _read(self, size: i64) -> None:
        care = self._care
        if care is not None:
            care.before_read()
        data = self._transport.read(size)
        if data is None:
            if self._shutting or self._transport.pending_write != 0:  # a record without data was read: what waited for it may go on
                self._settle()
            return
        length: i64 = len(data)
        if length == 0:
            self._end_stream()
            return
        self._adapt_read_size(size, length)
        self.last_active_ns = self._selector.now_ns
        self.bytes_received += length
        stats = self._stats
        stats.reads += 1
        stats.bytes_received += length
        receive = self._receive
        run = receive.feed(data)
        if run is not None:
            self.frames_received += run.frames
            stats.frames_received += run.frames
            self._deliver(run)
        if care is not None:
            care.after_read(length, whole=run is not None)  # last: who is let in then has to see where the run went
        transport = self._transport
        if (
            receive.staged != 0
            or receive.cut
            or receive.fault != framing.OK
            or self._mutes.causes != 0
            or self._shutting
            or transport.pending_write != 0
            or transport.has_buffered()
        ):
            self._settle()

    def _adapt_read_size(self, size: i64, length: i64) -> None:
        """Ask for more when reads fill, for less when they stay nearly empty: a large buffer for few bytes costs more than reading them."""
        if length > size - (size >> 2):
            self._read_size = min(max(size << 2, self._read_size), MAX_READ)
        elif length < size >> 2 and size == self._read_size:
            self._read_size = max(size >> 1, MIN_READ)

    def _deliver(self, run: Run) -> None:
        try:
            self.sink.received(run)
        except Exception:
            self.discard(run)
            raise

    def _settle(self) -> None:
        """After a read: what is not the common case."""
        if not self._open:
            return
        receive = self._receive
        if receive.fault != framing.OK:
            self._refuse()
            return
        if not receive.within:
            self._pass_boundary()
        if self._may_read() and (self._transport.has_buffered() or receive.has_part):
            self._queue_buffered()
        if self._shutting:
            self._try_shut()
        if self._transport.pending_write != 0:
            self._sync_interest()

    def _pass_part(self) -> None:
        """The first piece of a frame that is cut through, which came behind whole ones."""
        run = self._receive.take_part()
        if run is not None:
            self._deliver(run)
            if self._open and self._may_read() and self._transport.has_buffered():
                self._queue_buffered()

    def _pass_boundary(self) -> None:
        """The frame begun is whole, or gone: a mute that waited for that is in force now."""
        if self._mutes.pass_boundary():
            self.sink.muted()

    def _refuse(self) -> None:
        """Close for what the receive found wrong. The frame is refused, not incomplete: what came of it is lost, and counted as such."""
        fault = self._receive.fault
        self._stats.refused_negative += 1 if fault == framing.NEGATIVE_SIZE else 0
        self._stats.refused_too_large += 1 if fault == framing.FRAME_TOO_LARGE else 0
        cause, error = refusal(self._receive, self.options.limit.value, self.options.side)
        self._count_lost(self._receive.drop() + self._receive.refused_bytes)
        self.close(cause, str(error), error)

    def _end_stream(self) -> None:
        self.state = state.next_state(self.state, ChannelEvent.END_OF_STREAM)
        self._read_ended = True
        if not self._transport.clean_end:
            self.detail = "no_close_notify"
        self._lose_frame()
        self._pass_boundary()
        if self._open:
            self.sink.end_of_stream()
        self._sync_interest()  # last: the sink may have closed the channel

    def _lose_frame(self) -> None:
        passed = self._receive.passed
        lost = self._receive.drop()
        if self._care is not None:
            self._care.leave()
        if lost != 0:
            self._count_lost(lost)
        if passed != 0:
            self.cut_frame_short(passed)
        elif lost != 0:
            self._stats.refused_incomplete += 1

    def _count_lost(self, lost: i64) -> None:
        self.lost_bytes += lost
        self._stats.lost_bytes += lost

    def _on_unwanted(self, events: i64) -> None:
        """An event for a channel that must not be read: drop the interest, or the descriptor when the event cannot be masked."""
        if self.discards_input and not self._read_ended:
            self._throw_away()
            return
        if not events & BROKEN:
            self._sync_interest()
            return
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number != 0:
            raise TransportError(os.strerror(number), side=self.options.side, errno=number)
        if self._send.active:
            self._on_writable()
        if self._open and not self.hung:
            self.hung = True
            self._set_interest(UNREGISTERED)

    def _throw_away(self) -> None:
        """Read, and look at nothing but the end."""
        data = self._transport.read(MAX_READ)
        if data is not None and len(data) == 0:
            self._end_stream()
            return
        self._settle()
        if self._open and self._transport.has_buffered():
            self._queue_buffered()

    # Writing.

    def _on_writable(self) -> None:
        send = self._send
        transport = self._transport
        if send.active:
            before = transport.wire_sent
            taken = send.write_to(transport)
            self._stats.bytes_sent += taken
            self.bytes_sent += taken
            done = send.remaining == 0 and (transport.pending_write == 0 or transport.flush())
            if transport.wire_sent != before:
                self._stats.writes += 1
                self.last_active_ns = self._selector.now_ns
            if done:
                self._finish_send()
        elif transport.pending_write != 0:
            transport.flush()
        if self._room_wanted and not self._retry_armed and self.can_send:
            self._notify_room()
        if self._shutting and self._open:
            self._try_shut()
        if self._open:
            self._sync_interest()

    def _check_room(self) -> None:
        """Tell the sink when there is more room; while there is not, try again, after longer and longer times."""
        room, drained = self.room()
        if room == 0 and self.can_send:
            return  # epoll tells
        if room > self._room_seen or drained:
            self._notify_room()
            return
        self._room_seen = room
        self._room_wait_ns = min(self._room_wait_ns << 1, LONGEST_WHILE_NS)
        self._retry_later(self._room_wait_ns)

    def _notify_room(self) -> None:
        self._room_wanted = False
        self.sink.sent()

    def _finish_send(self) -> None:
        frames = self._send.frames
        self.frames_sent += frames
        self._stats.frames_sent += frames
        self._send.finish()
        self._room_wanted = False  # there is, and it is told now
        self.sink.sent()

    def _try_shut(self) -> None:
        if self.state is state.WRITE_ENDED or self.state is state.ENDED:
            return
        if self._transport.shut_write():
            self.state = state.next_state(self.state, ChannelEvent.SHUT)
            self._selector.defer_write_ended(self)
        self._sync_interest()

    # Interest.

    def _sync_interest(self) -> None:
        """Tell epoll what an open channel waits for, if that has changed."""
        if not self._open:
            return
        wanted: i64 = 0
        care = self._care
        if self.discards_input:
            wanted = 0 if self._read_ended else EPOLLIN
        elif care is None:
            wanted = EPOLLIN if self._may_read() else 0
        elif self._may_read() and not (self._retries_read and care.is_awaiting):
            wanted = EPOLLIN if care.threshold == 1 else EPOLLIN | EPOLLRDHUP
        if self._send.active or self._transport.pending_write != 0 or (self._room_wanted and not self._retry_armed):
            wanted |= EPOLLOUT
        if self.hung:
            if not wanted & EPOLLIN:
                return
            self.hung = False
        if wanted != self._interest:
            self._set_interest(wanted)

    def _set_interest(self, wanted: i64) -> None:
        if wanted != self._interest:
            self._selector.change_interest(self, self._interest, wanted)
            self._interest = wanted

    def _queue_buffered(self) -> None:
        if not self._buffered_queued:
            self._buffered_queued = True
            self._selector.defer_buffered(self)

    # Ending.

    def _fail(self, error: TransportError) -> None:
        error.side = self.options.side
        self.close(cause_of(error), str(error), error)

    def crash(self, error: Exception, place: str = "channel") -> None:
        """Our bug, here or in who works for this channel: it costs this connection, is shown as its cause, and noted as a fault."""
        self._selector.faults.note(place, error)
        self.close(Cause.INTERNAL, f"{type(error).__name__}: {error}", error)
