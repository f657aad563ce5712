"""A whole configuration applied to real processors."""

import dataclasses

import pytest

from framegate.control.configuration.child import Loaded
from framegate.control.errors import EtagError, FailedPreconditionError
from framegate.proxy.config.limits import RateLimits
from framegate.proxy.config.model import ProxyConfig
from tests.fakes.fleet import Fleet, run
from tests.fakes.scenario import run_by


def loaded(config: ProxyConfig) -> Loaded:
    return Loaded(config, [], {}, {})


@run_by(run)
async def test_it_is_in_force_or_nothing_is(made: Fleet) -> None:
    engine, before = made.steering.configuration, made.desired.config
    after = dataclasses.replace(
        before, listeners=(dataclasses.replace(before.listeners[0], max_receive_size=5, limits=RateLimits(connections=7)), *before.listeners[1:])
    )
    etag = engine.etag
    assert (await engine.apply(loaded(after), validate_only=True)).after == after
    assert engine.etag == etag
    applied = await engine.apply(loaded(after), etag)
    assert {item.path for item in applied.differences} == {"listeners[a].max_receive_size", "listeners[a].limits.connections"}
    assert made.desired.config == after
    with pytest.raises(EtagError):
        await engine.apply(loaded(before), etag)
    with pytest.raises(FailedPreconditionError) as caught:
        await engine.apply(loaded(dataclasses.replace(before, node="other")))
    assert (caught.value.reason, caught.value.metadata, made.desired.config) == ("NEEDS_RESTART", {"keys": "node"}, after)
