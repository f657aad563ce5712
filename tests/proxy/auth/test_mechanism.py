"""framegate.proxy.auth.mechanism: what mechanisms share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.auth_requests import Accepted, Refused, Unavailable
from framegate.proxy.auth.mechanism import Mechanism, Next, RefusalError, Reply, escape_name, expect, unescape_name
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
