"""What is in flight at an endpoint: seen while it does not answer, added up when it does, with real sockets and a clock of the test's."""

import struct

from framegate.proxy.cause import Cause
from framegate.proxy.cells import ENDPOINT_BLOCK, RESPONSE_ERRORS
from framegate.proxy.relay import ending
from framegate.proxy.relay.in_flight import SLICE, InFlight
from tests.fakes.kafka_frames import answer, request
from tests.fakes.world import SECOND, World, frame
from tests.proxy.relay.conftest import passes

FETCH, HEARTBEAT, JOIN_GROUP = 1, 12, 11


def end(world: World) -> None:
    for pair in list(world.relay.pairs.open.values()):
        ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()


class Looked:
    """An endpoint as its cells show it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.in_flight = InFlight(world.relay.pairs.open, world.counters)

    def cell(self, name: str, *values: str) -> int:
        return int(self.world.endpoint_counters.counts.cells[ENDPOINT_BLOCK.at(f"framegate.upstream.{name}", *values)])

    def passed(self) -> list[int]:
        """Frames and bytes received from it, and sent to it."""
        return [self.cell(name, way) for way in ("receive", "transmit") for name in ("frame.count", "io")]

    def look(self) -> tuple[int, int, int, int]:
        """A second later: open requests and the age of the oldest in seconds, connections that wait for an answer and for how long."""
        self.world.pass_time(1)
        assert not self.in_flight.look(self.world.clock.ns)
        ages = (self.cell(f"{name}.age") / SECOND for name in ("request", "answer"))
        first, second = map(round, ages)
        return self.cell("request.open"), first, self.cell("answer.waiting"), second


def test_requests_that_a_stopped_broker_does_not_answer_are_seen_with_their_age(make):
    world = make("kafka")
    looked, pairs = Looked(world), [world.pair() for _ in range(50)]
    for number, (client, upstream, _) in enumerate(pairs):
        asked = request(FETCH, 4, number)
        client.sendall(asked)
        world.read(upstream, len(asked))
    assert looked.look() == (50, 1, 0, 0)
    world.pass_time(58)
    assert looked.look() == (50, 60, 0, 0)
    for number, (client, upstream, _) in enumerate(pairs[1:], 1):
        passes(world, upstream, client, answer(number))
    assert looked.look() == (1, 61, 0, 0)
    passes(world, pairs[0][1], pairs[0][0], answer(0))
    assert looked.look() == (0, 0, 0, 0)
    assert (world.endpoint_counters.first_bytes.count, int(world.endpoint_counters.first_bytes.sum) // SECOND) == (50, 49 * 60 + 61)
    end(world)


def test_a_request_that_waits_for_other_members_of_its_group_has_no_age_and_the_oldest_counts(make):
    world = make("kafka")
    looked, (one, at_one, _), (other, at_other, _) = Looked(world), world.pair(), world.pair()
    passes(world, one, at_one, request(JOIN_GROUP, 5, 1))
    assert looked.look()[:2] == (1, 0)
    passes(world, other, at_other, request(FETCH, 4, 1))
    passes(world, one, at_one, request(FETCH, 4, 2))
    assert looked.look()[:2] == (3, 1)
    passes(world, at_one, one, answer(1))
    passes(world, other, at_other, request(FETCH, 4, 2))
    assert looked.look()[:2] == (3, 2)
    end(world)


def test_what_a_framed_connection_passes_is_added_up_each_second_and_at_its_end(make):
    world = make()
    looked, (client, upstream, _) = Looked(world), world.pair()
    assert looked.look() == (0, 0, 0, 0), "nothing was asked"
    passes(world, client, upstream, frame(b"ask"))
    world.pass_time(1)
    assert looked.look() == (0, 0, 1, 2)
    passes(world, upstream, client, frame(b"answer"))
    assert looked.look() == (0, 0, 0, 0)
    found = [
        looked.cell("frame.count", "receive"),
        looked.cell("io", "receive"),
        looked.cell("frame.count", "transmit"),
        looked.cell("io", "transmit"),
    ]
    passes(world, upstream, client, frame(b"another") + frame(b"one"))
    end(world)
    counts = [
        looked.cell("frame.count", "receive"),
        looked.cell("io", "receive"),
        looked.cell("frame.count", "transmit"),
        looked.cell("io", "transmit"),
    ]
    assert (found, counts) == ([1, 10, 1, 7], [3, 28, 1, 7])
    assert (world.endpoint_counters.first_bytes.count, looked.cell("connection.closed", "")) == (1, 1)
    assert looked.look() == (0, 0, 0, 0)


def test_a_framed_connection_waits_from_the_last_byte_until_it_has_as_many_answers_as_requests(make):
    world = make()
    looked, (client, upstream, _) = Looked(world), world.pair()
    passes(world, client, upstream, frame(b"ask"))
    passes(world, upstream, client, frame(b"answer"))
    assert looked.look()[2:] == (0, 0)
    passes(world, client, upstream, frame(b"another"))
    assert [looked.look()[2:] for _ in range(3)] == [(1, 0), (1, 1), (1, 2)], "only the first one was answered"
    passes(world, client, upstream, frame(b"does not wait"))
    assert [looked.look()[2:] for _ in range(2)] == [(1, 0), (1, 1)]
    passes(world, upstream, client, frame(b"one"))
    assert [looked.look()[2:] for _ in range(2)] == [(1, 0), (1, 1)]
    passes(world, upstream, client, frame(b"two"))
    assert looked.look()[2:] == (0, 0)
    end(world)


def test_a_client_that_ends_a_connection_after_it_has_waited_for_seconds_has_given_up(make):
    found = []
    for protocol, key, waits in (("framed", FETCH, 2), ("framed", FETCH, 3), ("kafka", FETCH, 2), ("kafka", FETCH, 3), ("kafka", JOIN_GROUP, 3)):
        world = make(protocol)
        looked, (client, upstream, _) = Looked(world), world.pair()
        passes(world, client, upstream, request(key, 5, 7))
        looked.look()
        world.pass_time(waits - 1)
        client.close()
        world.poll()
        upstream.close()
        world.poll()
        found.append([error for error in ("", "unanswered") if looked.cell("connection.closed", error)])
    assert found == [[""], ["unanswered"], [""], ["unanswered"], [""]]


def test_how_the_endpoint_ended_connections_is_counted(make):
    found = []
    for protocol, ends in (("framed", "client"), ("framed", "silent"), ("framed", "answered"), ("kafka", "open"), ("framed", "reset")):
        world = make(protocol)
        looked, (client, upstream, _) = Looked(world), world.pair()
        passes(world, client, upstream, request(FETCH, 4, 7))
        if ends == "answered":
            passes(world, upstream, client, frame(b"answer"))
        if ends == "reset":
            upstream.setsockopt(1, 13, struct.pack("ii", 1, 0))
        for sock in (client, upstream) if ends == "client" else (upstream, client):
            sock.close()
            world.poll()
        world.pass_time(1)
        found.append([error for error in ("", "reset", "closed", "stalled") if looked.cell("connection.closed", error)])
    assert found == [[""], ["closed"], [""], ["closed"], ["reset"]]


def test_many_pairs_are_looked_at_in_slices_and_published_together(make):
    world = make("kafka")
    looked, (client, upstream, pair) = Looked(world), world.pair()
    passes(world, client, upstream, request(FETCH, 4, 1))
    for count, more in ((SLICE, []), (SLICE + 1, [True]), (2 * SLICE + 1, [True, True])):
        world.pass_time(1)
        many = InFlight(dict.fromkeys(range(count), pair), world.counters)
        now = world.clock.ns
        assert [many.look(now) for _ in more] == more
        assert many.look(now) is False
        assert looked.cell("request.open") == count
        assert many.look(now + SECOND - 1) is False
        assert [many.look(now + SECOND) for _ in more] == more
        assert many.look(now + SECOND) is False
    end(world)


def test_answers_with_an_error_in_their_head_are_counted_by_its_name(make):
    world = make("kafka")
    client, upstream, _ = world.pair()
    for correlation, (key, version, body) in enumerate(
        (
            (HEARTBEAT, 0, b"\0\x1b"),
            (HEARTBEAT, 0, b"\0\0"),
            (HEARTBEAT, 3, b"\0\0\0\0\0\x10"),
            (HEARTBEAT, 4, b"\0" + b"\0\0\0\x07\0\x1b\0"),
            (FETCH, 4, b"\0\0\0\x09\x12\x34"),
            (FETCH, 7, b"\0\0\0\x09\x12\x34"),
        )
    ):
        passes(world, client, upstream, request(key, version, correlation))
        passes(world, upstream, client, answer(correlation, body))
    cells = world.endpoint_counters.counts.cells
    found = {name: int(cells[ENDPOINT_BLOCK.at("framegate.kafka.response.errors", name)]) for name in RESPONSE_ERRORS}
    assert {name: count for name, count in found.items() if count} == {"rebalance_in_progress": 2, "not_coordinator": 1, "other": 1}
    end(world)
