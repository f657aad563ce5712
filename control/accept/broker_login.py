"""The processors' SASL client (``framegate.proxy.auth.client``) without a selector: its frames and its questions are taken one by one."""

import time
from typing import Final

from framegate.proxy.auth.auth_requests import CredentialSource, PendingAuth
from framegate.proxy.auth.client import SaslClientAuthenticators, SaslClientSettings
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.network.authenticator import Waker
from framegate.proxy.network.frame_exchange import FrameExchange
from framegate.proxy.network.transport import DONE, Identity

__all__ = ["Exchange"]


class _Frames(FrameExchange):
    """``body``: the frame that came last; ``sent``: those to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.body: bytes | None = None
        self.sent: list[bytes] = []

    @property
    def is_sending(self) -> bool:
        return False

    def receive(self) -> bytes | None:
        body, self.body = self.body, None
        return body

    def send(self, body: bytes) -> bool:
        self.sent.append(body)
        return True


class _Questions(CredentialSource):
    """Keeps the one question that an authenticator has."""

    def __init__(self) -> None:
        self.pending: PendingAuth | None = None

    def ask(self, pending_auth: PendingAuth) -> None:
        self.pending = pending_auth

    def forget(self, pending_auth: PendingAuth) -> None:
        self.pending = None


class _Steps(Waker):
    """Wakes nobody: the steps are taken by who has the answer."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wake(self) -> None:
        pass

    def wake_at(self, deadline_ns: int) -> None:
        pass


class Exchange:
    """One login, over one connection. ``step`` again after ``body`` was set, or after ``pending`` was completed."""

    def __init__(self, settings: SaslClientSettings) -> None:
        self._frames: Final = _Frames()
        self._questions: Final = _Questions()
        self._authenticator: Final = SaslClientAuthenticators(settings, self._questions).make(Identity())
        self._authenticator.start(self._frames, _Steps())

    @property
    def ranges(self) -> tuple[ApiRange, ...]:
        """The requests that the broker understands, once it has said so."""
        return self._authenticator.ranges

    @property
    def pending(self) -> PendingAuth | None:
        """A question that is not answered yet; None: a frame is awaited."""
        pending = self._questions.pending
        return pending if pending is not None and pending.answer is None else None

    @property
    def body(self) -> bytes | None:
        """The frame that came last; None once it was taken."""
        return self._frames.body

    @body.setter
    def body(self, body: bytes) -> None:
        self._frames.body = body

    def step(self) -> bool:
        """Continue. Returns whether the login is complete. Raises ProxyError."""
        return self._authenticator.step() == DONE

    def taken(self) -> list[bytes]:
        """The frames to be sent since the last call."""
        sent, self._frames.sent = self._frames.sent, []
        return sent

    def close(self) -> None:
        """Forget the secret."""
        self._authenticator.close()
