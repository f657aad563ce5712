"""How a channel reads while memory is short: nothing that would have to be held, but for a large frame that passes whole, when it has a turn.

``MEMORY.md`` says why. A look at what lies in the kernel says how much may be read now, or what is to be waited for. Frames up to ``SMALL`` stay
in the kernel until they are whole there, and then move by what the other side has room for; so does, from its first piece on, a frame that is cut
through.
"""

import socket
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network import socket_buffers
from framegate.proxy.network.admission_slots import FIRST_PORTION, AdmissionSlot, AdmissionSlots, SlotOwner
from framegate.proxy.network.framing import OK, SIZE_BUCKETS
from framegate.proxy.network.memory_pool import with_overhead
from framegate.proxy.network.receive import Receive
from framegate.proxy.network.transport import Transport

__all__ = ["SMALL", "WAIT_A_WHILE", "WAIT_FOR_BYTES", "WAIT_FOR_ROOM", "WAIT_FOR_SLOT", "LowMemoryReader"]

SMALL: Final = 262144  # frames up to this, header counted, stay in the kernel until they are whole
LITTLE: Final = 16384  # what one TLS record holds
PIECE: Final = 65536  # the most that is read at a time of what is not whole frames, and looked at for whole frames
HEAD: Final = 4096  # the first piece of a small frame has so many bytes, or all
MAX_READ: Final = 262144
AT_ONCE: Final = 65540  # over TLS a frame up to this, header counted, goes whole to a socket that holds nothing, though it may not take all of it
PATIENCE: Final = 5  # looks without a byte more before a socket is taken for full
TLS_READS: Final = 4  # of one frame; records that hold less than their size suggests make it a large frame

# What a look may say instead of a size.
WAIT_FOR_BYTES: Final = -1  # the socket tells when they are here
WAIT_FOR_ROOM: Final = -2  # on the other side
WAIT_FOR_SLOT: Final = -3  # ``slot_granted`` will be called
WAIT_A_WHILE: Final = -4  # no event will come: try again in some ms
FULL: Final = -5  # the kernel does not take more; only used here


class LowMemoryReader:
    """How one channel reads while memory is short; made when it is for the first time.

    Args:
        sock, transport, receive: the channel's.
        slots: of its direction.
        owner: is called when the slot is granted.

    Attributes:
        threshold: bytes that must lie in the socket before it counts as readable; 1: any.
        slot: of the frame begun, if one was requested.
    """

    def __init__(self, sock: socket.socket, transport: Transport, receive: Receive, slots: AdmissionSlots, owner: SlotOwner) -> None:
        self.threshold: i64 = 1
        self.slot: AdmissionSlot | None = None
        self._socket: Final = sock
        self._transport: Final = transport
        self._receive: Final = receive
        self._slots: Final = slots
        self._owner: Final = owner
        self._has_threshold: Final = socket_buffers.is_tcp(sock)
        self._roomy: i64 = 0  # bytes that the kernel was asked to take
        self._make_room(PIECE)  # before the first read, which tells the peer
        self._seen: i64 = -1
        self._tries: i64 = 0
        self._reads: i64 = 0  # of the frame begun, over TLS
        self._trusted: i64 = 0  # bytes of it that seemed to be there
        self._sizes: Final[vec[i64]] = vec[i64]([0] * SIZE_BUCKETS)  # of frames that are only looked at: never shown

    @property
    def is_awaiting(self) -> bool:
        """Bytes of a frame lie in the kernel, and more are waited for."""
        return self.threshold > 1 or self._seen >= 0

    def cannot_proceed(self) -> bool:
        """Whether, if the peer sends no more, what is waited for will never be there."""
        return self.is_awaiting and (self.threshold == 1 or socket_buffers.queued(self._socket) < self.threshold)

    def plan_read(self, room: i64, *, drained: bool, readable: bool) -> i64:
        """How many bytes to read now, or what to wait for.

        Args:
            room: bytes that the other side takes at once; 0: it is not writable, and will be.
            drained: its socket holds nothing.
            readable: the socket says that it is readable.
        """
        receive = self._receive
        slot = self.slot
        if slot is not None and slot.is_in:
            return min(receive.unit(), MAX_READ) if receive.framing.tail == 0 or receive.size >= 0 else self._rest_of_line()
        if room == 0 and slot is None:  # a frame that had a slot holds memory already: it must not wait for room as well
            return WAIT_FOR_ROOM
        if receive.passed != 0:
            return min(receive.missing(), room, PIECE)
        if receive.size >= 0:
            return self._plan_begun(room, drained=drained, readable=readable)
        if receive.framing.tail != 0 and (receive.staged != 0 or self._transport.is_plain):
            return self._plan_line(room)
        if receive.staged != 0:
            return receive.missing()  # the rest of a header
        if not self._transport.is_plain:
            return receive.resulting_size(LITTLE) if room >= LITTLE or drained else WAIT_FOR_ROOM
        return self._plan_new(room, readable=readable)

    def _whole(self, data: bytes, room: i64) -> tuple[i64, i64, i64]:
        """The whole frames at the beginning of ``data`` for which there is room: how many, where they end, and a fault behind them."""
        receive = self._receive
        framing = receive.framing
        frames, end, _, fault = framing.scan(data if i64(len(data)) <= room else data[:room], 0, receive.limit, self._sizes)
        if frames <= 1 or end + frames * receive.growth <= room:
            return frames, end, fault
        fewer, end, _, _ = framing.scan(data[: receive.resulting_size(room)], 0, receive.limit, self._sizes)
        if fewer == 0:
            return 1, framing.header_size(data, 0) + framing.body_size(data, 0) + framing.tail, OK
        return fewer, end, OK

    def _plan_new(self, room: i64, *, readable: bool) -> i64:
        framing = self._receive.framing
        data = self._transport.peek(PIECE)
        length: i64 = len(data)
        header = framing.header_size(data, 0)
        if header < 0:
            return max(length, 1)  # a header in parts, or the end
        frames, end, fault = self._whole(data, room)
        if frames != 0:
            return end
        size = header + framing.body_size(data, 0)
        if fault != OK or size > SMALL or self._receive.cuts(size):
            return header  # it is begun, and looked at again
        there = socket_buffers.queued(self._socket)
        if length < size and there < size:
            verdict = self._wait(size, there, readable=readable)
            return verdict if verdict != FULL else header
        if size <= max(room, HEAD):
            return size
        if not self._receive.can_cut:
            return header
        self._receive.cut_next(HEAD)
        return max(room, HEAD)

    def _plan_line(self, room: i64) -> i64:
        """Frames without headers: complete frames that fit go on. A longer one has an unknown size, and gets a slot for the largest."""
        receive = self._receive
        if receive.staged == 0:
            data = self._transport.peek(PIECE)
            frames, end, fault = self._whole(data, room)
            if frames != 0 or fault != OK or len(data) == 0:
                return max(end, 1)
        verdict = self._ask(receive.longest() - receive.staged)
        return verdict if verdict < 0 else self._rest_of_line()

    def _rest_of_line(self) -> i64:
        """Up to the end of the line begun, as far as it can be seen."""
        return max(self._receive.reach(self._transport.read_ahead(MAX_READ)), 1)

    def _plan_begun(self, room: i64, *, drained: bool, readable: bool) -> i64:
        receive = self._receive
        unit = receive.unit()
        if not receive.can_cut and receive.staged + unit > room and self._transport.is_plain:
            return self._plan_large(room, unit, readable=readable)
        if not receive.cut and (receive.size > SMALL or self._reads > TLS_READS):
            return self._plan_large(room, unit, readable=readable)
        there = socket_buffers.queued(self._socket)
        if self._transport.obtainable(unit) < unit:
            verdict = self._wait(unit, there, readable=readable)
            return verdict if verdict != FULL else self._ask(unit)
        if not self._transport.is_plain:
            return self._plan_sealed(room, unit, drained=drained)
        if receive.staged + unit <= room:
            return unit
        receive.cut_now(HEAD)
        return min(max(room - receive.staged, receive.unit()), unit)

    def _plan_sealed(self, room: i64, unit: i64, *, drained: bool) -> i64:
        """A frame over TLS that seems to be there. It need not be, for records may be padded: so it is read whole, and what is held of such frames
        is bounded for all of them together.
        """
        whole = self._receive.staged + unit
        if whole > room and not drained:
            return WAIT_FOR_ROOM
        if whole > room and whole > AT_ONCE:
            return self._ask(unit)
        if whole > LITTLE and self._trusted == 0:
            if not self._slots.trust(unit):
                return self._ask(unit)
            self._trusted += unit
        return unit

    def rest(self) -> i64:
        """What is still there of a frame over TLS that was trusted to be: records are longer than what they hold, so one read gave less. 0: nothing,
        or it was read. To be read at once, so that no other frame waits for the trust.
        """
        receive = self._receive
        if self._trusted == 0 or receive.size < 0 or self._reads > TLS_READS:
            return 0
        missing = receive.missing()
        return missing if self._transport.obtainable(missing) >= missing else 0

    def _plan_large(self, room: i64, unit: i64, *, readable: bool) -> i64:
        slot = self.slot
        portion = min(unit, FIRST_PORTION if slot is None else slot.portion)
        there = socket_buffers.queued(self._socket)
        if self._transport.obtainable(portion) < portion:
            verdict = self._wait(portion, there, readable=readable)
            if verdict != FULL:
                return verdict
        return self._ask(unit)

    def _ask(self, missing: i64) -> i64:
        slot = self.slot
        if slot is None:
            slot = self.slot = AdmissionSlot(self._slots, self._owner, self._receive.longest())
        if slot.ask(with_overhead(missing)):
            return min(missing, MAX_READ)
        self.before_read()  # with a slot, any number of bytes is read
        return WAIT_FOR_SLOT

    def _wait(self, wanted: i64, there: i64, *, readable: bool) -> i64:
        """Wait until ``wanted`` bytes can be read; ``FULL`` when the kernel does not take so many.

        Args:
            wanted: bytes.
            there: what lay in the kernel before it was looked at and found too little: more may have come since, and must not be waited for again.
            readable: the socket says that it is readable.
        """
        early = readable and there < self.threshold and self.threshold > 1  # small segments fill the buffer: the kernel joins them by and by
        if self._has_threshold and not early:
            self._seen = -1
            threshold = max(self._transport.least(wanted), there + 1)
            if threshold != self.threshold:
                self._make_room(threshold)
                socket_buffers.set_threshold(self._socket, threshold)
                self.threshold = threshold
            return WAIT_FOR_BYTES
        self._tries = self._tries + 1 if there == self._seen else 0
        self._seen = there
        return WAIT_A_WHILE if self._tries < PATIENCE else FULL

    def _make_room(self, size: i64) -> None:
        if self._has_threshold and size > self._roomy:
            socket_buffers.make_room(self._socket, size)
            self._roomy = size

    def before_read(self) -> None:
        """Wait for nothing more: something is read, or will be whatever lies there then."""
        self._seen = -1
        self._tries = 0
        if self.threshold > 1:
            socket_buffers.set_threshold(self._socket, 1)
            self.threshold = 1

    def after_read(self, size: i64, *, whole: bool) -> None:
        """Something was read; ``whole``: it completed the frame begun, or was passed on."""
        if whole:
            self._reads = 0
            self.leave()
            return
        self._reads += not self._transport.is_plain
        if self.slot is not None:
            self.slot.read(size)

    def leave(self) -> None:
        """The frame begun is complete or lost: release its slot."""
        if self._trusted != 0:
            self._slots.end_trust(self._trusted)
            self._trusted = 0
        slot = self.slot
        self.slot = None
        if slot is not None:
            slot.leave()
