"""framegate.proxy.auth.mechanism: what mechanisms share."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.auth_requests import Accepted, Refused, Unavailable
from framegate.proxy.auth.mechanism import Mechanism, Next, RefusalError, Reply, escape_name, expect, unescape_name
from framegate.proxy.auth.oauthbearer import OAuthBearerServer
from framegate.proxy.auth.plain import PlainServer
from framegate.proxy.auth.scram import ScramServer
from framegate.proxy.errors import InternalError
from tests.fakes.cases import each_of


class Silent(Mechanism):
    def evaluate(self, token: bytes) -> Next:
        return Reply(token)


@given(st.text(min_size=1).filter(lambda text: "\0" not in text) | st.sampled_from(["user=1", "=,=,", "user\\", "=2C", "=3D", "Ü,=ß"]))
def test_every_name_comes_back(name: str) -> None:
    text = escape_name(name)
    assert "," not in text
    assert unescape_name(text) == name


@each_of("text", ["", "a,b", "a=b", "=2c", "=", "a=3", "\0", "a=2Cb=3"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(RefusalError):
        unescape_name(text)


def test_an_answer_is_of_the_kind_that_was_asked_for_or_a_refusal_or_a_bug() -> None:
    assert expect(Accepted, Accepted("a")) == Accepted("a")
    with pytest.raises(RefusalError, match="cannot be checked: the queue is full") as caught:
        expect(Accepted, Unavailable("the queue is full"))
    assert caught.value.told == "", "which is none of the peer's business"
    with pytest.raises(InternalError):
        expect(Accepted, Refused("no"))
    with pytest.raises(InternalError):
        Silent().resume(Accepted("a"))


def test_a_reply_is_in_no_repr() -> None:
    assert "canary" not in repr(Reply(b"canary"))


def test_a_server_mechanism_has_the_name_that_the_client_gave() -> None:
    claims = base64.urlsafe_b64encode(b'{"sub": "ada"}').decode().rstrip("=")
    wrong = {
        name: mechanism.user
        for name, mechanism, token in (
            ("plain", PlainServer(), b"\0ada\0wrong"),
            ("scram", ScramServer("SCRAM-SHA-256", lambda: "n"), b"n,,n=ada,r=abc"),
            ("authorization", OAuthBearerServer(), b"n,a=ada,\x01auth=Bearer x.y.z\x01\x01"),
            ("subject", OAuthBearerServer(), f"n,,\x01auth=Bearer e30.{claims}.s\x01\x01".encode()),
        )
        if mechanism.evaluate(token) is None or mechanism.user != "ada"
    }
    assert wrong == {}
    for claims in ("e30", "W10", "_w", "eyJzdWIiOjF9"):
        nameless = OAuthBearerServer()
        nameless.evaluate(f"n,,\x01auth=Bearer e30.{claims}.s\x01\x01".encode())
        assert nameless.user == ""
