"""The life of a pair, as a table.

What it means when a connection ends in a state: ``HANDSHAKING`` the client never became READY; ``CONNECTING_UPSTREAM`` no endpoint of the
upstream answered, or the client was closed meanwhile; ``OPEN`` frames flowed both ways; ``HALF_CLOSED`` one side had said that it sends no
more; ``CLOSING`` the cause is known, and what was received is still being written to the healthy side; ``CLOSED`` is where every life ends.
"""

from typing import Final

from framegate.proxy.network.state import TableEnum, transition


class PairState(TableEnum):
    """Where a pair is in its life; the values are the words of the API."""

    HANDSHAKING = "handshaking"
    CONNECTING_UPSTREAM = "connecting_upstream"
    OPEN = "open"
    HALF_CLOSED = "half_closed"
    CLOSING = "closing"
    CLOSED = "closed"


class PairEvent(TableEnum):
    """What happens to a pair."""

    CLIENT_READY = "client_ready"  # the client's channel is READY
    UPSTREAM_READY = "upstream_ready"  # so is an upstream's
    SERVED = "served"  # the client's channel is READY, and there is no upstream to wait for: a handler answers
    STREAM_ENDED = "stream_ended"  # one side sends no more, the other may
    END = "end"  # the cause is known
    GONE = "gone"  # both channels are closed


HANDSHAKING: Final = PairState.HANDSHAKING
CONNECTING_UPSTREAM: Final = PairState.CONNECTING_UPSTREAM
OPEN: Final = PairState.OPEN
HALF_CLOSED: Final = PairState.HALF_CLOSED
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED

TRANSITIONS: Final[dict[tuple[PairState, PairEvent], PairState]] = {
    (HANDSHAKING, PairEvent.CLIENT_READY): CONNECTING_UPSTREAM,
    (CONNECTING_UPSTREAM, PairEvent.UPSTREAM_READY): OPEN,
    (HANDSHAKING, PairEvent.SERVED): OPEN,
    (OPEN, PairEvent.STREAM_ENDED): HALF_CLOSED,
    (HANDSHAKING, PairEvent.END): CLOSING,
    (CONNECTING_UPSTREAM, PairEvent.END): CLOSING,
    (OPEN, PairEvent.END): CLOSING,
    (HALF_CLOSED, PairEvent.END): CLOSING,
    (CLOSING, PairEvent.GONE): CLOSED,
}


def next_state(state: PairState, event: PairEvent) -> PairState:
    """The state after ``event``; ``IllegalTransitionError`` when the table has no such row."""
    return transition(TRANSITIONS, state, event)
