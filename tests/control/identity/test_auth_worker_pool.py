"""Each request gets one response, round robin, in another thread; none when its queue is full, the pool is closed or it was withdrawn."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.auth_worker_pool import NICENESS, AuthPoolError, AuthWorkerPool
from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse, CheckToken, Secret, SupportedApis, WantSecret

Made = Callable[..., AuthWorkerPool]


class Held(AuthResponder):
    """Answers when it is let, and notes what it was asked and where."""

    def __init__(self, word: str = "") -> None:
        super().__init__()
        self.word = word
        self.let = threading.Event()
        self.asked: list[str] = []
        self.threads: set[str] = set()
        self.nice: set[int] = set()
        self.begun = threading.Semaphore(0)
        self.answers: list[AuthResponse] = []

    def at_once(self, auth_request: AuthRequest, address: str) -> AuthResponse | None:
        self.answers.append(Secret(address))
        return self.answers[-1] if isinstance(auth_request, SupportedApis) else None

    def answer(self, auth_request: AuthRequest, address: str = "") -> AuthResponse:
        assert isinstance(auth_request, WantSecret)
        self.asked.append(auth_request.credential)
        self.threads.add(threading.current_thread().name)
        self.nice.add(os.getpriority(os.PRIO_PROCESS, 0))
        self.begun.release()
        assert self.let.wait(5)
        return Secret(self.word + auth_request.credential)


class Told:
    """Waits for answers."""

    def __init__(self) -> None:
        self.answers: list[AuthResponse] = []
        self._one = threading.Semaphore(0)

    def __call__(self, answer: AuthResponse) -> None:
        self.answers.append(answer)
        self._one.release()

    def wait(self, count: int) -> list[AuthResponse]:
        for _ in range(count):
            assert self._one.acquire(timeout=5)
        return self.answers


@pytest.fixture
def make() -> Iterator[Made]:
    made: list[tuple[AuthWorkerPool, tuple[Held, ...]]] = []
    failures: list[Exception] = []

    def auth_pool(threads: int = 1, queue: int = 10, **answers: Held) -> AuthWorkerPool:
        made.append((AuthWorkerPool(answers, failures.append, threads=threads, queue=queue), tuple(answers.values())))
        made[-1][0].failures = failures  # type: ignore[attr-defined]
        return made[-1][0]

    yield auth_pool
    for one, held in made:
        for each in held:
            each.let.set()
        one.close()


def test_questions_are_answered_in_another_thread(make: Made) -> None:
    held, told = Held(), Told()
    held.let.set()
    auth_pool = make(a=held)
    auth_pool.ask("a", WantSecret("x"), told)
    assert told.wait(1) == [Secret("x")]
    assert held.threads == {"framegate-auth-0"}
    assert auth_pool.waiting == 0


def test_the_threads_have_a_lower_priority_than_the_process(make: Made) -> None:
    held, told = Held(), Told()
    held.let.set()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    make(a=held).ask("a", WantSecret("x"), told)
    told.wait(1)
    assert held.nice == {min(before + NICENESS, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_queues_are_served_round_robin(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(a=held, b=held)
    auth_pool.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    for name in ("a1", "a2", "a3"):
        auth_pool.ask("a", WantSecret(name), told)
    auth_pool.ask("b", WantSecret("b1"), told)
    assert auth_pool.waiting == 4
    held.let.set()
    told.wait(5)
    assert held.asked == ["first", "a1", "b1", "a2", "a3"]


def test_a_full_queue_refuses_requests_and_delays_no_other_queue(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(queue=4, a=held, b=held)
    auth_pool.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    for name in ("a1", "a2"):
        auth_pool.ask("a", WantSecret(name), told)
    with pytest.raises(AuthPoolError, match=r"^2 requests wait in the queue a, 2 of them of this address$"):
        auth_pool.ask("a", WantSecret("a3"), told)
    auth_pool.ask("b", WantSecret("b1"), told)
    held.let.set()
    assert len(told.wait(4)) == 4
    assert "a3" not in held.asked


def test_addresses_of_a_queue_are_served_round_robin(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(queue=1000, a=held)
    auth_pool.ask("a", WantSecret("first"), told, "bad")
    assert held.begun.acquire(timeout=5)
    for number in range(400):
        auth_pool.ask("a", WantSecret(f"bad {number}"), told, "bad")
    for name in ("good 1", "good 2"):
        auth_pool.ask("a", WantSecret(name), told, "good")
    auth_pool.ask("a", WantSecret("other"), told, "other")
    held.let.set()
    told.wait(404)
    assert held.asked[:6] == ["first", "bad 0", "good 1", "other", "bad 1", "good 2"]


def test_an_address_fills_half_of_what_is_free_and_others_find_room(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(queue=16, a=held)
    auth_pool.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    taken = {}
    for address in ("one", "two", "three", "four", "five"):
        taken[address] = 0
        with contextlib.suppress(AuthPoolError):
            while True:
                auth_pool.ask("a", WantSecret(address), told, address)
                taken[address] += 1
    assert taken == {"one": 8, "two": 4, "three": 2, "four": 1, "five": 1}
    held.let.set()
    told.wait(17)


def test_a_request_without_work_is_answered_at_once_and_by_no_thread(make: Made) -> None:
    held = Held()
    auth_pool = make(a=held)
    assert auth_pool.at_once("a", SupportedApis(3), "x") is held.answers[0]
    assert auth_pool.at_once("a", CheckToken("t"), "x") is None
    assert auth_pool.at_once("b", SupportedApis(3), "x") is None
    auth_pool.close()
    assert auth_pool.at_once("a", SupportedApis(3), "x") is None


def test_what_is_withdrawn_before_its_turn_is_not_answered_and_makes_room(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(queue=2, a=held)
    begun = auth_pool.ask("a", WantSecret("first"), told)
    assert held.begun.acquire(timeout=5)
    waiting = auth_pool.ask("a", WantSecret("a1"), told)
    auth_pool.withdraw(waiting)
    auth_pool.withdraw(waiting)
    assert auth_pool.waiting == 0
    auth_pool.ask("a", WantSecret("a2"), told)
    auth_pool.withdraw(begun)
    held.let.set()
    assert told.wait(2) == [Secret("first"), Secret("a2")]


def test_a_new_responder_serves_requests_that_wait(make: Made) -> None:
    held, other, told = Held(), Held("new "), Told()
    other.let.set()
    auth_pool = make(a=held)
    auth_pool.ask("a", WantSecret("begun"), told)
    assert held.begun.acquire(timeout=5)
    auth_pool.ask("a", WantSecret("waits"), told)
    auth_pool.replace("a", other)
    held.let.set()
    assert told.wait(2) == [Secret("begun"), Secret("new waits")]
    with pytest.raises(AuthPoolError, match="there is no queue b"):
        auth_pool.replace("b", other)


def test_an_unknown_queue_is_named(make: Made) -> None:
    with pytest.raises(AuthPoolError, match=r"^there is no queue b$"):
        make(a=Held()).ask("b", CheckToken("t"), Told())


def test_a_reply_that_raises_costs_itself_only(make: Made) -> None:
    held, told = Held(), Told()
    held.let.set()
    auth_pool = make(a=held)

    def bad(answer: AuthResponse) -> None:
        raise ValueError("ours")

    auth_pool.ask("a", WantSecret("x"), bad)
    auth_pool.ask("a", WantSecret("y"), told)
    assert told.wait(1) == [Secret("y")]
    assert [str(error) for error in auth_pool.failures] == ["ours"]  # type: ignore[attr-defined]


def test_as_many_requests_as_threads_are_served_at_once(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(threads=2, a=held)
    for name in ("x", "y", "z"):
        auth_pool.ask("a", WantSecret(name), told)
    assert held.begun.acquire(timeout=5)
    assert held.begun.acquire(timeout=5)
    assert auth_pool.waiting == 1
    held.let.set()
    told.wait(3)
    assert len(held.threads) == 2


def test_a_closed_pool_drops_waiting_requests_and_takes_no_more(make: Made) -> None:
    held, told = Held(), Told()
    auth_pool = make(a=held)
    auth_pool.ask("a", WantSecret("begun"), told)
    assert held.begun.acquire(timeout=5)
    auth_pool.ask("a", WantSecret("waits"), told)
    held.let.set()
    auth_pool.close()
    assert held.asked in (["begun"], ["begun", "waits"])
    with pytest.raises(AuthPoolError, match="the proxy ends"):
        auth_pool.ask("a", WantSecret("late"), told)
    auth_pool.close()
    assert not any(thread.is_alive() for thread in auth_pool._threads)
