"""The reading half of a channel: normal reads, reads while memory is short, splicing of frames that are not inspected, and the end of the stream."""

import socket
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.network import framing, mute, socket_buffers
from framegate.proxy.network.admission_slots import SlotOwner
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.close_cause import refusal
from framegate.proxy.network.epoll import BROKEN, EPOLLIN, EPOLLRDHUP
from framegate.proxy.network.low_memory_reader import WAIT_A_WHILE, WAIT_FOR_BYTES, WAIT_FOR_ROOM, WAIT_FOR_SLOT, LowMemoryReader
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.mute import MuteSet, MuteState
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import Receive
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.network.transport import FIRST_READ, MAX_READ, Transport, adapted

if TYPE_CHECKING:
    from framegate.proxy.network.channel import Channel
    from framegate.proxy.network.selector import Selector

MAX_GROWN: Final = 8 * MAX_READ  # the largest size of a read after translation to the framing of the other side

MUTING: Final = MuteState.MUTING


class ReadHalf(SlotOwner):
    """The reading half. At most one receive is in progress, and each event causes one read."""

    __deletable__ = ("_channel", "_sink")

    def __init__(
        self,
        channel: "Channel",
        sink: ChannelSink,
        loop: "Selector",
        sock: socket.socket,
        transport: Transport,
        mutes: MuteSet,
        account: Account,
        options: ChannelOptions,
    ) -> None:
        # finds the frames, and has the one in progress
        self.receive: Final = Receive(
            account,
            options.limit,
            options.stats,
            options.cut_from,
            options.first_piece,
            options.framing,
            options.onward,
            options.sasl_limit,
            keeps_first=options.keeps_first,
        )
        self.ended: bool = False  # the peer ended its stream
        self.discards: bool = False  # input is read and thrown away (``discard_input``)
        self.is_urgent: bool = False  # read although memory is short, because the input releases memory
        self.low_memory: LowMemoryReader | None = None  # plans the reads while memory is short; None before the first time
        self.retry_armed: bool = False  # a timer causes the next read, not epoll
        # frames_received, bytes_received: whole frames; bytes, with headers and parts of frames
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.cut_short_at: i64 = 0  # how many bytes were passed on of a frame that was cut through and not completed; 0: there was none
        self.lost_bytes: i64 = 0  # received bytes of a frame that was not completed
        self._begun: i64 = -1  # the number of the last frame that did not come with one read, and when it began
        self._begun_ns: i64 = 0
        self._channel: Channel = channel
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
        self._retry: CallbackTimer | None = None  # for reads for which epoll gives no event

    @property
    def bytes_arrived(self) -> i64:
        """Bytes received, and those in the kernel of a frame that is not read before it is whole there."""
        if self.low_memory is None or not self.low_memory.is_awaiting:
            return self.bytes_received
        return self.bytes_received + socket_buffers.queued(self._socket)

    def began_ns(self, number: i64) -> i64:
        """When the frame that is received now, or was received last, began to arrive; ``number``: of the whole frames before it."""
        return self._begun_ns if self._begun == number else self._loop.arrived_ns

    @property
    def begun_bytes(self) -> i64:
        """Bytes of the frame in progress that have come: staged, passed on, or waiting in the kernel."""
        return self.receive.staged + self.receive.passed + self.bytes_arrived - self.bytes_received

    @property
    def cut_at(self) -> i64:
        """Bytes passed on of a frame that is cut through and incomplete; 0: there is none."""
        return self.cut_short_at or self.receive.passed

    @property
    def is_receiving(self) -> bool:
        """Whether a frame is in progress, and the peer has to send the rest."""
        return (self.receive.within or (self.low_memory is not None and self.low_memory.is_awaiting)) and self.may_read()

    def may_read(self) -> bool:
        """Whether the mute causes permit a read, and the peer has not ended its stream."""
        return not self.ended and (self._mutes.causes == 0 or self._mutes.state is MUTING)

    def has_no_input(self) -> bool:
        return not self._transport.has_buffered() and socket_buffers.queued(self._socket) == 0

    def is_blocked(self) -> bool:
        return self._mutes.causes & mute.HARD & ~mute.MEMORY != 0  # a soft cause lets the frame in progress finish

    def discard_input(self, cause: i64) -> None:
        """Stop delivering input: mute for ``cause``, a soft cause that stays, and drop further input, uncounted and in spite of other causes, until
        the end of the stream, which is reported. A frame in progress is lost. The caller then ends our stream. A close instead would leave unread
        bytes and send a reset, which can overtake the last bytes sent. No effect if the peer has ended its stream.
        """
        if self.ended or self.discards:
            return
        channel = self._channel
        channel.close_lane()
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
        """Read what the transport has buffered, for which no event will come."""
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

    def slot_granted(self) -> None:
        try:
            self._channel.unmute(mute.MEMORY)
        except Exception as error:
            self._channel.crash(error)

    def on_retry(self) -> None:
        """Read again, when the retry timer fires."""
        self.retry_armed = False
        channel = self._channel
        try:
            channel.sync_interest()
            if self.may_read() and self._transport.has_buffered():
                channel.queue_buffered()
        except Exception as error:
            channel.crash(error)

    def close(self) -> None:
        """End reading, because the channel is closed. A frame in progress is lost."""
        if self._retry is not None:
            self._loop.cancel(self._retry)
            self._retry.release()
        self.lose_frame()

    def release(self) -> None:
        self.low_memory = None
        self.receive.reports_to = None
        if self._loop.pool.finds_leaks:
            self._loop.pool.check_released(self.receive)
        del self._channel
        del self._sink

    def cut_frame_short(self, passed: i64) -> None:
        """Note that a frame that is cut through will not be completed after ``passed`` bytes of it were passed on. It is counted once."""
        if self.cut_short_at == 0:
            self.cut_short_at = passed
            self._stats.cut_short += 1
            self._stats.refused_incomplete += 1
        self.receive.abandoned = self.receive.is_within_cut  # else its rest has come, and the next frame is one

    def on_readable(self, events: i64) -> None:
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
        """Read a size that suits the traffic; only bytes of the frame in progress if MUTING or cut through; as planned while memory is short."""
        if self._account.is_short(answers=self._is_upstream) and not self.is_urgent:
            if self.receive.passed == 0 or not self._pass_by():
                self._read_carefully(events)
        elif self._mutes.causes == 0 and not self.receive.cut:
            self._read(self._read_size)
        elif self.receive.passed == 0:
            self._read(self._within_frame())
        elif not self._pass_by():
            self._read_by_room()

    def _within_frame(self) -> i64:
        """Return how many bytes to read without reading from the next frame."""
        receive = self.receive
        if receive.framing.tail != 0 and receive.size < 0:
            return max(receive.reach(self._transport.read_ahead(MAX_READ)), 1)
        return min(receive.missing(), MAX_READ)

    def _pass_by(self) -> bool:
        """Splice bytes of a frame that is cut through to the other side, as far as it has room. Returns False if they must be read instead."""
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
        size = pipe.fill(self._channel.fd, min(self.receive.missing(), room, self._sink.pipe_limit()))
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
        """Read the next piece of a frame that is cut through, but not more than the other side can take now."""
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
            self._read_size = FIRST_READ  # for the beginning of the next frame, whose rest may be spliced, too
            if self._channel.is_open:
                self.pass_boundary()

    def _read_carefully(self, events: i64) -> None:
        low_memory = self.low_memory
        if low_memory is None:
            slots = self._account.pool.answers if self._is_upstream else self._account.pool.requests
            low_memory = self.low_memory = LowMemoryReader(self._socket, self._transport, self.receive, slots, self)
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
        """Read the bytes in the kernel of a frame whose rest will never come, and the end of the stream."""
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
            if self._channel.shutting or self._transport.pending_write != 0:  # a record without data was read, for which a write may have waited
                self._settle()
            return
        length: i64 = len(data)
        if length == 0:
            self._end_stream()
            return
        suits = adapted(self._read_size, size, length)
        self._read_size = suits if suits <= self._read_size else min(suits, self.receive.resulting_size(MAX_GROWN))
        self._take(data)

    def take(self, data: bytes) -> None:
        """Take the bytes of a read of the fast path, which counted those of the socket."""
        self._take(data)

    def give_begun(self) -> None:
        """Forget the beginning of a frame, which the fast path has now. The opposite of ``take_begun``."""
        self.receive.drop()

    def take_begun(self, data: bytes) -> None:
        """Take the beginning of a frame from the fast path, which counted it."""
        whole = self.receive.feed(data)
        assert whole is None, "the fast path keeps no whole frame, and none that may be cut through"
        self._begun, self._begun_ns = self.frames_received, self._loop.arrived_ns

    def _take(self, data: bytes) -> None:
        length: i64 = len(data)
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
        low_memory = self.low_memory
        if low_memory is not None:
            low_memory.after_read(length, whole=run is not None)  # last, because it may grant a slot, for which the booking of this run must be known
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
        if not self._channel.is_open:
            return
        receive = self.receive
        if receive.staged != 0 and self._begun != self.frames_received:
            self._begun, self._begun_ns = self.frames_received, self._loop.arrived_ns
        if receive.fault != framing.OK:
            self._sink.frame_refused()
            if not self._mutes.causes & mute.HANDLER:  # else after the handler has answered the frames before it
                self._refuse()
            return
        if not receive.within:
            self.pass_boundary()
        if self.may_read() and (self._transport.has_buffered() or receive.has_part):
            self._channel.queue_buffered()
        if self._channel.shutting or self._transport.pending_write != 0:
            self._channel.after_read()

    def _pass_part(self) -> None:
        """Deliver the first piece of a frame that is cut through, which was read together with whole frames before it."""
        run = self.receive.take_part()
        if run is not None:
            self._deliver(run)
            if self._channel.is_open and self.may_read() and self._transport.has_buffered():
                self._channel.queue_buffered()

    def pass_boundary(self) -> None:
        """Note that the frame in progress is complete or lost. Tells the sink if a mute that waited for this is in force now."""
        if self._mutes.pass_boundary():
            self._sink.muted()

    def _refuse(self) -> None:
        """Close for the fault of the receive. The frame counts as refused, not as incomplete; its bytes count as lost."""
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
        """Read and ignore the bytes, but not the end of the stream."""
        data = self._transport.read(MAX_READ)
        if data is not None and len(data) == 0:
            self._end_stream()
            return
        self._settle()
        if self._channel.is_open and self._transport.has_buffered():
            self._channel.queue_buffered()
