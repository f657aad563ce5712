"""An authenticator that follows a script: what it receives, sends, waits for, and how it ends. Proven by the same check suite as the real ones."""

import dataclasses
import socket
from collections.abc import Sequence

from framegate.proxy.errors import AuthenticationError, InternalError
from framegate.proxy.network.authenticator import USER, WAIT, Authenticator, AuthenticatorFactory, Waker
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.frame_exchange import MAX_FRAME, FrameExchange
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.transport import DONE, WANT_READ, WANT_WRITE, Identity
from tests.fakes.clock import MS
from tests.fakes.network import NetBench
from tests.fakes.upstream import frame as framed  # noqa: F401 - for the tests


@dataclasses.dataclass(frozen=True)
class Expect:
    """A frame of the peer. Another one is refused, with ``answer``."""

    body: bytes
    answer: bytes = b""


@dataclasses.dataclass(frozen=True)
class Say:
    """A frame to the peer."""

    body: bytes


@dataclasses.dataclass(frozen=True)
class Await:
    """Something outside: ``ScriptedAuthenticator.tell``; or, with ``ns``, so much time."""

    ns: int = 0


@dataclasses.dataclass(frozen=True)
class Refuse:
    """The end, and what the peer is told."""

    reason: str
    answer: bytes = b""


@dataclasses.dataclass(frozen=True)
class Crash:
    """A bug of the authenticator's."""


Act = Expect | Say | Await | Refuse | Crash


class ScriptedAuthenticator(Authenticator):
    """Takes one act in a step, or a frame with what it is answered."""

    def __init__(self, script: Sequence[Act], principal: str, principal_type: str, expires_ns: int, max_size: int) -> None:
        super().__init__()
        # steps, closed: how often
        self.steps = 0
        self.closed = 0
        self.received: list[bytes] = []  # bodies
        # frames, waker: as given to ``start``
        self.frames: FrameExchange | None = None
        self.waker: Waker | None = None
        self._script = list(script)
        self._known = (principal, principal_type, expires_ns)
        self._max_size = max_size
        self._asked = False
        self._told = False
        self._due_ns = 0

    def start(self, frames: FrameExchange, waker: Waker) -> None:
        assert self.frames is None, "started once"
        frames.max_size = self._max_size
        self.frames, self.waker = frames, waker

    def tell(self) -> None:
        """What is waited for has happened."""
        assert self.waker is not None
        self._told = True
        self.waker.wake()

    def step(self) -> int:
        assert not self.closed, "closed is closed"
        self.steps += 1
        frames = self.frames
        assert frames is not None, "started before it is stepped"
        if frames.is_sending:
            return WANT_WRITE
        received = False
        while self._script:
            act = self._script[0]
            if isinstance(act, Expect):
                if received or not self._receive(frames, act):
                    return WANT_READ
                received = True
            elif isinstance(act, Say):
                self._script.pop(0)
                if not frames.send(act.body) and self._script:  # the last need not be out for us to know
                    return WANT_WRITE
            elif isinstance(act, Await):
                if not self._is_over(act):
                    return WAIT
                self._script.pop(0)
            elif isinstance(act, Refuse):
                raise AuthenticationError(act.reason, answer=act.answer)
            else:
                raise InternalError("a bug of the test's")
        self.principal, self.principal_type, self.expires_ns = self._known
        self.complete = True
        return DONE

    def close(self) -> None:
        self.closed += 1
        self.frames = None
        self.principal = ""  # whoever wants to know has asked by now

    def _receive(self, frames: FrameExchange, act: Expect) -> bool:
        body = frames.receive()
        if body is None:
            return False
        self.received.append(body)
        self._script.pop(0)
        if body != act.body:
            raise AuthenticationError("not what was expected", answer=act.answer)
        return True

    def _is_over(self, act: Await) -> bool:
        assert self.waker is not None
        if not self._asked:
            self._asked = True
            self._due_ns = self.waker.now_ns() + act.ns
            if act.ns:
                self.waker.wake_at(self._due_ns)
        over = self._told if act.ns == 0 else self.waker.now_ns() >= self._due_ns
        if over:
            self._asked = self._told = False
        return over


class ScriptedAuthenticators(AuthenticatorFactory):
    def __init__(
        self, *script: Act, principal: str = "somebody", principal_type: str = USER, expires_ns: int = NEVER, max_size: int = MAX_FRAME
    ) -> None:
        self.made: list[ScriptedAuthenticator] = []  # in order
        self.identities: list[Identity] = []  # that they were made of
        self._script = script
        self._known = (principal, principal_type, expires_ns, max_size)

    def make(self, identity: Identity) -> ScriptedAuthenticator:
        self.identities.append(identity)
        made = ScriptedAuthenticator(self._script, *self._known)
        self.made.append(made)
        return made


Begun = tuple[Channel, socket.socket, ScriptedAuthenticator]


def begin(net: NetBench, *script: Act, side: str = "downstream", delay_ms: int = 0, tcp: bool = True) -> Begun:
    """A channel that has made its first step, its peer, and its authenticator."""
    factory = ScriptedAuthenticators(*script)
    options = net.options(side=side, authenticators=factory, failed_authentication_delay_ns=delay_ms * MS)
    channel, peer = net.pair(options, tcp=tcp)
    net.poll()
    return channel, peer, factory.made[0]


def settle(net: NetBench) -> None:
    """What was sent over the loopback is here with the next poll; a timer's step comes one later."""
    net.poll(4)


def steps_in(net: NetBench, authenticator: ScriptedAuthenticator, polls: int = 30) -> int:
    """How many steps it makes in so many polls."""
    before = authenticator.steps
    net.poll(polls)
    return authenticator.steps - before
