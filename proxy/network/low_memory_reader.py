"""How a channel reads while memory is short: only what it can pass on at once, and large frames that have an admission slot.

``MEMORY.md`` gives the reasons. Before each read, ``plan_read`` looks at the bytes in the kernel and decides how many to read, or what to wait for.
Frames up to ``SMALL`` stay in the kernel until they are whole there; then they move as far as the other side has room. A frame that is cut through
moves in the same way after its first piece.
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
from framegate.proxy.network.transport import MAX_READ, Transport

SMALL: Final = 262144  # frames up to this size, header counted, stay in the kernel until they are whole
LITTLE: Final = 16384  # plaintext of one TLS record
PIECE: Final = 65536  # the largest read of bytes that are not whole frames, and the largest peek for whole frames
HEAD: Final = 4096  # the least size of the first piece of a small frame
AT_ONCE: Final = 65540  # a TLS frame up to this size, header counted, is written whole to an empty socket, even if that cannot take all of it
PATIENCE: Final = 5  # looks without a new byte before the kernel's buffer is considered full
TLS_READS: Final = 4  # of one frame; after more, because records are padded, it is treated as a large frame

# Results of ``plan_read`` other than a size.
WAIT_FOR_BYTES: Final = -1  # an event will come when they are here
WAIT_FOR_ROOM: Final = -2  # on the other side
WAIT_FOR_SLOT: Final = -3  # ``slot_granted`` will be called
WAIT_A_WHILE: Final = -4  # no event will come: try again in some ms
FULL: Final = -5  # the kernel's buffer is full; only used in this module


class LowMemoryReader:
    """Plans the reads of one channel while memory is short. Made when that is the case for the first time."""

    def __init__(self, sock: socket.socket, transport: Transport, receive: Receive, slots: AdmissionSlots, owner: SlotOwner) -> None:
        self.threshold: i64 = 1  # how many bytes the socket must hold to be readable; 1: any
        self.slot: AdmissionSlot | None = None  # the slot of the frame in progress, if one was requested
        self._socket: Final = sock
        self._transport: Final = transport
        self._receive: Final = receive
        self._slots: Final = slots
        self._owner: Final = owner
        self._has_threshold: Final = socket_buffers.is_tcp(sock)
        self._roomy: i64 = 0  # the size for which the kernel's receive buffer was enlarged
        self._make_room(PIECE)  # before the first read, because a read announces the window to the peer
        self._seen: i64 = -1  # bytes in the socket at the last look, while it is checked by time; -1: it is not
        self._tries: i64 = 0
        self._reads: i64 = 0  # of the frame in progress, over TLS
        self._trusted: i64 = 0  # bytes of it that may be read without a slot
        self._sizes: Final[vec[i64]] = vec[i64]([0] * SIZE_BUCKETS)  # for scans of frames that are not read yet; not used

    @property
    def is_awaiting(self) -> bool:
        """Whether it waits for more bytes of a frame whose beginning is in the kernel."""
        return self.threshold > 1 or self._seen >= 0

    @property
    def rests(self) -> bool:
        """Whether nothing is left of a shortage: it waits for no bytes, and no frame in progress has a slot, or is read without one."""
        return not self.is_awaiting and self.slot is None and self._trusted == 0

    def cannot_proceed(self) -> bool:
        """Whether it waits for bytes that are not here, so that the wait never ends if the peer sends no more."""
        return self.is_awaiting and (self.threshold == 1 or socket_buffers.queued(self._socket) < self.threshold)

    def plan_read(self, room: i64, *, drained: bool, readable: bool) -> i64:
        """Return how many bytes to read now, or what to wait for. ``room``: how many bytes the other side takes at once; 0: it is not writable now.
        ``drained``: the send buffer of the other side is empty.
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
            return receive.missing()  # of the header
        if not self._transport.is_plain:
            return receive.resulting_size(LITTLE) if room >= LITTLE or drained else WAIT_FOR_ROOM
        return self._plan_new(room, readable=readable)

    def _whole(self, data: bytes, room: i64) -> tuple[i64, i64, i64]:
        """Find the whole frames at the beginning of ``data`` for which there is room. Returns their number, their end, and a fault behind them."""
        receive = self._receive
        framing = receive.framing
        frames, end, _, fault = framing.scan(data if i64(len(data)) <= room else data[:room], 0, receive.most, self._sizes)
        if frames <= 1 or end + frames * receive.growth <= room:
            return frames, end, fault
        fewer, end, _, _ = framing.scan(data[: receive.resulting_size(room)], 0, receive.most, self._sizes)
        if fewer == 0:
            return 1, framing.header_size(data, 0) + framing.body_size(data, 0) + framing.tail, OK
        return fewer, end, OK

    def _plan_new(self, room: i64, *, readable: bool) -> i64:
        framing = self._receive.framing
        data = self._transport.peek(PIECE)
        length: i64 = len(data)
        header = framing.header_size(data, 0)
        if header < 0:
            return max(length, 1)  # an incomplete header, or the end
        frames, end, fault = self._whole(data, room)
        if frames != 0:
            return end
        size = header + framing.body_size(data, 0)
        if fault != OK or size > SMALL or self._receive.cuts(size):
            return header  # then the frame is in progress, and the next look decides
        there = socket_buffers.queued(self._socket)
        if length < size and there < size:
            verdict = self._wait(size, there, readable=readable)
            return verdict if verdict != FULL else header
        if size <= max(room, HEAD):
            return size
        if not self._receive.cuts_small:
            return header
        self._receive.cut_next(HEAD)
        return max(room, HEAD)

    def _plan_line(self, room: i64) -> i64:
        """Plan frames without headers. Complete ones that fit are read. An incomplete one, of unknown size, needs a slot for the largest frame."""
        receive = self._receive
        if receive.staged == 0:
            data = self._transport.peek(PIECE)
            frames, end, fault = self._whole(data, room)
            if frames != 0 or fault != OK or len(data) == 0:
                return max(end, 1)
        verdict = self._ask(receive.longest() - receive.staged)
        return verdict if verdict < 0 else self._rest_of_line()

    def _rest_of_line(self) -> i64:
        """Return how many bytes belong to the line in progress, as far as its end can be seen."""
        return max(self._receive.reach(self._transport.read_ahead(MAX_READ)), 1)

    def _plan_begun(self, room: i64, *, drained: bool, readable: bool) -> i64:
        receive = self._receive
        unit = receive.unit()
        if not receive.cuts_small and receive.staged + unit > room and self._transport.is_plain:
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
        """Plan a TLS frame whose records seem to be here. They may be padded, so the bytes held of such frames are bounded for all connections."""
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
        """Return how many bytes to read at once of a TLS frame that is read without a slot; 0 if none are left. One read gives less than the frame,
        because records have overhead. They are read at once, so that the next frame can be read without a slot.
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
        """Wait until ``wanted`` bytes can be read. Returns ``FULL`` if the kernel does not take so many. ``wanted``: bytes. ``there``: bytes in the
        kernel before the look that found too few. More may have come since; the threshold must not wait for these again.
        """
        early = readable and there < self.threshold and self.threshold > 1  # small segments fill the buffer until the kernel has joined them
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
        """End the wait, because bytes are read now, or any number of bytes will be read later."""
        self._seen = -1
        self._tries = 0
        if self.threshold > 1:
            socket_buffers.set_threshold(self._socket, 1)
            self.threshold = 1

    def after_read(self, size: i64, *, whole: bool) -> None:
        """Note a read. ``whole``: it completed the frame in progress, or was passed on."""
        if whole:
            self._reads = 0
            self.leave()
            return
        self._reads += not self._transport.is_plain
        if self.slot is not None:
            self.slot.read(size)

    def leave(self) -> None:
        """Release the slot of the frame in progress, which is complete or lost."""
        if self._trusted != 0:
            self._slots.end_trust(self._trusted)
            self._trusted = 0
        slot = self.slot
        self.slot = None
        if slot is not None:
            slot.leave()
