"""The desks: every question is answered once, in turn, never in the thread of who asks; and what is full, closed or withdrawn is not."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from control.identity.answers import Answers
from control.identity.desk import NICE, Desk, DeskError
from proxy.auth.questions import Answer, CheckToken, Question, Secret, SupportedApis, WantSecret

Made = Callable[..., Desk]


class Held(Answers):
    """Answers when it is let, and notes what it was asked and where."""

    def __init__(self, word: str = "") -> None:
        super().__init__()
        self.word = word
        self.let = threading.Event()
        self.asked: list[str] = []
        self.threads: set[str] = set()
        self.nice: set[int] = set()
        self.begun = threading.Semaphore(0)
        self.answers: list[Answer] = []

    def at_once(self, question: Question, address: str) -> Answer | None:
        self.answers.append(Secret(address))
        return self.answers[-1] if isinstance(question, SupportedApis) else None

    def answer(self, question: Question, address: str = "") -> Answer:
        assert isinstance(question, WantSecret)
        self.asked.append(question.credential)
        self.threads.add(threading.current_thread().name)
        self.nice.add(os.getpriority(os.PRIO_PROCESS, 0))
        self.begun.release()
        assert self.let.wait(5)
        return Secret(self.word + question.credential)


class Told:
    """Waits for answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._one = threading.Semaphore(0)

    def __call__(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._one.release()

    def wait(self, count: int) -> list[Answer]:
        for _ in range(count):
            assert self._one.acquire(timeout=5)
        return self.answers


@pytest.fixture
def make() -> Iterator[Made]:
    made: list[tuple[Desk, tuple[Held, ...]]] = []
    failures: list[Exception] = []

    def desk(threads: int = 1, line: int = 10, **answers: Held) -> Desk:
        made.append((Desk(answers, failures.append, threads=threads, line=line), tuple(answers.values())))
        made[-1][0].failures = failures  # type: ignore[attr-defined]
        return made[-1][0]

    yield desk
    for one, held in made:
        for each in held:
            each.let.set()
        one.close()


def test_questions_are_answered_in_another_thread(make: Made) -> None:
    held, told = Held(), Told()
    held.let.set()
    desk = make(a=held)
    desk.ask("a", WantSecret("x"), told)
    assert told.wait(1) == [Secret("x")]
    assert held.threads == {"framegate-desk-0"}
    assert desk.waiting == 0


def test_who_answers_leaves_the_processor_to_who_does_not(make: Made) -> None:
    held, told = Held(), Told()
    held.let.set()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    make(a=held).ask("a", WantSecret("x"), told)
    told.wait(1)
    assert held.nice == {min(before + NICE, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_the_first_of_each_line_comes_before_the_second_of_any(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(a=held, b=held)
    desk.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    for name in ("a1", "a2", "a3"):
        desk.ask("a", WantSecret(name), told)
    desk.ask("b", WantSecret("b1"), told)
    assert desk.waiting == 4
    held.let.set()
    told.wait(5)
    assert held.asked == ["first", "a1", "b1", "a2", "a3"]


def test_a_line_that_is_full_takes_no_more_and_holds_up_no_other(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(line=4, a=held, b=held)
    desk.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    for name in ("a1", "a2"):
        desk.ask("a", WantSecret(name), told)
    with pytest.raises(DeskError, match=r"^2 questions wait at the desk a, 2 of them of this address$"):
        desk.ask("a", WantSecret("a3"), told)
    desk.ask("b", WantSecret("b1"), told)
    held.let.set()
    assert len(told.wait(4)) == 4
    assert "a3" not in held.asked


def test_of_each_address_the_first_comes_before_the_second_of_any(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(line=1000, a=held)
    desk.ask("a", WantSecret("first"), told, "bad")
    assert held.begun.acquire(timeout=5)
    for number in range(400):
        desk.ask("a", WantSecret(f"bad {number}"), told, "bad")
    for name in ("good 1", "good 2"):
        desk.ask("a", WantSecret(name), told, "good")
    desk.ask("a", WantSecret("other"), told, "other")
    held.let.set()
    told.wait(404)
    assert held.asked[:6] == ["first", "bad 0", "good 1", "other", "bad 1", "good 2"]


def test_an_address_fills_half_of_what_is_free_and_others_find_room(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(line=16, a=held)
    desk.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    taken = {}
    for address in ("one", "two", "three", "four", "five"):
        taken[address] = 0
        with contextlib.suppress(DeskError):
            while True:
                desk.ask("a", WantSecret(address), told, address)
                taken[address] += 1
    assert taken == {"one": 8, "two": 4, "three": 2, "four": 1, "five": 1}
    held.let.set()
    told.wait(17)


def test_what_takes_no_time_is_answered_at_once_and_by_no_thread(make: Made) -> None:
    held = Held()
    desk = make(a=held)
    assert desk.at_once("a", SupportedApis(3), "x") is held.answers[0]
    assert desk.at_once("a", CheckToken("t"), "x") is None
    assert desk.at_once("b", SupportedApis(3), "x") is None
    desk.close()
    assert desk.at_once("a", SupportedApis(3), "x") is None


def test_what_is_withdrawn_before_its_turn_is_not_answered_and_makes_room(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(line=2, a=held)
    begun = desk.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    waiting = desk.ask("a", WantSecret("a1"), told)
    desk.withdraw(waiting)
    desk.withdraw(waiting)
    assert desk.waiting == 0
    desk.ask("a", WantSecret("a2"), told)
    desk.withdraw(begun)
    held.let.set()
    assert told.wait(2) == [Secret("first"), Secret("a2")]


def test_who_answers_can_be_replaced_for_those_that_wait_too(make: Made) -> None:
    held, other, told = Held(), Held("new "), Told()
    other.let.set()
    desk = make(a=held)
    desk.ask("a", WantSecret("begun"), told)
    assert held.begun.acquire(timeout=5)
    desk.ask("a", WantSecret("waits"), told)
    desk.replace("a", other)
    held.let.set()
    assert told.wait(2) == [Secret("begun"), Secret("new waits")]
    with pytest.raises(DeskError, match="there is no desk b"):
        desk.replace("b", other)


def test_an_unknown_desk_is_named(make: Made) -> None:
    with pytest.raises(DeskError, match=r"^there is no desk b$"):
        make(a=Held()).ask("b", CheckToken("t"), Told())


def test_a_reply_that_raises_costs_itself_only(make: Made) -> None:
    held, told = Held(), Told()
    held.let.set()
    desk = make(a=held)

    def bad(answer: Answer) -> None:
        raise ValueError("ours")

    desk.ask("a", WantSecret("x"), bad)
    desk.ask("a", WantSecret("y"), told)
    assert told.wait(1) == [Secret("y")]
    assert [str(error) for error in desk.failures] == ["ours"]  # type: ignore[attr-defined]


def test_so_many_are_answered_at_once(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(threads=2, a=held)
    for name in ("x", "y", "z"):
        desk.ask("a", WantSecret(name), told)
    assert held.begun.acquire(timeout=5)
    assert held.begun.acquire(timeout=5)
    assert desk.waiting == 1
    held.let.set()
    told.wait(3)
    assert len(held.threads) == 2


def test_the_end_waits_for_none_that_waits_and_takes_no_more(make: Made) -> None:
    held, told = Held(), Told()
    desk = make(a=held)
    desk.ask("a", WantSecret("begun"), told)
    assert held.begun.acquire(timeout=5)
    desk.ask("a", WantSecret("waits"), told)
    held.let.set()
    desk.close()
    assert held.asked in (["begun"], ["begun", "waits"])
    with pytest.raises(DeskError, match="the proxy ends"):
        desk.ask("a", WantSecret("late"), told)
    desk.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("framegate-desk")]
