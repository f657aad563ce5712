"""Who answers for a listener, made of what is in its files."""

from pathlib import Path

import pytest

from framegate.control.identity.files import IdentityFileError, files_of, listener_answers, read_files
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, CheckToken, KnownApis, Refused, SupportedApis, Unavailable
from framegate.proxy.auth.messages import ApiRange, ApiVersionsAnswer
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig
from tests.control.identity.conftest import Signer

TOKENS = TokenConfig(jwks="/jwks", issuer="https://issuer", audience="framegate", scopes=("write",), principal_claim="user")
BOTH = ListenerSasl(mechanisms=("PLAIN", "OAUTHBEARER"), users="/users", tokens=TOKENS)


def users() -> bytes:
    made = UsersFile()
    made.add("alice", new_credentials("secret", iterations=4096))
    return made.text().encode()


def apis(version: int) -> ApiVersionsAnswer:
    return ApiVersionsAnswer(0, (ApiRange(0, 1, version),))


def test_all_that_was_configured_is_asked_for(signer: Signer) -> None:
    answers = listener_answers(BOTH, {"/users": users(), "/jwks": signer.jwks()}, apis)
    assert answers.answer(CheckPassword("alice", "secret")) == Accepted("alice")
    assert isinstance(answers.answer(CheckPassword("alice", "other")), Refused)
    assert answers.answer(SupportedApis(3)) == KnownApis.of(apis(3))
    good = answers.answer(CheckToken(signer.token(user="bob", scope="read write", exp=4_000_000_000)))
    assert isinstance(good, Accepted)
    assert good.principal == "bob"
    assert isinstance(answers.answer(CheckToken(signer.token(user="bob", scope="read", exp=4_000_000_000))), Refused)
    assert isinstance(answers.answer(CheckToken(signer.token(user="bob", scope="write", exp=4_000_000_000, aud="x"))), Refused)


def test_what_was_not_configured_cannot_be_answered(signer: Signer) -> None:
    only = listener_answers(ListenerSasl(mechanisms=("PLAIN",), users="/users"), {"/users": users()}, apis)
    assert isinstance(only.answer(CheckToken("t")), Unavailable)
    other = listener_answers(ListenerSasl(mechanisms=("OAUTHBEARER",), tokens=TOKENS), {"/jwks": signer.jwks()}, apis)
    assert isinstance(other.answer(CheckPassword("alice", "secret")), Unavailable)


def test_the_files_are_those_that_are_named() -> None:
    assert files_of(BOTH) == {"sasl": "/users", "jwks": "/jwks"}
    assert files_of(ListenerSasl(mechanisms=("PLAIN",), users="/users")) == {"sasl": "/users"}
    assert files_of(ListenerSasl(mechanisms=())) == {}


def test_what_one_file_says_goes_on_when_the_other_is_replaced(signer: Signer) -> None:
    first = listener_answers(BOTH, {"/users": users(), "/jwks": signer.jwks()}, apis)
    for contents in ({"/users": users()}, {"/jwks": signer.jwks()}):
        again = listener_answers(BOTH, contents, apis, first)
        assert again.answer(CheckPassword("alice", "secret")) == Accepted("alice")
        assert isinstance(again.answer(CheckToken(signer.token(user="bob", scope="write", exp=4_000_000_000))), Accepted)
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
        listener_answers(BOTH, {"/users": users(), "/jwks": signer.jwks(), path: data}, apis)
    assert (caught.value.path, caught.value.reason, str(caught.value)) == (path, reason, f"{path}: {reason}")


def test_files_are_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert read_files((f"{tmp_path}/a",)) == {f"{tmp_path}/a": b"x"}
    with pytest.raises(IdentityFileError, match="/b: cannot be read: No such file or directory"):
        read_files((f"{tmp_path}/a", f"{tmp_path}/b"))
