"""From an error to the cause of the close."""

import errno
import os
import socket

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import (
    AuthenticationError,
    ConnectError,
    FrameTooLargeError,
    NegativeSizeError,
    PeerError,
    TlsError,
    TransportError,
    WrongProtocolError,
)
from framegate.proxy.network import framing
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import Receive


def raise_error_of(sock: socket.socket, *, connecting: bool = False) -> None:
    """Raise the error that the kernel keeps for a socket, if there is one. Raises ConnectError: the socket was ``connecting``; TransportError: it was
    connected.
    """
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number != 0 and connecting:
        raise ConnectError(os.strerror(number), side="upstream", errno=number)
    if number != 0:
        raise TransportError(os.strerror(number), errno=number)


def end_of_handshake(received: i64, shown: i64) -> Cause:
    """Return the cause for a peer that ends its stream within the handshake, after so many bytes. A client that was ``shown`` some, our certificate,
    refuses it: some libraries send no alert.
    """
    if shown != 0:
        return Cause.TLS_FAILED
    return Cause.NO_DATA if received == 0 else Cause.PEER_CLOSED


def cause_of(error: TransportError | AuthenticationError | WrongProtocolError, shown: i64 = 0) -> Cause:
    """Return the cause for an error of a transport or an authenticator. ``shown``: as of ``end_of_handshake``, if a client is within it."""
    if isinstance(error, AuthenticationError):
        return Cause.AUTH_FAILED
    if isinstance(error, WrongProtocolError):
        return Cause.WRONG_PROTOCOL
    if isinstance(error, TlsError):
        return Cause.TLS_FAILED
    if isinstance(error, ConnectError):
        return Cause.UPSTREAM_TIMEOUT if error.errno == errno.ETIMEDOUT else Cause.UPSTREAM_REFUSED
    return Cause.PEER_RESET if shown == 0 else Cause.TLS_FAILED


def refusal(receive: Receive, options: ChannelOptions) -> tuple[Cause, PeerError | AuthenticationError]:
    """Return the cause and the error for the fault of a receive."""
    side = options.side
    if receive.fault == framing.NOT_OURS:
        return Cause.WRONG_PROTOCOL, WrongProtocolError(receive.foreign, side=side)
    if receive.fault == framing.NEGATIVE_SIZE:
        return Cause.NEGATIVE_SIZE, NegativeSizeError(receive.faulty_size, side=side)
    if receive.fault == framing.SASL_TOO_LARGE:
        text = f"frame of {receive.faulty_size} bytes where at most {options.sasl_limit} are taken to authenticate"
        return Cause.AUTH_FAILED, AuthenticationError(text, side=side)
    assert receive.fault == framing.FRAME_TOO_LARGE, "a refusal needs a fault"
    onward = options.onward
    most, limit = receive.most, receive.max_size
    beyond = onward is not None and most == onward.max_body < max(limit.value, limit.passed_to)
    rule = limit.rule if limit.passed_to < 0 and not beyond else ""  # above that of a rule that reports only, it is the listener's
    return Cause.FRAME_TOO_LARGE, FrameTooLargeError(
        receive.faulty_size, most, side=side, framing=onward.name if onward and beyond else "", rule=rule
    )
