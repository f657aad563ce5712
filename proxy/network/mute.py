"""Muting: why a channel is not read, and when the mute is in force.

A channel is read only while its set of causes is empty. Seven causes have a name; ``throttle`` and ``handler`` are kept for what will set them,
and nothing does yet. Causes are bits of one integer. The *hard* ones stop reading at once, even within a frame, whose bytes stay accounted.
The *soft* ones let a frame begun finish, reading exactly its missing bytes, so that a muted channel holds no part of a frame; while that lasts
the channel is ``MUTING``. In force means that no further header will be read.

========= ======== ======================================================================
state     reads    meaning
========= ======== ======================================================================
FLOWING   yes      no cause
PAUSED    no       hard causes only; a frame may be begun
MUTING    a frame  soft causes; the frame begun is being finished
HELD      no       soft causes and a frame begun, which a hard cause keeps from finishing
MUTED     no       soft causes, in force
SEALED    no       soft causes, in force, and hard ones
========= ======== ======================================================================
"""

import enum
from typing import TYPE_CHECKING, Final

from librt.vecs import vec
from mypy_extensions import i64

from proxy.errors import IllegalTransitionError

if TYPE_CHECKING:
    from proxy.network.stats import SideStats

__all__ = [
    "ADMIN",
    "CAUSES",
    "DRAIN",
    "HANDLER",
    "MEMORY",
    "PEER",
    "TAP",
    "THROTTLE",
    "TRANSITIONS",
    "MuteEvent",
    "MuteSet",
    "MuteState",
    "cause_names",
    "next_state",
    "position",
]

MEMORY: Final = 1  # a large frame that passes whole waits for its turn
PEER: Final = 2  # the other side of the pair has a pending send, or is not ready
THROTTLE: Final = 4  # a rate; not set by anything yet
HANDLER: Final = 8  # a handler has the frame; not set by anything yet
TAP: Final = 16  # the tap is full, and its rule says on_full: mute
ADMIN: Final = 32  # an operator
DRAIN: Final = 64  # the proxy stops

HARD: Final = MEMORY | PEER | HANDLER | TAP
SOFT: Final = THROTTLE | ADMIN | DRAIN

CAUSES: Final = (("memory", MEMORY), ("peer", PEER), ("throttle", THROTTLE), ("handler", HANDLER), ("tap", TAP), ("admin", ADMIN), ("drain", DRAIN))
CAUSE_COUNT: Final = 7


class MuteState(enum.Enum):
    """Whether a channel is read; see the module's table."""

    __hash__ = object.__hash__  # an Enum's own is a Python function, called twice for each look-up in the table

    FLOWING = "flowing"
    PAUSED = "paused"
    MUTING = "muting"
    HELD = "held"
    MUTED = "muted"
    SEALED = "sealed"


class MuteEvent(enum.Enum):
    """What happens to the set of causes, or to the frame begun."""

    __hash__ = object.__hash__

    HARD_ON = "hard_on"  # the first hard cause
    HARD_OFF = "hard_off"  # the last hard cause is gone
    SOFT_ON_BETWEEN = "soft_on_between"  # the first soft cause, no frame begun
    SOFT_ON_WITHIN = "soft_on_within"  # the first soft cause, within a frame
    SOFT_OFF = "soft_off"  # the last soft cause is gone
    BOUNDARY = "boundary"  # the frame begun is whole, or was dropped


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


def next_state(state: MuteState, event: MuteEvent) -> MuteState:
    """The state after ``event``.

    Raises:
        IllegalTransitionError: the table has no such row: a bug of ours.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise IllegalTransitionError(state, event)
    return found


def position(cause: i64) -> i64:
    """Where one cause stands in ``CAUSES``."""
    index: i64 = 0
    while cause > 1:
        cause >>= 1
        index += 1
    return index


def cause_names(causes: int) -> list[str]:
    """The words of a set of causes, as the API shows them."""
    return [name for name, bit in CAUSES if causes & bit]


class MuteSet:
    """The causes that hold one channel now.

    Attributes:
        causes: bits.
        state: what they come to.
        count: causes that were added, ever.
    """

    def __init__(self, stats: "SideStats") -> None:
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
