"""Logs control in at a broker, by the SASL client of processors (``framegate.proxy.auth.client``), which is stepped here without a selector."""

import asyncio
import contextlib
import time

from framegate.control.accept.broker_connection import BrokerConnection, Login
from framegate.proxy.auth.auth_requests import CredentialSource, PendingAuth
from framegate.proxy.auth.client import SaslClientAuthenticators
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.network.authenticator import Waker
from framegate.proxy.network.frame_exchange import FrameExchange
from framegate.proxy.network.transport import DONE, Identity


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


async def log_in(connection: BrokerConnection, login: Login) -> tuple[ApiRange, ...]:
    """Log in with SASL. Returns the requests that the broker understands. Raises OSError, EOFError: of the connection. ProxyError: the broker refuses
    the login, or answers wrongly.
    """
    frames, questions = _Frames(), _Questions()
    authenticator = SaslClientAuthenticators(login.settings, questions).make(Identity())
    authenticator.start(frames, _Steps())
    with contextlib.closing(authenticator):
        while True:
            complete = authenticator.step() == DONE
            while frames.sent:
                await connection.send(frames.sent.pop(0))
            if complete:
                return authenticator.ranges
            pending = questions.pending
            if pending is None or pending.answer is not None:
                frames.body = await connection.receive()
            else:
                pending.complete(await asyncio.to_thread(login.answer, pending.auth_request))
