"""Spans of Kafka requests on their way through a pair: which answer is theirs, and their times."""

import struct

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.relay import ending, request_spans
from framegate.proxy.relay.request_sampler import RequestSpan
from tests.fakes.cases import each_of
from tests.fakes.kafka_frames import answer, request
from tests.fakes.record_batches import batch, context, produce, record
from tests.fakes.world import SECOND, World
from tests.proxy.relay.conftest import passes

FETCH, METADATA, HEARTBEAT = 1, 3, 12
ONE, OFF = ([(b"traceparent", context(7, 9, flags))] for flags in (1, 0))


def ids(spans: list[RequestSpan]) -> list[int]:
    return [int(span.correlation) for span in spans]


@pytest.fixture
def all_of(make):
    """A world in which each request has a span."""

    def made(**options):
        world = make("kafka", **options)
        world.relay.pairs.sampler.set_share(1.0)
        return world

    return made


def test_a_request_is_timed_from_its_arrival_to_its_answer(all_of):
    world = all_of()
    client, upstream, pair = world.pair()
    began_ns = world.clock.ns
    passes(world, client, upstream, request(HEARTBEAT, 3, 5))
    world.clock.ns += 3 * SECOND
    passes(world, upstream, client, answer(5, struct.pack(">ih", 0, 27)))
    (span,) = world.told.spans
    assert (span.api, span.correlation, span.began_ns, span.ended_ns) == (HEARTBEAT << 16 | 3, 5, began_ns, began_ns + 3 * SECOND)
    assert (span.size, span.answer_size, span.code, span.failure) == (10, 10, 27, "")
    assert (pair.spans, world.relay.pairs.sampler.open) == (None, 0)


def test_each_answer_is_of_its_own_request_whatever_expects_none(all_of):
    world = all_of()
    client, upstream, _ = world.pair()
    silent = [produce(("t", [batch(record())]), correlation=number, acks=0) for number in (2, 4)]
    asked = [request(FETCH, 4, 1), silent[0], request(METADATA, 4, 3), silent[1], request(HEARTBEAT, 3, 5)]
    passes(world, client, upstream, b"".join(asked))
    assert ids(world.told.spans) == [2, 4], "they are over when they were passed on"
    passes(world, client, upstream, request(FETCH, 4, 6))
    passes(world, upstream, client, answer(1, b"\0" * 9) + answer(3))
    passes(world, upstream, client, answer(5, struct.pack(">ih", 0, 16)) + answer(6))
    assert ids(world.told.spans) == [2, 4, 1, 3, 5, 6]
    assert [(span.answer_size, span.code) for span in world.told.spans] == [(-1, 0)] * 2 + [(13, 0), (4, 0), (10, 16), (4, 0)]


def test_a_share_is_chosen_across_runs_and_the_others_cost_nothing(make):
    world = make("kafka")
    client, upstream, pair = world.pair()
    sampler = world.relay.pairs.sampler
    sampler.left = 2
    passes(world, client, upstream, request(FETCH, 4, 0) + request(FETCH, 4, 1))
    assert (sampler.left, pair.spans) == (0, None)
    passes(world, client, upstream, request(FETCH, 4, 2) + request(FETCH, 4, 3))
    assert ids(pair.spans) == [2]
    assert sampler.left > 1 << 60, "no share is set, so no further one"
    passes(world, upstream, client, b"".join(map(answer, range(4))))
    assert ids(world.told.spans) == [2]


def test_one_beyond_the_rate_is_counted(all_of):
    world = all_of()
    client, upstream, _ = world.pair()
    world.relay.pairs.sampler._room = 1
    passes(world, client, upstream, request(FETCH, 4, 0) + request(FETCH, 4, 1))
    passes(world, upstream, client, answer(0) + answer(1))
    assert (ids(world.told.spans), world.relay.pairs.sampler.skipped) == ([0], 1)


@each_of("beyond", [0, 1])
def test_a_connection_has_so_many_spans_and_of_a_run_with_requests_without_answers_the_first_frames(all_of, beyond):
    world = all_of()
    client, upstream, pair = world.pair()
    most = request_spans.PAIR_MOST + beyond
    passes(world, client, upstream, b"".join(request(FETCH, 4, number) for number in range(most)))
    assert (len(pair.spans), world.relay.pairs.sampler.skipped) == (request_spans.PAIR_MOST, beyond)
    world = all_of()
    client, upstream, pair = world.pair()
    world.relay.pairs.sampler.left = request_spans.MIXED_MOST - 1 + beyond
    silent = struct.pack(">ihhihhh", 14, 0, 3, 9, -1, -1, 0)  # no more than its acks, so that one read gets all
    passes(world, client, upstream, silent * (request_spans.MIXED_MOST - 1 + beyond) + request(FETCH, 4, 9))
    assert (pair.spans is None, world.relay.pairs.sampler.skipped) == (bool(beyond), beyond)


def test_a_frame_in_pieces_begins_with_its_first_byte_and_its_context_is_found(all_of):
    world = all_of()
    client, upstream, _ = world.pair()
    asked = produce(("orders", [batch(record(ONE))]))
    began_ns = world.clock.ns
    for piece in (asked[:3], asked[3:60], asked[60:]):
        client.sendall(piece)
        world.poll()
        world.clock.ns += SECOND
    world.read(upstream, len(asked))
    passes(world, upstream, client, answer(1))
    (span,) = world.told.spans
    assert (span.began_ns, span.ended_ns) == (began_ns, began_ns + 3 * SECOND)
    assert (span.produced.topic, span.produced.parents) == ("orders", [context(7, 9).decode()])


def test_a_frame_that_is_cut_through_has_a_span_and_what_its_first_piece_says(all_of):
    world = all_of(cut_requests=True, cut_answers=True)
    client, upstream, _ = world.pair()
    asked = produce(("orders", [batch(record(ONE), record(value=b"x" * 600_000))]), correlation=3)
    passes(world, client, upstream, asked)
    passes(world, upstream, client, answer(3, b"y" * 700_000))
    (span,) = world.told.spans
    assert (span.size, span.answer_size, span.produced.parents) == (len(asked) - 4, 700_004, [context(7, 9).decode()])


@each_of(("headers", "spans"), [([ONE], 1), ([OFF], 0), ([OFF, ONE], 1), ([[]], 1)])
def test_a_request_whose_senders_record_no_trace_has_no_span(headers, spans, all_of):
    world = all_of()
    client, upstream, _ = world.pair()
    passes(world, client, upstream, produce(("t", [batch(*map(record, headers))])))
    passes(world, upstream, client, answer(1))
    assert len(world.told.spans) == spans
    assert [context(7, 9).decode()] * (ONE in headers) == [parent for span in world.told.spans for parent in span.produced.parents]
    assert world.relay.pairs.sampler.open == 0


def test_raw_tokens_have_no_span_whatever_their_bytes_say(all_of):
    """After SaslHandshake v0 a frame is a token: nothing of it may leave."""
    world = all_of()
    client, upstream, pair = world.pair()
    passes(world, client, upstream, request(17, 0, 1))
    passes(world, upstream, client, answer(1))
    passes(world, client, upstream, struct.pack(">i", 13) + b"\0$ecret\0pass!")
    assert (pair.pairing.open, pair.spans) == (1, None)
    passes(world, upstream, client, struct.pack(">i", 0))
    assert ids(world.told.spans) == [1]


def test_what_the_end_of_a_connection_leaves_is_reported_as_unanswered(all_of):
    world = all_of()
    client, upstream, pair = world.pair()
    passes(world, client, upstream, request(FETCH, 4, 1))
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()
    assert [(span.correlation, span.failure, span.answer_size) for span in world.told.spans] == [(1, "unanswered", -1)]
    assert world.relay.pairs.sampler.open == 0


@pytest.mark.parametrize("good", [0, 1, 2])
def test_when_pairing_is_lost_the_answers_from_there_on_are_unknown(all_of, good):
    world = all_of()
    client, upstream, pair = world.pair()
    passes(world, client, upstream, b"".join(request(FETCH, 4, number) for number in range(3)))
    passes(world, upstream, client, b"".join(map(answer, (*range(good), 99))))
    assert [span.failure for span in world.told.spans] == [""] * good + ["pairing_lost"] * (3 - good)
    passes(world, client, upstream, request(FETCH, 4, 3))
    assert pair.spans is None


def test_requests_that_change_their_place_keep_their_answers(all_of):
    world = all_of()
    client, upstream, pair = world.pair()
    passes(world, client, upstream, b"".join(request(FETCH, 4, number) for number in range(4)))
    request_spans.take_out(pair, 1)
    request_spans.put_in(pair, 2)
    assert [(int(span.ahead), span.failure) for span in pair.spans] == [(0, ""), (1, "handler"), (1, ""), (3, "")]
    request_spans.refused(pair, pair.pairing)
    assert [span.failure for span in pair.spans] == ["", "handler", "", "refused"]


def test_of_no_connection_but_kafkas(make):
    world: World = make()
    world.relay.pairs.sampler.set_share(1.0)
    client, upstream, pair = world.pair()
    passes(world, client, upstream, request(FETCH, 4, 1))
    assert pair.spans is None
