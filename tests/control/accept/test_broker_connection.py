"""Control's connections to brokers: TLS with the upstream's authorities and pins, and logins."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from framegate.control.accept.broker_connection import Login, Tls, tls_of
from framegate.control.accept.broker_list import Broker, ask_brokers
from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.secrets import Secrets
from framegate.proxy.auth.client import SaslClientSettings
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.config.tls import UpstreamTls
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.server.rows import Store, upstream_owner
from tests.fakes.brokers import FakeBroker, metadata_answer
from tests.fakes.cases import each_of
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.scenario import run_by
from tests.fakes.tls import TlsWorld

EDGE = Broker(1, "edge", 9093)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(main())


@run_by(run)
async def test_tls_is_that_of_the_upstream(*, tmp_path: Path) -> None:
    world = TlsWorld.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*world.server)

    def tls(**keys: object) -> Callable[[str], Tls | None]:
        config = UpstreamConfig(name="u", tls=UpstreamTls(**{"ca": world.authority, "server_name": "localhost", **keys}))  # type: ignore[arg-type]
        assert config.tls is not None
        files = {str(path): Path(str(path)).read_text(encoding="latin-1") for path in (config.tls.ca,) if path}
        return tls_of(config, lambda: {upstream_owner("u"): Store(1, files=files)})

    async with FakeBroker([EDGE], context) as broker:
        assert await ask_brokers(broker.wire, tls(), None, 5) == {1: EDGE}
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask_brokers(broker.wire, tls(ca=world.other_authority), None, 5)
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask_brokers(broker.wire, tls(server_name="elsewhere"), None, 5)
        with pytest.raises(AuthenticationError, match="none of pins"):
            await ask_brokers(broker.wire, tls(pins=("sha256/" + "A" * 43 + "=",)), None, 5)
        with pytest.raises((OSError, EOFError)):
            await ask_brokers(broker.wire, lambda host: None, None, 5)
        assert broker.asked == 1
    assert tls_of(UpstreamConfig(name="u"), dict)("host") is None


@each_of("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@run_by(run)
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
