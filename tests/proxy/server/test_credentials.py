"""Auth requests of a processor: each is sent once and completed once, arrives as it was sent, and leaves nothing behind."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.server import credentials as module
from framegate.proxy.server.credentials import MAX_QUESTION, Credentials, listener_auth_queue, question_from_row, row_of, upstream_auth_queue
from framegate.proxy.server.messages import AnswerCommand
from framegate.proxy.server.schema import MessageError, schema_of
from tests.fakes.clock import FakeClock
from tests.fakes.sasl_frames import known_apis
from tests.proxy.network.conftest import Alarm


class Rig:
    """Credentials, and what control was told."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.credentials = Credentials()
        self.credentials.attach(self.told.append)
        self.wakers: list[Alarm] = []

    def ask(self, auth_request: q.AuthRequest, auth_source: str = "listener:plain", peer: str = "") -> q.PendingAuth:
        self.wakers.append(Alarm(FakeClock()))
        pending_auth = q.PendingAuth(auth_request, self.wakers[-1], peer)
        self.credentials.source(auth_source).ask(pending_auth)
        return pending_auth

    def answer(self, number: int, kind: str = "Secret", **row: Any) -> None:
        self.credentials.answered(AnswerCommand(type="answer", number=number, kind=kind, row=row or {"text": "s"}))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_request_goes_to_its_queue_and_its_response_to_the_authenticator(rig: Rig) -> None:
    first, second = rig.ask(q.CheckPassword("a", "canary"), listener_auth_queue("l")), rig.ask(q.WantSecret("b"), upstream_auth_queue("u"))
    assert [(row["number"], row["queue"], row["kind"], row["row"]) for row in rig.told] == [
        (1, "listener:l", "CheckPassword", {"user": "a", "password": "canary"}),
        (2, "upstream:u", "WantSecret", {"credential": "b"}),
    ]
    rig.answer(2)
    assert (first.answer, second.answer) == (None, q.Secret("s"))
    rig.answer(1, "Accepted", principal="a", lifetime_ms=None)
    assert (first.answer, [waker.woken for waker in rig.wakers]) == (q.Accepted("a"), [1, 1])
    assert rig.credentials.open == 0


def test_a_cancelled_request_is_reported_and_its_response_ignored_as_a_second_response_is(rig: Rig) -> None:
    cancelled, answered = rig.ask(q.CheckToken("t")), rig.ask(q.WantSecret("b"))
    cancelled.cancel()
    for _ in range(2):
        rig.credentials.source("listener:plain").forget(cancelled)
    assert rig.told[2:] == [{"type": "forget", "number": 1}]
    rig.answer(1)
    rig.answer(2)
    rig.answer(2, text="other")
    assert (cancelled.answer, answered.answer, [waker.woken for waker in rig.wakers]) == (None, q.Secret("s"), [0, 1])
    rig.credentials.source(upstream_auth_queue("u")).forget(answered)
    assert (len(rig.told), rig.credentials.open) == (3, 0)


def test_an_answer_that_cannot_be_read_ends_its_question(rig: Rig) -> None:
    pending_auth = rig.ask(q.WantSecret("b"))
    with pytest.raises(MessageError):
        rig.answer(1, "ScramKeys", client_key="zz", server_key="")
    assert (pending_auth.answer, rig.credentials.open) == (q.Unavailable("control's answer cannot be read"), 0)


def test_the_number_of_open_requests_is_limited(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 4)
    asked = [rig.ask(q.WantSecret("b")) for _ in range(3)]
    full = q.Unavailable("2 questions of this processor wait for an answer, 2 of them of this address")
    assert [item.answer for item in asked] == [None, None, full]
    assert len(rig.told) == 2
    rig.answer(1)
    assert rig.ask(q.WantSecret("b")).answer is None


def test_an_address_may_use_half_of_the_free_places(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_request_that_is_too_long_is_not_sent(rig: Rig) -> None:
    assert rig.ask(q.CheckPassword("u", "x" * (MAX_QUESTION - 1))).answer is None
    refused = rig.ask(q.CheckPassword("u", "x" * MAX_QUESTION)).answer
    assert refused == q.Unavailable(f"CheckPassword of more than {MAX_QUESTION} characters")
    assert len(rig.told) == 1


def test_a_lost_link_ends_all_requests_and_later_ones(rig: Rig) -> None:
    gone = q.Unavailable("the link to the control process is gone")
    open_ones = [rig.ask(q.WantSecret("b")) for _ in range(2)]
    rig.credentials.lose()
    later = rig.ask(q.WantSecret("b"))
    assert [item.answer for item in (*open_ones, later)] == [gone] * 3
    rig.credentials.lose()
    rig.credentials.source(upstream_auth_queue("u")).forget(later)
    rig.answer(1)
    assert (len(rig.told), rig.credentials.open, [waker.woken for waker in rig.wakers]) == (2, 0, [1, 1, 1])


# Rows.

SALT = bytes(range(256))
QUESTIONS: list[q.AuthRequest] = [
    q.SupportedApis(3),
    q.WantCredential("SCRAM-SHA-256", "ålice\n\0"),
    q.CheckPassword("alice", "\ud800 ' \" \\ \u2028"),
    q.CheckToken("a.b.c"),
    q.WantSecret("brokers"),
    q.WantScramKeys("brokers", "SCRAM-SHA-512", SALT, 4096),
]
ANSWERS: list[q.AuthResponse] = [
    known_apis(ApiRange(0, 3, 11), ApiRange(18, 0, 4)),
    known_apis(),
    q.ScramCredential(SALT, 8192, b"stored", b"", is_known=False, lifetime_ms=5),
    q.ScramCredential(b"", 4096, b"s", b"k"),
    q.Accepted("alice", -1),
    q.Accepted("alice"),
    q.Refused("no", "scope"),
    q.Secret("canary"),
    q.ScramKeys(b"\0", b"\xff"),
    q.Unavailable("no"),
]


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("answer", "ScramKeys", {"client_key": "canary", "server_key": ""}, "ScramKeys has a field that cannot be read"),
    ("answer", "ScramKeys", {"client_key": "", "server_key": "0ä"}, "ScramKeys has a field that cannot be read"),
    ("answer", "KnownApis", {"answer": "0"}, "KnownApis has a field that cannot be read"),
    ("answer", "CheckToken", {"token": "canary"}, "no answer of the kind CheckToken"),
    ("answer", "Secret", {"text": 77}, "Secret.text must be str, not int"),
    ("question", "Secret", {"text": "x"}, "no question of the kind Secret"),
    ("question", "CheckToken", {"token": ["canary"]}, "CheckToken.token must be str, not list"),
    ("question", "CheckToken", {}, "CheckToken.token is missing"),
]


def test_requests_and_responses_arrive_as_they_were_sent(rig: Rig) -> None:
    assert {type(each) for each in QUESTIONS} == set(typing.get_args(q.AuthRequest)), "each kind is tried"
    assert {type(each) for each in ANSWERS} == set(typing.get_args(q.AuthResponse))
    for question in QUESTIONS:
        assert question_from_row(*json.loads(json.dumps(row_of(question)))) == question
    for number, answer in enumerate(ANSWERS, 1):
        pending_auth = rig.ask(q.WantSecret("b"))
        kind, row = json.loads(json.dumps(row_of(answer)))
        rig.answer(number, kind, **row)
        assert pending_auth.answer == answer


def test_a_malformed_row_is_refused_with_the_name_of_the_key_and_without_its_contents(rig: Rig) -> None:
    for number, (what, kind, row, text) in enumerate(REFUSED, 1):
        rig.ask(q.WantSecret("b"))
        read = question_from_row if what == "question" else lambda kind, row, number=number: rig.answer(number, kind, **row)
        with pytest.raises(MessageError) as caught:
            read(kind, row)
        assert str(caught.value) == text
        assert caught.value.__cause__ is None


def test_the_fault_of_a_row_does_not_quote_its_contents() -> None:
    for declared in (*typing.get_args(q.AuthRequest), *typing.get_args(q.AuthResponse)):
        names = [field.name for field in dataclasses.fields(declared)]
        for name in names:
            for value in ("canary", ["canary"], {"canary": "canary"}, 77):
                fault = schema_of(declared).fault({**dict.fromkeys(names, "canary"), name: value})
                assert "canary" not in fault
                assert "77" not in fault
