"""framegate.control.steering.state: health."""

import dataclasses

from framegate.control.accept.resolver import text_of
from framegate.proxy.config.model import CheckConfig, HealthConfig
from tests.fakes.fleet import Fleet, run, until
from tests.fakes.scenario import run_by


@run_by(run, 1)
async def test_liveness_is_gone_when_a_job_stands(made: Fleet) -> None:
    job = made.task_monitor.job("heartbeats", 0.0)
    await until(lambda: job.stalled)
    health = made.steering.state.health()
    assert (health.started, health.alive, health.ready) == (True, False, True)
    job.end()
    assert made.steering.state.health().alive


@run_by(run, 1)
async def test_health_says_in_words_what_is_missing(made: Fleet) -> None:
    made.steering.state.serving = False
    assert made.steering.state.health().problems == ("framegate is starting",)
    made.steering.state.serving = True
    health = made.steering.state.health()
    assert (health.started, health.alive, health.ready, health.draining, health.problems) == (True, True, True, False, ())
    made.steering.pool.draining = True
    health = made.steering.state.health()
    assert (health.alive, health.ready, health.draining, health.problems) == (True, False, True, ("framegate drains",))
    made.task_monitor.job("loop", -1.0)  # one that stands from the first moment on
    health = made.steering.state.health()
    assert (health.alive, health.problems[0]) == (False, "control's part 'loop' stands still")


@run_by(run, 1)
async def test_readiness_follows_upstreams_with_checks_if_it_is_told_to(made: Fleet) -> None:
    desired, state = made.supervisor.desired, made.steering.state
    (upstream,) = desired.config.upstreams
    known = [text_of(address) for address in desired.addresses(upstream.name)]
    checked = dataclasses.replace(upstream, check=CheckConfig())
    cases = [("upstream", checked, known, False), ("upstream", checked, known[1:], True), ("upstream", upstream, known, True)]
    for ready_when, asked, failing, ready in [*cases, ("listening", checked, known, True)]:
        health = HealthConfig(address="0.0.0.0:0", ready_when=ready_when)
        desired.config = dataclasses.replace(desired.config, health=health, upstreams=(asked,))
        desired.failing = {upstream.name: dict.fromkeys(failing, "refused")}
        words = () if ready else ("no endpoint of the upstream u passes its checks",)
        assert (state.health().ready, state.health().alive, state.health().problems) == (ready, True, words)
