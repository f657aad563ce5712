"""The questions of a processor's authenticators, on their way to control and back. All in the selector's thread.

What is secret passes through: it is kept nowhere here, and in no text. A question without an answer ends with its channel's handshake timeout,
which has it forgotten; control is told, so that it does not work for nobody.
"""

from collections.abc import Callable, Mapping
from typing import Final

from framegate.proxy.auth.auth_requests import AuthResponse, CredentialSource, PendingAuth, Unavailable
from framegate.proxy.config.limits import client_key
from framegate.proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice
from framegate.proxy.server.question_codec import answer_from_row, check_answer, row_of

__all__ = ["MAX_OPEN", "MAX_QUESTION", "Credentials", "listener_auth_queue", "upstream_auth_queue"]

MAX_OPEN: Final = 1024
"""Questions of a processor that control has not answered: more would wait longer than clients do. An address may have as many of them as are left, so
that one alone has half, and others find room.
"""
MAX_QUESTION: Final = 65536
"""Characters in the fields of one; what is longer is no password, and no token that anybody takes."""


def listener_auth_queue(name: str) -> str:
    """The desk for the clients of a listener."""
    return f"listener:{name}"


def upstream_auth_queue(name: str) -> str:
    """The desk for our logins to an upstream."""
    return f"upstream:{name}"


class Credentials:
    """All that are open. ``attach`` comes before the first question."""

    def __init__(self) -> None:
        self._open: Final[dict[int, PendingAuth]] = {}
        self._numbers: Final[dict[PendingAuth, int]] = {}
        self._asked: int = 0
        self._of_address: Final[dict[str, int]] = {}
        self._report: Callable[[Mapping[str, object]], None] | None = None

    def attach(self, tell: Callable[[Mapping[str, object]], None]) -> None:
        """``tell`` sends a message to control, which must arrive."""
        self._report = tell

    @property
    def open(self) -> int:
        """Questions without an answer."""
        return len(self._open)

    def source(self, name: str) -> CredentialSource:
        """Whom authenticators ask that have to do with one listener, or with upstreams."""
        return _Desk(self, name)

    def ask(self, auth_queue: str, pending_auth: PendingAuth) -> None:
        """Pass a question on; see ``CredentialSource.ask``."""
        if self._report is None:
            pending_auth.complete(Unavailable("the link to the control process is gone"))
            return
        kind, row = row_of(pending_auth.auth_request)
        address = client_key(pending_auth.peer)
        own = self._of_address.get(address, 0)
        if own >= MAX_OPEN - len(self._open):
            pending_auth.complete(Unavailable(f"{len(self._open)} questions of this processor wait for an answer, {own} of them of this address"))
        elif sum(len(value) for value in row.values() if isinstance(value, str)) > MAX_QUESTION:
            pending_auth.complete(Unavailable(f"{kind} of more than {MAX_QUESTION} characters"))
        else:
            self._asked += 1
            self._open[self._asked] = pending_auth
            self._numbers[pending_auth] = self._asked
            self._of_address[address] = own + 1
            self._report(QuestionNotice(type="question", number=self._asked, desk=auth_queue, address=address, kind=kind, row=row))

    def forget(self, pending_auth: PendingAuth) -> None:
        """Nobody waits for it any more; see ``CredentialSource.forget``."""
        number = self._numbers.pop(pending_auth, 0)
        if number:
            del self._open[number]
            self._settled(pending_auth)
            if self._report is not None:
                self._report(ForgetNotice(type="forget", number=number))

    def answered(self, message: AnswerCommand) -> None:
        """Control's answer. One that is not wanted any more is passed over.

        Raises:
            MessageError: it is not as declared, and its question waits on; or it cannot be read all the same, and its question is ``Unavailable``.
        """
        check_answer(message["kind"], message["row"])
        pending_auth = self._open.pop(message["number"], None)
        if pending_auth is None:
            return
        del self._numbers[pending_auth]
        self._settled(pending_auth)
        answer: AuthResponse = Unavailable("control's answer cannot be read")
        try:
            answer = answer_from_row(message["kind"], message["row"])
        finally:
            pending_auth.complete(answer)

    def _settled(self, pending_auth: PendingAuth) -> None:
        """One fewer is open of its address."""
        address = client_key(pending_auth.peer)
        left = self._of_address[address] - 1
        if left:
            self._of_address[address] = left
        else:
            del self._of_address[address]

    def lose(self) -> None:
        """The link is gone: nothing will be answered any more."""
        self._report = None
        waiting = list(self._open.values())
        self._open.clear()
        self._numbers.clear()
        self._of_address.clear()
        for pending_auth in waiting:
            pending_auth.complete(Unavailable("the link to the control process is gone"))


class _Desk(CredentialSource):
    def __init__(self, credentials: Credentials, name: str) -> None:
        self._credentials: Final = credentials
        self._name: Final = name

    def ask(self, pending_auth: PendingAuth) -> None:
        self._credentials.ask(self._name, pending_auth)

    def forget(self, pending_auth: PendingAuth) -> None:
        self._credentials.forget(pending_auth)
