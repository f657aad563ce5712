"""Muting: the causes for which a channel is not read, and when the mute is in force.

A channel is read only while it has no cause. Each cause is a bit of an integer. A *hard* cause stops reading at once, even within a frame; the bytes
of that frame stay booked. A *soft* cause lets the frame in progress finish: exactly its missing bytes are read, so a muted channel holds no part of
a frame; meanwhile the channel is ``MUTING``. A mute is in force when no further header will be read.

========= ======== ======================================================================
state     reads    meaning
========= ======== ======================================================================
FLOWING   yes      no cause
PAUSED    no       hard causes only; a frame may be in progress
MUTING    a frame  soft causes; the frame in progress is being finished
HELD      no       soft causes, and a hard cause that stops the frame in progress
MUTED     no       soft causes, in force
SEALED    no       soft causes, in force, and hard causes
========= ======== ======================================================================
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network.state import TableEnum, transition
from framegate.proxy.network.stats import SideStats

MEMORY: Final = 1  # a large frame that passes whole waits for an admission slot
PEER: Final = 2  # the other side of the pair has a pending send, or is not ready
THROTTLE: Final = 4  # a rate is used up, or a handler asked for a delay (``framegate.proxy.relay.throttle``)
HANDLER: Final = 8  # a handler has the frame, or its queue is full
TAP: Final = 16  # the tap is full, and its rule says on_full: mute
ADMIN: Final = 32  # an operator muted the channel
DRAIN: Final = 64  # the proxy stops

HARD: Final = MEMORY | PEER | HANDLER | TAP
SOFT: Final = THROTTLE | ADMIN | DRAIN

CAUSES: Final = (("memory", MEMORY), ("peer", PEER), ("throttle", THROTTLE), ("handler", HANDLER), ("tap", TAP), ("admin", ADMIN), ("drain", DRAIN))
CAUSE_COUNT: Final = 7


class MuteState(TableEnum):
    """See the table in the module's docstring."""

    FLOWING = "flowing"
    PAUSED = "paused"
    MUTING = "muting"
    HELD = "held"
    MUTED = "muted"
    SEALED = "sealed"


class MuteEvent(TableEnum):
    """A change of the set of causes, or of the frame in progress."""

    HARD_ON = "hard_on"  # the first hard cause was added
    HARD_OFF = "hard_off"  # the last hard cause was removed
    SOFT_ON_BETWEEN = "soft_on_between"  # the first soft cause was added between two frames
    SOFT_ON_WITHIN = "soft_on_within"  # the first soft cause was added within a frame
    SOFT_OFF = "soft_off"  # the last soft cause was removed
    BOUNDARY = "boundary"  # the frame in progress is complete, or was dropped


FLOWING: Final = MuteState.FLOWING
PAUSED: Final = MuteState.PAUSED
MUTING: Final = MuteState.MUTING
HELD: Final = MuteState.HELD
MUTED: Final = MuteState.MUTED
SEALED: Final = MuteState.SEALED

TRANSITIONS: Final[dict[tuple[MuteState, MuteEvent], MuteState]] = {
    (FLOWING, MuteEvent.HARD_ON): PAUSED,
    (FLOWING, MuteEvent.SOFT_ON_BETWEEN): MUTED,
    (FLOWING, MuteEvent.SOFT_ON_WITHIN): MUTING,
    (PAUSED, MuteEvent.HARD_OFF): FLOWING,
    (PAUSED, MuteEvent.SOFT_ON_BETWEEN): SEALED,
    (PAUSED, MuteEvent.SOFT_ON_WITHIN): HELD,
    (MUTING, MuteEvent.HARD_ON): HELD,
    (MUTING, MuteEvent.SOFT_OFF): FLOWING,
    (MUTING, MuteEvent.BOUNDARY): MUTED,
    (HELD, MuteEvent.HARD_OFF): MUTING,
    (HELD, MuteEvent.SOFT_OFF): PAUSED,
    (HELD, MuteEvent.BOUNDARY): SEALED,
    (MUTED, MuteEvent.HARD_ON): SEALED,
    (MUTED, MuteEvent.SOFT_OFF): FLOWING,
    (SEALED, MuteEvent.HARD_OFF): MUTED,
    (SEALED, MuteEvent.SOFT_OFF): PAUSED,
}


def position(cause: i64) -> i64:
    """Return the index of one cause in ``CAUSES``."""
    index: i64 = 0
    while cause > 1:
        cause >>= 1
        index += 1
    return index


def cause_names(causes: int) -> list[str]:
    """Return the names of a set of causes, as the API shows them."""
    return [name for name, bit in CAUSES if causes & bit]


class MuteSet:
    """The causes of one channel, with counts and times."""

    def __init__(self, stats: SideStats) -> None:
        self._stats: Final = stats
        self._since_ns: vec[i64] = vec[i64]()  # these three are indexed by ``position`` and empty until the first cause
        self._counts: vec[i64] = vec[i64]()
        self._lasted_ns: vec[i64] = vec[i64]()
        self.causes: i64 = 0  # the current causes, as bits
        self.state: MuteState = FLOWING  # the state that results from them
        self.count: i64 = 0  # how many causes were added since the channel was opened

    @property
    def in_force(self) -> bool:
        """Whether no further size header will be read until a cause is removed."""
        return self.causes != 0 and self.state is not MUTING and self.state is not HELD

    def add(self, cause: i64, now_ns: i64, *, within: bool) -> None:
        """Add a cause that is not set. ``within``: a frame is in progress."""
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
                self.state = transition(TRANSITIONS, self.state, MuteEvent.HARD_ON)
        elif not before & SOFT:
            self.state = transition(TRANSITIONS, self.state, MuteEvent.SOFT_ON_WITHIN if within else MuteEvent.SOFT_ON_BETWEEN)

    def remove(self, cause: i64, now_ns: i64) -> None:
        self._count_end(cause, now_ns)
        if cause & HARD:
            if not self.causes & HARD:
                self.state = transition(TRANSITIONS, self.state, MuteEvent.HARD_OFF)
        elif not self.causes & SOFT:
            self.state = transition(TRANSITIONS, self.state, MuteEvent.SOFT_OFF)

    def pass_boundary(self) -> bool:
        """Note that the frame in progress is complete or dropped. Returns True if a mute that waited for this is in force now."""
        if self.state is not MUTING and self.state is not HELD:
            return False
        self.state = transition(TRANSITIONS, self.state, MuteEvent.BOUNDARY)
        return True

    def end(self, now_ns: i64) -> None:
        """Remove all causes, because the channel is closed. The state does not change."""
        if self.causes != 0:
            for _, bit in CAUSES:
                if self.causes & bit:
                    self._count_end(bit, now_ns)

    def since_ns(self, cause: i64) -> i64:
        """When a cause was set; 0 if it is not set."""
        return self._since_ns[position(cause)] if self.causes & cause else 0

    @property
    def first_ns(self) -> i64:
        """When the oldest of the current causes was set; 0 if there is none."""
        first: i64 = 0
        for _, bit in CAUSES:
            since = self.since_ns(bit)
            if since != 0 and (first == 0 or since < first):
                first = since
        return first

    def of(self, index: i64) -> tuple[i64, i64]:
        """How often the cause at an index was set, and for how many ns; the current period is not counted."""
        return (i64(0), i64(0)) if len(self._counts) == 0 else (self._counts[index], self._lasted_ns[index])

    def _count_end(self, cause: i64, now_ns: i64) -> None:
        index = position(cause)
        self.causes &= ~cause
        self._stats.muted[index] -= 1
        lasted_ns = now_ns - self._since_ns[index]
        self._lasted_ns[index] += lasted_ns
        self._stats.mute_ns[index] += lasted_ns
