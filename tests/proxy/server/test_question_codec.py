"""Questions and answers over the link: what arrives is what was sent, and nothing of it is told when it cannot be read."""

import json
from typing import Any

import pytest

from proxy.auth import questions as q
from proxy.auth.messages import ApiRange
from proxy.server.protocol import MessageError, read_command, read_notice
from proxy.server.question_codec import answer_from_row, question_from_row, row_of
from tests.fakes.sasl_frames import known_apis

SALT = bytes(range(256))
QUESTIONS: list[q.Question] = [
    q.SupportedApis(3),
    q.WantCredential("SCRAM-SHA-256", "ålice\n\0"),
    q.CheckPassword("alice", "\ud800 ' \" \\ \u2028"),
    q.CheckToken("a.b.c"),
    q.WantSecret("brokers"),
    q.WantScramKeys("brokers", "SCRAM-SHA-512", SALT, 4096),
]
ANSWERS: list[q.Answer] = [
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


def sent(message: dict[str, Any]) -> Any:
    return json.loads(json.dumps(message))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: type(each).__name__)
def test_a_question_arrives_as_it_was_asked(question: q.Question) -> None:
    kind, row = row_of(question)
    notice: Any = read_notice(sent({"type": "question", "number": 1, "desk": "upstreams", "address": "", "kind": kind, "row": row}))
    assert question_from_row(notice["kind"], notice["row"]) == question


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: type(each).__name__)
def test_an_answer_arrives_as_it_was_given(answer: q.Answer) -> None:
    kind, row = row_of(answer)
    command: Any = read_command(sent({"type": "answer", "number": 1, "kind": kind, "row": row}))
    assert answer_from_row(command["kind"], command["row"]) == answer


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("ScramKeys", {"client_key": "canary", "server_key": ""}),
        ("ScramKeys", {"client_key": "", "server_key": "0ä"}),
        ("KnownApis", {"answer": "0"}),
    ],
)
def test_a_row_that_is_none_in_spite_of_its_shape_is_refused_without_a_word_of_it(kind: str, row: dict[str, Any]) -> None:
    command: Any = read_command({"type": "answer", "number": 1, "kind": kind, "row": row})
    with pytest.raises(MessageError, match=f"^{kind} has a field that cannot be read$") as caught:
        answer_from_row(command["kind"], command["row"])
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"kind": "Secret", "row": {"text": "x"}}, "no question of the kind Secret"),
        ({"kind": "CheckToken", "row": {"token": ["canary"]}}, "CheckToken.token must be str, not list"),
        ({"kind": "CheckToken", "row": {}}, "CheckToken.token is missing"),
    ],
)
def test_a_question_that_is_none_is_refused_with_the_name_of_the_key(message: dict[str, Any], text: str) -> None:
    with pytest.raises(MessageError, match=f"^{text}$"):
        read_notice({"type": "question", "number": 1, "desk": "d", "address": "", **message})


def test_an_answer_of_another_kind_is_none() -> None:
    with pytest.raises(MessageError, match=r"^no answer of the kind CheckToken$"):
        read_command({"type": "answer", "number": 1, "kind": "CheckToken", "row": {"token": "canary"}})
