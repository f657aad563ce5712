"""The life of a TLS connection, as a table. It begins where the socket is connected.

What it means when one ends in a state: ``NEW`` no byte of TLS came; ``SHAKING`` the handshake did not come to an end; ``FINISHING`` it did, but what
tells the peer so is not out; ``UNPROVEN`` the peer may have refused us and we have not heard it; ``READY`` a working connection ended; ``FAILING``
it failed, and the alert that says why is not out; ``FAILED`` the peer can know why.

``UNPROVEN`` is where a client of TLS 1.3 learns that its certificate was refused: its handshake ends before the server has looked at the certificate.
The first byte of plaintext ends it. In TLS 1.2 the handshake's own last message does.
"""

from typing import Final

from framegate.proxy.network.state_table import TableEnum, transition

__all__ = ["FAILING", "FINISHING", "NEW", "READY", "SHAKING", "TRANSITIONS", "UNPROVEN", "TlsEvent", "TlsState", "next_state"]


class TlsState(TableEnum):
    """Where a TLS connection is in its life."""

    NEW = "new"
    SHAKING = "shaking"
    FINISHING = "finishing"
    UNPROVEN = "unproven"
    READY = "ready"
    FAILING = "failing"
    FAILED = "failed"
    CLOSED = "closed"


class TlsEvent(TableEnum):
    """What happens to it."""

    BEGIN = "begin"  # OpenSSL has its part of the handshake
    FINISH = "finish"  # OpenSSL says that the handshake is over
    OUT = "out"  # what waited for the socket is out
    PROVED = "proved"  # the peer has said something that it says to nobody whom it refuses
    FAIL = "fail"  # OpenSSL, or we, want no more of it
    CLOSE = "close"  # for any cause


NEW: Final = TlsState.NEW
SHAKING: Final = TlsState.SHAKING
FINISHING: Final = TlsState.FINISHING
UNPROVEN: Final = TlsState.UNPROVEN
READY: Final = TlsState.READY
FAILING: Final = TlsState.FAILING
FAILED: Final = TlsState.FAILED
CLOSED: Final = TlsState.CLOSED

TRANSITIONS: Final[dict[tuple[TlsState, TlsEvent], TlsState]] = {
    (NEW, TlsEvent.BEGIN): SHAKING,
    (NEW, TlsEvent.FAIL): FAILING,
    (SHAKING, TlsEvent.FINISH): FINISHING,
    (SHAKING, TlsEvent.FAIL): FAILING,
    (FINISHING, TlsEvent.OUT): UNPROVEN,
    (FINISHING, TlsEvent.FAIL): FAILING,
    (UNPROVEN, TlsEvent.PROVED): READY,
    (UNPROVEN, TlsEvent.FAIL): FAILING,
    (READY, TlsEvent.FAIL): FAILING,
    (FAILING, TlsEvent.OUT): FAILED,
    (NEW, TlsEvent.CLOSE): CLOSED,
    (SHAKING, TlsEvent.CLOSE): CLOSED,
    (FINISHING, TlsEvent.CLOSE): CLOSED,
    (UNPROVEN, TlsEvent.CLOSE): CLOSED,
    (READY, TlsEvent.CLOSE): CLOSED,
    (FAILING, TlsEvent.CLOSE): CLOSED,
    (FAILED, TlsEvent.CLOSE): CLOSED,
}


def next_state(state: TlsState, event: TlsEvent) -> TlsState:
    """The state after ``event``; ``IllegalTransitionError`` when the table has no such row."""
    return transition(TRANSITIONS, state, event)
