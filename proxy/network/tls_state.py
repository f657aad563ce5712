"""The table of the states of a TLS connection. It starts when the socket is connected.

The meaning of the last state before a connection closed: ``NEW``: no TLS byte was received. ``SHAKING``: the handshake was not finished.
``FINISHING``: it was finished, but our last handshake message was not sent. ``UNPROVEN``: the peer may have refused our certificate, and its alert
has not been read. ``READY``: both sides accepted the connection. ``FAILING``: it failed, and the alert is not sent. ``FAILED``: the alert is sent.

A client of TLS 1.3 finishes its handshake before the server has verified its certificate, so it learns of a refusal in ``UNPROVEN``. The first
plaintext byte from the peer ends this state. In TLS 1.2 the last handshake message ends it.
"""

from typing import Final

from framegate.proxy.network.state import TableEnum


class TlsState(TableEnum):
    """The state of a TLS connection."""

    NEW = "new"
    SHAKING = "shaking"
    FINISHING = "finishing"
    UNPROVEN = "unproven"
    READY = "ready"
    FAILING = "failing"
    FAILED = "failed"
    CLOSED = "closed"


class TlsEvent(TableEnum):
    """An event of a TLS connection."""

    BEGIN = "begin"  # the SSL object is created
    FINISH = "finish"  # OpenSSL has finished the handshake
    OUT = "out"  # the pending ciphertext is sent
    PROVED = "proved"  # the peer has sent data that it only sends after it accepted us
    FAIL = "fail"  # OpenSSL or this transport refuses the connection
    CLOSE = "close"  # closed for any cause


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
