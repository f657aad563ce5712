"""Commands on real pairs, each with its answer; what they make jobs of is in ``test_jobs``."""

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.limits import RateLimits
from framegate.proxy.server.jobs import Job
from tests.fakes.limited import limits
from tests.fakes.steered import Steered


@pytest.fixture
def steered(world):
    return Steered(world=world)


def test_an_error_of_a_job_is_its_answer_and_the_next_job_goes_on(steered):
    class Failing(Job):
        def _visit(self, number: int, pair: object) -> None:
            if self.id == 1:
                raise RuntimeError("a bug")

        def result(self) -> dict:
            raise RuntimeError("a bug in the answer")

        def cut(self) -> dict:
            raise RuntimeError("a bug in the end")

    steered.commands._jobs.extend(Failing(number, steered.world.relay, [99]) for number in (1, 2))
    steered.commands.handle({"type": "list", "id": 3})
    steered.work()
    steered.commands._jobs.append(Failing(4, steered.world.relay, [99]))
    steered.commands.end()
    answers = {answer["id"]: answer.get("error") for answer in steered.answers}
    assert answers == {1: "RuntimeError: a bug", 2: "RuntimeError: a bug in the answer", 3: None, 4: "RuntimeError: a bug in the end"}
    assert steered.world.selector.faults.take()[0].times == 3


def test_endpoints_are_told_with_why_they_are_left_out(steered):
    up = {"state": "up", "reason": "", "detail": "", "since_ns": 0, "out": 0}
    common = {"upstream": "u", "endpoint": "127.0.0.1:1", "connections": 0, "weight": 1, "zone": "", "latency_ns": 0}
    assert steered.ask("upstreams") == {"type": "result", "rows": [{**common, **up}]}
    upstream = steered.settings.in_force.upstreams["u"]
    upstream.failed(upstream.pick(None, 0), Cause.TLS_FAILED, "no", 5)
    since_ns = 5 + int(steered.world.relay.pairs.wall_offset_ns)
    due_ns = upstream.endpoints[0].due_ns
    for now_ns, detail in ((due_ns - 1, "no"), *((due_ns + late, "no; its back-off has passed, and a new connection may try it") for late in (0, 1))):
        steered.world.selector.now_ns = now_ns
        row = {**common, "state": "down", "reason": "tls", "detail": detail, "since_ns": since_ns, "out": 1}
        assert steered.ask("upstreams") == {"type": "result", "rows": [row]}


def test_parts_of_rates_hold_at_once(steered):
    row = {"level": "node", "name": "", "counter": "response_bytes", "part": 70}
    steered.commands.handle({"type": "parts", "default": 900, "parts": [row]})
    assert steered.answers == []
    quotas = steered.world.relay.pairs.quotas
    quotas.set_limits(limits(node=RateLimits(request_bytes_rate=5, response_bytes_rate=5)))
    assert {key[2]: int(bucket.part) for key, bucket in quotas.buckets.items()} == {"request_bytes": 900, "response_bytes": 70}
    steered.commands.handle({"type": "parts", "default": 900, "parts": [{**row, "counter": "dances"}]})
    assert [answer["type"] for answer in steered.answers] == ["error"]
    steered.world.selector.faults.take()
