"""When an endpoint is ejected, for how long, and what brings it back."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import EjectionConfig, UpstreamConfig
from framegate.proxy.relay.counters import EndpointCounters
from framegate.proxy.relay.ejection import LEAST_SAMPLES, MOST_TIMES, WATCHED
from framegate.proxy.relay.endpoint import Endpoint
from framegate.proxy.relay.upstream import DOWN, EJECTIONS, Upstream
from tests.fakes.world import World, frame

SECOND = 1_000_000_000
MS = 1_000_000


class Judged:
    """An upstream with ejection."""

    def __init__(self, count: int = 3, **config: Any) -> None:
        self.ns = 1_000 * SECOND
        self.counters = EndpointCounters()
        self.ends = [Endpoint(socket.AF_INET, ("10.0.0.1", port), counters=self.counters) for port in range(count)]
        self.upstream = Upstream("u", self.ends, UpstreamConfig(name="u", ejection=EjectionConfig(**config)))

    def connect(self, number: int = 0) -> bool:
        """Make a connection that is READY to this endpoint, or not at all."""
        kept = []
        while (attempt := self.upstream.pick(None, self.ns)) is not None and attempt.endpoint is not self.ends[number] and len(kept) < 9:
            kept.append(attempt)
        for each in kept:
            self.upstream.abandoned(each, self.ns)
        if attempt is None or attempt.endpoint is not self.ends[number]:
            return False
        self.upstream.answered(attempt, self.ns)
        return True

    def fail(self, number: int = 0) -> bool:
        assert self.connect(number)
        return self.upstream.closed(self.ends[number], self.ns, self.ns, "ended")

    def answer(self, number: int, ms: int) -> bool:
        return self.upstream.judge(self.ends[number], ms * MS, self.ns, self.ns)

    @property
    def out(self) -> list[int]:
        return [number for number, each in enumerate(self.ends) if each.ejected]


def test_so_many_failed_connections_in_a_row_eject_an_endpoint_and_an_answer_begins_the_count_anew() -> None:
    judged = Judged(failures=3, at_most_percent=34)
    judged.fail()
    judged.fail()
    judged.answer(0, 1)
    assert [judged.fail() for _ in range(3)] == [False, False, True]
    assert (judged.out, judged.ends[0].reason, judged.ends[0].failures) == ([0], "failures", 3)
    assert not judged.connect(), "it is out"
    assert (judged.counters.counts.cells[EJECTIONS["failures"]], judged.counters.counts.cells[DOWN]) == (1, 1)
    for _ in range(9):
        judged.fail(1)
    assert judged.out == [0], "at most a third is out"


def test_attempts_that_fail_count_too_and_turn_a_back_off_into_an_ejection() -> None:
    judged = Judged(failures=3)
    found = []
    for _ in range(3):
        attempt = judged.upstream.pick(None, judged.ns)
        while attempt is not None and attempt.endpoint is not judged.ends[0]:
            judged.upstream.abandoned(attempt, judged.ns)
            attempt = judged.upstream.pick(None, judged.ns)
        assert attempt is not None
        judged.upstream.failed(attempt, Cause.UPSTREAM_REFUSED, "no", judged.ns)
        found.append((judged.ends[0].reason, judged.ends[0].backoff_ns // SECOND))
        judged.ns += judged.ends[0].backoff_ns
    assert found == [("refused", 1), ("refused", 2), ("failures", 30)]


def test_one_without_another_that_is_in_is_never_ejected() -> None:
    judged = Judged(1, failures=1, at_most_percent=100)
    for _ in range(5):
        judged.fail()
    assert judged.out == []
    judged = Judged(2, failures=1, at_most_percent=100)
    judged.upstream.set_failing({judged.ends[1].text: "check"})
    for _ in range(5):
        judged.fail()
    assert judged.out == []
    judged.upstream.set_failing({})
    judged.fail()
    assert judged.out == [0]
    judged.upstream.replace([judged.ends[0]])
    assert (judged.out, judged.ends[0].down) == ([], False), "its peer is gone"


def test_it_comes_back_after_enough_successes_one_trial_a_second_and_a_failure_doubles_the_time() -> None:
    judged = Judged(failures=1, successes=2)
    judged.fail()
    times = []
    for _ in range(6):
        times.append((judged.ends[0].due_ns - judged.ns) // SECOND)
        judged.ns = judged.ends[0].due_ns
        judged.fail()
    assert times == [30, 60, 120, 240, 30 * MOST_TIMES, 30 * MOST_TIMES]
    judged.ns = judged.ends[0].due_ns - 1
    assert not judged.connect()
    judged.ns += 1
    assert judged.connect()
    assert not judged.connect(), "another trial a second later"
    assert (judged.answer(0, 1), judged.out) == (False, [0])
    judged.ns += SECOND
    assert judged.connect()
    assert (judged.answer(0, 1), judged.out, judged.ends[0].down) == (True, [], False)
    judged.ns += 30 * MOST_TIMES * SECOND - 1
    judged.fail()
    assert judged.ends[0].backoff_ns == 30 * MOST_TIMES * SECOND, "it was not in for long"
    judged.ns = judged.ends[0].due_ns
    judged.answer(0, 1)
    judged.answer(0, 1)
    judged.ns += 30 * MOST_TIMES * SECOND
    judged.fail()
    assert judged.ends[0].backoff_ns == 30 * SECOND


def test_a_slow_endpoint_is_ejected_beside_the_median_of_the_others_and_must_be_fast_to_come_back() -> None:
    judged = Judged(4, latency_factor=3.0, failures=0)
    for _ in range(LEAST_SAMPLES):
        for number, ms in enumerate((10, 11, 12, 31)):
            judged.answer(number, ms)
    assert judged.out == [], "31 is not more than three times 11, the median of the others"
    for _ in range(LEAST_SAMPLES):
        judged.answer(3, 40)
    assert judged.out == [3]
    slow = judged.ends[3]
    assert (slow.reason, "those of the others after 11000 \u00b5s" in slow.detail) == ("latency", True)
    judged.ns = slow.due_ns
    judged.answer(3, 10)
    judged.answer(3, 40)
    assert (judged.out, slow.backoff_ns) == ([3], 60 * SECOND)
    judged.ns = slow.due_ns
    for _ in range(3):
        judged.answer(3, 10)
    assert judged.out == []


def test_latency_needs_enough_samples_a_difference_above_noise_and_a_factor() -> None:
    for factor, fast, slow, samples, ejected in (
        (2.0, 10, 21, LEAST_SAMPLES, [0]),
        (2.0, 10, 20, LEAST_SAMPLES, []),
        (2.0, 10, 90, LEAST_SAMPLES - 1, []),
        (2.0, 0, 1, LEAST_SAMPLES, []),
        (0.0, 10, 90, LEAST_SAMPLES, []),
    ):
        judged = Judged(2, latency_factor=factor, at_most_percent=50)
        for _ in range(samples):
            judged.answer(1, fast)
            judged.answer(0, slow)
        judged.answer(1, fast)
        assert judged.out == ejected, (factor, fast, slow, samples)


@contextlib.contextmanager
def joined(**ejection: Any) -> Iterator[tuple[World, socket.socket, Any, socket.socket]]:
    """A world with two endpoints, and in it a client, its pair, and the connection of the first endpoint."""
    other = socket.create_server(("127.0.0.1", 0))
    world = World(endpoints=[other.getsockname()], upstream=UpstreamConfig(name="u", ejection=EjectionConfig(**ejection)))
    world.sockets.append(other)
    server = Endpoint(socket.AF_INET, world.server.getsockname())
    world.upstream.replace([*world.upstream.endpoints, server])
    try:
        client, pair = world.client()
        world.until(lambda: pair.state.value == "open")
        yield world, client, pair, other.accept()[0]
    finally:
        world.close()


def test_a_server_that_ends_connections_before_a_byte_is_ejected_and_one_that_ends_idle_ones_is_not() -> None:
    for asks, waits_s, cause, failed in ((False, 0, "upstream_closed", 1), (True, 11, "upstream_closed", 1), (False, 11, "peer_closed", 0)):
        with joined(failures=1) as (world, client, _, accepted):
            if asks:
                client.sendall(frame(b"question"))
                world.read(accepted, 12)
            world.pass_time(waits_s)
            accepted.close()
            assert world.ended(client) == b""
            client.close()
            world.until(lambda world=world: world.rows)
            assert (world.row["cause"], [row["reason"] for row in world.told.endpoints]) == (cause, ["failures"] * failed), (asks, waits_s)


def test_a_client_that_leaves_and_an_answer_are_no_failures() -> None:
    with joined(failures=1) as (world, client, _, accepted):
        client.sendall(frame(b"question"))
        world.read(accepted, 12)
        client.close()
        world.pass_time(1)
        accepted.close()
        world.until(lambda: world.rows)
        assert world.told.endpoints == []


def test_the_latency_is_that_of_the_attempt_and_of_the_first_answer() -> None:
    with joined(failures=1) as (world, client, pair, accepted):
        ejection, (first, _) = world.upstream.ejection, world.upstream.endpoints
        assert ejection is not None
        world.pass_time(5)
        client.sendall(frame(b"question"))
        world.read(accepted, 12)
        assert ejection.take_answers() == []
        world.pass_time(0.25)
        accepted.sendall(frame(b"answer"))
        world.read(client, 10)
        assert ejection.take_answers() == [(first, 250 * MS, pair.upstream.channel.ready_ns)]
        world.pass_time(1)
        client.sendall(frame(b"question"))
        world.read(accepted, 12)
        accepted.sendall(frame(b"answer"))
        world.read(client, 10)
        assert ejection.take_answers() == [], "only the first"
        accepted.close()
        client.close()
        world.until(lambda: world.rows)


def test_connections_without_an_answer_are_forgotten_when_they_close_and_their_number_is_bounded() -> None:
    with joined() as (world, client, pair, accepted):
        ejection = world.upstream.ejection
        assert ejection is not None
        channel, mine = pair.upstream.channel, pair.client.channel
        assert channel is not None
        assert mine is not None
        for _ in range(WATCHED + 10):
            ejection.watch(world.upstream.endpoints[0], channel.write_half, mine.write_half, 1, 2)
        accepted.sendall(frame(b"speaks first"))
        world.read(client, 16)
        assert len(ejection.take_answers()) == WATCHED
        client.close()
        accepted.close()
        world.until(lambda: world.rows)
        ejection.watch(world.upstream.endpoints[0], channel.write_half, channel.write_half, 1, 2)
        ejection.take_answers()
        assert ejection.take_answers() == []
