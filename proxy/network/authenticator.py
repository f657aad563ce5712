"""The interface of authenticators, which find out a peer's principal between the transport's handshake and READY. Mechanisms: ``proxy.auth``.

The contract, which one test suite checks for every implementation:

- A channel has one authenticator, made by the factory of its side from the result of the transport's handshake. If this result is enough, the
  authenticator is ``complete`` from the start, and only ``close`` is called.
- Else ``start`` gives it a frame exchange and a waker. Then ``step`` is called after each event until it is ``complete``. Nothing blocks. A step
  without an event changes nothing.
- A step receives at most one frame and sends at most one. The next step follows when that frame is sent; the channel is READY when the last is sent.
- Nothing is read after the last frame: the bytes behind it belong to the channel.
- After ``AuthenticationError`` only ``close`` is called. The channel waits for its side's ``failed_authentication_delay``, sends the error's
  ``answer``, if it has one, and closes with the cause ``auth_failed``.
- ``close`` is called in every case, at once after ``complete``; it may be called twice.

To authenticate again before ``expires_ns``, a client of a READY channel gets another authenticator (``AuthenticatorFactory.again``), whose frames
come between those of the traffic (``framegate.proxy.relay.session``).
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.frame_exchange import FrameExchange
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.transport import DONE, Identity

ANONYMOUS: Final = "ANONYMOUS"
USER: Final = "User"

WAIT: Final = 4  # a result of ``step`` beside those of a transport's handshake: wait for the waker


@mypyc_attr(allow_interpreted_subclasses=True)
class Waker(abc.ABC):
    """Wakes an authenticator, in the thread of its selector. No effect once the channel is READY or closed."""

    @abc.abstractmethod
    def now_ns(self) -> i64:
        """The time at which the wait of this poll ended, on the selector's clock."""

    @abc.abstractmethod
    def wake(self) -> None:
        """Have ``step`` called, in this poll or in the next one."""

    @abc.abstractmethod
    def wake_at(self, deadline_ns: i64) -> None:
        """Have ``step`` called at a time on the selector's clock; NEVER: not at all. An earlier time is void."""

    def admits_principal(self, principal: str) -> bool:
        """Whether an authenticated peer may connect. False: not yet; ``step`` is called when that may have changed. Raises LoginError: the peer is
        refused.
        """
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator(abc.ABC):
    """Finds out the principal of the peer of one channel."""

    def __init__(self) -> None:
        self.complete: bool = False  # the principal is known
        self.principal: str = ""  # the name of the peer, once ``complete``
        self.principal_type: str = USER  # the kind of the name
        self.expires_ns: i64 = NEVER  # when the authentication expires, on the selector's clock, or NEVER
        self.renew_ns: i64 = NEVER  # when framegate should authenticate again, or NEVER

    @abc.abstractmethod
    def start(self, frames: FrameExchange, waker: Waker) -> None:
        """Called once, before the first step, if the authenticator was not ``complete``. It must do no I/O here."""

    @abc.abstractmethod
    def step(self) -> i64:
        """Continue as far as possible now. Returns: DONE if it is ``complete``; WANT_READ; WANT_WRITE while a frame is not sent completely; WAIT for
        its waker. Raises AuthenticationError: the peer is refused, or refuses us; TransportError: the network failed; WrongProtocolError: the peer
        speaks another protocol.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything that it holds, and cancel its requests. Does not raise."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthenticatorFactory(abc.ABC):
    """Makes the authenticators of the clients of one listener, or of the connections to one upstream."""

    @abc.abstractmethod
    def make(self, identity: Identity) -> Authenticator:
        """Make one for a channel whose transport has finished its handshake. Raises AuthenticationError: the peer is refused for the result of the
        handshake; the channel is closed at once.
        """

    def again(self, identity: Identity, principal: str) -> Authenticator | None:
        """Make one for a later authentication on a READY channel: of the client, or of framegate at an upstream. None: there is none."""
        return None


class HandshakeAuthenticator(Authenticator):
    """An authenticator that is complete after the transport's handshake."""

    def __init__(self, principal: str) -> None:
        super().__init__()
        self.complete = True
        self.principal = principal

    def start(self, frames: FrameExchange, waker: Waker) -> None:
        pass

    def step(self) -> i64:
        return DONE

    def close(self) -> None:
        pass


ANONYMOUS_PEER: Final = HandshakeAuthenticator(ANONYMOUS)  # has no state, so all anonymous channels share it


class AnonymousAuthenticators(AuthenticatorFactory):
    """``ANONYMOUS`` for every peer."""

    def make(self, identity: Identity) -> Authenticator:
        return ANONYMOUS_PEER


class CertificateAuthenticators(AuthenticatorFactory):
    """The certificate's distinguished name, or ``ANONYMOUS`` without one. The default of a channel."""

    def make(self, identity: Identity) -> Authenticator:
        return ANONYMOUS_PEER if identity.subject is None else HandshakeAuthenticator(identity.subject)
