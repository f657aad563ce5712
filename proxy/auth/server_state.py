"""The exchange with a client that authenticates, as a table of states.

What it means when a connection ends in a state: ``INITIAL`` nothing that can be used came; ``HANDSHAKE`` the client asked for versions and no more;
``AUTHENTICATE`` and ``RAW`` it was proving who it is, in SaslAuthenticate requests or in bare frames; ``REAUTHENTICATE`` and ``OTHER_MECHANISM`` the
same of who is known already and proves it once more.
"""

from typing import Final

from framegate.proxy.network.state import TableEnum, transition

__all__ = [
    "AUTHENTICATE",
    "COMPLETE",
    "HANDSHAKE",
    "INITIAL",
    "OTHER_MECHANISM",
    "RAW",
    "REAUTHENTICATE",
    "TRANSITIONS",
    "ServerEvent",
    "ServerState",
    "next_state",
]


class ServerState(TableEnum):
    """Which frame may come next."""

    INITIAL = "initial"  # ApiVersions, SaslHandshake
    HANDSHAKE = "handshake"  # SaslHandshake: ApiVersions was answered
    REAUTHENTICATE = "reauthenticate"  # SaslHandshake of an authenticated client
    AUTHENTICATE = "authenticate"  # SaslAuthenticate
    RAW = "raw"  # the mechanism's tokens as they are
    OTHER_MECHANISM = "other_mechanism"  # anything: it is refused
    COMPLETE = "complete"  # none


class ServerEvent(TableEnum):
    """What a frame was, once it is answered."""

    VERSIONS = "versions"  # ApiVersions, answered
    BAD_VERSIONS = "bad_versions"  # ApiVersions that cannot be answered; the client may try again
    HANDSHAKE_RAW = "handshake_raw"  # SaslHandshake v0
    HANDSHAKE_FRAMED = "handshake_framed"  # SaslHandshake v1
    MECHANISM_CHANGED = "mechanism_changed"  # SaslHandshake with another mechanism than before
    TOKEN = "token"  # the mechanism goes on
    PROVED = "proved"  # the mechanism is complete


INITIAL: Final = ServerState.INITIAL
HANDSHAKE: Final = ServerState.HANDSHAKE
REAUTHENTICATE: Final = ServerState.REAUTHENTICATE
AUTHENTICATE: Final = ServerState.AUTHENTICATE
RAW: Final = ServerState.RAW
OTHER_MECHANISM: Final = ServerState.OTHER_MECHANISM
COMPLETE: Final = ServerState.COMPLETE

TRANSITIONS: Final[dict[tuple[ServerState, ServerEvent], ServerState]] = {
    (INITIAL, ServerEvent.VERSIONS): HANDSHAKE,
    (INITIAL, ServerEvent.BAD_VERSIONS): INITIAL,
    (INITIAL, ServerEvent.HANDSHAKE_RAW): RAW,
    (INITIAL, ServerEvent.HANDSHAKE_FRAMED): AUTHENTICATE,
    (HANDSHAKE, ServerEvent.HANDSHAKE_RAW): RAW,
    (HANDSHAKE, ServerEvent.HANDSHAKE_FRAMED): AUTHENTICATE,
    (REAUTHENTICATE, ServerEvent.HANDSHAKE_RAW): RAW,
    (REAUTHENTICATE, ServerEvent.HANDSHAKE_FRAMED): AUTHENTICATE,
    (REAUTHENTICATE, ServerEvent.MECHANISM_CHANGED): OTHER_MECHANISM,
    (AUTHENTICATE, ServerEvent.TOKEN): AUTHENTICATE,
    (AUTHENTICATE, ServerEvent.PROVED): COMPLETE,
    (RAW, ServerEvent.TOKEN): RAW,
    (RAW, ServerEvent.PROVED): COMPLETE,
}


def next_state(state: ServerState, event: ServerEvent) -> ServerState:
    """The state after ``event``; ``IllegalTransitionError`` when the table has no such row."""
    return transition(TRANSITIONS, state, event)
