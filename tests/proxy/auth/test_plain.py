"""framegate.proxy.auth.plain: one message, checked by somebody else."""

import pytest

from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, Refused, Secret, Unavailable, WantSecret
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


def test_a_wrong_password_and_a_wrong_name_are_told_the_same() -> None:
    told = set()
    for reason in ("wrong password", "no such user"):
        server = PlainServer()
        server.evaluate(b"\0user\0pencil")
        with pytest.raises(RefusalError) as caught:
            server.resume(Refused(reason))
        assert (str(caught.value), server.principal, server.complete) == (reason, "", False)
        told.add(caught.value.told)
    assert told == {"Authentication failed: Invalid username or password"}


def test_to_be_somebody_else_is_refused_once_the_password_is_right() -> None:
    server = PlainServer()
    server.evaluate(b"admin\0user\0pencil")
    with pytest.raises(RefusalError, match="different from username"):
        server.resume(Accepted("user"))
    server = PlainServer()
    server.evaluate(b"admin\0user\0pencil")
    with pytest.raises(RefusalError, match="wrong password"):
        server.resume(Refused("wrong password"))


def test_who_cannot_be_checked_is_told_nothing_of_why() -> None:
    server = PlainServer()
    server.evaluate(b"\0user\0pencil")
    with pytest.raises(RefusalError, match="the disk is gone") as caught:
        server.resume(Unavailable("the disk is gone"))
    assert caught.value.told == ""


def test_the_client() -> None:
    client = PlainClient("user", "brokers")
    assert client.begin() == Ask(WantSecret("brokers"))
    assert client.resume(Secret("pencil")) == Reply(b"\0user\0pencil")
    assert not client.complete, "the server has not said yes"
    client.evaluate(b"")
    assert client.complete
    with pytest.raises(RefusalError):
        PlainClient("user", "brokers").evaluate(b"what else?")
