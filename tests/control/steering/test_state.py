"""framegate.control.steering.state: what there is, and health."""

import pytest

from tests.fakes.fleet import Fleet, open_channels, run, until


def test_what_there_is_can_be_seen() -> None:
    async def scenario(made: Fleet) -> None:
        await open_channels(made, 2)
        (listener,) = made.steering.listeners.statuses()
        assert (listener.name, listener.connections, listener.accepting, listener.tls) == ("a", 2, True, False)
        assert listener.address == made.acceptor.listeners["a"].address
        (upstream,) = await made.steering.upstreams.statuses()
        assert (upstream.name, upstream.addresses, upstream.error, upstream.down) == ("u", ("127.0.0.1:1",), "", ())
        assert not made.steering.state.build.compiled
        assert [slot for slot, _ in made.steering.state.cells] == [0, 1]
        assert ("framegate.config.revision", ()) in made.steering.state.measurements()
        assert made.steering.state.started_ns > 0

    run(scenario)


def test_liveness_is_gone_when_a_job_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet) -> None:
        job = made.task_monitor.job("heartbeats", 0.0)
        await until(lambda: job.stalled)
        health = made.steering.state.health()
        assert (health.started, health.alive, health.ready) == (True, False, True)
        job.end()
        assert made.steering.state.health().alive

    run(scenario, 1)


def test_health_says_in_words_what_is_missing() -> None:
    async def scenario(made: Fleet) -> None:
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

    run(scenario, 1)
