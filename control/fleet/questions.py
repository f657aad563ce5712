"""The questions of the processors' authenticators, between their links and the desks that answer (``control.identity.desk``).

On the event loop, which passes on what takes longer than to look it up. The answer goes to the process that asked; who has ended is told nothing.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from control.fleet.child import Child
from control.identity.desk import Desk, DeskError, Ticket
from control.meters import Meters
from proxy.auth.questions import Answer, CheckPassword, Refused, Unavailable
from proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice
from proxy.server.question_codec import question_from_row, row_of

__all__ = ["LATER_S", "Questions"]

LATER_S: Final = (1.0, 3.0)
"""A refusal of a password that cost nothing is told so much later: who tries again and again is slow, takes room of its own address meanwhile, and
many that began together do not come back together.
"""


class Questions:
    """All that are asked and not answered."""

    def __init__(self, desk: Desk, meters: Meters) -> None:
        self._desk: Final = desk
        self._meters: Final = meters
        self._loop: Final = asyncio.get_running_loop()
        self._open: Final[dict[Child, dict[int, Ticket | asyncio.TimerHandle]]] = {}
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
            self._withdraw(self._open.get(child, {}).pop(number, None))
            return
        question, address = question_from_row(notice["kind"], notice["row"]), notice["address"]
        answer = self._desk.at_once(notice["desk"], question, address)
        if isinstance(question, CheckPassword) and isinstance(answer, Refused | Unavailable):
            later = self._loop.call_later(random.uniform(*LATER_S), self._deliver, child, number, answer)
            self._open.setdefault(child, {})[number] = later
            return
        if answer is not None:
            _post(child, number, answer)
            return
        try:
            self._open.setdefault(child, {})[number] = self._desk.ask(notice["desk"], question, self._reply(child, number), address)
        except DeskError as error:
            self._meters.add("authentication.questions.refused")
            _post(child, number, Unavailable(str(error)))

    def forget(self, child: Child) -> None:
        """A process has ended: nobody waits for its answers."""
        for waiting in self._open.pop(child, {}).values():
            self._withdraw(waiting)

    def _withdraw(self, waiting: Ticket | asyncio.TimerHandle | None) -> None:
        if isinstance(waiting, Ticket):
            self._desk.withdraw(waiting)
        elif waiting is not None:
            waiting.cancel()

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
