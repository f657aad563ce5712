"""control.identity.answers: every question has an answer, and what goes wrong is in none."""

from pathlib import Path

import pytest

from control.identity import answers as module
from control.identity.answers import Answers
from control.identity.secrets import Secrets
from control.identity.users import Users
from control.identity.users_file import UsersFile
from proxy.auth import questions as q
from proxy.auth.messages import ApiRange, ApiVersionsAnswer
from proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512
from tests.control.identity.conftest import NOW, Signer
from tests.fakes.sasl_frames import ITERATIONS, PASSWORD, SALT, keys, stored

EVERY = (
    q.SupportedApis(4),
    q.WantCredential(SCRAM_SHA_256, "user"),
    q.CheckPassword("user", PASSWORD),
    q.CheckToken("canary"),
    q.WantSecret("a"),
    q.WantScramKeys("a", SCRAM_SHA_256, SALT, ITERATIONS),
)


def users() -> Users:
    file = UsersFile()
    file.add("user", {mechanism: stored(mechanism) for mechanism in HASHES})
    return Users(file)


def test_each_question_is_answered(tmp_path: Path, signer: Signer) -> None:
    (tmp_path / "secret").write_text(PASSWORD)
    said = {4: ApiVersionsAnswer(0, (ApiRange(0, 3, 11),), ((1, bytes(8)),))}
    answers = Answers(
        users=users(), tokens=signer.tokens(), secrets=Secrets({"a": str(tmp_path / "secret")}), apis=said.__getitem__, now_s=lambda: NOW
    )
    found = [answers.answer(question) for question in EVERY]
    expected = [
        q.KnownApis.of(said[4]),
        stored(SCRAM_SHA_256),
        q.Accepted("user"),
        q.Refused("token: not a signed token"),
        q.Secret(PASSWORD),
        keys(EVERY[-1]),
    ]
    assert found == expected
    assert answers.answer(q.CheckToken(signer.token())) == q.Accepted("alice", 90_000)


@pytest.mark.parametrize("question", EVERY[1:], ids=lambda question: type(question).__name__)
def test_what_is_not_configured_is_unavailable(question: q.Question) -> None:
    assert isinstance(Answers().answer(question), q.Unavailable)
    assert Answers().answer(EVERY[0]) == q.KnownApis.of(ApiVersionsAnswer(0))


def test_keys_of_the_same_password_and_salt_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str, bytes, int]] = []
    real = module.keys_of

    def counted(mechanism: str, password: str, salt: bytes, iterations: int) -> q.ScramKeys:
        made.append((mechanism, password, salt, iterations))
        return real(mechanism, password, salt, iterations)

    monkeypatch.setattr(module, "keys_of", counted)
    for name in ("a", "b"):
        (tmp_path / name).write_text(PASSWORD)
    answers = Answers(secrets=Secrets({name: str(tmp_path / name) for name in ("a", "b")}))
    question = q.WantScramKeys("a", SCRAM_SHA_256, SALT, ITERATIONS)
    assert [answers.answer(question) for _ in range(5)] == [keys(question)] * 5
    assert len(made) == 1
    others = [
        q.WantScramKeys("b", SCRAM_SHA_256, SALT, ITERATIONS),
        q.WantScramKeys("a", SCRAM_SHA_512, SALT, ITERATIONS),
        q.WantScramKeys("a", SCRAM_SHA_512, SALT + b"x", ITERATIONS),
        q.WantScramKeys("a", SCRAM_SHA_512, SALT + b"x", ITERATIONS + 1),
    ]
    assert [answers.answer(other) for other in others] == [keys(other) for other in others]
    assert len(made) == 5
    (tmp_path / "a").write_text("another")
    assert answers.answer(others[-1]) != keys(others[-1]), "the file is read each time"
    assert len(made) == 6
    assert PASSWORD not in repr(vars(answers))


def test_what_goes_wrong_inside_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Users):
        def check(self, question: q.CheckPassword) -> q.Accepted:
            raise RuntimeError(f"the password is {question.password}")

    answer = Answers(users=Broken(UsersFile())).answer(q.CheckPassword("user", "canary"))
    assert answer == q.Unavailable("RuntimeError where CheckPassword was to be answered")


def test_at_once_is_answered_what_takes_neither_a_hash_nor_a_file(tmp_path: Path, signer: Signer) -> None:
    answers = Answers(users=users(), tokens=signer.tokens(), secrets=Secrets({}), apis=lambda version: ApiVersionsAnswer(0))
    found = [answers.at_once(question, "a") for question in EVERY]
    assert found == [q.KnownApis.of(ApiVersionsAnswer(0)), stored(SCRAM_SHA_256), None, None, None, None]
    assert answers.answer(EVERY[2], "a") == q.Accepted("user")
    assert answers.at_once(EVERY[2], "b") == q.Accepted("user"), "it is known by now"
    assert [Answers().at_once(question, "a") for question in EVERY[1:]] == [None] * 5
