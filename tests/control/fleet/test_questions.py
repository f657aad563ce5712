"""Between links and desks: the answer goes to the process that asked, for as long as it lives and wants it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from control.fleet import questions as module
from control.fleet.child import Child
from control.fleet.questions import Questions
from control.identity.answers import Answers
from control.identity.desk import Desk
from control.meters import Meters
from proxy.auth.questions import Accepted, Answer, Question, Refused, Secret, Unavailable, WantSecret
from proxy.server.messages import ForgetNotice, QuestionNotice


class Slow(Answers):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.asked: list[str] = []

    def answer(self, question: Question, address: str = "") -> Answer:
        assert isinstance(question, WantSecret)
        self.asked.append(question.credential)
        assert self.let.wait(5)
        return Secret(question.credential)


class Process:
    """A child, as far as it is told something."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.link = self

    def post(self, message: Any) -> None:
        self.told.append(message)


def asked(number: int, credential: str = "c", desk: str = "upstreams") -> QuestionNotice:
    return QuestionNotice(type="question", number=number, desk=desk, address="", kind="WantSecret", row={"credential": credential})


def answered(number: int, text: str = "c") -> dict[str, Any]:
    return {"type": "answer", "number": number, "kind": "Secret", "row": {"text": text}}


Scenario = Callable[[Questions, Slow, Desk], Awaitable[None]]


def run(scenario: Scenario, line: int = 10) -> Meters:
    meters, slow = Meters(), Slow()

    async def main() -> None:
        desk = Desk({"upstreams": slow}, lambda error: None, threads=1, line=line)
        try:
            async with asyncio.timeout(5):
                await scenario(Questions(desk, meters), slow, desk)
        finally:
            slow.let.set()
            await asyncio.to_thread(desk.close)

    asyncio.run(main())
    return meters


def child(process: Process) -> Child:
    return cast(Child, process)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_each_process_gets_its_own_answers() -> None:
    async def scenario(questions: Questions, slow: Slow, desk: Desk) -> None:
        one, other = Process(), Process()
        questions.hear(child(one), asked(1, "a"))
        questions.hear(child(other), asked(1, "b"))
        questions.hear(child(one), asked(2, "c"))
        assert (questions.count(child(one)), one.told) == (2, [])
        slow.let.set()
        await until(lambda: len(one.told) == 2 and other.told)
        assert (one.told, other.told) == ([answered(1, "a"), answered(2, "c")], [answered(1, "b")])
        assert questions.count(child(one)) == questions.count(child(other)) == 0

    assert run(scenario).value("authentication.questions.refused") == 0


def test_what_a_process_forgets_or_leaves_behind_is_withdrawn() -> None:
    async def scenario(questions: Questions, slow: Slow, desk: Desk) -> None:
        one, other, last = Process(), Process(), Process()
        questions.hear(child(one), asked(1, "begun"))
        await until(lambda: slow.asked)
        questions.hear(child(one), asked(2, "forgotten"))
        questions.hear(child(other), asked(1, "dead"))
        questions.hear(child(last), asked(1, "wanted"))
        questions.hear(child(one), ForgetNotice(type="forget", number=2))
        questions.hear(child(one), ForgetNotice(type="forget", number=1))
        questions.hear(child(one), ForgetNotice(type="forget", number=7))
        questions.forget(child(other))
        questions.forget(child(other))
        assert desk.waiting == 1
        slow.let.set()
        await until(lambda: last.told)
        assert (slow.asked, one.told, other.told) == (["begun", "wanted"], [], [])

    run(scenario)


def test_what_the_desk_does_not_take_is_unavailable_at_once_and_counted() -> None:
    async def scenario(questions: Questions, slow: Slow, desk: Desk) -> None:
        one = Process()
        questions.hear(child(one), asked(1))
        await until(lambda: slow.asked)
        questions.hear(child(one), asked(2))
        questions.hear(child(one), asked(3))
        questions.hear(child(one), asked(4, desk="nobody"))
        unavailable = [(row["number"], row["kind"], row["row"]["reason"]) for row in one.told]
        assert unavailable == [
            (3, "Unavailable", "1 questions wait at the desk upstreams, 1 of them of this address"),
            (4, "Unavailable", "there is no desk nobody"),
        ]
        assert questions.count(child(one)) == 2

    meters = run(scenario, line=2)
    assert meters.value("authentication.questions.refused") == 2
    assert meters.snapshot()["framegate.authentication.questions.waiting", ()] == 0


def test_a_refusal_that_costs_nothing_comes_later_unless_nobody_waits_and_what_is_known_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATER_S", (0.05, 0.05))
    found: dict[str, Answer] = {"known": Accepted("u"), "wrong": Refused("wrong password"), "often": Unavailable("not tried")}

    def check(number: int, password: str) -> QuestionNotice:
        row = {"user": "u", "password": password}
        return QuestionNotice(type="question", number=number, desk="upstreams", address="a", kind="CheckPassword", row=row)

    async def scenario(questions: Questions, slow: Slow, desk: Desk) -> None:
        slow.at_once = lambda question, address: found[question.password]  # type: ignore[method-assign, union-attr]
        one, other = Process(), Process()
        for number, password in enumerate(found):
            questions.hear(child(one), check(number, password))
            questions.hear(child(other), check(number, password))
        assert [(row["number"], row["kind"]) for row in one.told] == [(0, "Accepted")]
        assert questions.count(child(one)) == 2
        questions.hear(child(one), {"type": "forget", "number": 1})
        questions.forget(child(other))
        await until(lambda: len(one.told) == 2)
        await asyncio.sleep(0.06)
        assert [(row["number"], row["kind"]) for row in one.told] == [(0, "Accepted"), (2, "Unavailable")]
        assert len(other.told) == 1

    run(scenario)
