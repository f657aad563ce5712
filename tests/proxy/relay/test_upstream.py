"""Turns, back-off and probes of an upstream, with a clock of the test's own."""

import collections
import itertools
import socket
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.cause import Cause
from framegate.proxy.cells import CONNECT_ERRORS
from framegate.proxy.config.model import Balance, EjectionConfig, UpstreamConfig
from framegate.proxy.relay.counters import EndpointCounters
from framegate.proxy.relay.upstream import (
    CONNECTING,
    COUNTED_NS,
    DOWN,
    EJECTIONS,
    ENDPOINTS,
    FIRST_NS,
    MOST_NS,
    PROBES,
    Attempt,
    Endpoint,
    Tried,
    Upstream,
    connect_error,
)

SECOND = 1_000_000_000


class Plane:
    """An upstream whose clock is turned by hand."""

    def __init__(self, *ports: int, weights: Sequence[int] = (), zones: str = "", zone: str = "", **config: Any) -> None:
        self.ns = 100 * SECOND
        self.counters = EndpointCounters()
        endpoints = [
            endpoint(port, weight=weight or 1, zone=letter or "", counters=self.counters)
            for port, weight, letter in itertools.zip_longest(ports, weights, zones, fillvalue=None)
        ]
        self.upstream = Upstream("u", endpoints, UpstreamConfig(name="u", **config), zone, seed=7)

    def count(self, at: int) -> int:
        return int(self.counters.counts.cells[at])

    def pick(self, tried: Tried | None = None) -> Attempt:
        attempt = self.upstream.pick(tried, self.ns)
        assert attempt is not None
        return attempt

    def port(self, tried: Tried | None = None) -> int:
        """The port of an attempt that is given up at once."""
        attempt = self.pick(tried)
        self.upstream.abandoned(attempt, self.ns)
        return attempt.endpoint.address[1]

    def fail(self, attempt: Attempt, cause: Cause = Cause.UPSTREAM_REFUSED) -> bool:
        return self.upstream.failed(attempt, cause, "no", self.ns)

    def answer(self, attempt: Attempt) -> bool:
        return self.upstream.answered(attempt, self.ns)

    def at(self, port: int) -> Endpoint:
        return next(item for item in self.upstream.endpoints if item.address[1] == port)

    def take_down(self, port: int) -> Endpoint:
        """Fail an attempt of the endpoint whose turn it is made to be."""
        while True:
            attempt = self.pick()
            if attempt.endpoint.address[1] == port:
                self.fail(attempt)
                return attempt.endpoint
            self.upstream.abandoned(attempt, self.ns)


def endpoint(port: int, server_name: str = "", **others: Any) -> Endpoint:
    return Endpoint(socket.AF_INET, ("10.0.0.1", port), server_name, **others)


def tried(*endpoints: Endpoint) -> Tried:
    made = Tried()
    for item in endpoints:
        made.add(item, Cause.UPSTREAM_REFUSED, "no")
    return made


def test_every_cause_has_an_error_of_the_metric():
    causes = (Cause.UPSTREAM_REFUSED, Cause.UPSTREAM_TIMEOUT, Cause.TLS_FAILED, Cause.AUTH_FAILED, Cause.PEER_CLOSED, Cause.WRONG_PROTOCOL)
    assert [CONNECT_ERRORS[connect_error(cause)] for cause in causes] == ["refused", "timeout", "tls", "authentication", "closed", "other"]


# Turns.


def test_endpoints_take_turns_evenly_also_when_their_number_changes_and_while_one_is_down():
    plane = Plane(1, 2, 3)
    assert [plane.port() for _ in range(4)] == [1, 2, 3, 1]
    plane.upstream.replace([endpoint(3)])
    assert [plane.port() for _ in range(2)] == [3, 3]
    plane = Plane(1, 2, 3)
    plane.take_down(1)
    assert sorted(plane.port() for _ in range(10)) == [2] * 5 + [3] * 5


def test_a_connection_tries_each_endpoint_once_whatever_others_do_meanwhile():
    plane = Plane(1, 2, 3)
    connections = [Tried() for _ in range(20)]
    for round_ in range(3):
        for connection in connections:
            attempt = plane.pick(connection if connection.endpoints else None)
            assert attempt.endpoint not in connection.endpoints
            connection.add(attempt.endpoint, Cause.UPSTREAM_REFUSED, "no")
            plane.fail(attempt)
        assert {len(connection.endpoints) for connection in connections} == {round_ + 1}
    assert all(plane.upstream.pick(connection, plane.ns) is None for connection in connections)
    assert plane.count(CONNECTING) == 0


def test_the_same_address_twice_is_one_endpoint_and_two_names_of_it_are_two():
    assert Plane().upstream.pick(None, 0) is None, "without endpoints there is nothing to try"
    assert len(Plane(1, 1).upstream.endpoints) == 1
    assert len(Upstream("u", [endpoint(1, "a"), endpoint(1, "b")]).endpoints) == 2


# Back-off.


def test_one_that_failed_is_left_out_until_its_back_off_is_over_and_a_probe_that_is_given_up_is_the_next_connections():
    plane = Plane(1, 2)
    down = plane.take_down(1)
    assert (down.down, down.backoff_ns, down.due_ns) == (True, FIRST_NS, plane.ns + FIRST_NS)
    plane.ns = down.due_ns - 1
    assert {plane.port() for _ in range(4)} == {2}
    for late in (0, 1):
        plane.ns = down.due_ns + late
        attempt = plane.pick()
        assert (attempt.endpoint, attempt.probes) == (down, True)
        plane.upstream.abandoned(attempt, plane.ns)
        assert (down.down, down.backoff_ns) == (True, FIRST_NS)


def test_one_connection_probes_and_all_others_pass_by():
    plane = Plane(1, 2)
    down = plane.take_down(1)
    plane.ns = down.due_ns
    probe = plane.pick()
    assert probe.endpoint is down
    plane.ns += 60 * SECOND
    assert {plane.port() for _ in range(5)} == {2}
    assert plane.count(PROBES) == 1
    plane.answer(probe)
    assert {plane.port() for _ in range(2)} == {1, 2}


def test_probes_that_fail_double_the_back_off_up_to_the_most_and_a_success_ends_it():
    plane = Plane(1, 2)
    down = plane.take_down(1)
    seen = [down.backoff_ns // SECOND]
    for _ in range(6):
        plane.ns = down.due_ns
        probe = plane.pick()
        plane.ns += 5 * SECOND
        plane.fail(probe, Cause.UPSTREAM_TIMEOUT)
        assert down.due_ns == plane.ns + down.backoff_ns
        seen.append(down.backoff_ns // SECOND)
    assert seen == [1, 2, 4, 8, 16, 30, 30]
    assert down.failures == 7
    plane.ns = down.due_ns
    plane.answer(plane.pick())
    assert (down.down, plane.count(DOWN)) == (False, 0)
    plane.ns += 1
    plane.take_down(1)
    assert (down.backoff_ns, down.failures) == (FIRST_NS, 1), "the next failure begins anew"


def test_failures_of_attempts_that_went_along_do_not_add_up():
    plane = Plane(1)
    attempts = [plane.pick() for _ in range(20)]
    for attempt in attempts:
        plane.fail(attempt)
    assert plane.at(1).backoff_ns == FIRST_NS
    assert plane.count(EJECTIONS["refused"]) == 1
    assert int(plane.counters.durations[1].buckets[0]) == 20


def test_a_failure_older_than_a_success_says_nothing_also_of_a_probe():
    plane = Plane(1)
    old = plane.pick()
    plane.ns += 1
    plane.answer(plane.pick())
    plane.ns += 5 * SECOND
    assert not plane.fail(old, Cause.UPSTREAM_TIMEOUT)
    assert not plane.at(1).down
    plane.fail(plane.pick())
    down = plane.at(1)
    assert down.down
    plane.ns = down.due_ns
    probe, other = plane.pick(), plane.pick()
    plane.ns += 1
    plane.answer(other)
    plane.ns += 5 * SECOND
    assert not plane.fail(probe, Cause.UPSTREAM_TIMEOUT)
    assert (down.down, down.probed) == (False, False)


def test_one_that_is_down_is_counted_until_10_s_after_its_back_off_and_while_it_is_probed():
    for ejection, cause in itertools.product((None, EjectionConfig(failures=1)), (Cause.UPSTREAM_REFUSED, Cause.UPSTREAM_TIMEOUT)):
        plane = Plane(1, 2, ejection=ejection)

        def counted(ns: int, plane: Plane = plane) -> int:
            plane.ns = ns
            plane.upstream.look(ns)
            return plane.count(DOWN)

        down = plane.take_down(1)
        assert plane.count(DOWN) == 1, "without a look"
        due = down.due_ns + COUNTED_NS
        assert [counted(due + late) for late in (-1, 0, 1, 3600 * SECOND)] == [1, 0, 0, 0]
        assert down.is_out, "new connections avoid it all the same, but for one"
        probe = plane.pick()
        assert (probe.endpoint, probe.probes, counted(plane.ns)) == (down, True, 1)
        plane.upstream.abandoned(probe, plane.ns)
        assert counted(plane.ns) == 0
        probe = plane.pick()
        plane.fail(probe, cause)
        assert (probe.endpoint, plane.count(DOWN)) == (down, 1), "without a look"
        due = down.due_ns + COUNTED_NS
        assert [counted(due + late) for late in (-1, 0, 1)] == [1, 0, 0]
        plane.upstream.set_failing({"10.0.0.1:1": "no answer"})
        assert [counted(due + late) for late in (1, 3600 * SECOND)] == [1, 1], "the checks say that it is out"
        plane.upstream.set_failing({})
        assert (plane.count(DOWN), counted(plane.ns), plane.pick().endpoint) == (0, 0, down)


# All out.


def test_when_all_are_out_they_are_tried_soonest_due_first():
    plane = Plane(1, 2, 3)
    for port in (2, 3, 1):
        plane.take_down(port)
        plane.ns += 1
    order = []
    connection = Tried()
    while (attempt := plane.upstream.pick(connection if connection.endpoints else None, plane.ns)) is not None:
        assert not attempt.probes, "none is due"
        order.append(attempt.endpoint.address[1])
        connection.add(attempt.endpoint, Cause.UPSTREAM_REFUSED, "no")
        plane.fail(attempt)
    assert order == [2, 3, 1]
    assert {item.backoff_ns for item in plane.upstream.endpoints} == {FIRST_NS}


def test_when_all_are_out_the_one_that_is_probed_comes_last():
    plane = Plane(1, 2)
    first = plane.take_down(1)
    plane.ns += 1
    plane.take_down(2)
    plane.ns = first.due_ns
    probe = plane.pick()
    assert probe.endpoint is first
    assert plane.port() == 2
    assert plane.port(tried(plane.at(2))) == 1
    plane.fail(probe)


def test_the_only_endpoint_is_tried_however_it_failed_and_one_connection_alone_is_the_probe():
    plane = Plane(1)
    down = plane.take_down(1)
    again = plane.pick()
    assert (again.endpoint, again.probes) == (down, False)
    assert plane.answer(again)
    assert not down.down
    plane.take_down(1)
    plane.ns = down.due_ns
    probe, *others = [plane.pick() for _ in range(5)]
    assert (probe.probes, [other.probes for other in others], plane.count(PROBES)) == (True, [False] * 4, 1)
    plane.upstream.abandoned(others.pop(), plane.ns)
    assert down.probed
    for attempt in (*others, probe):
        plane.fail(attempt)
    assert down.backoff_ns == 2 * FIRST_NS


# Other endpoints.


def test_endpoints_that_stay_keep_their_back_off_and_others_begin_anew_also_in_the_middle_of_retries():
    plane = Plane(1, 2)
    down = plane.take_down(1)
    plane.upstream.replace([endpoint(3, counters=plane.counters), endpoint(1, counters=plane.counters)])
    assert plane.at(1) is down
    assert (plane.count(ENDPOINTS), plane.count(DOWN)) == (2, 1)
    connection = tried(down)
    attempt = plane.pick(connection)
    assert attempt.endpoint.address[1] == 3
    plane.fail(attempt)
    connection.add(attempt.endpoint, Cause.UPSTREAM_REFUSED, "no")
    assert plane.upstream.pick(connection, plane.ns) is None
    plane.upstream.replace([endpoint(3, counters=plane.counters)])
    assert (plane.count(ENDPOINTS), plane.count(DOWN)) == (1, 1)
    plane.upstream.replace([endpoint(1), endpoint(4)])
    assert not plane.at(1).down
    assert plane.count(DOWN) == 0


def test_what_comes_of_an_endpoint_that_was_taken_away_changes_nothing():
    plane = Plane(1, 2)
    one, two = plane.pick(), plane.pick()
    down = plane.take_down(1)
    plane.ns = down.due_ns
    probe = plane.pick()
    plane.upstream.replace([endpoint(9, counters=plane.counters)])
    assert not plane.fail(one)
    assert not plane.fail(two)
    plane.answer(probe)
    assert (plane.count(ENDPOINTS), plane.count(DOWN), plane.count(CONNECTING)) == (1, 0, 0)
    assert plane.port() == 9


# What is told.


def test_down_longer_and_up_are_told_and_the_longest_only_once():
    plane = Plane(1)
    down = plane.at(1)
    told = [plane.fail(plane.pick())]
    for _ in range(7):
        plane.ns = down.due_ns
        told.append(plane.fail(plane.pick()))
    assert down.backoff_ns == MOST_NS
    assert told == [True] * 6 + [False] * 2
    assert plane.answer(plane.pick())
    assert not plane.answer(plane.pick())


def test_one_that_comes_and_goes_is_told_of_once_a_second_at_most():
    plane = Plane(1)
    told = 0
    for _ in range(100):
        told += plane.fail(plane.pick())
        plane.ns += 30_000_000
        told += plane.answer(plane.pick())
        plane.ns += 1
    assert told == 2 * 3
    assert plane.count(EJECTIONS["refused"]) == 100


# Balance, weights, zones, the bound on connections.


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 5))
def test_a_cycle_of_the_round_robin_has_each_endpoint_as_often_as_its_weight(weights, before):
    plane = Plane(*range(len(weights)), weights=weights)
    for _ in range(before % sum(weights) * sum(weights)):
        plane.port()
    for _ in range(3):
        turns = [plane.port() for _ in range(sum(weights))]
        assert collections.Counter(turns) == dict(enumerate(weights))


def test_the_one_with_the_fewest_connections_for_its_weight_is_next_and_equals_take_turns():
    plane = Plane(1, 2, 3, weights=[1, 2, 1], balance="least_connections")
    taken = [plane.pick() for _ in range(8)]
    assert collections.Counter(item.endpoint.address[1] for item in taken) == {1: 2, 2: 4, 3: 2}
    for item in taken:
        if item.endpoint.address[1] == 3:
            plane.answer(item)
            plane.upstream.closed(item.endpoint, plane.ns, plane.ns)
        else:
            plane.answer(item)
    assert [plane.pick().endpoint.address[1] for _ in range(2)] == [3, 3]
    assert [int(plane.at(port).connections) for port in (1, 2, 3)] == [2, 4, 2]


def test_of_two_random_ones_the_better_is_taken_and_each_is_drawn_by_its_weight():
    plane = Plane(1, 2, balance="random_two")
    assert {abs(plane.at(1).connections - plane.at(2).connections) for _ in range(50) if plane.pick()} <= {0, 1}
    turns = Plane(1, 2, 3, weights=[8, 1, 1], balance="random_two")
    counts = collections.Counter(turns.port() for _ in range(2_000))
    assert 1_500 < counts[1] < 1_700, "without open connections the first one drawn is taken"
    again = Plane(1, 2, 3, weights=[8, 1, 1], balance="random_two")
    assert collections.Counter(again.port() for _ in range(2_000)) == counts, "the same seed draws the same"


def test_the_first_that_is_up_and_not_full_is_taken():
    plane = Plane(1, 2, 3, balance="first_available", max_connections=2)
    down = plane.take_down(1)
    taken = [plane.pick() for _ in range(4)]
    assert [item.endpoint.address[1] for item in taken] == [2, 2, 3, 3]
    assert [plane.pick().endpoint.address[1] for _ in range(2)] == [1, 1], "as when all are down"
    assert (plane.upstream.pick(None, plane.ns), plane.upstream.count_full()) == (None, 3)
    plane.upstream.abandoned(taken[2], plane.ns)
    plane.ns = down.due_ns
    assert plane.port() == 3, "one that is full is not probed"
    assert plane.upstream.pick(tried(plane.at(3)), plane.ns) is None


def test_a_processor_has_its_part_of_the_bound_rounded_and_at_least_one():
    found = []
    for part in (1_000_000, 500_000, 333_333, 166_666, 0):
        plane = Plane(1, max_connections=3)
        plane.upstream.set_part(part)
        found.append(sum(plane.upstream.pick(None, plane.ns) is not None for _ in range(9)))
    assert found == [3, 2, 1, 1, 1]
    plane = Plane(1)
    plane.upstream.set_part(1)
    assert all(plane.upstream.pick(None, plane.ns) for _ in range(9)), "0 is unlimited, however small the part"


def test_endpoints_of_the_nodes_zone_come_first_and_others_when_none_of_these_is_left():
    plane = Plane(1, 2, 3, zones="aab", zone="a", max_connections=2)
    assert [plane.port() for _ in range(4)] == [1, 2, 1, 2]
    assert Plane(1, 2, 3, zones="aab").port(tried(endpoint(1))) == 1, "without a zone of the node all are equal"
    assert sorted(Plane(1, 2, zones="bc", zone="a").port() for _ in range(2)) == [1, 1]
    plane.take_down(1)
    assert plane.port(tried(plane.at(2))) == 3
    assert [plane.pick().endpoint.address[1] for _ in range(4)] == [2, 2, 3, 3], "near ones that are full"
    rack = [Endpoint(socket.AF_INET, ("10.0.0.1", port), broker=port - 5, zone="ab"[port - 5]) for port in (5, 6)]
    upstream = Upstream("u", [endpoint(5), endpoint(6), *rack], None, "b")
    assert {upstream.pick(None, 1).endpoint.address[1] for _ in range(3)} == {6}, "the rack of a broker is the zone of its bootstrap server"


def test_endpoints_that_fail_their_checks_are_avoided_and_not_probed_unless_all_of_them_do():
    plane = Plane(1, 2, 3)
    plane.upstream.set_failing({"10.0.0.1:1": "refused"})
    assert sorted(plane.port() for _ in range(4)) == [2, 2, 3, 3]
    down = plane.take_down(2)
    plane.upstream.set_failing({"10.0.0.1:1": "refused", "10.0.0.1:2": "no answer"})
    plane.ns = down.due_ns
    assert [plane.port() for _ in range(3)] == [3, 3, 3], "the back-off of 2 is over, and it is not probed"
    assert plane.port(tried(plane.at(3))) == 1, "up, though its check fails"
    assert plane.port(tried(plane.at(3), plane.at(1))) == 2
    assert (plane.count(DOWN), plane.count(EJECTIONS["check"]), plane.count(EJECTIONS["refused"])) == (2, 2, 1)
    plane.upstream.set_failing({f"10.0.0.1:{port}": "no" for port in (1, 2, 3)})
    assert plane.port() in (1, 3)
    plane.upstream.set_failing({})
    assert (plane.count(DOWN), plane.port()) == (1, 2), "it is probed"


_STEPS = st.lists(st.tuples(st.sampled_from(["fail", "answer", "end", "bad", "fast", "slow", "time", "check"]), st.integers(0, 99)), max_size=120)


@given(st.sampled_from(Balance.__args__), st.integers(1, 5), st.integers(1, 100), st.lists(st.integers(1, 4), min_size=5, max_size=5), _STEPS)
def test_whatever_happens_an_endpoint_that_is_up_comes_first_and_at_most_a_share_is_ejected(balance, count, percent, weights, steps):
    ejection = EjectionConfig(failures=2, latency_factor=2.0, at_most_percent=percent, successes=2)
    plane = Plane(*range(count), weights=weights[:count], zones="abbab"[:count], zone="b", balance=balance, max_connections=3, ejection=ejection)
    upstream, ends = plane.upstream, plane.upstream.endpoints
    attempts: list[Attempt] = []
    ready: list[Endpoint] = []
    for step, number in steps:
        connection = None if number % 3 else tried(*ends[: number % (count + 1)])
        open_ = [item for item in ends if not upstream.is_full(item) and (connection is None or item not in connection.endpoints)]
        attempt = upstream.pick(connection, plane.ns)
        assert (attempt is None) == (not open_)
        if attempt is not None:
            attempts.append(attempt)
            up = [item for item in open_ if not item.is_out]
            assert attempt.endpoint in open_
            assert not attempt.endpoint.is_out or not up or attempt.probes, "a probe, or there is none that is up"
            near = [item for item in up if item.zone == "b"]
            assert not near or attempt.endpoint in near or attempt.probes
        if step == "time":
            plane.ns += number * SECOND
        elif step == "check":
            upstream.set_failing({item.text: "no" for place, item in enumerate(ends) if number >> place & 1})
        elif step in ("fast", "slow"):
            upstream.judge(ends[number % count], 1 if step == "fast" else SECOND, plane.ns, plane.ns)
        elif step in ("end", "bad") and ready:
            upstream.closed(ready.pop(number % len(ready)), plane.ns, plane.ns, "no byte" if step == "bad" else "")
        elif attempts:
            attempt = attempts.pop(number % len(attempts))
            if step == "fail":
                plane.fail(attempt)
            else:
                plane.answer(attempt)
                ready.append(attempt.endpoint)
        assert sum(item.ejected for item in ends) * 100 <= percent * count
        assert sum(item.ejected for item in ends) < max(count, 2)
        assert all(item.down for item in ends if item.ejected)
        upstream.look(plane.ns)
        assert plane.count(DOWN) == sum(bool(item.failing) or (item.down and (item.probed or plane.ns < item.due_ns + COUNTED_NS)) for item in ends)
        assert [item.connections for item in ends] == [sum(each.endpoint is item for each in attempts) + ready.count(item) for item in ends]
