"""Questions and answers over the link: what arrives is what was sent, and nothing of it is told when it cannot be read."""

import dataclasses
import json
import typing
from typing import Any

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.server.protocol import MessageError
from framegate.proxy.server.question_codec import answer_from_row, question_from_row, row_of
from framegate.proxy.server.schema import schema_of
from tests.fakes.sasl_frames import known_apis

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


def sent(message: object) -> Any:
    return json.loads(json.dumps(message))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("ScramKeys", {"client_key": "canary", "server_key": ""}, "ScramKeys has a field that cannot be read"),
    ("ScramKeys", {"client_key": "", "server_key": "0ä"}, "ScramKeys has a field that cannot be read"),
    ("KnownApis", {"answer": "0"}, "KnownApis has a field that cannot be read"),
    ("CheckToken", {"token": "canary"}, "no answer of the kind CheckToken"),
    ("Secret", {"text": 77}, "Secret.text must be str, not int"),
]


def test_a_question_and_an_answer_arrive_as_they_were_sent() -> None:
    assert {type(each) for each in QUESTIONS} == set(typing.get_args(q.AuthRequest)), "each kind is tried"
    assert {type(each) for each in ANSWERS} == set(typing.get_args(q.AuthResponse))
    for question in QUESTIONS:
        assert question_from_row(*sent(row_of(question))) == question
    for answer in ANSWERS:
        assert answer_from_row(*sent(row_of(answer))) == answer


def test_what_is_none_is_refused_with_the_name_of_the_key_and_without_a_word_of_it() -> None:
    for kind, row, text in REFUSED:
        with pytest.raises(MessageError) as caught:
            answer_from_row(kind, row)
        assert str(caught.value) == text
        assert caught.value.__cause__ is None
    for kind, row, text in (
        ("Secret", {"text": "x"}, "no question of the kind Secret"),
        ("CheckToken", {"token": ["canary"]}, "CheckToken.token must be str, not list"),
        ("CheckToken", {}, "CheckToken.token is missing"),
    ):
        with pytest.raises(MessageError, match=f"^{text}$"):
            question_from_row(kind, row)


def test_what_is_wrong_with_a_row_is_said_without_a_word_of_what_is_in_it() -> None:
    for declared in (*typing.get_args(q.AuthRequest), *typing.get_args(q.AuthResponse)):
        names = [field.name for field in dataclasses.fields(declared)]
        for name in names:
            for value in ("canary", ["canary"], {"canary": "canary"}, 77):
                fault = schema_of(declared).fault({**dict.fromkeys(names, "canary"), name: value})
                assert "canary" not in fault
                assert "77" not in fault
