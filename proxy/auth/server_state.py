"""The SASL exchange with a client, as a table of states.

If a connection ends in ``INITIAL``, the client sent no usable request; in ``HANDSHAKE``, it only asked for versions; in ``AUTHENTICATE`` or ``RAW``,
it was authenticating, in SaslAuthenticate requests or in bare frames; in ``REAUTHENTICATE`` or ``OTHER_MECHANISM``, an authenticated client was doing
it again.
"""

from typing import Final

from framegate.proxy.network.state import TableEnum, transition


class ServerState(TableEnum):
    """What is expected next."""

    INITIAL = "initial"  # ApiVersions, SaslHandshake
    HANDSHAKE = "handshake"  # SaslHandshake: ApiVersions was answered
    REAUTHENTICATE = "reauthenticate"  # SaslHandshake of an authenticated client
    AUTHENTICATE = "authenticate"  # SaslAuthenticate
    RAW = "raw"  # the mechanism's tokens as they are
    OTHER_MECHANISM = "other_mechanism"  # any frame; it is refused
    COMPLETE = "complete"  # none


class ServerEvent(TableEnum):
    """A frame, when it is answered."""

    VERSIONS = "versions"  # ApiVersions, answered
    BAD_VERSIONS = "bad_versions"  # ApiVersions that cannot be answered; the client may try again
    HANDSHAKE_RAW = "handshake_raw"  # SaslHandshake v0
    HANDSHAKE_FRAMED = "handshake_framed"  # SaslHandshake v1
    MECHANISM_CHANGED = "mechanism_changed"  # SaslHandshake with another mechanism than before
    TOKEN = "token"  # the mechanism goes on
    PROVED = "proved"  # the mechanism is complete


TRANSITIONS: Final[dict[tuple[ServerState, ServerEvent], ServerState]] = {
    (ServerState.INITIAL, ServerEvent.VERSIONS): ServerState.HANDSHAKE,
    (ServerState.INITIAL, ServerEvent.BAD_VERSIONS): ServerState.INITIAL,
    (ServerState.INITIAL, ServerEvent.HANDSHAKE_RAW): ServerState.RAW,
    (ServerState.INITIAL, ServerEvent.HANDSHAKE_FRAMED): ServerState.AUTHENTICATE,
    (ServerState.HANDSHAKE, ServerEvent.HANDSHAKE_RAW): ServerState.RAW,
    (ServerState.HANDSHAKE, ServerEvent.HANDSHAKE_FRAMED): ServerState.AUTHENTICATE,
    (ServerState.REAUTHENTICATE, ServerEvent.HANDSHAKE_RAW): ServerState.RAW,
    (ServerState.REAUTHENTICATE, ServerEvent.HANDSHAKE_FRAMED): ServerState.AUTHENTICATE,
    (ServerState.REAUTHENTICATE, ServerEvent.MECHANISM_CHANGED): ServerState.OTHER_MECHANISM,
    (ServerState.AUTHENTICATE, ServerEvent.TOKEN): ServerState.AUTHENTICATE,
    (ServerState.AUTHENTICATE, ServerEvent.PROVED): ServerState.COMPLETE,
    (ServerState.RAW, ServerEvent.TOKEN): ServerState.RAW,
    (ServerState.RAW, ServerEvent.PROVED): ServerState.COMPLETE,
}


def next_state(state: ServerState, event: ServerEvent) -> ServerState:
    """The state after ``event``; ``IllegalTransitionError`` when the table has no such row."""
    return transition(TRANSITIONS, state, event)
