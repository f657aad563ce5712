"""Whom authenticators ask in these tests, and who talks to them."""

from collections.abc import Callable, Iterator

import pytest

from proxy.auth import questions as q
from proxy.auth.messages import ApiRange
from proxy.auth.questions import Answer, CredentialSource, Inquiry, Question
from proxy.errors import AuthenticationError
from proxy.network.authenticator import WAIT, Authenticator
from proxy.network.frame_exchange import TransportFrames
from proxy.network.memory_pool import MemoryPool
from proxy.network.transport import DONE, WANT_READ
from tests.fakes.clock import SECOND, FakeClock
from tests.fakes.network import NetBench, net_bench
from tests.fakes.sasl_frames import PASSWORD, USER_NAME, keys, known_apis, stored
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import memory_transports
from tests.proxy.network.test_authenticator import Alarm


def usual_answer(question: Question) -> Answer:
    """One user, whose token is ``good``; for him as a client, too."""
    if isinstance(question, q.SupportedApis):
        return known_apis(ApiRange(0, 3, 11))
    if isinstance(question, q.WantCredential):
        return stored(question.mechanism, is_known=question.user == USER_NAME)
    if isinstance(question, q.CheckPassword):
        return q.Accepted(USER_NAME) if (question.user, question.password) == (USER_NAME, PASSWORD) else q.Refused("no")
    if isinstance(question, q.CheckToken):
        return q.Accepted(USER_NAME) if question.token == "good" else q.Refused("bad token")
    if isinstance(question, q.WantSecret) and question.credential == "token":
        return q.Secret("good")
    assert isinstance(question, q.WantSecret | q.WantScramKeys)
    return keys(question)


class Desk(CredentialSource):
    """Answers at once, or when told to.

    Attributes:
        answer: how.
        late: not at once.
        asked: every question, in order.
        open: not answered yet.
        forgotten: given up.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Question], Answer] = usual_answer
        self.late = False
        self.asked: list[Question] = []
        self.open: list[Inquiry] = []
        self.forgotten: list[Inquiry] = []

    def ask(self, inquiry: Inquiry) -> None:
        self.asked.append(inquiry.question)
        self.open.append(inquiry)
        if not self.late:
            self.settle()

    def settle(self) -> None:
        """Answer what is open."""
        waiting, self.open = self.open, []
        for inquiry in waiting:
            inquiry.settle(self.answer(inquiry.question))

    def forget(self, inquiry: Inquiry) -> None:
        self.forgotten.append(inquiry)
        self.open.remove(inquiry)


@pytest.fixture
def net() -> Iterator[NetBench]:
    with net_bench() as bench:
        yield bench


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    """Certificates, made once for all tests."""
    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def desk() -> Desk:
    return Desk()


class Talk:
    """One authenticator between two transports in memory, and its peer.

    Attributes:
        one: the authenticator.
        alarm: its waker, with its clock.
        code: what the last step waits for.
    """

    def __init__(self, one: Authenticator) -> None:
        self.one = one
        self.alarm = Alarm(FakeClock())
        self.alarm.clock.now = 1000 * SECOND
        ours, self.peer = memory_transports(1 << 20)
        self.pool = MemoryPool(1 << 20, self.alarm.clock.now_ns)
        self.frames = TransportFrames(ours, self.pool.common, "downstream")
        self.code = WANT_READ
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
