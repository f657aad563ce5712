"""Between links and desks: the answer goes to the process that asked, for as long as it lives and wants it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from framegate.control.fleet import auth_requests as module
from framegate.control.fleet.auth_requests import AuthRequests
from framegate.control.fleet.child import Child
from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.auth_worker_pool import AuthWorkerPool
from framegate.control.meters import Meters
from framegate.proxy.auth.auth_requests import Accepted, AuthRequest, AuthResponse, Refused, Secret, Unavailable, WantSecret
from framegate.proxy.server.messages import ForgetNotice, QuestionNotice


class Slow(AuthResponder):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.asked: list[str] = []

    def answer(self, auth_request: AuthRequest, address: str = "") -> AuthResponse:
        assert isinstance(auth_request, WantSecret)
        self.asked.append(auth_request.credential)
        assert self.let.wait(5)
        return Secret(auth_request.credential)


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


Scenario = Callable[[AuthRequests, Slow, AuthWorkerPool], Awaitable[None]]


def run(scenario: Scenario, queue: int = 10) -> Meters:
    meters, slow = Meters(), Slow()

    async def main() -> None:
        auth_pool = AuthWorkerPool({"upstreams": slow}, lambda error: None, threads=1, queue=queue)
        try:
            async with asyncio.timeout(5):
                await scenario(AuthRequests(auth_pool, meters), slow, auth_pool)
        finally:
            slow.let.set()
            await asyncio.to_thread(auth_pool.close)

    asyncio.run(main())
    return meters


def child(process: Process) -> Child:
    return cast(Child, process)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_each_process_gets_its_own_answers() -> None:
    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        one, other = Process(), Process()
        auth_requests.hear(child(one), asked(1, "a"))
        auth_requests.hear(child(other), asked(1, "b"))
        auth_requests.hear(child(one), asked(2, "c"))
        assert (auth_requests.count(child(one)), one.told) == (2, [])
        slow.let.set()
        await until(lambda: len(one.told) == 2 and other.told)
        assert (one.told, other.told) == ([answered(1, "a"), answered(2, "c")], [answered(1, "b")])
        assert auth_requests.count(child(one)) == auth_requests.count(child(other)) == 0

    assert run(scenario).value("authentication.questions.refused") == 0


def test_what_a_process_forgets_or_leaves_behind_is_withdrawn() -> None:
    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        one, other, last = Process(), Process(), Process()
        auth_requests.hear(child(one), asked(1, "begun"))
        await until(lambda: slow.asked)
        auth_requests.hear(child(one), asked(2, "forgotten"))
        auth_requests.hear(child(other), asked(1, "dead"))
        auth_requests.hear(child(last), asked(1, "wanted"))
        auth_requests.hear(child(one), ForgetNotice(type="forget", number=2))
        auth_requests.hear(child(one), ForgetNotice(type="forget", number=1))
        auth_requests.hear(child(one), ForgetNotice(type="forget", number=7))
        auth_requests.forget(child(other))
        auth_requests.forget(child(other))
        assert auth_pool.waiting == 1
        slow.let.set()
        await until(lambda: last.told)
        assert (slow.asked, one.told, other.told) == (["begun", "wanted"], [], [])

    run(scenario)


def test_what_the_desk_does_not_take_is_unavailable_at_once_and_counted() -> None:
    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        one = Process()
        auth_requests.hear(child(one), asked(1))
        await until(lambda: slow.asked)
        auth_requests.hear(child(one), asked(2))
        auth_requests.hear(child(one), asked(3))
        auth_requests.hear(child(one), asked(4, desk="nobody"))
        unavailable = [(row["number"], row["kind"], row["row"]["reason"]) for row in one.told]
        assert unavailable == [
            (3, "Unavailable", "1 requests wait in the queue upstreams, 1 of them of this address"),
            (4, "Unavailable", "there is no queue nobody"),
        ]
        assert auth_requests.count(child(one)) == 2

    meters = run(scenario, queue=2)
    assert meters.value("authentication.questions.refused") == 2
    assert meters.snapshot()["framegate.authentication.questions.waiting", ()] == 0


def test_a_refusal_that_costs_nothing_comes_later_unless_nobody_waits_and_what_is_known_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATER_S", (0.05, 0.05))
    found: dict[str, AuthResponse] = {"known": Accepted("u"), "wrong": Refused("wrong password"), "often": Unavailable("not tried")}

    def check(number: int, password: str) -> QuestionNotice:
        row = {"user": "u", "password": password}
        return QuestionNotice(type="question", number=number, desk="upstreams", address="a", kind="CheckPassword", row=row)

    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        slow.at_once = lambda auth_request, address: found[auth_request.password]  # type: ignore[method-assign, union-attr]
        one, other = Process(), Process()
        for number, password in enumerate(found):
            auth_requests.hear(child(one), check(number, password))
            auth_requests.hear(child(other), check(number, password))
        assert [(row["number"], row["kind"]) for row in one.told] == [(0, "Accepted")]
        assert auth_requests.count(child(one)) == 2
        auth_requests.hear(child(one), {"type": "forget", "number": 1})
        auth_requests.forget(child(other))
        await until(lambda: len(one.told) == 2)
        await asyncio.sleep(0.06)
        assert [(row["number"], row["kind"]) for row in one.told] == [(0, "Accepted"), (2, "Unavailable")]
        assert len(other.told) == 1

    run(scenario)
