"""Why a connection ended: the closed list of words shared by log, metric, API and tap. The metrics' attribute values are made from it."""

import enum
from typing import Final


class Cause(enum.StrEnum):
    """The cause of a close. The first that occurs is the cause of both channels of a pair."""

    PEER_CLOSED = "peer_closed"  # an orderly end by the other side
    PEER_RESET = "peer_reset"  # RST, or an I/O error
    NO_DATA = "no_data"  # closed before a byte came from either side: a port probe
    FRAME_TOO_LARGE = "frame_too_large"
    NEGATIVE_SIZE = "negative_size"
    WRONG_PROTOCOL = "wrong_protocol"  # TLS or HTTP on a plain port
    TLS_FAILED = "tls_failed"
    AUTH_FAILED = "auth_failed"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    IDLE = "idle"
    RECEIVE_STALLED = "receive_stalled"  # a frame begun moved less than min_rate
    SEND_STALLED = "send_stalled"  # a pending send moved less than min_rate
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_CLOSED = "upstream_closed"
    LIMIT = "limit"  # a limit on connections
    ADMIN = "admin"  # an operator closed it
    DRAINED = "drained"
    DRAIN_TIMEOUT = "drain_timeout"
    HANDLER_FAILED = "handler_failed"  # it raised, its process died, or no process answered in time
    PROCESSOR_DIED = "processor_died"
    INTERNAL = "internal"  # our bug; it closes this connection only
    HANDLER_CLOSED = "handler_closed"  # a handler asked for it
    SESSION_EXPIRED = "session_expired"  # a client, or we towards an upstream, did not authenticate again in time; or a client was revoked
    MAX_CONNECTION_AGE = "max_connection_age"  # it was older than its listener allows, and nothing was in flight


ORDERLY_CAUSES: Final = frozenset({Cause.PEER_CLOSED, Cause.NO_DATA, Cause.IDLE, Cause.ADMIN, Cause.DRAINED, Cause.MAX_CONNECTION_AGE})
"""Causes that are no errors: their connections are counted without ``error.type``."""
FAULTY_CAUSES: Final = frozenset({Cause.HANDLER_FAILED, Cause.PROCESSOR_DIED, Cause.INTERNAL})  # Causes that are faults of framegate or of a handler
LEVELS: Final = {str(cause): "error" if cause in FAULTY_CAUSES else "info" if cause in ORDERLY_CAUSES else "warning" for cause in Cause}
"""The level of the row ``closed``, by cause."""
