"""The reading half of a channel: normal reads, reads while memory is short, splicing of frames that are not inspected, the end of the stream."""

import socket
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network import framing, mute, socket_buffers
from framegate.proxy.network.admission_slots import SlotOwner
from framegate.proxy.network.channel_callbacks import ChannelCallbacks
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.close_cause import refusal
from framegate.proxy.network.epoll import BROKEN, EPOLLIN, EPOLLRDHUP
from framegate.proxy.network.event_loop import EventLoop
from framegate.proxy.network.low_memory_reader import WAIT_A_WHILE, WAIT_FOR_BYTES, WAIT_FOR_ROOM, WAIT_FOR_SLOT, LowMemoryReader
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.mute import MuteState
from framegate.proxy.network.mute_set import MuteSet
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.read_size import FIRST_READ, MAX_READ, adapted
from framegate.proxy.network.receive import Receive
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.network.transport import Transport

__all__ = ["ReadHalf"]

MAX_GROWN: Final = 8 * MAX_READ  # what a read may be on the other side

MUTING: Final = MuteState.MUTING


class _ReadSlotOwner(SlotOwner):
    """Is told for a channel that its large frame may go on."""

    def __init__(self, half: "ReadHalf") -> None:
        self._half: Final = half

    def slot_granted(self) -> None:
        self._half.on_slot()

    def has_no_input(self) -> bool:
        return self._half.has_no_input()

    def is_blocked(self) -> bool:
        return self._half.is_blocked()


class ReadHalf:
    """What a channel reads. At most one receive is in progress, and one read is made for each event.

    Attributes:
        receive: the frame begun.
        ended: the peer sends no more.
        discards: what the peer sends is thrown away (``discard_input``).
        is_urgent: read whatever is held: what comes lets others go on.
        care: how it reads while memory is short; None before the first time.
        retry_armed: a timer reads, not epoll.
        frames_received, bytes_received: of frames, headers counted; bytes include parts of frames.
        cut_short_at: bytes that were passed on of a frame that was cut through and never became whole; 0: there was none.
        lost_bytes: received bytes of a frame that never became whole.
    """

    __deletable__ = ("_channel", "_sink")

    def __init__(
        self,
        channel: ChannelCallbacks,
        sink: ChannelSink,
        loop: EventLoop,
        sock: socket.socket,
        transport: Transport,
        mutes: MuteSet,
        account: Account,
        options: ChannelOptions,
    ) -> None:
        self.receive: Final = Receive(
            account, options.limit, options.stats, options.cut_from, options.first_piece, options.framing, options.onward, options.sasl_limit
        )
        self.ended: bool = False
        self.discards: bool = False
        self.is_urgent: bool = False
        self.low_memory: LowMemoryReader | None = None
        self.retry_armed: bool = False
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.cut_short_at: i64 = 0
        self.lost_bytes: i64 = 0
        self._channel: ChannelCallbacks = channel
        self._sink: ChannelSink = sink
        self._loop: Final = loop
        self._socket: Final = sock
        self._transport: Final = transport
        self._mutes: Final = mutes
        self._account: Final = account
        self._options: Final = options
        self._stats: Final = options.stats
        self._is_upstream: Final = options.side == "upstream"
        self._read_size: i64 = FIRST_READ
        self._retry: CallbackTimer | None = None  # reads a socket again, which epoll does not announce

    @property
    def bytes_arrived(self) -> i64:
        """Bytes received, and those that lie in the kernel for a frame that is to be whole there."""
        if self.low_memory is None or not self.low_memory.is_awaiting:
            return self.bytes_received
        return self.bytes_received + socket_buffers.queued(self._socket)

    @property
    def begun_bytes(self) -> i64:
        """Bytes of the frame begun that have come: staged, passed on already, or waiting in the kernel."""
        return self.receive.staged + self.receive.passed + self.bytes_arrived - self.bytes_received

    @property
    def cut_at(self) -> i64:
        """Bytes that were passed on of a frame that is cut through and not whole, or never was; 0: there is none."""
        return self.cut_short_at or self.receive.passed

    @property
    def is_receiving(self) -> bool:
        """A frame is begun, and we wait for the peer to send the rest."""
        return (self.receive.within or (self.low_memory is not None and self.low_memory.is_awaiting)) and self.may_read()

    def may_read(self) -> bool:
        """Whether mutes, and the peer, let anything be read."""
        return not self.ended and (self._mutes.causes == 0 or self._mutes.state is MUTING)

    def has_no_input(self) -> bool:
        """Whether nothing lies in the kernel, or here, that could be read."""
        return not self._transport.has_buffered() and socket_buffers.queued(self._socket) == 0

    def is_blocked(self) -> bool:
        """Whether something else than memory keeps a frame begun from being read: the soft causes let it finish."""
        return self._mutes.causes & mute.HARD & ~mute.MEMORY != 0

    def discard_input(self, cause: i64) -> None:
        """End reading: mute for ``cause``, a soft one that stays, and throw away what the peer still sends, unseen and uncounted, whatever else
        mutes, until its end, which is reported. The caller then shuts our end: a close with unread bytes would be a reset, which can
        overtake what the peer was sent. A frame begun is lost. Harmless when the peer's end was seen.
        """
        if self.ended or self.discards:
            return
        channel = self._channel
        self.lose_frame()
        channel.mute(cause)
        self.pass_boundary()
        self.discards = True
        if self.low_memory is not None:
            self.low_memory.before_read()
        channel.sync_interest()
        if self._transport.has_buffered():
            channel.queue_buffered()

    def poll_buffered(self) -> None:
        """Read what the transport holds although the socket is silent."""
        if self.discards:
            if not self.ended:
                self.throw_away()
        elif not self.may_read():
            return
        elif self.receive.has_part:
            self._pass_part()
        elif self.receive.fault != framing.OK:
            self._refuse()
        else:
            self.on_readable(0)

    def on_slot(self) -> None:
        """The large frame begun may go on. Called from within any release of memory: changes interest, nothing else."""
        try:
            self._channel.unmute(mute.MEMORY)
        except Exception as error:
            self._channel.crash(error)

    def on_retry(self) -> None:
        """It is time to read again."""
        self.retry_armed = False
        channel = self._channel
        try:
            channel.sync_interest()
            if self.may_read() and self._transport.has_buffered():
                channel.queue_buffered()
        except Exception as error:
            channel.crash(error)

    def close(self) -> None:
        """The channel is closed: the frame begun is lost."""
        if self._retry is not None:
            self._loop.cancel(self._retry)
            self._retry.release()
        self.lose_frame()

    def release(self) -> None:
        """Release the references to the channel, which is closed."""
        self.low_memory = None
        if self._loop.pool.finds_leaks:
            self._loop.pool.check_released(self.receive)
        del self._channel
        del self._sink

    def cut_frame_short(self, passed: i64) -> None:
        """The frame that is cut through, and of which so many bytes were passed on, will not be completed; harmless when that was said before."""
        if self.cut_short_at == 0:
            self.cut_short_at = passed
            self._stats.cut_short += 1
            self._stats.refused_incomplete += 1
        self.receive.abandoned = True

    def on_readable(self, events: i64) -> None:
        """The socket has bytes, or an end, or an error."""
        if (self._mutes.causes != 0 or self.ended) and not self.may_read():
            self._channel.on_unwanted(events)
        elif self._channel.gated:
            self._read_gated(events)
        else:
            self._read_some(events)

    def _read_gated(self, events: i64) -> None:
        """As ``_read_some``, up to the sink's limit; calls ``was_read``."""
        if self._sink.may_read():
            suits = self._read_size
            most = self._sink.read_limit() or max(self._within_frame(), 1)
            self._read_size = min(suits, most)
            self._read_some(events)
            if most < suits:
                self._read_size = suits
            self._sink.was_read()

    def _read_some(self, events: i64) -> None:
        """Read what suits the traffic; only what belongs to the frame begun when muting, or if it is cut through; with care while memory is short."""
        if self._account.is_short(answers=self._is_upstream) and not self.is_urgent:
            if self.receive.passed == 0 or not self._pass_by():
                self._read_carefully(events)
        elif self._mutes.causes == 0 and not self.receive.cut:
            self._read(self._read_size)
        elif self.receive.passed == 0:
            self._read_within()
        elif not self._pass_by():
            self._read_by_room()

    def _read_within(self) -> None:
        """What the frame begun misses."""
        self._read(self._within_frame())

    def _within_frame(self) -> i64:
        """How many bytes to read without beginning another frame."""
        receive = self.receive
        if receive.framing.tail != 0 and receive.size < 0:
            return max(receive.reach(self._transport.read_ahead(MAX_READ)), 1)
        return min(receive.missing(), MAX_READ)

    def _pass_by(self) -> bool:
        """Pass on the next of a frame that is cut through without looking at it, as far as the other side has room; False: it must be read."""
        target = self._sink.pipe_target() if self._transport.is_plain else None
        if target is None or not target.accepts_pipe():
            return False
        room, _ = target.room()
        if room == 0:
            self._sink.wait_for_room()
            return True
        if self.low_memory is not None:
            self.low_memory.before_read()
        try:
            pipe = self._loop.pipe()
        except OSError:  # no descriptors are left for one
            return False
        size = pipe.fill(self._channel.fd, min(self.receive.missing(), room))
        if size < 0:
            return True
        if size == 0:
            self._end_stream()
            return True
        try:
            frames = self.receive.pass_by(size)
            if not target.send_pipe(pipe, size, frames):
                self._channel.mute(mute.PEER)
        except Exception:
            self._loop.drop_pipe()
            raise
        self._count_passed_by(size, frames)
        return True

    def _read_by_room(self) -> None:
        """The next piece of a frame that is cut through: no more of it than the other side takes, or a slow one would have us hold it."""
        room, _ = self._sink.room_for()
        if room == 0:
            self._sink.wait_for_room()
        else:
            self._read(min(self.receive.missing(), room, MAX_READ))

    def _count_passed_by(self, size: i64, frames: i64) -> None:
        self._transport.wire_received += size
        self._channel.last_active_ns = self._loop.now_ns
        self.bytes_received += size
        self.frames_received += frames
        self._stats.reads += 1
        self._stats.bytes_received += size
        self._stats.frames_received += frames
        self._sink.was_piped(size, frames)
        if frames != 0:
            self._read_size = FIRST_READ  # the head of the next one: the rest of it passes by, too
            if self._channel.is_open:
                self.pass_boundary()

    def _read_carefully(self, events: i64) -> None:
        low_memory = self.low_memory
        if low_memory is None:
            slots = self._account.pool.answers if self._is_upstream else self._account.pool.requests
            low_memory = self.low_memory = LowMemoryReader(self._socket, self._transport, self.receive, slots, _ReadSlotOwner(self))
        elif events & (EPOLLRDHUP | BROKEN) and low_memory.cannot_proceed():
            self._read_out()
            return
        room, drained = self._sink.room_for()
        size = low_memory.plan_read(room, drained=drained, readable=events & EPOLLIN != 0)
        if size > 0:
            self._read(size)
            while not self._transport.is_plain and self._channel.is_open and self.may_read():
                size = low_memory.rest()
                if size == 0:
                    break
                self._read(size)
        elif size == WAIT_FOR_ROOM:
            self._sink.wait_for_room()
        elif size == WAIT_FOR_SLOT:
            self._channel.mute(mute.MEMORY)
            self._loop.watch_slots()
        elif size == WAIT_A_WHILE:
            self._retry_later()
            self._channel.sync_interest()
        elif size == WAIT_FOR_BYTES:
            self._channel.sync_interest()

    def _read_out(self) -> None:
        """The rest of the frame that lies in the kernel will never come: read what there is of it, and the end."""
        receive = self.receive
        while self._channel.is_open and not self.ended and self.may_read():
            before = self.bytes_received
            self._read(max(self._within_frame(), 1))
            if self.bytes_received == before or not receive.within:
                return

    def _retry_later(self) -> None:
        retry = self._retry
        if retry is None:
            retry = self._retry = CallbackTimer(self.on_retry)
        due_ns = self._loop.now_ns + socket_buffers.A_WHILE_NS
        if not self.retry_armed or due_ns < retry.deadline_ns:
            self.retry_armed = True
            self._loop.call_at(due_ns, retry)

    def _read(self, size: i64) -> None:
        low_memory = self.low_memory
        if low_memory is not None:
            low_memory.before_read()
        data = self._transport.read(size)
        if data is None:
            if self._channel.shutting or self._transport.pending_write != 0:  # a record without data was read: what waited for it may go on
                self._settle()
            return
        length: i64 = len(data)
        if length == 0:
            self._end_stream()
            return
        suits = adapted(self._read_size, size, length)
        self._read_size = suits if suits <= self._read_size else min(suits, self.receive.resulting_size(MAX_GROWN))
        self._channel.last_active_ns = self._loop.now_ns
        self.bytes_received += length
        stats = self._stats
        stats.reads += 1
        stats.bytes_received += length
        receive = self.receive
        run = receive.feed(data)
        if run is not None:
            self.frames_received += run.frames
            stats.frames_received += run.frames
            self._deliver(run)
        if low_memory is not None:
            low_memory.after_read(length, whole=run is not None)  # last: the next holder of a slot must see where the run went
        transport = self._transport
        unusual = receive.staged != 0 or receive.cut or receive.fault != framing.OK or self._mutes.causes != 0
        if unusual or self._channel.shutting or transport.pending_write != 0 or transport.has_buffered():
            self._settle()

    def _deliver(self, run: Run) -> None:
        try:
            self._sink.received(run)
        except Exception:
            self._channel.discard(run)
            raise

    def _settle(self) -> None:
        """After a read: what is not the common case."""
        if not self._channel.is_open:
            return
        receive = self.receive
        if receive.fault != framing.OK:
            self._sink.frame_refused()
            if not self._mutes.causes & mute.HANDLER:  # else once the whole frames before it are answered
                self._refuse()
            return
        if not receive.within:
            self.pass_boundary()
        if self.may_read() and (self._transport.has_buffered() or receive.has_part):
            self._channel.queue_buffered()
        if self._channel.shutting or self._transport.pending_write != 0:
            self._channel.after_read()

    def _pass_part(self) -> None:
        """The first piece of a frame that is cut through, which came behind whole ones."""
        run = self.receive.take_part()
        if run is not None:
            self._deliver(run)
            if self._channel.is_open and self.may_read() and self._transport.has_buffered():
                self._channel.queue_buffered()

    def pass_boundary(self) -> None:
        """The frame begun is whole, or gone: a mute that waited for that is in force now."""
        if self._mutes.pass_boundary():
            self._sink.muted()

    def _refuse(self) -> None:
        """Close for what the receive found wrong. The frame is refused, not incomplete: what came of it is lost, and counted as such."""
        fault = self.receive.fault
        self._stats.refused_negative += 1 if fault == framing.NEGATIVE_SIZE else 0
        self._stats.refused_too_large += 1 if fault == framing.FRAME_TOO_LARGE or fault == framing.SASL_TOO_LARGE else 0
        cause, error = refusal(self.receive, self._options)
        self._count_lost(self.receive.drop() + self.receive.refused_bytes)
        self._channel.close(cause, str(error), error)

    def _end_stream(self) -> None:
        self._channel.on_input_ended(clean=self._transport.clean_end)
        self.ended = True
        self.lose_frame()
        self.pass_boundary()
        if self._channel.is_open:
            self._sink.end_of_stream()
        self._channel.sync_interest()  # last: the sink may have closed the channel

    def lose_frame(self) -> None:
        """The frame begun will not be whole: give it up."""
        passed = self.receive.passed
        lost = self.receive.drop()
        if self.low_memory is not None:
            self.low_memory.leave()
        if lost != 0:
            self._count_lost(lost)
        if passed != 0:
            self.cut_frame_short(passed)
        elif lost != 0:
            self._stats.refused_incomplete += 1

    def _count_lost(self, lost: i64) -> None:
        self.lost_bytes += lost
        self._stats.lost_bytes += lost

    def throw_away(self) -> None:
        """Read, and look at nothing but the end."""
        data = self._transport.read(MAX_READ)
        if data is not None and len(data) == 0:
            self._end_stream()
            return
        self._settle()
        if self._channel.is_open and self._transport.has_buffered():
            self._channel.queue_buffered()
