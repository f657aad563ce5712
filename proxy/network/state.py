"""The life of a channel, as a table.

What it means when a connection ends in a state: ``CONNECTING`` the upstream is unreachable; ``HANDSHAKE`` TLS did not come to an end;
``AUTHENTICATING`` the peer did not say who it is; ``READY`` a working connection ended; ``READ_ENDED`` the peer had nothing more to send;
``WRITE_ENDED`` we had nothing more to send; ``ENDED`` both; ``CLOSED`` is where every life ends.
"""

from typing import Final

from framegate.proxy.network.state_table import TableEnum, transition

__all__ = ["CLOSED", "CONNECTING", "HANDSHAKE", "TRANSITIONS", "ChannelEvent", "ChannelState", "next_state"]


class ChannelState(TableEnum):
    """Where a channel is in its life."""

    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    READ_ENDED = "read_ended"
    WRITE_ENDED = "write_ended"
    ENDED = "ended"
    CLOSED = "closed"


class ChannelEvent(TableEnum):
    """What happens to a channel."""

    CONNECTED = "connected"  # the socket is connected
    SECURED = "secured"  # the transport's handshake is done
    AUTHENTICATED = "authenticated"  # the authenticator knows the principal
    END_OF_STREAM = "end_of_stream"  # the peer sends no more
    SHUT = "shut"  # our write side is shut: FIN or close-notify went out
    CLOSE = "close"  # either side, for any cause


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


def next_state(state: ChannelState, event: ChannelEvent) -> ChannelState:
    """The state after ``event``; ``IllegalTransitionError`` when the table has no such row."""
    return transition(TRANSITIONS, state, event)
