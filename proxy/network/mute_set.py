"""The causes that keep one channel from being read now, since when, and how often and for how long each did."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network.mute import CAUSE_COUNT, CAUSES, FLOWING, HARD, HELD, MUTING, SOFT, MuteEvent, MuteState, next_state, position
from framegate.proxy.network.stats import SideStats

__all__ = ["MuteSet"]


class MuteSet:
    """The causes that hold one channel now.

    Attributes:
        causes: bits.
        state: what they come to.
        count: causes that were added, ever.
    """

    def __init__(self, stats: SideStats) -> None:
        self._stats: Final = stats
        self._since_ns: vec[i64] = vec[i64]()  # these three by position of the cause, and only when there ever was one
        self._counts: vec[i64] = vec[i64]()
        self._lasted_ns: vec[i64] = vec[i64]()
        self.causes: i64 = 0
        self.state: MuteState = FLOWING
        self.count: i64 = 0

    @property
    def in_force(self) -> bool:
        """No further size header will be read until a cause goes away."""
        return self.causes != 0 and self.state is not MUTING and self.state is not HELD

    def add(self, cause: i64, now_ns: i64, *, within: bool) -> None:
        """Add a cause that is not set; ``within``: a frame is begun."""
        before = self.causes
        self.causes = before | cause
        self.count += 1
        index = position(cause)
        if len(self._since_ns) == 0:
            self._since_ns = vec[i64]([0] * CAUSE_COUNT)
            self._counts = vec[i64]([0] * CAUSE_COUNT)
            self._lasted_ns = vec[i64]([0] * CAUSE_COUNT)
        self._since_ns[index] = now_ns
        self._counts[index] += 1
        self._stats.mutes[index] += 1
        self._stats.muted[index] += 1
        if cause & HARD:
            if not before & HARD:
                self.state = next_state(self.state, MuteEvent.HARD_ON)
        elif not before & SOFT:
            self.state = next_state(self.state, MuteEvent.SOFT_ON_WITHIN if within else MuteEvent.SOFT_ON_BETWEEN)

    def remove(self, cause: i64, now_ns: i64) -> None:
        """Take away a cause that is set."""
        self._count_end(cause, now_ns)
        if cause & HARD:
            if not self.causes & HARD:
                self.state = next_state(self.state, MuteEvent.HARD_OFF)
        elif not self.causes & SOFT:
            self.state = next_state(self.state, MuteEvent.SOFT_OFF)

    def pass_boundary(self) -> bool:
        """The frame begun is whole, or gone; True when a mute that waited for that is in force now."""
        if self.state is not MUTING and self.state is not HELD:
            return False
        self.state = next_state(self.state, MuteEvent.BOUNDARY)
        return True

    def end(self, now_ns: i64) -> None:
        """The channel is closed: no cause holds it any more. The state stays as it was."""
        for _, bit in CAUSES:
            if self.causes & bit:
                self._count_end(bit, now_ns)

    def since_ns(self, cause: i64) -> i64:
        """Since when a cause is set; 0 when it is not."""
        return self._since_ns[position(cause)] if self.causes & cause else 0

    @property
    def first_ns(self) -> i64:
        """Since when the oldest of the causes is set; 0 when there is none."""
        first: i64 = 0
        for _, bit in CAUSES:
            since = self.since_ns(bit)
            if since != 0 and (first == 0 or since < first):
                first = since
        return first

    def of(self, index: i64) -> tuple[i64, i64]:
        """How often the cause at a position was set, and for how long in ns, without the time since it is set now."""
        return (i64(0), i64(0)) if len(self._counts) == 0 else (self._counts[index], self._lasted_ns[index])

    def summary(self) -> dict[str, dict[str, int]]:
        """How often each cause was set, and for how long in ns, without the time of those that are set now."""
        if len(self._counts) == 0:
            return {}
        return {
            name: {"count": int(self._counts[index]), "ns": int(self._lasted_ns[index])}
            for index, (name, _) in enumerate(CAUSES)
            if self._counts[index] != 0
        }

    def _count_end(self, cause: i64, now_ns: i64) -> None:
        index = position(cause)
        self.causes &= ~cause
        self._stats.muted[index] -= 1
        lasted_ns = now_ns - self._since_ns[index]
        self._lasted_ns[index] += lasted_ns
        self._stats.mute_ns[index] += lasted_ns
