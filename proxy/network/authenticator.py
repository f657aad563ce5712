"""The interface of authenticators: they find out a peer's principal between the transport's handshake and READY. Mechanisms are in ``proxy.auth``.

Contract, checked by one suite for every implementation:

- A channel has one authenticator, made by the factory of its side from the result of the transport's handshake. If that is enough it is ``complete``
  from the start, and only ``close`` is called.
- Else ``start`` gives it a frame exchange and a waker. Then ``step`` is called after each event until it is ``complete``. Nothing blocks. A step
  without an event changes nothing.
- A step receives at most one frame and sends at most one. The next step follows when that is out; the channel is READY when the last is out.
- Nothing is read after the last frame: what the peer sent behind it belongs to the channel.
- After ``AuthenticationError`` only ``close`` is called. The channel waits for its side's ``failed_authentication_delay``, sends the error's
  ``answer``, if it has one, and closes with the cause ``auth_failed``.
- ``close`` is called on every way out, at once after ``complete``; it may be called twice.

To authenticate again before ``expires_ns``, a client of a READY channel gets another authenticator (``AuthenticatorFactory.again``), whose frames go
between those of the traffic (``framegate.proxy.relay.session``).
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.frame_exchange import FrameExchange
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.transport import DONE, Identity

__all__ = [
    "ANONYMOUS",
    "USER",
    "WAIT",
    "AnonymousAuthenticators",
    "Authenticator",
    "AuthenticatorFactory",
    "CertificateAuthenticators",
    "HandshakeAuthenticator",
    "Waker",
]

ANONYMOUS: Final = "ANONYMOUS"
USER: Final = "User"

WAIT: Final = 4  # beside what a transport's handshake waits for: neither bytes nor room for them


@mypyc_attr(allow_interpreted_subclasses=True)
class Waker(abc.ABC):
    """Wakes an authenticator that waits for something that is not its peer. Only in the thread of its selector; harmless once the channel is READY or
    closed, so that the owner of a request need not check.
    """

    @abc.abstractmethod
    def now_ns(self) -> i64:
        """The selector's clock, as it was when the wait of this poll ended."""

    @abc.abstractmethod
    def wake(self) -> None:
        """Have ``step`` called, in this poll or in the next one."""

    @abc.abstractmethod
    def wake_at(self, deadline_ns: i64) -> None:
        """Have ``step`` called at a time on the selector's clock, instead of the time that was said before; NEVER: not at all."""

    def admits_principal(self, principal: str) -> bool:
        """Whether a peer that has proved to be this one may be told so. False: not yet; ``step`` is called when that may have changed.

        Raises:
            LoginError: it may not come in.
        """
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator(abc.ABC):
    """Finds out the principal of the peer of one channel.

    Attributes:
        complete: it knows.
        principal: the name of the peer, once it does.
        principal_type: what kind of a name that is.
        expires_ns: when it stops being true, on the selector's clock, or NEVER.
        renew_ns: when framegate should authenticate again, or NEVER.
    """

    def __init__(self) -> None:
        self.complete: bool = False
        self.principal: str = ""
        self.principal_type: str = USER
        self.expires_ns: i64 = NEVER
        self.renew_ns: i64 = NEVER

    @abc.abstractmethod
    def start(self, frames: FrameExchange, waker: Waker) -> None:
        """The transport's handshake was not enough: what to go on with. Called once, before the first step. No I/O from here."""

    @abc.abstractmethod
    def step(self) -> i64:
        """Take it as far as it goes now.

        Returns:
            DONE when it is ``complete``; WANT_READ; WANT_WRITE while something it sent is not out; WAIT for its waker.

        Raises:
            AuthenticationError: the peer is refused, or refuses us.
            TransportError: the network failed.
            WrongProtocolError: the peer speaks another protocol.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give up what it holds and has asked for. Does not raise."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthenticatorFactory(abc.ABC):
    """Makes the authenticators of the clients of one listener, or of the connections to one upstream."""

    @abc.abstractmethod
    def make(self, identity: Identity) -> Authenticator:
        """One for a channel whose transport's handshake is done.

        Raises:
            AuthenticationError: what that told is enough to refuse the peer; the channel is closed at once.
        """

    def again(self, identity: Identity, principal: str) -> Authenticator | None:
        """One for a peer that is known: a client that is to prove once more that it is the same, or an upstream to which we prove it once more;
        None: nobody has to do that here.
        """
        return None


class HandshakeAuthenticator(Authenticator):
    """Knows all there is to know from the transport's handshake."""

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


NOBODY: Final = HandshakeAuthenticator(ANONYMOUS)  # of all who have no name: it holds nothing that is of one channel


class AnonymousAuthenticators(AuthenticatorFactory):
    """``ANONYMOUS`` for every peer."""

    def make(self, identity: Identity) -> Authenticator:
        return NOBODY


class CertificateAuthenticators(AuthenticatorFactory):
    """The certificate's distinguished name, or ``ANONYMOUS`` without one. What a channel uses when it is given no other."""

    def make(self, identity: Identity) -> Authenticator:
        return NOBODY if identity.subject is None else HandshakeAuthenticator(identity.subject)
