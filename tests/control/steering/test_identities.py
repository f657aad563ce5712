"""Authentication is made when it is configured first."""

import dataclasses
from pathlib import Path

from framegate.control.steering.identities import Identities
from framegate.proxy.config.model import ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import UpstreamSasl
from tests.fakes.fleet import Fleet, run
from tests.fakes.scenario import run_by


def with_login(config: ProxyConfig, path: Path) -> ProxyConfig:
    sasl = UpstreamSasl(mechanism="PLAIN", user="gate", password_file=str(path))
    return dataclasses.replace(config, upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",), sasl=sasl),))


@run_by(run, 1)
async def test_there_is_none_until_sasl_is_configured_and_it_stays_afterwards(made: Fleet, *, tmp_path: Path) -> None:
    config = made.desired.config
    identities: Identities = made.identities
    assert await identities.stage(config) is None
    identities.follow(None)
    assert (identities.identity, made.supervisor.auth_requests) == (None, None)
    staged = await identities.stage(with_login(config, tmp_path / "password"))
    assert staged is not None
    assert list(staged.answers) == ["upstream:u"]
    identities.follow(staged)
    first = identities.identity
    assert first is not None
    assert made.supervisor.auth_requests is first.auth_requests
    assert first._auth_pool.answers("upstream:u") is staged.answers["upstream:u"]
    without = await identities.stage(config)
    assert without is not None
    identities.follow(without)
    assert (identities.identity, first._auth_pool._queues) == (first, {})
