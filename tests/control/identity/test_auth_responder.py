"""Every auth request gets a response, and no response has a secret of an error."""

from pathlib import Path

import pytest

from framegate.control.identity import auth_responder as module
from framegate.control.identity.auth_responder import AuthResponder, IdentityFileError, files_of, listener_answers, read_files
from framegate.control.identity.secrets import Secrets
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.messages import ApiRange, ApiVersionsAnswer
from framegate.proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig
from tests.control.identity.conftest import NOW, Signer
from tests.fakes.cases import each_of
from tests.fakes.sasl_frames import ITERATIONS, PASSWORD, SALT, keys, stored

TOKENS = TokenConfig(jwks="/jwks", issuer="https://issuer", audience="framegate", scopes=("write",), principal_claim="user")
BOTH = ListenerSasl(mechanisms=("PLAIN", "OAUTHBEARER"), users="/users", tokens=TOKENS)
EVERY = (
    q.SupportedApis(4),
    q.WantCredential(SCRAM_SHA_256, "user"),
    q.CheckPassword("user", PASSWORD),
    q.CheckToken("canary"),
    q.WantSecret("a"),
    q.WantScramKeys("a", SCRAM_SHA_256, SALT, ITERATIONS),
)


def users_file() -> UsersFile:
    file = UsersFile()
    file.add("user", {mechanism: stored(mechanism) for mechanism in HASHES})
    return file


def users() -> Users:
    return Users(users_file())


def text_of_users() -> bytes:
    return users_file().text().encode()


def test_each_question_is_answered(tmp_path: Path, signer: Signer) -> None:
    (tmp_path / "secret").write_text(PASSWORD)
    said = {4: ApiVersionsAnswer(0, (ApiRange(0, 3, 11),), ((1, bytes(8)),))}
    answers = AuthResponder(
        users=users(), tokens=signer.tokens(), secrets=Secrets({"a": str(tmp_path / "secret")}), apis=said.__getitem__, now_s=lambda: NOW
    )
    found = [answers.answer(auth_request) for auth_request in EVERY]
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


@each_of("auth_request", EVERY[1:])
def test_what_is_not_configured_is_unavailable(auth_request: q.AuthRequest) -> None:
    assert isinstance(AuthResponder().answer(auth_request), q.Unavailable)
    assert AuthResponder().answer(EVERY[0]) == q.KnownApis.of(ApiVersionsAnswer(0))


def test_keys_of_the_same_password_and_salt_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str, bytes, int]] = []
    real = module.keys_of

    def counted(mechanism: str, password: str, salt: bytes, iterations: int) -> q.ScramKeys:
        made.append((mechanism, password, salt, iterations))
        return real(mechanism, password, salt, iterations)

    monkeypatch.setattr(module, "keys_of", counted)
    for name in ("a", "b"):
        (tmp_path / name).write_text(PASSWORD)
    answers = AuthResponder(secrets=Secrets({name: str(tmp_path / name) for name in ("a", "b")}))
    auth_request = q.WantScramKeys("a", SCRAM_SHA_256, SALT, ITERATIONS)
    assert [answers.answer(auth_request) for _ in range(5)] == [keys(auth_request)] * 5
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
        def check(self, auth_request: q.CheckPassword) -> q.Accepted:
            raise RuntimeError(f"the password is {auth_request.password}")

    answer = AuthResponder(users=Broken(UsersFile())).answer(q.CheckPassword("user", "canary"))
    assert answer == q.Unavailable("RuntimeError where CheckPassword was to be answered")


def test_at_once_is_answered_what_takes_neither_a_hash_nor_a_file(tmp_path: Path, signer: Signer) -> None:
    answers = AuthResponder(users=users(), tokens=signer.tokens(), secrets=Secrets({}), apis=lambda version: ApiVersionsAnswer(0))
    found = [answers.at_once(auth_request, "a") for auth_request in EVERY]
    assert found == [q.KnownApis.of(ApiVersionsAnswer(0)), stored(SCRAM_SHA_256), None, None, None, None]
    assert answers.answer(EVERY[2], "a") == q.Accepted("user")
    assert answers.at_once(EVERY[2], "b") == q.Accepted("user"), "it is known by now"
    assert [AuthResponder().at_once(auth_request, "a") for auth_request in EVERY[1:]] == [None] * 5


def apis(version: int) -> ApiVersionsAnswer:
    return ApiVersionsAnswer(0, (ApiRange(0, 1, version),))


def test_all_that_was_configured_is_asked_for(signer: Signer) -> None:
    answers = listener_answers(BOTH, {"/users": text_of_users(), "/jwks": signer.jwks()}, apis)
    assert answers.answer(q.CheckPassword("user", PASSWORD)) == q.Accepted("user")
    assert isinstance(answers.answer(q.CheckPassword("user", "other")), q.Refused)
    assert answers.answer(q.SupportedApis(3)) == q.KnownApis.of(apis(3))
    good = answers.answer(q.CheckToken(signer.token(user="bob", scope="read write", exp=4_000_000_000)))
    assert isinstance(good, q.Accepted)
    assert good.principal == "bob"
    assert isinstance(answers.answer(q.CheckToken(signer.token(user="bob", scope="read", exp=4_000_000_000))), q.Refused)
    assert isinstance(answers.answer(q.CheckToken(signer.token(user="bob", scope="write", exp=4_000_000_000, aud="x"))), q.Refused)


def test_what_was_not_configured_cannot_be_answered(signer: Signer) -> None:
    only = listener_answers(ListenerSasl(mechanisms=("PLAIN",), users="/users"), {"/users": text_of_users()}, apis)
    assert isinstance(only.answer(q.CheckToken("t")), q.Unavailable)
    other = listener_answers(ListenerSasl(mechanisms=("OAUTHBEARER",), tokens=TOKENS), {"/jwks": signer.jwks()}, apis)
    assert isinstance(other.answer(q.CheckPassword("user", PASSWORD)), q.Unavailable)


def test_the_files_are_those_that_are_named() -> None:
    assert files_of(BOTH) == {"sasl": "/users", "jwks": "/jwks"}
    assert files_of(ListenerSasl(mechanisms=("PLAIN",), users="/users")) == {"sasl": "/users"}
    assert files_of(ListenerSasl(mechanisms=())) == {}


def test_what_one_file_says_goes_on_when_the_other_is_replaced(signer: Signer) -> None:
    first = listener_answers(BOTH, {"/users": text_of_users(), "/jwks": signer.jwks()}, apis)
    for contents in ({"/users": text_of_users()}, {"/jwks": signer.jwks()}):
        again = listener_answers(BOTH, contents, apis, first)
        assert again.answer(q.CheckPassword("user", PASSWORD)) == q.Accepted("user")
        assert isinstance(again.answer(q.CheckToken(signer.token(user="bob", scope="write", exp=4_000_000_000))), q.Accepted)
        assert (again.users is first.users, again.tokens is first.tokens) == ("/jwks" in contents, "/users" in contents)


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("/users", b"canary", "is no file of users: line 1: the file does not begin with framegate-users"),
        ("/users", b"\xff", "is no file of users: line 1: not UTF-8"),
        ("/jwks", b"canary", "is no file of keys: not JSON"),
    ],
)
def test_a_file_that_is_none_is_named(signer: Signer, path: str, data: bytes, reason: str) -> None:
    with pytest.raises(IdentityFileError) as caught:
        listener_answers(BOTH, {"/users": text_of_users(), "/jwks": signer.jwks(), path: data}, apis)
    assert (caught.value.path, caught.value.reason, str(caught.value)) == (path, reason, f"{path}: {reason}")


def test_files_are_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert read_files((f"{tmp_path}/a",)) == {f"{tmp_path}/a": b"x"}
    with pytest.raises(IdentityFileError, match="/b: cannot be read: No such file or directory"):
        read_files((f"{tmp_path}/a", f"{tmp_path}/b"))
