"""Whom authenticators ask in these tests, and who talks to them."""

from collections.abc import Callable

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse, CredentialSource, PendingAuth
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import WAIT, Authenticator
from framegate.proxy.network.frame_exchange import TransportFrames
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.transport import DONE, WANT_READ
from tests.fakes.clock import SECOND, FakeClock
from tests.fakes.sasl_frames import PASSWORD, USER_NAME, keys, known_apis, stored
from tests.fakes.transport import memory_transports
from tests.proxy.network.conftest import Alarm


def usual_answer(auth_request: AuthRequest) -> AuthResponse:
    """One user, whose token is ``good``; for him as a client, too."""
    if isinstance(auth_request, q.SupportedApis):
        return known_apis(ApiRange(0, 3, 11))
    if isinstance(auth_request, q.WantCredential):
        return stored(auth_request.mechanism, is_known=auth_request.user == USER_NAME)
    if isinstance(auth_request, q.CheckPassword):
        return q.Accepted(USER_NAME) if (auth_request.user, auth_request.password) == (USER_NAME, PASSWORD) else q.Refused("no")
    if isinstance(auth_request, q.CheckToken):
        return q.Accepted(USER_NAME) if auth_request.token == "good" else q.Refused("bad token")
    if isinstance(auth_request, q.WantSecret) and auth_request.credential == "token":
        return q.Secret("good")
    assert isinstance(auth_request, q.WantSecret | q.WantScramKeys)
    return keys(auth_request)


class AuthSource(CredentialSource):
    """Answers at once, or when told to."""

    def __init__(self, *, late: bool = False) -> None:
        self.answer: Callable[[AuthRequest], AuthResponse] = usual_answer  # how
        self.late = late  # not at once
        self.asked: list[AuthRequest] = []  # every question, in order
        self.open: list[PendingAuth] = []  # not answered yet
        self.forgotten: list[PendingAuth] = []  # given up

    def ask(self, pending_auth: PendingAuth) -> None:
        self.asked.append(pending_auth.auth_request)
        self.open.append(pending_auth)
        if not self.late:
            self.settle()

    def settle(self) -> None:
        """Answer what is open."""
        waiting, self.open = self.open, []
        for pending_auth in waiting:
            pending_auth.complete(self.answer(pending_auth.auth_request))

    def forget(self, pending_auth: PendingAuth) -> None:
        self.forgotten.append(pending_auth)
        self.open.remove(pending_auth)


@pytest.fixture
def auth_source() -> AuthSource:
    return AuthSource()


class Talk:
    """One authenticator between two transports in memory, and its peer."""

    def __init__(self, one: Authenticator) -> None:
        self.one = one  # the authenticator
        self.alarm = Alarm(FakeClock())  # its waker, with its clock
        self.alarm.clock.now = 1000 * SECOND
        ours, self.peer = memory_transports(1 << 20)
        self.pool = MemoryPool(1 << 20, self.alarm.clock.now_ns)
        self.frames = TransportFrames(ours, self.pool.common, "downstream")
        self.code = WANT_READ  # what the last step waits for
        one.start(self.frames, self.alarm)

    def say(self, *bodies: bytes) -> list[bytes]:
        """Send frames; the frames that are answered until it waits or is done."""
        for body in bodies:
            self.peer.write(len(body).to_bytes(4, "big") + body)
        for _ in range(2 * len(bodies) + 8):  # a step for which nothing has happened changes nothing
            assert self.frames.flush()
            self.code = int(self.one.step())
            if self.code in (DONE, WAIT):
                break
        return self.heard()

    def heard(self) -> list[bytes]:
        """The frames that were sent."""
        data = self.peer.read(1 << 20) or b""
        found = []
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    def refused(self, *bodies: bytes) -> AuthenticationError:
        """Send frames, the last of which is refused."""
        with pytest.raises(AuthenticationError) as caught:
            self.say(*bodies)
        assert (self.one.complete, self.one.principal) == (False, "")
        self.one.close()
        self.frames.close()
        assert self.pool.used == 0
        return caught.value
