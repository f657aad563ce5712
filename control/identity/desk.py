"""Where questions are answered: in a few threads, so that nothing else of the control process waits for a hash, a file or a signature.

Each desk (``listener:NAME``, ``upstream:NAME``) has a line of its own for each client address. The threads take the first of each desk in turn, and
of each address at a desk, so that a storm of logins at one listener, or from one address, holds up nobody else. Who would wait longer than clients
do is told so at once: an address may have as many waiting as there is room left at its desk. So one alone fills half of it, and others find room.
"""

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Final

from control.identity.answers import Answers
from proxy.auth.questions import Answer, Question

__all__ = ["LINE", "NICE", "THREADS", "Desk", "DeskError", "Ticket"]

THREADS: Final = 2
"""Two hashes at once: about 500 checks of PLAIN a second, with as much processor time as that takes."""
LINE: Final = 512
"""Questions that wait at a desk; of one address alone half as many, half a second of PLAIN's."""
NICE: Final = 10
"""So much nicer are the threads than the rest of us: where they share a core with a processor, it has nine tenths of what both want. Not as nice as
can be: behind each hash a thread holds the interpreter's lock for a moment, and all of control waits for one that is not let run then."""
_END_S: Final = 1.0


class DeskError(Exception):
    """A question that is not taken."""


class Ticket:
    """One question that is to be answered.

    Attributes:
        desk: where it waits.
        question: what was asked.
        address: of the client that it is about.
        reply: is given the answer, in one of the threads.
    """

    __slots__ = ("address", "desk", "question", "reply")

    def __init__(self, desk: str, question: Question, address: str, reply: Callable[[Answer], None]) -> None:
        self.desk: Final = desk
        self.question: Final = question
        self.address: Final = address
        self.reply: Final = reply


class _Line:
    """What waits at one desk: of each address in its order, the addresses in turn.

    Attributes:
        size: tickets.
    """

    def __init__(self) -> None:
        self.size = 0
        self._by_address: Final[OrderedDict[str, deque[Ticket]]] = OrderedDict()

    def of(self, address: str) -> int:
        """Tickets of an address."""
        return len(self._by_address.get(address, ()))

    def append(self, ticket: Ticket) -> None:
        self._by_address.setdefault(ticket.address, deque()).append(ticket)
        self.size += 1

    def take(self) -> Ticket:
        """The next; there must be one."""
        address, tickets = self._by_address.popitem(last=False)
        ticket = tickets.popleft()
        if tickets:
            self._by_address[address] = tickets
        self.size -= 1
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Take one out. Harmless when it is not there."""
        tickets = self._by_address.get(ticket.address, deque())
        if ticket in tickets:
            tickets.remove(ticket)
            self.size -= 1
            if not tickets:
                del self._by_address[ticket.address]

    def clear(self) -> None:
        self._by_address.clear()
        self.size = 0


class Desk:
    """All desks. Any thread.

    Args:
        answers: who answers, by desk.
        on_failure: is told of an exception of a ``reply``, in its thread; it costs nothing else.
        threads: so many questions are answered at once.
        line: so many wait at each desk, of one address half as many.
    """

    def __init__(self, answers: Mapping[str, Answers], on_failure: Callable[[Exception], None], *, threads: int = THREADS, line: int = LINE) -> None:
        self._answers: Final = dict(answers)
        self._on_failure: Final = on_failure
        self._most: Final = line
        self._lines: Final = {name: _Line() for name in answers}
        self._turns: Final[deque[str]] = deque()  # lines in which somebody waits, each once
        self._changed: Final = threading.Condition()
        self._closed = False
        self._threads: Final = [threading.Thread(target=self._work, name=f"framegate-desk-{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Questions whose turn has not come."""
        with self._changed:
            return sum(line.size for line in self._lines.values())

    def answers(self, desk: str) -> Answers:
        """Who answers now. Raises KeyError: there is no such desk."""
        with self._changed:
            return self._answers[desk]

    def replace(self, desk: str, answers: Answers) -> None:
        """Who answers from now on, those that wait included.

        Raises:
            DeskError: there is no such desk.
        """
        with self._changed:
            if desk not in self._lines:
                raise DeskError(f"there is no desk {desk}")
            self._answers[desk] = answers

    def at_once(self, desk: str, question: Question, address: str) -> Answer | None:
        """The answer to a question that takes no time; None: it is to be asked."""
        with self._changed:
            answers = None if self._closed else self._answers.get(desk)
        return None if answers is None else answers.at_once(question, address)

    def ask(self, desk: str, question: Question, reply: Callable[[Answer], None], address: str = "") -> Ticket:
        """Have a question answered, unless it is withdrawn. ``address``: of the client that it is about; empty: of none.

        Raises:
            DeskError: too many wait, there is no such desk, or it is closed.
        """
        ticket = Ticket(desk, question, address, reply)
        with self._changed:
            line = self._lines.get(desk)
            if line is None or self._closed:
                raise DeskError(f"there is no desk {desk}" if line is None else "the proxy ends")
            if line.of(address) >= self._most - line.size:
                raise DeskError(f"{line.size} questions wait at the desk {desk}, {line.of(address)} of them of this address")
            line.append(ticket)
            if line.size == 1:
                self._turns.append(desk)
            self._changed.notify()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Nobody waits for it any more. If its turn has come it is answered all the same."""
        with self._changed:
            line = self._lines[ticket.desk]
            waited = line.size
            line.remove(ticket)
            if waited and not line.size:
                self._turns.remove(ticket.desk)

    def close(self) -> None:
        """Answer no more. What is being answered now may take a second to its end; nobody waits longer for it."""
        with self._changed:
            self._closed = True
            self._turns.clear()
            for line in self._lines.values():
                line.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_END_S)

    def _work(self) -> None:
        """A thread's life."""
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + NICE)  # of this thread alone; 19 is the most
        while True:
            with self._changed:
                while not self._turns and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                ticket = self._next()
                answers = self._answers[ticket.desk]
            answer = answers.answer(ticket.question, ticket.address)
            try:
                ticket.reply(answer)
            except Exception as error:
                self._on_failure(error)
            del ticket, answer, answers  # while it waits it holds no secret

    def _next(self) -> Ticket:
        name = self._turns.popleft()
        line = self._lines[name]
        ticket = line.take()
        if line.size:
            self._turns.append(name)
        return ticket
