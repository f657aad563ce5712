"""From what went wrong to the one cause of a close."""

import errno

from proxy.errors import ConnectError, FrameTooLargeError, NegativeSizeError, PeerError, Side, TlsError, TransportError, WrongProtocolError
from proxy.network import framing
from proxy.network.cause import Cause
from proxy.network.receive import Receive

__all__ = ["cause_of", "refusal"]


def cause_of(error: TransportError) -> Cause:
    """The cause that a failing transport gives its channel."""
    if isinstance(error, TlsError):
        return Cause.TLS_FAILED
    if isinstance(error, ConnectError):
        return Cause.UPSTREAM_TIMEOUT if error.errno == errno.ETIMEDOUT else Cause.UPSTREAM_REFUSED
    return Cause.PEER_RESET


def refusal(receive: Receive, limit: int, side: Side) -> tuple[Cause, PeerError]:
    """The cause and the error for what a receive found wrong; ``limit`` is the one in force."""
    if receive.fault == framing.NOT_OURS:
        return Cause.WRONG_PROTOCOL, WrongProtocolError(receive.foreign, side=side)
    if receive.fault == framing.NEGATIVE_SIZE:
        return Cause.NEGATIVE_SIZE, NegativeSizeError(receive.faulty_size, side=side)
    assert receive.fault == framing.FRAME_TOO_LARGE, "a refusal needs a fault"
    return Cause.FRAME_TOO_LARGE, FrameTooLargeError(receive.faulty_size, limit, side=side)
