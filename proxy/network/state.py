"""State machines as tables from (state, event) to the next state, and the table of a channel's states.

The meaning of the last state before a connection closed: ``CONNECTING``: the upstream is unreachable. ``HANDSHAKE``: the TLS handshake was not
finished. ``AUTHENTICATING``: the peer was not authenticated. ``READY``: both directions were open. ``READ_ENDED``: the peer had ended its stream.
``WRITE_ENDED``: we had ended ours. ``ENDED``: both had.
"""

import enum
from typing import Final, TypeVar

from framegate.proxy.errors import IllegalTransitionError


class TableEnum(enum.Enum):
    """Base class of the states and the events of a table."""

    __hash__ = object.__hash__  # Enum.__hash__ is a Python function, and each look-up in a table would call it twice


State = TypeVar("State", bound=TableEnum)
Event = TypeVar("Event", bound=TableEnum)


def transition(table: dict[tuple[State, Event], State], state: State, event: Event) -> State:
    """Return the state after ``event``. Raises IllegalTransitionError: the table has no such row, which is a bug in framegate."""
    found = table.get((state, event))
    if found is None:
        raise IllegalTransitionError(state, event)
    return found


class ChannelState(TableEnum):
    """The state of a channel."""

    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    READ_ENDED = "read_ended"
    WRITE_ENDED = "write_ended"
    ENDED = "ended"
    CLOSED = "closed"


class ChannelEvent(TableEnum):
    """An event of a channel."""

    CONNECTED = "connected"  # the socket is connected
    SECURED = "secured"  # the transport's handshake is finished
    AUTHENTICATED = "authenticated"  # the authenticator knows the principal
    END_OF_STREAM = "end_of_stream"  # the peer ended its stream
    SHUT = "shut"  # our write side is shut: FIN or close-notify was sent
    CLOSE = "close"  # closed by either side, for any cause


CONNECTING: Final = ChannelState.CONNECTING
HANDSHAKE: Final = ChannelState.HANDSHAKE
AUTHENTICATING: Final = ChannelState.AUTHENTICATING
READY: Final = ChannelState.READY
READ_ENDED: Final = ChannelState.READ_ENDED
WRITE_ENDED: Final = ChannelState.WRITE_ENDED
ENDED: Final = ChannelState.ENDED
CLOSED: Final = ChannelState.CLOSED

TRANSITIONS: Final[dict[tuple[ChannelState, ChannelEvent], ChannelState]] = {
    (CONNECTING, ChannelEvent.CONNECTED): HANDSHAKE,
    (HANDSHAKE, ChannelEvent.SECURED): AUTHENTICATING,
    (AUTHENTICATING, ChannelEvent.AUTHENTICATED): READY,
    (READY, ChannelEvent.END_OF_STREAM): READ_ENDED,
    (READY, ChannelEvent.SHUT): WRITE_ENDED,
    (READ_ENDED, ChannelEvent.SHUT): ENDED,
    (WRITE_ENDED, ChannelEvent.END_OF_STREAM): ENDED,
    (CONNECTING, ChannelEvent.CLOSE): CLOSED,
    (HANDSHAKE, ChannelEvent.CLOSE): CLOSED,
    (AUTHENTICATING, ChannelEvent.CLOSE): CLOSED,
    (READY, ChannelEvent.CLOSE): CLOSED,
    (READ_ENDED, ChannelEvent.CLOSE): CLOSED,
    (WRITE_ENDED, ChannelEvent.CLOSE): CLOSED,
    (ENDED, ChannelEvent.CLOSE): CLOSED,
}
