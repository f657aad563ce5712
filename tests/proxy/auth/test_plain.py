"""framegate.proxy.auth.plain: one message, checked by somebody else."""

import pytest

from framegate.proxy.auth.auth_requests import Accepted, AuthResponse, CheckPassword, Refused, Secret, Unavailable, WantSecret
from framegate.proxy.auth.mechanism import Ask, RefusalError, Reply
from framegate.proxy.auth.plain import PlainClient, PlainServer
from tests.fakes.cases import each_of


@each_of("authorization", ["", "user"])
def test_a_user_with_his_password(authorization: str) -> None:
    server = PlainServer()
    assert server.evaluate(f"{authorization}\0user\0pencil".encode()) == Ask(CheckPassword("user", "pencil"))
    assert (server.complete, server.principal) == (False, "")
    assert server.resume(Accepted("user", 77)) == Reply(b"")
    assert (server.complete, server.principal, server.lifetime_ms) == (True, "user", 77)


@each_of(
    ("message", "told"),
    [
        (b"\0\0pencil", "Authentication failed: username not specified"),
        (b"\0user\0", "Authentication failed: password not specified"),
        (b"user\0pencil", ""),
        (b"\0user\0pencil\0more", ""),
        (b"", ""),
        (b"\0user\0\xff", ""),
    ],
)
def test_what_is_not_such_a_message(message: bytes, told: str) -> None:
    server = PlainServer()
    with pytest.raises(RefusalError) as caught:
        server.evaluate(message)
    assert caught.value.told == told
    assert (server.complete, server.principal) == (False, "")
    assert "pencil" not in str(caught.value)


OTHER = "Authentication failed: Client requested an authorization id that is different from username"
WRONG = "Authentication failed: Invalid username or password"


@each_of(
    ("message", "answer", "reason", "told"),
    [
        (b"\0user\0pencil", Refused("wrong password"), "wrong password", WRONG),
        (b"\0user\0pencil", Refused("no such user"), "no such user", WRONG),
        (b"\0user\0pencil", Unavailable("the disk is gone"), "cannot be checked: the disk is gone", ""),
        (b"admin\0user\0pencil", Accepted("user"), OTHER, OTHER),
        (b"admin\0user\0pencil", Refused("wrong password"), "wrong password", WRONG),
    ],
)
def test_a_refusal_tells_the_client_no_more_than_kafka_does(message: bytes, answer: AuthResponse, reason: str, told: str) -> None:
    server = PlainServer()
    server.evaluate(message)
    with pytest.raises(RefusalError) as caught:
        server.resume(answer)
    assert (str(caught.value), caught.value.told) == (reason, told)
    assert (server.complete, server.principal) == (False, "")


def test_the_client() -> None:
    client = PlainClient("user", "brokers")
    assert client.begin() == Ask(WantSecret("brokers"))
    assert client.resume(Secret("pencil")) == Reply(b"\0user\0pencil")
    assert not client.complete, "the server has not said yes"
    client.evaluate(b"")
    assert client.complete
    with pytest.raises(RefusalError):
        PlainClient("user", "brokers").evaluate(b"what else?")
