"""framegate.control.steering.state: health."""

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
