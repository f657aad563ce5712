"""A processor's questions: each goes to control once, is settled once, and none is kept by what is over."""

from collections.abc import Mapping
from typing import Any

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.network.authenticator import Waker
from framegate.proxy.server import credentials as module
from framegate.proxy.server.credentials import MAX_QUESTION, Credentials, listener_auth_queue, upstream_auth_queue
from framegate.proxy.server.messages import AnswerCommand
from framegate.proxy.server.protocol import MessageError


class Woken(Waker):
    """Counts."""

    def __init__(self) -> None:
        self.times = 0

    def now_ns(self) -> int:
        return 0

    def wake(self) -> None:
        self.times += 1

    def wake_at(self, deadline_ns: int) -> None:
        raise AssertionError("a question has no time limit of its own")


class Rig:
    """Credentials, and what control was told."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.credentials = Credentials()
        self.credentials.attach(self.told.append)
        self.wakers: list[Woken] = []

    def ask(self, auth_request: q.AuthRequest, auth_source: str = "listener:plain", peer: str = "") -> q.PendingAuth:
        waker = Woken()
        self.wakers.append(waker)
        pending_auth = q.PendingAuth(auth_request, waker, peer)
        self.credentials.source(auth_source).ask(pending_auth)
        return pending_auth

    def answer(self, number: int, kind: str = "Secret", **row: Any) -> None:
        self.credentials.answered(AnswerCommand(type="answer", number=number, kind=kind, row=row or {"text": "s"}))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_question_goes_to_its_desk_and_its_answer_to_who_asked(rig: Rig) -> None:
    first, second = rig.ask(q.CheckPassword("a", "canary"), listener_auth_queue("l")), rig.ask(q.WantSecret("b"), upstream_auth_queue("u"))
    assert [(row["number"], row["desk"], row["kind"], row["row"]) for row in rig.told] == [
        (1, "listener:l", "CheckPassword", {"user": "a", "password": "canary"}),
        (2, "upstream:u", "WantSecret", {"credential": "b"}),
    ]
    rig.answer(2)
    assert (first.answer, second.answer) == (None, q.Secret("s"))
    rig.answer(1, "Accepted", principal="a", lifetime_ms=None)
    assert (first.answer, [waker.times for waker in rig.wakers]) == (q.Accepted("a"), [1, 1])
    assert rig.credentials.open == 0


def test_what_is_forgotten_is_told_and_its_answer_is_nobodys(rig: Rig) -> None:
    pending_auth = rig.ask(q.CheckToken("t"))
    pending_auth.cancel()
    rig.credentials.source("listener:plain").forget(pending_auth)
    rig.credentials.source("listener:plain").forget(pending_auth)
    assert rig.told[1:] == [{"type": "forget", "number": 1}]
    rig.answer(1)
    assert (pending_auth.answer, rig.wakers[0].times, rig.credentials.open) == (None, 0, 0)


def test_a_second_answer_is_nobodys(rig: Rig) -> None:
    pending_auth = rig.ask(q.WantSecret("b"))
    rig.answer(1)
    rig.answer(1, text="other")
    assert (pending_auth.answer, rig.wakers[0].times) == (q.Secret("s"), 1)
    rig.credentials.source(upstream_auth_queue("u")).forget(pending_auth)
    assert len(rig.told) == 1


def test_an_answer_that_cannot_be_read_ends_its_question(rig: Rig) -> None:
    pending_auth = rig.ask(q.WantSecret("b"))
    with pytest.raises(MessageError):
        rig.answer(1, "ScramKeys", client_key="zz", server_key="")
    assert (pending_auth.answer, rig.credentials.open) == (q.Unavailable("control's answer cannot be read"), 0)


def test_there_are_so_many_at_most_and_then_again_once_one_is_answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 4)
    asked = [rig.ask(q.WantSecret("b")) for _ in range(3)]
    assert [item.answer for item in asked] == [
        None,
        None,
        q.Unavailable("2 questions of this processor wait for an answer, 2 of them of this address"),
    ]
    assert len(rig.told) == 2
    rig.answer(1)
    assert rig.ask(q.WantSecret("b")).answer is None


def test_an_address_has_half_of_what_is_free_and_others_find_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 16)
    peers = ["192.0.2.1:1", "192.0.2.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1", "unix:"]
    asked = {peer: [rig.ask(q.WantSecret("b"), peer=peer) for _ in range(8)] for peer in peers}
    assert [sum(item.answer is None for item in each) for each in asked.values()] == [8, 0, 4, 0, 2]
    assert [row["address"] for row in rig.told] == ["192.0.2.1"] * 8 + ["2001:db8::/64"] * 4 + [""] * 2
    rig.answer(1)
    rig.credentials.source("listener:plain").forget(asked["192.0.2.1:1"][1])
    assert [rig.ask(q.WantSecret("b"), peer="192.0.2.1:9").answer is None for _ in range(3)] == [False] * 3, "others came meanwhile"
    for number in range(3, 9):
        rig.answer(number)
    assert rig.ask(q.WantSecret("b"), peer="192.0.2.1:9").answer is None
    rig.credentials.lose()
    assert rig.credentials._of_address == {}


def test_what_is_longer_than_anybody_takes_is_not_passed_on(rig: Rig) -> None:
    assert rig.ask(q.CheckPassword("u", "x" * (MAX_QUESTION - 1))).answer is None
    refused = rig.ask(q.CheckPassword("u", "x" * MAX_QUESTION)).answer
    assert refused == q.Unavailable(f"CheckPassword of more than {MAX_QUESTION} characters")
    assert len(rig.told) == 1


def test_a_link_that_is_lost_ends_all_and_whatever_is_asked_then(rig: Rig) -> None:
    gone = q.Unavailable("the link to the control process is gone")
    open_ones = [rig.ask(q.WantSecret("b")) for _ in range(2)]
    rig.credentials.lose()
    later = rig.ask(q.WantSecret("b"))
    assert [item.answer for item in (*open_ones, later)] == [gone] * 3
    rig.credentials.lose()
    rig.credentials.source(upstream_auth_queue("u")).forget(later)
    rig.answer(1)
    assert (len(rig.told), rig.credentials.open, [waker.times for waker in rig.wakers]) == (2, 0, [1, 1, 1])


def test_nothing_secret_is_in_what_is_shown_of_it(rig: Rig) -> None:
    pending_auth = rig.ask(q.CheckPassword("u", "canary"))
    assert "canary" not in f"{rig.credentials!r}{pending_auth!r}{pending_auth.auth_request!r}{rig.credentials.source('d')!r}"
