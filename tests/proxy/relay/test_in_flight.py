"""What is in flight at an endpoint: seen while it does not answer, added up when it does, with real sockets and a clock of the test's."""

import socket
import struct

from framegate.proxy.cause import Cause
from framegate.proxy.cells import END_ERRORS, ENDPOINT_BLOCK, LISTENER_BLOCK, MEASURED_APIS, RESPONSE_ERRORS
from framegate.proxy.relay import ending
from framegate.proxy.relay.in_flight import LEAST_SENT, SLICE, InFlight, oldest_ns
from tests.fakes.kafka_frames import answer, request
from tests.fakes.world import SECOND, World, frame
from tests.proxy.relay.conftest import passes

FETCH, HEARTBEAT, JOIN_GROUP, SHARE_FETCH, CREATE_TOPICS = 1, 12, 11, 78, 19


def end(world: World) -> None:
    for pair in list(world.relay.pairs.open.values()):
        ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()


class Looked:
    """An endpoint as its cells show it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.in_flight = InFlight(world.relay.pairs.open, world.counters, world.selector)

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
        asked = request(HEARTBEAT, 4, number)
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
    passes(world, other, at_other, request(HEARTBEAT, 4, 1))
    passes(world, one, at_one, request(HEARTBEAT, 4, 2))
    assert looked.look()[:2] == (3, 1)
    passes(world, at_one, one, answer(1))
    passes(world, other, at_other, request(HEARTBEAT, 4, 2))
    assert looked.look()[:2] == (3, 2)
    end(world)


def test_a_request_whose_client_chooses_how_long_it_may_take_has_an_age_only_after_60_s(make):
    for key in (FETCH, SHARE_FETCH, CREATE_TOPICS):
        world = make("kafka")
        looked, (client, upstream, _) = Looked(world), world.pair()
        passes(world, client, upstream, request(key, 1, 1))
        found = []
        for more in (0, 58, 0, 19):
            world.pass_time(more)
            assert looked.look()[0] == 1
            found.append(looked.cell("request.age") / SECOND)
        assert found == [0, 0, 1, 21], "after 1, 60, 61 and 81 s"
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
    found = looked.passed()
    passes(world, upstream, client, frame(b"another") + frame(b"one"))
    end(world)
    assert (found, looked.passed()) == ([1, 10, 1, 7], [3, 28, 1, 7])
    assert (world.endpoint_counters.first_bytes.count, looked.cell("connection.closed", "")) == (1, 1)
    assert looked.look() == (0, 0, 0, 0)


def test_a_framed_connection_waits_from_the_first_frame_without_an_answer_until_it_is_answered_whatever_its_client_sends(make):
    world = make()
    looked, (client, upstream, _) = Looked(world), world.pair()
    passes(world, client, upstream, frame(b"ask"))
    passes(world, upstream, client, frame(b"answer"))
    assert looked.look()[2:] == (0, 0)
    passes(world, client, upstream, frame(b"another"))
    assert [looked.look()[2:] for _ in range(3)] == [(1, 0), (1, 1), (1, 2)], "only the first one was answered"
    passes(world, client, upstream, frame(b"does not wait"))
    assert [looked.look()[2:] for _ in range(2)] == [(1, 3), (1, 4)]
    passes(world, upstream, client, frame(b"one"))
    assert [looked.look()[2:] for _ in range(2)] == [(1, 0), (1, 1)]
    assert looked.cell("answer.time") == 5 * SECOND
    passes(world, upstream, client, frame(b"two"))
    assert looked.look()[2:] == (0, 0)
    assert looked.cell("answer.time") == 7 * SECOND
    end(world)


def test_a_connection_without_pairing_waits_since_its_first_frame_or_the_last_byte_from_the_endpoint_and_not_once_that_has_come(make):
    for protocol in ("framed", "kafka"):
        world = make(protocol)
        looked, (client, upstream, pair) = Looked(world), world.pair()
        if protocol == "kafka":
            pair.pairing.lose()
        assert (looked.look()[2:], oldest_ns(pair)) == ((0, 0), 0)
        asked_ns = world.clock.ns
        passes(world, client, upstream, frame(b"ask"))
        assert [(looked.look()[3], oldest_ns(pair)) for _ in range(2)] == [(1, asked_ns), (2, asked_ns)]
        passes(world, upstream, client, frame(b"answer"))
        assert oldest_ns(pair) == 0, "before the next look"
        passes(world, client, upstream, frame(b"another"))
        looked.look()
        seen_ns = world.clock.ns
        assert [oldest_ns(pair), looked.look()[3], oldest_ns(pair)] == [seen_ns, 1, seen_ns], "since the look that saw it"
        end(world)
        assert oldest_ns(pair) == 0, "it is closed"


def test_clients_that_go_on_wait_for_no_answer_of_an_endpoint_that_seldom_answers(make):
    found = []
    for answers, sent in ((0, LEAST_SENT - 1), (0, LEAST_SENT), (0, LEAST_SENT + 1), (2 * LEAST_SENT, LEAST_SENT + 1)):
        world = make()
        looked, (client, upstream, pair), (other, at_other, _) = Looked(world), world.pair(), world.pair()
        for _ in range(answers):
            passes(world, other, at_other, frame(b"ask"))
            passes(world, at_other, other, frame(b"answer"))
        for _ in range(sent):
            passes(world, client, upstream, frame(b"note"))
        looked.look()
        found.append(oldest_ns(pair) != 0)
        end(world)
    assert found == [True, False, False, True]


def test_what_an_endpoint_was_asked_stands_still_while_it_does_not_answer_and_its_answers_count_for_20_to_30_s(make):
    world = make()
    looked, (client, upstream, _) = Looked(world), world.pair()

    def asked() -> tuple[int, int]:
        passes(world, client, upstream, frame(b"ask"))
        looked.look()
        return looked.cell("answer.asked"), looked.cell("answer.recent")

    assert [asked() for _ in range(3)] == [(1, 0), (2, 0), (3, 0)], "it may be meant so"
    passes(world, upstream, client, frame(b"one") + frame(b"two"))
    assert [asked() for _ in range(25)] == [(3, 2)] * 25, "it stands still"
    assert [asked()[1] for _ in range(5)][-1] == 0
    passes(world, upstream, client, frame(b"three"))
    assert asked() == (33, 1), "the last one was sent since the last look"
    other, at_other, _ = world.pair()
    for _ in range(100):
        passes(world, other, at_other, frame(b"one way"))
    assert asked() == (33, 1), "what a connection is sent that gets no answer"
    passes(world, at_other, other, frame(b"answer"))
    assert asked() == (133, 2)
    end(world)


def test_a_client_that_sends_more_after_it_has_waited_for_5_s_goes_on_until_a_byte_comes(make):
    found = []
    for waits in (4, 5, 6):
        world = make()
        looked, (client, upstream, pair) = Looked(world), world.pair()
        for _ in range(9):
            passes(world, client, upstream, frame(b"ask"))
            passes(world, upstream, client, frame(b"answer"))
        passes(world, client, upstream, frame(b"ask"))
        for _ in range(waits):
            looked.look()
        passes(world, client, upstream, frame(b"ping"))
        seen = [looked.look()[2:], looked.look()[2:], oldest_ns(pair) != 0]
        passes(world, upstream, client, frame(b"answer"))
        found.append((*seen, looked.look()[2:]))
        end(world)
    assert found == [((1, 4), (1, 5), True, (1, 0)), ((1, 5), (1, 6), True, (1, 0)), ((0, 0), (0, 0), False, (1, 0))]


def test_a_client_gives_up_if_it_waits_after_its_last_frame_and_not_if_hardly_any_was_answered(make):
    found = []
    for answers, frames, waits in (
        (9, 1, 0.3),
        (9, 1, 0.2),
        (9, 3, 0.3),
        (0, LEAST_SENT - 1, 0.3),
        (0, LEAST_SENT, 0.3),
        (LEAST_SENT, LEAST_SENT, 0.3),
    ):
        world = make()
        looked, (client, upstream, _) = Looked(world), world.pair()
        for _ in range(answers):
            passes(world, client, upstream, frame(b"ask"))
            passes(world, upstream, client, frame(b"answer"))
        for _ in range(frames):
            world.pass_time(0.4)
            passes(world, client, upstream, frame(b"note"))
        world.pass_time(waits)
        client.close()
        world.poll()
        upstream.close()
        world.poll()
        found.append(looked.cell("connection.closed", "unanswered"))
    assert found == [1, 0, 1, 1, 0, 1]


def test_connections_whose_oldest_request_waits_for_more_than_10_s_are_counted_by_its_api(make):
    def waiting(world: World) -> dict[str, int]:
        cells = world.counters.listeners["l"].counts.cells
        counts = {api: int(cells[LISTENER_BLOCK.at("framegate.kafka.request.waiting", api)]) for api in MEASURED_APIS}
        return {api: count for api, count in counts.items() if count}

    world = make("kafka")
    looked, found = Looked(world), []
    for key in (HEARTBEAT, HEARTBEAT, FETCH, JOIN_GROUP):
        client, upstream, _ = world.pair()
        passes(world, client, upstream, request(key, 1, 1))
    for more in (8, 0, 0, 58, 0):
        world.pass_time(more)
        looked.look()
        found.append(waiting(world))
    assert found == [{}, {}, {"Heartbeat": 2}, {"Heartbeat": 2}, {"Fetch": 1, "Heartbeat": 2}], "after 9, 10, 11, 70 and 71 s"
    end(world)


def test_an_endpoint_that_takes_nothing_of_what_waits_for_it_for_more_than_20_s_is_counted(make):
    world = make()
    looked, (client, upstream, pair) = Looked(world), world.pair()
    while not pair.upstream.channel.write_half.is_sending:
        client.sendall(frame(b"x" * 60_000))
        world.poll()
    assert [looked.look() and looked.cell("send.stalled") for _ in range(23)] == [0] * 22 + [1]
    before = pair.upstream.channel.write_half.wire_sent
    while pair.upstream.channel.write_half.wire_sent == before:
        upstream.recv(1 << 22)
        world.poll()
    looked.look()
    assert looked.cell("send.stalled") == 0
    end(world)


def test_nobody_waits_for_an_endpoint_whose_answers_the_client_does_not_take(make):
    for protocol in ("framed", "kafka"):
        world = make(protocol)
        looked, (client, upstream, pair) = Looked(world), world.pair()
        answered = 0
        while not pair.client.channel.write_half.is_sending:
            passes(world, client, upstream, request(HEARTBEAT, 4, answered))
            upstream.sendall(answer(answered, bytes(60_000)))
            answered += 1
            world.poll()
        passes(world, client, upstream, request(HEARTBEAT, 4, answered))
        world.pass_time(30)
        assert looked.look()[1:] == (0, 0, 0), protocol
        world.read(client, answered * 60_008)
        looked.look()
        assert looked.look()[1:] == ((33, 0, 0) if protocol == "kafka" else (0, 1, 1)), "now it waits for the last one"
        end(world)


def test_frames_of_kafka_are_not_asked_of_a_framed_endpoint_and_their_answers_count(make):
    world = make("kafka")
    looked, (client, upstream, _) = Looked(world), world.pair()
    passes(world, client, upstream, request(HEARTBEAT, 4, 1))
    looked.look()
    passes(world, upstream, client, answer(1))
    looked.look()
    assert [looked.cell(f"answer.{name}") for name in ("asked", "recent", "time")] == [0, 1, 0]
    end(world)


def test_a_client_that_ends_a_connection_after_it_has_waited_for_more_than_a_quarter_of_a_second_has_given_up(make):
    found = []
    for protocol, key, waits in (
        *((protocol, HEARTBEAT, waits) for protocol in ("framed", "kafka") for waits in (249, 250, 251)),
        *(("kafka", FETCH, waits) for waits in (29_249, 29_250, 29_251)),
        ("kafka", JOIN_GROUP, 32_000),
    ):
        for looks in (False, True):
            world = make(protocol)
            looked, (client, upstream, _) = Looked(world), world.pair()
            if looks:  # behind an answer, with a look at the beginning of the wait
                passes(world, client, upstream, request(HEARTBEAT, 5, 6))
                passes(world, upstream, client, answer(6))
                looked.look()
            passes(world, client, upstream, request(key, 5, 7))
            world.pass_time(waits / 1000)
            client.close()
            world.poll()
            world.pass_time(5)
            upstream.close()
            world.poll()
            found.append([error for error in ("", "unanswered") if looked.cell("connection.closed", error)])
    waited = [[""], [""], ["unanswered"]]
    assert found == [each for each in (*waited * 3, [""]) for _ in range(2)]


def test_an_upstream_that_does_not_end_a_half_closed_connection_has_not_answered_it_and_one_that_ends_it_late_has(make):
    found = []
    for after, answers in ((29, False), (31, False), (29, True)):
        world = make(half_close_s=30)
        looked, (client, upstream, _) = Looked(world), world.pair()
        passes(world, client, upstream, frame(b"ask"))
        client.shutdown(socket.SHUT_WR)
        world.poll()
        world.pass_time(after)
        if answers:
            passes(world, upstream, client, frame(b"late"))
        upstream.close()
        world.until(lambda world=world: world.rows)
        found.append([error for error in ("", "unanswered") if looked.cell("connection.closed", error)])
    assert found == [[""], ["unanswered"], [""]]


ENDS = {
    "client": ("", "peer_closed", "downstream"),
    "client reset": ("", "peer_reset", "downstream"),
    "client garbage": ("", "negative_size", "downstream"),
    "client trickle": ("", "receive_stalled", "downstream"),
    "at accept": ("closed", "upstream_closed", "upstream"),
    "idle": ("", "peer_closed", "upstream"),
    "silent": ("closed", "upstream_closed", "upstream"),
    "answered": ("", "peer_closed", "upstream"),
    "open": ("closed", "upstream_closed", "upstream"),
    "reset": ("reset", "peer_reset", "upstream"),
    "garbage": ("protocol", "negative_size", "upstream"),
    "large": ("protocol", "frame_too_large", "upstream"),
    "in a frame": ("closed", "upstream_closed", "upstream"),
    "trickle": ("stalled", "receive_stalled", "upstream"),
}  # how one side behaves: the error of the endpoint's connection, and the cause and the side of the end of the pair


def test_the_end_of_a_connection_is_of_the_side_that_caused_it_and_a_failure_of_the_endpoint_if_it_is_unclean(make):
    found = {}
    for ends in ENDS:
        world = make("kafka" if ends == "open" else "framed", stall_s=1)
        looked, (client, upstream, _) = Looked(world), world.pair()
        by_client = ends.startswith("client")
        peer, other = (client, upstream) if by_client else (upstream, client)
        if ends == "idle":
            world.pass_time(11)
        elif ends != "at accept":
            passes(world, client, upstream, request(FETCH, 4, 7))
        if ends in ("answered", "in a frame"):
            passes(world, upstream, client, frame(b"answer"))
        if ends.endswith(("garbage", "large", "trickle", "in a frame")):
            peer.sendall({"garbage": b"\xff" * 8, "large": (1 << 30).to_bytes(4, "big")}.get(ends.split()[-1], b"\0\0\2\0."))
            world.poll()
            for _ in range(2 * ends.endswith("trickle")):
                world.pass_time(2)
        if ends.endswith("reset"):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for sock in (peer, other):
            sock.close()
            world.poll()
        world.pass_time(1)
        (row,) = world.rows
        counts = world.counters.listeners["l"].counts.cells
        assert [at for at, cell in ending.CLOSED_BY.items() if counts[cell]] == [(row["cause"], row["side"])]
        (error,) = [error for error in END_ERRORS if looked.cell("connection.closed", error)]
        found[ends] = error, row["cause"], row["side"]
    assert found == ENDS


def test_many_pairs_are_looked_at_in_slices_and_published_together(make):
    world = make("kafka")
    looked, (client, upstream, pair) = Looked(world), world.pair()
    passes(world, client, upstream, request(FETCH, 4, 1))
    for count, more in ((SLICE, []), (SLICE + 1, [True]), (2 * SLICE + 1, [True, True])):
        world.pass_time(1)
        many = InFlight(dict.fromkeys(range(count), pair), world.counters, world.selector)
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
