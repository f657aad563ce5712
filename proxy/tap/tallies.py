"""Counts the frames that rules have matched, independently of what the log takes, so that both can be compared.

There is a ``Tally`` for each listener and direction. It *states* the frames seen as a totals row, once for each window of capture time
(COMPLETENESS.md). And it *reserves*: before frames beyond the last reservation are sent on, a bound of the count is stored outside of this process.
To keep that rare under load, a reservation covers the traffic of some milliseconds; while no frames come, only frames seen are reserved.
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.tap.gap import NO_CONNECTION, Gap
from framegate.proxy.tap.record import REASON_NONE

NS_PER_MS: Final = 1_000_000
# The least reservation, and the time of recent traffic that one covers.
RESERVE_FRAMES: Final = 64
RESERVE_MS: Final = 4


class Tally:
    """The count of one listener and direction."""

    def __init__(self, listener: str, direction: i64) -> None:
        self.listener = listener  # its name
        self.direction: i64 = direction  # code of ``record``
        # frames, bytes: matched since the processor started, headers included
        self.frames: i64 = 0
        self.bytes: i64 = 0
        self.reserved: i64 = 0  # a stored bound of ``frames`` (``Tallies.reserve``)
        self._stated: i64 = 0
        self._stated_bytes: i64 = 0

    def statement(self, from_ns: i64, until_ns: i64) -> Gap | None:
        """Totals of the frames seen since the last statement, all between two times of one window; None: there are none."""
        if self.frames == self._stated:
            return None
        totals = Gap(connection=NO_CONNECTION, direction=self.direction, reason=REASON_NONE, listener=self.listener, from_ns=from_ns)
        totals.add(self.frames - self._stated, self.bytes - self._stated_bytes, until_ns)
        self._stated = self.frames
        self._stated_bytes = self.bytes
        return totals


@mypyc_attr(allow_interpreted_subclasses=True)
class Reserve(abc.ABC):
    """Stores the bound of a tally outside of this process."""

    @abc.abstractmethod
    def reserve(self, tally: Tally) -> None:
        """Store ``tally.reserved``, which has grown; it must outlive this process when this returns."""


class Tallies:
    """All tallies of a processor."""

    def __init__(self, keeper: Reserve | None) -> None:
        """``keeper`` stores reservations; None: they are not stored."""
        self.all: list[Tally] = []  # in the order of first use
        self._keeper = keeper
        self._by_key: dict[tuple[str, int], Tally] = {}
        self._quiet = True
        self._seen_before: i64 = 0
        self._seen_before_ns: i64 = 0
        self._frames_per_ms: i64 = 0

    def of(self, listener: str, direction: i64) -> Tally:
        key = (listener, int(direction))
        tally = self._by_key.get(key)
        if tally is None:
            tally = Tally(listener, direction)
            self._by_key[key] = tally
            self.all.append(tally)
        return tally

    def frames(self, direction: i64) -> i64:
        total: i64 = 0
        for tally in self.all:
            if tally.direction == direction:
                total += tally.frames
        return total

    def bytes(self) -> i64:
        """Bytes of all frames matched, headers included."""
        total: i64 = 0
        for tally in self.all:
            total += tally.bytes
        return total

    def reserve(self, tally: Tally) -> None:
        """Reserve more for a tally that has used its reservation, before its frames are sent on."""
        self._quiet = False
        tally.reserved = tally.frames + max(RESERVE_FRAMES, RESERVE_MS * self._frames_per_ms)
        if self._keeper is not None:
            self._keeper.reserve(tally)

    def update_reserves(self, now_ns: i64) -> None:
        """Measure the rate of frames; while none come, release reservations. Before counts are published. ``now_ns``: monotonic."""
        past_ms = (now_ns - self._seen_before_ns) // NS_PER_MS
        if past_ms < 1:
            return
        seen: i64 = 0
        for tally in self.all:
            seen += tally.frames
        rate = (seen - self._seen_before) // past_ms
        self._frames_per_ms = max(rate, self._frames_per_ms - self._frames_per_ms // 8 - 1)
        if seen == self._seen_before and not self._quiet:
            self.release()
        self._seen_before = seen
        self._seen_before_ns = now_ns

    def release(self) -> None:
        """Reserve the frames seen, and no more."""
        self._quiet = True
        for tally in self.all:
            tally.reserved = tally.frames
