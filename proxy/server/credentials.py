"""The auth requests of a processor's authenticators (``proxy.auth.auth_requests``), on their way to control and back.

A request is a notice ``question``, a response the command ``answer``. The row of either has the fields of its dataclass, which is its schema; bytes
are written in hexadecimal. Many rows hold secrets: no secret is kept here, logged or quoted in an error. An auth request without a response ends
with its channel's handshake timeout; then control gets the notice ``forget``.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse, CredentialSource, PendingAuth, Unavailable
from framegate.proxy.config.limits import client_key
from framegate.proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice
from framegate.proxy.server.schema import MessageError, check

MAX_OPEN: Final = 1024
"""Auth requests of a processor without a response: more would wait longer than clients do. A client address may have as many as are still free, so
one address alone uses at most half of them.
"""
MAX_QUESTION: Final = 65536  # Characters in the fields of one auth request; no password and no accepted token is longer
_QUESTIONS: Final[dict[str, Any]] = {each.__name__: each for each in typing.get_args(AuthRequest)}
_ANSWERS: Final[dict[str, Any]] = {each.__name__: each for each in typing.get_args(AuthResponse)}


def listener_auth_queue(name: str) -> str:
    """The name of the queue for the clients of a listener."""
    return f"listener:{name}"


def upstream_auth_queue(name: str) -> str:
    """The name of the queue for our logins to an upstream."""
    return f"upstream:{name}"


def row_of(item: AuthRequest | AuthResponse) -> tuple[str, dict[str, Any]]:
    """The kind of an auth request or response, and its row."""
    values = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return type(item).__name__, {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def question_from_row(kind: str, row: dict[str, Any]) -> AuthRequest:
    """The auth request of a row. Raises MessageError: no auth request has that kind or row."""
    return cast(AuthRequest, _from_row(_declared("question", _QUESTIONS, kind, row), row))


def _declared(what: str, classes: dict[str, Any], kind: str, row: dict[str, Any]) -> Any:
    """The class of that kind, with which the row was compared."""
    if kind not in classes:
        raise MessageError(f"no {what} of the kind {kind:.100}")
    check(kind, classes[kind], row)
    return classes[kind]


def _from_row(declared: Any, row: dict[str, Any]) -> object:
    in_hex = {field.name for field in dataclasses.fields(declared) if field.type is bytes}
    try:
        return declared(**{name: bytes.fromhex(value) if name in in_hex else value for name, value in row.items()})
    except (TypeError, ValueError):
        raise MessageError(f"{declared.__name__} has a field that cannot be read") from None


class Credentials:
    """All open auth requests of a processor, in the selector's thread. ``attach`` comes before the first."""

    def __init__(self) -> None:
        self._open: Final[dict[int, PendingAuth]] = {}
        self._numbers: Final[dict[PendingAuth, int]] = {}
        self._asked: int = 0
        self._of_address: Final[dict[str, int]] = {}
        self._report: Callable[[Mapping[str, object]], None] | None = None

    def attach(self, report: Callable[[Mapping[str, object]], None]) -> None:
        """``report`` sends a message to control that must arrive."""
        self._report = report

    @property
    def open(self) -> int:
        """How many auth requests have no response."""
        return len(self._open)

    def source(self, name: str) -> CredentialSource:
        """The source for the authenticators of one queue."""
        return _Source(self, name)

    def ask(self, auth_queue: str, pending_auth: PendingAuth) -> None:
        """Send an auth request to control; see ``CredentialSource.ask``."""
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
            self._report(QuestionNotice(type="question", number=self._asked, queue=auth_queue, address=address, kind=kind, row=row))

    def forget(self, pending_auth: PendingAuth) -> None:
        """Drop a cancelled auth request; see ``CredentialSource.forget``."""
        number = self._numbers.pop(pending_auth, 0)
        if number:
            del self._open[number]
            self._settled(pending_auth)
            if self._report is not None:
                self._report(ForgetNotice(type="forget", number=number))

    def answered(self, message: AnswerCommand) -> None:
        """Complete an auth request with control's response; a response to a request that was dropped is ignored. Raises MessageError: the row is not
        as declared, and the request goes on waiting; or it cannot be decoded, and the request is ``Unavailable``.
        """
        declared = _declared("answer", _ANSWERS, message["kind"], message["row"])
        pending_auth = self._open.pop(message["number"], None)
        if pending_auth is None:
            return
        del self._numbers[pending_auth]
        self._settled(pending_auth)
        answer: AuthResponse = Unavailable("control's answer cannot be read")
        try:
            answer = cast(AuthResponse, _from_row(declared, message["row"]))
        finally:
            pending_auth.complete(answer)

    def _settled(self, pending_auth: PendingAuth) -> None:
        address = client_key(pending_auth.peer)
        left = self._of_address[address] - 1
        if left:
            self._of_address[address] = left
        else:
            del self._of_address[address]

    def lose(self) -> None:
        """The link is gone: complete every auth request as ``Unavailable``."""
        self._report = None
        waiting = list(self._open.values())
        self._open.clear()
        self._numbers.clear()
        self._of_address.clear()
        for pending_auth in waiting:
            pending_auth.complete(Unavailable("the link to the control process is gone"))


class _Source(CredentialSource):
    def __init__(self, credentials: Credentials, name: str) -> None:
        self._credentials: Final = credentials
        self._name: Final = name

    def ask(self, pending_auth: PendingAuth) -> None:
        self._credentials.ask(self._name, pending_auth)

    def forget(self, pending_auth: PendingAuth) -> None:
        self._credentials.forget(pending_auth)
