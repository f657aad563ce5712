"""Who the peer of a channel is: what finds out, between the transport's handshake and READY. Mechanisms live in ``proxy.auth``.

Contract, held by one check suite over every implementation:

- One authenticator for each channel, made by the factory of its side of what the transport's handshake told. When that is enough it is
  ``complete`` from the start, and nothing else is called of it but ``close``.
- Else ``start`` gives it frames to exchange, on both sides of a connection alike, and somebody who wakes it. Then ``step`` is called when anything
  has happened, until it is ``complete``. Nothing blocks. A step for which nothing has happened changes nothing.
- A step receives at most one frame and sends at most one. The next is made when that is out; the channel is READY when the last is.
- Nothing is read behind the last frame: what the peer sent at once with it is the channel's.
- ``AuthenticationError`` is the end: nothing but ``close`` is called afterwards. The channel waits for its side's ``failed_authentication_delay``,
  sends the error's ``answer``, if it has one, and closes with the cause ``auth_failed``, whatever else comes in between.
- ``close`` is called on every way out, of one that is complete as soon as it is; and may be called twice.

To authenticate again, before ``expires_ns``, a client whose channel is READY is given another one (``AuthenticatorFactory.again``), whose frames go
between those of the traffic (``proxy.relay.session``).
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from proxy.network.frame_exchange import FrameExchange
from proxy.network.timer import NEVER
from proxy.network.transport import DONE, Identity

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
    closed, so that who looks after a question need not know.
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

    def lets_in(self, principal: str) -> bool:
        """Whether a peer that has proved to be this one may be told so. False: not yet; ``step`` is called when that may have changed.

        Raises:
            LoginError: it may not come in.
        """
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator(abc.ABC):
    """Finds out who the peer of one channel is.

    Attributes:
        complete: it knows.
        principal: the name of the peer, once it does.
        principal_type: what kind of a name that is.
        expires_ns: when it stops being true, on the selector's clock, or NEVER.
        renew_ns: when it is we who should authenticate again, or NEVER.
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
            AuthenticationError: the peer is nobody we talk to, or we are nobody for it.
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
    """``ANONYMOUS``, whoever it is."""

    def make(self, identity: Identity) -> Authenticator:
        return NOBODY


class CertificateAuthenticators(AuthenticatorFactory):
    """The certificate's distinguished name, or ``ANONYMOUS`` without one. What a channel uses when it is given no other."""

    def make(self, identity: Identity) -> Authenticator:
        return NOBODY if identity.subject is None else HandshakeAuthenticator(identity.subject)
