"""Logins of control's own, by every mechanism."""

from pathlib import Path

import pytest

from framegate.control.accept.broker_connection import Login
from framegate.control.accept.broker_list import Broker, ask_brokers
from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.secrets import Secrets
from framegate.proxy.auth.client import SaslClientSettings
from framegate.proxy.errors import AuthenticationError
from tests.fakes.brokers import metadata_answer
from tests.fakes.cases import each_of
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.scenario import run_by, within_10_s

EDGE = Broker(1, "edge", 9093)


@each_of("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@run_by(within_10_s)
async def test_a_login_comes_before_the_question(*, mechanism: str, tmp_path: Path) -> None:
    (tmp_path / "good").write_text("secret")
    (tmp_path / "bad").write_text("wrong")
    responder = AuthResponder(secrets=Secrets({name: str(tmp_path / name) for name in ("good", "bad", "none")}))
    user = "" if mechanism == "OAUTHBEARER" else "me"
    broker = SaslBroker({"me": "secret"}, tokens={"secret": "me"})
    broker.bodies[3] = metadata_answer([EDGE])
    wire = ["127.0.0.1", 2, "127.0.0.1", broker.port]

    def login(name: str) -> Login:
        return Login(SaslClientSettings(mechanism, user, name), responder.answer)

    try:
        assert await ask_brokers(wire, lambda host: None, login("good"), 5) == {1: EDGE}
        for name, reason in (("bad", "Authentication failed|error"), ("none", "cannot be read|is not available")):
            with pytest.raises(AuthenticationError, match=reason) as caught:
                await ask_brokers(wire, lambda host: None, login(name), 5)
            assert "wrong" not in str(caught.value)
        with pytest.raises(ConnectionError, match="log in first"):
            await ask_brokers(wire, lambda host: None, None, 5)
        assert broker.logins == ["me"]
    finally:
        broker.close()
