"""Muting: why a channel is not read, and when the mute is in force.

A channel is read only while its set of causes is empty. Seven causes have a name; they are bits of one integer. The *hard* ones stop reading at
once, even within a frame, whose bytes stay accounted.
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

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.state_table import TableEnum, transition

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
    "MuteState",
    "cause_names",
    "next_state",
    "position",
]

MEMORY: Final = 1  # a large frame that passes whole waits for a slot
PEER: Final = 2  # the other side of the pair has a pending send, or is not ready
THROTTLE: Final = 4  # a rate that is used up, or a handler that asked for a while (``framegate.proxy.relay.throttle``)
HANDLER: Final = 8  # a handler has the frame, or there is no room for it
TAP: Final = 16  # the tap is full, and its rule says on_full: mute
ADMIN: Final = 32  # an operator
DRAIN: Final = 64  # the proxy stops

HARD: Final = MEMORY | PEER | HANDLER | TAP
SOFT: Final = THROTTLE | ADMIN | DRAIN

CAUSES: Final = (("memory", MEMORY), ("peer", PEER), ("throttle", THROTTLE), ("handler", HANDLER), ("tap", TAP), ("admin", ADMIN), ("drain", DRAIN))
CAUSE_COUNT: Final = 7


class MuteState(TableEnum):
    """Whether a channel is read; see the module's table."""

    FLOWING = "flowing"
    PAUSED = "paused"
    MUTING = "muting"
    HELD = "held"
    MUTED = "muted"
    SEALED = "sealed"


class MuteEvent(TableEnum):
    """What happens to the set of causes, or to the frame begun."""

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
    """The state after ``event``; ``IllegalTransitionError`` when the table has no such row."""
    return transition(TRANSITIONS, state, event)


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
