"""The questions of the processors' authenticators, between their links and the desks that answer (``control.identity.desk``).

On the event loop, which passes them on and answers none itself. The answer goes to the process that asked; who has ended is told nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from control.fleet.child import Child
from control.identity.desk import Desk, DeskError, Ticket
from control.meters import Meters
from proxy.auth.questions import Answer, Unavailable
from proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice
from proxy.server.question_codec import question_from_row, row_of

__all__ = ["Questions"]


class Questions:
    """All that are asked and not answered."""

    def __init__(self, desk: Desk, meters: Meters) -> None:
        self._desk: Final = desk
        self._meters: Final = meters
        self._loop: Final = asyncio.get_running_loop()
        self._open: Final[dict[Child, dict[int, Ticket]]] = {}
        meters.gauge("authentication.questions.waiting", lambda: float(desk.waiting))

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
            ticket = self._open.get(child, {}).pop(number, None)
            if ticket is not None:
                self._desk.withdraw(ticket)
            return
        question = question_from_row(notice["kind"], notice["row"])
        try:
            self._open.setdefault(child, {})[number] = self._desk.ask(notice["desk"], question, self._reply(child, number))
        except DeskError as error:
            self._meters.add("authentication.questions.refused")
            _post(child, number, Unavailable(str(error)))

    def forget(self, child: Child) -> None:
        """A process has ended: nobody waits for its answers."""
        for ticket in self._open.pop(child, {}).values():
            self._desk.withdraw(ticket)

    def _reply(self, child: Child, number: int) -> Callable[[Answer], None]:
        def reply(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, child, number, answer)

        return reply

    def _deliver(self, child: Child, number: int, answer: Answer) -> None:
        if self._open.get(child, {}).pop(number, None) is not None:
            _post(child, number, answer)


def _post(child: Child, number: int, answer: Answer) -> None:
    kind, row = row_of(answer)
    child.link.post(AnswerCommand(type="answer", number=number, kind=kind, row=row))
