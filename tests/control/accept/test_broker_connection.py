"""Control's connections to brokers: TLS with the upstream's authorities and pins, and logins."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.control.accept.broker_connection import Tls, tls_of
from framegate.control.accept.broker_list import Broker, ask_brokers
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.config.tls import UpstreamTls
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.server.rows import Store, upstream_owner
from tests.fakes.brokers import FakeBroker
from tests.fakes.scenario import run_by, within_10_s
from tests.fakes.tls import TlsWorld

EDGE = Broker(1, "edge", 9093)


@run_by(within_10_s)
async def test_tls_is_that_of_the_upstream(*, tls_world: TlsWorld) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls_world.server)

    def tls(**keys: object) -> Callable[[str], Tls | None]:
        config = UpstreamConfig(name="u", tls=UpstreamTls(**{"ca": tls_world.authority, "server_name": "localhost", **keys}))  # type: ignore[arg-type]
        assert config.tls is not None
        files = {str(path): Path(str(path)).read_text(encoding="latin-1") for path in (config.tls.ca,) if path}
        return tls_of(config, lambda: {upstream_owner("u"): Store(1, files=files)})

    async with FakeBroker([EDGE], context) as broker:
        assert await ask_brokers(broker.wire, tls(), None, 5) == {1: EDGE}
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask_brokers(broker.wire, tls(ca=tls_world.other_authority), None, 5)
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask_brokers(broker.wire, tls(server_name="elsewhere"), None, 5)
        with pytest.raises(AuthenticationError, match="none of pins"):
            await ask_brokers(broker.wire, tls(pins=("sha256/" + "A" * 43 + "=",)), None, 5)
        with pytest.raises((OSError, EOFError)):
            await ask_brokers(broker.wire, lambda host: None, None, 5)
        assert broker.asked == 1
    assert tls_of(UpstreamConfig(name="u"), dict)("host") is None
