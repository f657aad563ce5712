"""framegate.proxy.auth.oauthbearer: the grammar of the first message, and the two steps of a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.auth_requests import Accepted, CheckToken, Refused, Secret, WantSecret
from framegate.proxy.auth.mechanism import Ask, RefusalError, Reply
from framegate.proxy.auth.oauthbearer import OAuthBearerClient, OAuthBearerServer
from tests.fakes.cases import each_of

TOKEN = "aaa.bbb-_~+/.ccc=="
GOOD = f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode()


@each_of(
    "message",
    [
        GOOD,
        GOOD.replace(b"Bearer ", b"bEARER   "),
        GOOD.replace(b"n,,", b"n,a=user,"),
        GOOD.replace(b"\x01\x01", b"\x01traceId=1 2\x01logicalCluster=c\x01\x01"),
        GOOD.replace(b"\x01auth", b"\x01host=h\x01auth"),
    ],
)
def test_a_good_message(message: bytes) -> None:
    server = OAuthBearerServer()
    assert server.evaluate(message) == Ask(CheckToken(TOKEN))
    assert server.resume(Accepted("user", -5)) == Reply(b"")
    assert (server.complete, server.principal, server.lifetime_ms) == (True, "user", -5)


@each_of(
    "message",
    [
        b"",
        b"\x01",
        GOOD[:-1],
        GOOD + b"\x01",
        GOOD.replace(b"n,,", b"y,,"),
        GOOD.replace(b"n,,", b"p=tls-unique,,"),
        GOOD.replace(b"n,,", b"n,"),
        GOOD.replace(b"n,,", b"n,b=user,"),
        GOOD.replace(b"n,,", b"n,a=,"),
        GOOD.replace(b"n,,", b"n,a=a=b,"),
        GOOD.replace(b"auth", b"Auth"),
        GOOD.replace(b"auth=", b"auth:"),
        GOOD.replace(b"Bearer ", b"Basic "),
        GOOD.replace(b"Bearer ", b"Bearer"),
        GOOD.replace(b"aaa", b"a,a"),
        GOOD.replace(b"\x01\x01", b"\x01auth=Bearer x\x01\x01"),
        GOOD.replace(b"\x01\x01", b"\x01k3y=v\x01\x01"),
        GOOD.replace(b"\x01\x01", b"\x01key=\x01\x01"),
        GOOD.replace(b"\x01\x01", b"\x01key=\x02\x01\x01"),
        GOOD.replace(b"aaa", b"\xff"),
        b"n,,\x01auth=Bearer \x01\x01",
    ],
)
def test_what_is_no_such_message_is_refused(message: bytes) -> None:
    with pytest.raises(RefusalError) as caught:
        OAuthBearerServer().evaluate(message)
    assert TOKEN not in str(caught.value)


@each_of(
    ("refused", "said"),
    [(Refused("expired"), {"status": "invalid_token"}), (Refused("lacks", "read write"), {"status": "insufficient_scope", "scope": "read write"})],
)
def test_a_bad_token_is_told_in_json_and_refused_once_that_is_confirmed(refused: Refused, said: dict[str, str]) -> None:
    server = OAuthBearerServer()
    server.evaluate(GOOD)
    step = server.resume(refused)
    assert isinstance(step, Reply)
    assert json.loads(step.token) == said
    assert not server.complete
    with pytest.raises(RefusalError, match=refused.reason) as caught:
        server.evaluate(b"\x01")
    assert json.loads(caught.value.told) == said
    with pytest.raises(RefusalError):
        server.evaluate(GOOD)


def test_to_be_somebody_else_than_the_token_says_is_refused() -> None:
    server = OAuthBearerServer()
    server.evaluate(GOOD.replace(b"n,,", b"n,a=admin,"))
    with pytest.raises(RefusalError, match="'admin' with the token of 'user'"):
        server.resume(Accepted("user"))
    assert (server.complete, server.principal) == (False, "")


def test_the_client_says_what_the_server_reads() -> None:
    client = OAuthBearerClient("brokers", authorization="a=b", extensions={"logicalCluster": "c"})
    assert client.begin() == Ask(WantSecret("brokers"))
    step = client.resume(Secret(TOKEN))
    assert isinstance(step, Reply)
    assert step.token == f"n,a=a=3Db,\x01auth=Bearer {TOKEN}\x01logicalCluster=c\x01\x01".encode()
    assert OAuthBearerServer().evaluate(step.token) == Ask(CheckToken(TOKEN))
    assert client.evaluate(b'{"status":"invalid_token"}') == Reply(b"\x01")
    assert not client.complete
    assert client.evaluate(b"") is None
    assert client.complete


@each_of("extensions", [{"auth": "x"}, {"k1": "x"}, {"": "x"}, {"k": ""}, {"k": "a\x01b"}])
def test_an_extension_that_cannot_be_said(extensions: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no extension"):
        OAuthBearerClient("a", extensions=extensions)


@each_of("token", ["", "a b", "a\x01auth=Bearer b", "ü", "a\n"])
def test_a_token_that_would_be_read_otherwise_is_not_sent(token: str) -> None:
    with pytest.raises(RefusalError) as caught:
        OAuthBearerClient("a").resume(Secret(token))
    assert token == "" or token not in str(caught.value)


@given(st.binary(max_size=80))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RefusalError):
        OAuthBearerServer().evaluate(data)
