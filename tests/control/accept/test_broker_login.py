"""The processors' SASL client, stepped by hand."""

import pytest

from framegate.control.accept.broker_login import Exchange
from framegate.proxy.auth.auth_requests import Secret
from framegate.proxy.auth.client import FIRST_CORRELATION_ID, SaslClientSettings
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.errors import AuthenticationError
from tests.fakes.sasl_frames import handshake_answer, token_answer, versions_answer

RANGES = (ApiRange(17, 0, 1), ApiRange(18, 0, 4), ApiRange(36, 0, 2))


def test_each_step_sends_a_frame_takes_one_or_asks() -> None:
    exchange = Exchange(SaslClientSettings("PLAIN", "me", "secret"))
    assert not exchange.step()
    assert [body[:2] for body in exchange.taken()] == [b"\0\x12"]
    assert not exchange.step(), "a step without a frame changes nothing"
    assert exchange.taken() == []
    exchange.body = versions_answer(0, *RANGES, correlation=FIRST_CORRELATION_ID)
    assert not exchange.step()
    assert exchange.ranges == RANGES
    assert [body[:2] for body in exchange.taken()] == [b"\0\x11"]
    exchange.body = handshake_answer("PLAIN", correlation=FIRST_CORRELATION_ID + 1)
    assert not exchange.step()
    assert exchange.pending is not None
    exchange.pending.complete(Secret("word"))
    assert exchange.pending is None
    assert not exchange.step()
    assert b"word" in exchange.taken()[0]
    exchange.body = token_answer(b"", correlation=FIRST_CORRELATION_ID + 2)
    assert exchange.step()
    exchange.close()


def test_a_mechanism_that_the_broker_lacks_is_an_error() -> None:
    exchange = Exchange(SaslClientSettings("PLAIN", "me", "secret"))
    exchange.step()
    exchange.body = versions_answer(0, *RANGES, correlation=FIRST_CORRELATION_ID)
    exchange.step()
    exchange.body = handshake_answer("GSSAPI", error=33, correlation=FIRST_CORRELATION_ID + 1)
    with pytest.raises(AuthenticationError, match="not enabled; enabled are GSSAPI"):
        exchange.step()
