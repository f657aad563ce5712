"""The questions of a processor's authenticators, on their way to control and back. All in the selector's thread.

What is secret passes through: it is kept nowhere here, and in no text. A question without an answer ends with its channel's handshake timeout,
which has it forgotten; control is told, so that it does not work for nobody.
"""

from collections.abc import Callable, Mapping
from typing import Final

from proxy.auth.questions import Answer, CredentialSource, Inquiry, Unavailable
from proxy.config.limits import client_key
from proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice
from proxy.server.question_codec import answer_from_row, row_of

__all__ = ["MAX_OPEN", "MAX_QUESTION", "Credentials", "desk_of_listener", "desk_of_upstream"]

MAX_OPEN: Final = 1024
"""Questions of a processor that control has not answered: more would wait longer than clients do. An address may have as many of them as are left, so
that one alone has half, and others find room.
"""
MAX_QUESTION: Final = 65536
"""Characters in the fields of one; what is longer is no password, and no token that anybody takes."""


def desk_of_listener(name: str) -> str:
    """The desk for the clients of a listener."""
    return f"listener:{name}"


def desk_of_upstream(name: str) -> str:
    """The desk for our logins to an upstream."""
    return f"upstream:{name}"


class Credentials:
    """All that are open. ``attach`` comes before the first question."""

    def __init__(self) -> None:
        self._open: Final[dict[int, Inquiry]] = {}
        self._numbers: Final[dict[Inquiry, int]] = {}
        self._asked: int = 0
        self._of_address: Final[dict[str, int]] = {}
        self._tell: Callable[[Mapping[str, object]], None] | None = None

    def attach(self, tell: Callable[[Mapping[str, object]], None]) -> None:
        """``tell`` sends a message to control, which must arrive."""
        self._tell = tell

    @property
    def open(self) -> int:
        """Questions without an answer."""
        return len(self._open)

    def desk(self, name: str) -> CredentialSource:
        """Whom authenticators ask that have to do with one listener, or with upstreams."""
        return _Desk(self, name)

    def ask(self, desk: str, inquiry: Inquiry) -> None:
        """Pass a question on; see ``CredentialSource.ask``."""
        if self._tell is None:
            inquiry.settle(Unavailable("the link to the control process is gone"))
            return
        kind, row = row_of(inquiry.question)
        address = client_key(inquiry.peer)
        own = self._of_address.get(address, 0)
        if own >= MAX_OPEN - len(self._open):
            inquiry.settle(Unavailable(f"{len(self._open)} questions of this processor wait for an answer, {own} of them of this address"))
        elif sum(len(value) for value in row.values() if isinstance(value, str)) > MAX_QUESTION:
            inquiry.settle(Unavailable(f"{kind} of more than {MAX_QUESTION} characters"))
        else:
            self._asked += 1
            self._open[self._asked] = inquiry
            self._numbers[inquiry] = self._asked
            self._of_address[address] = own + 1
            self._tell(QuestionNotice(type="question", number=self._asked, desk=desk, address=address, kind=kind, row=row))

    def forget(self, inquiry: Inquiry) -> None:
        """Nobody waits for it any more; see ``CredentialSource.forget``."""
        number = self._numbers.pop(inquiry, 0)
        if number:
            del self._open[number]
            self._settled(inquiry)
            if self._tell is not None:
                self._tell(ForgetNotice(type="forget", number=number))

    def answered(self, message: AnswerCommand) -> None:
        """Control's answer, whose row was judged. One that nobody waits for any more is passed over.

        Raises:
            MessageError: it cannot be read all the same; its question is ``Unavailable``.
        """
        inquiry = self._open.pop(message["number"], None)
        if inquiry is None:
            return
        del self._numbers[inquiry]
        self._settled(inquiry)
        answer: Answer = Unavailable("control's answer cannot be read")
        try:
            answer = answer_from_row(message["kind"], message["row"])
        finally:
            inquiry.settle(answer)

    def _settled(self, inquiry: Inquiry) -> None:
        """One fewer is open of its address."""
        address = client_key(inquiry.peer)
        left = self._of_address[address] - 1
        if left:
            self._of_address[address] = left
        else:
            del self._of_address[address]

    def lose(self) -> None:
        """The link is gone: nothing will be answered any more."""
        self._tell = None
        waiting = list(self._open.values())
        self._open.clear()
        self._numbers.clear()
        self._of_address.clear()
        for inquiry in waiting:
            inquiry.settle(Unavailable("the link to the control process is gone"))


class _Desk(CredentialSource):
    def __init__(self, credentials: Credentials, name: str) -> None:
        self._credentials: Final = credentials
        self._name: Final = name

    def ask(self, inquiry: Inquiry) -> None:
        self._credentials.ask(self._name, inquiry)

    def forget(self, inquiry: Inquiry) -> None:
        self._credentials.forget(inquiry)
