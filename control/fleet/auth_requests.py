"""Passes auth requests of processors from their links to the worker pool (``framegate.control.identity.auth_worker_pool``), and the responses back.

On the event loop. A response to a process that has ended is dropped.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from framegate.control.fleet.child import Child
from framegate.control.identity.auth_worker_pool import AuthPoolError, AuthWorkerPool, QueuedRequest
from framegate.control.meters import Meters
from framegate.proxy.auth.auth_requests import AuthResponse, CheckPassword, Refused, Unavailable
from framegate.proxy.server.credentials import question_from_row, row_of
from framegate.proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice

__all__ = ["LATER_S", "AuthRequests"]

LATER_S: Final = (1.0, 3.0)
"""A refusal of a password that cost nothing is told so much later: who tries again and again is slow, takes room of its own address meanwhile, and
many that began together do not come back together.
"""


class AuthRequests:
    """The requests without a response."""

    def __init__(self, auth_pool: AuthWorkerPool, meters: Meters) -> None:
        self._auth_pool: Final = auth_pool
        self._meters: Final = meters
        self._loop: Final = asyncio.get_running_loop()
        self._open: Final[dict[Child, dict[int, QueuedRequest | asyncio.TimerHandle]]] = {}
        meters.gauge("authentication.questions.waiting", lambda: float(auth_pool.waiting))

    def count(self, child: Child) -> int:
        """Questions of a process that are not answered."""
        return len(self._open.get(child, ()))

    def hear(self, child: Child, notice: QuestionNotice | ForgetNotice) -> None:
        """A process asks, or wants an answer no more.

        Raises:
            MessageError: the question cannot be read.
        """
        number = notice["number"]
        if notice["type"] == "forget":
            self._withdraw(self._open.get(child, {}).pop(number, None))
            return
        auth_request, address = question_from_row(notice["kind"], notice["row"]), notice["address"]
        answer = self._auth_pool.at_once(notice["desk"], auth_request, address)
        if isinstance(auth_request, CheckPassword) and isinstance(answer, Refused | Unavailable):
            later = self._loop.call_later(random.uniform(*LATER_S), self._deliver, child, number, answer)
            self._open.setdefault(child, {})[number] = later
            return
        if answer is not None:
            _post(child, number, answer)
            return
        try:
            self._open.setdefault(child, {})[number] = self._auth_pool.ask(notice["desk"], auth_request, self._reply(child, number), address)
        except AuthPoolError as error:
            self._meters.add("authentication.questions.refused")
            _post(child, number, Unavailable(str(error)))

    def forget(self, child: Child) -> None:
        """A process has ended: withdraw its requests."""
        for waiting in self._open.pop(child, {}).values():
            self._withdraw(waiting)

    def _withdraw(self, waiting: QueuedRequest | asyncio.TimerHandle | None) -> None:
        if isinstance(waiting, QueuedRequest):
            self._auth_pool.withdraw(waiting)
        elif waiting is not None:
            waiting.cancel()

    def _reply(self, child: Child, number: int) -> Callable[[AuthResponse], None]:
        def reply(answer: AuthResponse) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver, child, number, answer)

        return reply

    def _deliver(self, child: Child, number: int, answer: AuthResponse) -> None:
        if self._open.get(child, {}).pop(number, None) is not None:
            _post(child, number, answer)


def _post(child: Child, number: int, answer: AuthResponse) -> None:
    kind, row = row_of(answer)
    child.link.post(AnswerCommand(type="answer", number=number, kind=kind, row=row))
