"""The shared counters of one processor slot, as the control process keeps them while processors come and go."""

import dataclasses
import mmap
import os
import struct
from typing import TYPE_CHECKING, Final

from framegate.proxy.cells import CELL_SIZE, HEADER_SIZE, LISTENER, TAP_DROP_REASONS, CellLayout, CellReader, State, create, enlarge
from framegate.proxy.tap.record import DIRECTIONS

if TYPE_CHECKING:  # only a tap needs that module
    from framegate.proxy.tap.ledger import Pair

_MATCHED: Final = "framegate.tap.matched"
_FLUSHED: Final = "framegate.tap.flushed"
_SEEN: Final = "framegate.tap.seen"
_RESERVED: Final = "framegate.tap.reserved"
_DROPPED: Final = "framegate.tap.dropped"
_ERRORS: Final = "framegate.tap.write.errors"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessorTotals:
    """What one processor counted between its start and its end."""

    connections: dict[str, int]  # open at its end, by listener
    orderly: bool  # it exited by itself: its counts are complete
    matched: int  # frames that tap rules matched
    seen: "dict[Pair, int]"  # the same by listener and direction; of one that died, as last published
    reserved: "dict[Pair, int]"  # an upper bound of ``seen``, by listener and direction
    dropped: dict[str, int]  # frames that are only in gaps of the log, by reason

    @property
    def bounds(self) -> "dict[Pair, int]":
        """How many frames rules matched, by listener and direction: exactly when it is ``orderly``, else at most."""
        return self.seen if self.orderly else {pair: max(count, self.seen[pair]) for pair, count in self.reserved.items()}


class SlotCells:
    """One memfd and its reader. Attributes: ``descriptor`` (for ``pass_fds``), ``reader``. Raises OSError: no descriptor or no memory is
    available.
    """

    def __init__(self, slot: int, layout: CellLayout) -> None:
        self.descriptor = create(layout, f"framegate-cells-{slot}")
        self._room: tuple[CellLayout, CellReader, mmap.mmap] | None = None
        try:
            self._attach(layout)
        except OSError:
            os.close(self.descriptor)
            raise
        self._before = self._counts()

    def _attach(self, layout: CellLayout) -> None:
        if self._room is None or self._room[0] is not layout:
            self.make_room(layout)
        assert self._room is not None, "it was made"
        (_, reader, self._mapping), self._room = self._room, None
        self.layout = layout
        self.reader = reader  # the mapping of the former one stays until its last reference is gone: another thread may be reading
        self._listeners = layout.names(LISTENER)
        self._pairs = [(listener, direction) for listener in self._listeners for direction in DIRECTIONS]

    def make_room(self, layout: CellLayout) -> None:
        """Make room for another layout, and map it for ``follow``. Raises OSError: no memory is available."""
        enlarge(self.descriptor, layout)
        self._room = layout, CellReader(self.descriptor, layout), mmap.mmap(self.descriptor, layout.size)

    def follow(self, layout: CellLayout) -> None:
        """Read by another layout, which was made from the present one and has room."""
        moved, before, former = layout.moved(self.layout), self._before, self._mapping
        self._attach(layout)
        former.close()
        if self.reader.state in (State.EMPTY, State.STOPPED):  # no processor writes: what is free, or new, begins with 0
            for start, end in moved:
                offset = HEADER_SIZE + start * CELL_SIZE
                self._mapping[offset : offset + (end - start) * CELL_SIZE] = bytes((end - start) * CELL_SIZE)
        self._before = {name: before.get(name, 0) for name in self._counts()}

    def begin(self) -> None:
        """Save the counters before a processor starts in the slot."""
        self._before = self._counts()

    def end(self, cause: str = "processor_died") -> ProcessorTotals:
        """Finish the counters after the processor was reaped, so that this process is the only writer: its open connections are counted as closed
        for ``cause``, frames that may not be in the log as settled (the caller writes them to the tap as a gap), and gauges become 0.
        """
        connections: dict[str, int] = {}
        for listener in self._listeners:
            count = self._get("framegate.connection.active", "downstream", listener)
            if count > 0:
                connections[listener] = count
                self._add(count, "framegate.connection.closed", listener, cause, "internal")
        orderly = self.reader.state == State.STOPPED  # set by the processor itself; one that never claimed the cells has counted nothing
        counts = {key: value - self._before[key] for key, value in self._counts().items()}
        matched = counts[_MATCHED,]
        self._add(max(0, matched - counts[_FLUSHED,]), _FLUSHED)
        self.reader.zero_gauges()
        seen, reserved = ({pair: counts[name, *pair] for pair in self._pairs} for name in (_SEEN, _RESERVED))
        return ProcessorTotals(connections, orderly, matched, seen, reserved, {reason: counts[_DROPPED, reason] for reason in TAP_DROP_REASONS})

    def tap_progress(self) -> tuple[bool, int]:
        """Whether all frames that tap rules have matched are in the log on disk, as frames or in gaps; and the number of failed writes. What is
        published of a poll is read in this order: frames on disk; then per listener and direction those seen, and the bound of what is not published
        yet; then all frames matched. So equal numbers are no coincidence of two polls.
        """
        flushed = self._since(_FLUSHED)
        published = all(self._since(_SEEN, *pair) >= self._since(_RESERVED, *pair) for pair in self._pairs)
        return published and flushed == self._since(_MATCHED), self._get(_ERRORS)

    def _since(self, *name: str) -> int:
        """A counter since ``begin``."""
        return self._get(*name) - self._before[name]

    def close(self) -> None:
        """Close the descriptor and this mapping, and drop ``reader``. Its mapping stays until its last reference is gone: another thread may be
        reading. Who ended in the slot may be referred to for long, but has no descriptor any more.
        """
        self._mapping.close()
        self._room = None
        del self.reader
        os.close(self.descriptor)

    def _counts(self) -> dict[tuple[str, ...], int]:
        """The counters that are compared between a start and an end."""
        names: list[tuple[str, ...]] = [(_MATCHED,), (_FLUSHED,)]
        names += [(_DROPPED, reason) for reason in TAP_DROP_REASONS]
        names += [(name, *pair) for name in (_SEEN, _RESERVED) for pair in self._pairs]
        return {name: self._get(*name) for name in names}

    def _offset(self, name: str, *values: str) -> int:
        return HEADER_SIZE + self.layout.index(name, *values) * CELL_SIZE

    def _get(self, name: str, *values: str) -> int:
        value: int = struct.unpack_from("=q", self._mapping, self._offset(name, *values))[0]
        return value

    def _add(self, amount: int, name: str, *values: str) -> None:
        offset = self._offset(name, *values)
        struct.pack_into("=q", self._mapping, offset, self._get(name, *values) + amount)
