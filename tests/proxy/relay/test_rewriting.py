"""Listeners in front of a cluster: what clients read names no broker itself, whatever else goes on on the connection."""

import contextlib
import random
import struct
from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import CUT_ABOVE, LISTS_WHOLE
from framegate.proxy.kafka.api_versions import unsupported_version_answer
from framegate.proxy.kafka.schema import apis
from framegate.proxy.network import mute
from framegate.proxy.relay import ending
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.pairing_stats import PairingStats
from framegate.proxy.relay.prepared_answers import MOST_PREPARED, PreparedAnswers
from framegate.proxy.relay.rewriting import Rewriting
from tests.fakes import cluster
from tests.fakes.cluster import API_VERSIONS, FETCH, FIND_COORDINATOR, HEARTBEAT, METADATA, PRODUCE, SECRET, expected
from tests.fakes.crowd import set_send_buffer
from tests.fakes.kafka_frames import answer, request
from tests.fakes.kio_messages import decoded
from tests.fakes.pools import pool_of
from tests.fakes.tap_read import read_frames
from tests.fakes.world import FIRST_PIECE, SMALL, World, frame
from tests.proxy.relay.conftest import assert_nothing_to_read, finish, run_of_frames, send_all, tapping

PROBE = request(API_VERSIONS, 0, 7)
METADATA_ASKED = request(METADATA, 12, 7)


def split(data: bytes) -> list[bytes]:
    """The frames of a stream."""
    frames = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        assert len(data) >= end, "the last frame is not whole"
        frames.append(data[:end])
        data = data[end:]
    return frames


def ask(world: World, client: Any, upstream: Any, *requests: bytes) -> None:
    data = b"".join(requests)
    send_all(world, client, data)
    assert world.read(upstream, len(data)) == data


def read_frame(world: World, sock: Any) -> bytes:
    head = world.read(sock, 4)
    return head + world.read(sock, int.from_bytes(head, "big"))


def reads_metadata(world: World, client: Any, original: bytes | None = None) -> None:
    """The client reads the answer of ``cluster.metadata``, or this one, with other addresses and nothing else changed."""
    assert decoded(read_frame(world, client)[4:], METADATA, 12) == expected(original or cluster.metadata(), METADATA, 12)


@pytest.fixture
def joined(make):
    """Makes a world in front of a cluster, a client, its upstream, and the pair."""

    def build(**options: Any) -> tuple[World, Any, Any, Any]:
        world = make("kafka", **{"brokers": cluster.brokers(), **options})
        return world, *world.pair()

    return build


# Answers.


def test_addresses_are_replaced_and_everything_else_passes_as_it_is_however_the_answers_come(joined):
    """In one read, in two cut anywhere, and byte by byte."""
    world, client, upstream, pair = joined()
    asked = [(HEARTBEAT, 0), (METADATA, 12), (PRODUCE, 7), (FIND_COORDINATOR, 2), (FETCH, 17), (METADATA, 0), (HEARTBEAT, 0)]
    answers = [
        cluster.heartbeat(),
        cluster.metadata(),
        answer(7, SECRET + b"of a produce answer, which has no addresses"),
        cluster.coordinator(),
        cluster.fetch(),
        cluster.metadata(version=0),
        cluster.heartbeat(),
    ]
    looked_at = {(METADATA, 12), (FIND_COORDINATOR, 2), (FETCH, 17), (METADATA, 0)}
    data = b"".join(answers)
    cuts = [[], *([cut] for cut in sorted({1, 3, 4, 5, *random.Random(1).sample(range(len(data)), 40)})), list(range(1, 700))]
    for cut in cuts:
        ask(world, client, upstream, *(request(key, version, 7, b"\xff\xff\0\1" if key == PRODUCE else b"") for key, version in asked))
        begin = 0
        for end in [*cut, len(data)]:
            upstream.sendall(data[begin:end])
            world.poll(1)
            begin = end
        for original, api in zip(answers, asked, strict=True):
            passed = read_frame(world, client)
            if api in looked_at:
                assert SECRET not in passed
                assert decoded(passed[4:], *api) == expected(original, *api)
            else:
                assert passed == original
    assert pair.state.value == "open"
    assert pair.upstream.channel.frames_received == pair.client.channel.write_half.frames_sent


def test_a_run_in_which_nothing_is_replaced_is_sent_as_it_is():
    """The same object, with its lease: no copy is made of it."""
    pairing = Pairing(PairingStats(), PreparedAnswers(pool_of(1 << 20, lambda: 0).common))
    made = Rewriting(cluster.brokers(), pairing)
    pairing.requests(run_of_frames(request(HEARTBEAT, 0, 7), request(FETCH, 17, 8)), 1)
    run = run_of_frames(cluster.heartbeat(7), cluster.fetch(8, nodes=()))
    pairing.answers(run, 2, False)
    assert len(pairing.found) == 3
    assert made.answers(run, 2) is run


def test_new_answers_have_the_addresses_that_are_told_now(joined):
    route = cluster.brokers()
    world, client, upstream, _ = joined(brokers=route)
    for port in (9101, 9555):
        ask(world, client, upstream, METADATA_ASKED)
        upstream.sendall(cluster.metadata(nodes=(1,)))
        assert decoded(read_frame(world, client)[4:], METADATA, 12).brokers[0].port == port
        route.rewriter.advertised = cluster.AdvertisedBrokers("b", 1, {1: ("localhost", 9555)})


def test_api_versions_promises_only_what_can_be_rewritten(joined):
    world, client, upstream, _ = joined()
    ask(world, client, upstream, request(API_VERSIONS, 3, 7))
    upstream.sendall(cluster.api_versions())
    promised = {row.api_key: row.max_version for row in decoded(read_frame(world, client)[4:], API_VERSIONS, 3).api_keys}
    assert (promised[3], promised[55]) == (13, 1)
    assert 300 not in promised


def test_where_every_version_passes_what_is_known_is_rewritten_and_the_rest_is_not(joined):
    """The danger of it: an answer of a version from the future names the brokers themselves."""
    world, client, upstream, _ = joined(brokers=cluster.brokers(narrow=False))
    unknown, versions = answer(8, SECRET), cluster.api_versions(9)
    ask(world, client, upstream, METADATA_ASKED, request(METADATA, 99, 8), request(API_VERSIONS, 3, 9), request(300, 0, 10))
    upstream.sendall(cluster.metadata() + unknown + versions + answer(10))
    reads_metadata(world, client)
    assert [read_frame(world, client) for _ in range(3)] == [unknown, versions, answer(10)]


BROKEN = [
    ("cut off", (METADATA, 12), lambda: frame(cluster.metadata()[4:40]), "an answer to version 12 of Metadata"),
    ("of another API", (METADATA, 12), lambda: answer(7, b"\xff" * 40), "an answer to version 12 of Metadata"),
    ("too long", (FETCH, 17), lambda: frame(cluster.fetch()[4:] + b"\0"), "an answer to version 17 of Fetch"),
    ("of no request", (METADATA, 12), lambda: cluster.metadata(correlation=8), "an answer to no request"),
    ("without a header", (METADATA, 12), lambda: frame(b"\0"), "an answer to no request"),
]


@pytest.mark.parametrize("before", ["", "good", "begun"])
def test_what_is_not_understood_ends_the_connection_and_does_not_leave(joined, before):
    """Answers before it in the same read, and in the read before, leave."""
    for name, (key, version), make_answer, detail in BROKEN:
        world, client, upstream, _ = joined()
        ask(world, client, upstream, request(METADATA, 12, 6), request(key, version, 7), request(METADATA, 12, 9))
        first = cluster.metadata(6)
        data = first + make_answer() + cluster.metadata(9)
        if before == "good":
            upstream.sendall(first)
            data = data[len(first) :]
            world.poll()
        elif before == "begun":
            upstream.sendall(data[:50])
            data = data[50:]
            world.poll()
        upstream.sendall(data)
        passed = split(world.ended(client))
        assert [decoded(one[4:], METADATA, 12) for one in passed] == [expected(first, METADATA, 12)], name
        finish(world, client, upstream)
        row = world.row
        assert (row["cause"], row["side"]) == ("wrong_protocol", "upstream"), name
        assert row["detail"].startswith(detail), name
        lost = len(data) if before != "" else len(data) - len(first)
        assert row["lost"]["response"] >= lost - (0 if before != "begun" else len(first)), name


# Answers in pieces.


IN_PIECES: dict[str, Any] = {"cut_answers": True, "answer_limit": 8 << 20, "pool": 1 << 25}


def test_a_large_metadata_answer_has_its_addresses_replaced_in_the_first_piece(joined):
    world, client, upstream, pair = joined(**IN_PIECES)
    large, small = cluster.metadata(topics=4000), cluster.metadata(8)
    assert len(large) > SMALL + FIRST_PIECE
    ask(world, client, upstream, METADATA_ASKED, request(METADATA, 12, 8))
    send_all(world, upstream, large[:1000])
    world.poll()
    assert_nothing_to_read(client)
    upstream.setblocking(False)
    send_all(world, upstream, large[1000:] + small)
    passed = read_frame(world, client)
    assert decoded(passed[4:], METADATA, 12) == expected(large, METADATA, 12)
    reads_metadata(world, client, small)
    assert pair.upstream.channel.frames_received == pair.client.channel.write_half.frames_sent == 2


def test_the_endpoints_of_a_large_fetch_answer_are_erased_wherever_the_pieces_are_cut(joined):
    """Equal length, and nothing but the endpoints is another: clients skip what stands in their place."""
    world, client, upstream, _ = joined(**IN_PIECES)
    for size in (300_000, 300_001, 1_000_000):
        large = cluster.fetch(records=size)
        for cut in (len(large) - 3, len(large) - 20, len(large) - 60, len(large) - 90, FIRST_PIECE, 200_000):
            ask(world, client, upstream, request(FETCH, 17, 7))
            send_all(world, upstream, large[:cut])
            world.poll(5)
            send_all(world, upstream, large[cut:])
            passed = read_frame(world, client)
            assert SECRET not in passed
            assert len(passed) == len(large)
            found, was = decoded_without_tags(passed), decoded_without_tags(large)
            assert found == was
    assert world.selector._pipe is not None, "records are spliced"


def decoded_without_tags(data: bytes) -> bytes:
    """The part of a Fetch answer of ``cluster.fetch`` that is before its endpoints."""
    return data[: len(data) - 60]


LARGE = [
    ("brokers beyond the first part", (METADATA, 12), lambda: cluster.metadata(nodes=tuple(range(1, 20_000))), "addresses beyond the first"),
    ("too long for its content", (FETCH, 17), lambda: frame(cluster.fetch(records=300_000, nodes=())[4:] + bytes(10)), "an answer in pieces"),
    ("of no request", (METADATA, 12), lambda: cluster.metadata(9, topics=4000), "an answer to no request"),
    ("versions", (API_VERSIONS, 3), lambda: answer(7, b"\0\0" + bytes(300_000)), "an answer of 300006 bytes to version 3 of ApiVersions"),
]


def sent_until_its_end(world: World, client: Any, upstream: Any, data: bytes) -> bytes:
    """What a client reads of an answer that ends the connection."""
    upstream.setblocking(False)
    sent = 0
    for _ in range(400):
        if sent == len(data):
            break
        with contextlib.suppress(BlockingIOError):
            try:
                sent += upstream.send(data[sent : sent + 65536])
            except ConnectionError:
                break
        world.selector.poll(1)
    return bytes(world.ended(client))


def test_a_large_answer_that_is_not_understood_ends_the_connection(joined):
    for name, (key, version), make_answer, detail in LARGE:
        world, client, upstream, _ = joined(**IN_PIECES)
        ask(world, client, upstream, request(key, version, 7))
        passed = sent_until_its_end(world, client, upstream, make_answer())
        assert SECRET not in passed, name
        if key == METADATA:
            assert passed == b"", name
        finish(world, client, upstream)
        assert (world.row["cause"], world.row["side"]) == ("wrong_protocol", "upstream"), name
        assert detail in world.row["detail"], (name, world.row["detail"])


LARGE_KINDS = {
    "fetch": lambda: (FETCH, 17, cluster.fetch(records=400_000)),
    "metadata": lambda: (METADATA, 12, cluster.metadata(topics=4000)),
    "coordinators": lambda: (FIND_COORDINATOR, 4, cluster.coordinators()),
}


@pytest.mark.parametrize("kind", LARGE_KINDS)
def test_large_answers_that_pass_whole_are_rewritten_as_well(joined, kind):
    world, client, upstream, _ = joined(answer_limit=8 << 20, pool=1 << 25)
    key, version, large = LARGE_KINDS[kind]()
    ask(world, client, upstream, request(key, version, 7), request(METADATA, 12, 8))
    send_all(world, upstream, large + cluster.metadata(8))
    passed = read_frame(world, client)
    assert SECRET not in passed
    if kind != "fetch":
        assert decoded(passed[4:], key, version) == expected(large, key, version)
    else:
        assert decoded_without_tags(passed) == decoded_without_tags(large)
    reads_metadata(world, client, cluster.metadata(8))


def test_a_long_answer_to_find_coordinator_passes_whole_where_others_pass_in_pieces(joined):
    """Up to 4 MiB, after a request so long that its answer may be; however that comes, and whichever versions are passed."""
    large, beyond = cluster.coordinators(), cluster.coordinators(groups=90_000)
    assert len(beyond) > LISTS_WHOLE > len(large) > CUT_ABOVE
    long = request(FIND_COORDINATOR, 4, 7, bytes(1025 - len(request(FIND_COORDINATOR, 4, 7)) + 4))
    short = frame(long[4:-1])
    for narrow, cut, asked, sent, passes in [
        *((narrow, cut, long, large, True) for narrow in (True, False) for cut in (0, 3, 6, 13)),
        (True, 0, short + long, large, True),
        (True, 0, short, large, False),
        (True, 0, long, beyond, False),
    ]:
        world, client, upstream, pair = joined(brokers=cluster.brokers(narrow=narrow), **IN_PIECES)
        client.sendall(asked[:cut])
        world.poll()
        client.sendall(asked[cut:])
        assert world.read(upstream, len(asked)) == asked
        if asked == short + long:
            upstream.sendall(cluster.coordinators(groups=1))
            read_frame(world, client)
        if not passes:
            assert SECRET not in sent_until_its_end(world, client, upstream, sent)
            continue
        send_all(world, upstream, sent)
        assert decoded(read_frame(world, client)[4:], FIND_COORDINATOR, 4) == expected(sent, FIND_COORDINATOR, 4)
        assert pair.state.value == "open"


# Requests.


REFUSED = [
    (request(METADATA, 14, 2), "version 14 of Metadata (API 3) is not passed"),
    (request(METADATA, 99, 2), "version 99 of Metadata (API 3) is not passed"),
    (request(55, 2, 2), "version 2 of DescribeQuorum (API 55) is not passed"),
    (request(300, 0, 2), "version 0 of an unknown API (API 300) is not passed"),
    (request(-1, 0, 2), "version 0 of an unknown API (API -1) is not passed"),
    (request(METADATA, -1, 2), "version -1 of Metadata (API 3) is not passed"),
    (request(17, 0, 2), "version 0 of SaslHandshake (API 17) is not passed"),
    (frame(b"1234567"), "a frame that is no request of Kafka"),
    (frame(b""), "a frame that is no request of Kafka"),
]


@pytest.mark.parametrize("begun", [0, 3, 13])
def test_a_request_that_is_not_understood_ends_the_connection_after_those_before_it(joined, begun):
    for refused, detail in REFUSED:
        world, client, upstream, _ = joined()
        good = request(HEARTBEAT, 0, 1)
        data = good + refused + good
        client.sendall(data[: len(good) + begun])
        world.poll()
        client.sendall(data[len(good) + begun :])
        assert world.ended(upstream) == good, detail
        finish(world, client, upstream)
        assert (world.row["cause"], world.row["side"], world.row["detail"]) == ("wrong_protocol", "downstream", detail)
        assert world.row["lost"]["request"] == len(refused + good)


def test_a_produce_request_without_its_acks_could_have_no_answer_and_ends_the_connection(joined):
    world, client, upstream, _ = joined()
    client.sendall(request(PRODUCE, 7, 1, client_id=b"\x7f\xff"))
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["detail"]) == ("wrong_protocol", "a request whose answer cannot be told from others")


def test_every_edge_of_every_known_version_passes_or_not():
    """Least and greatest pass, one less and one more do not."""
    made = Rewriting(cluster.brokers(), Pairing(PairingStats()))
    passes_all = Rewriting(cluster.brokers(narrow=False), Pairing(PairingStats()))
    for known in apis():
        least = max(known.least, 1) if known.key == 17 else known.least
        for version in (least - 1, least, known.most, known.most + 1):
            one = run_of_frames(request(known.key, version, 1) if version >= 0 else frame(struct.pack(">hhi", known.key, version, 1)))
            passes = least <= version <= known.most
            assert made.first_odd(one) == (-1 if passes else 0), (known.name, version)
            assert made.passes_part(one) is passes
            assert passes_all.first_odd(one) == -1
            assert passes_all.passes_part(one)


def test_an_unknown_version_of_api_versions_gets_the_answer_of_a_broker_in_its_turn(joined):
    """Behind the answers to earlier requests, and before those to later ones."""
    world, client, upstream, pair = joined()
    refused = request(API_VERSIONS, 9, 5)
    client.sendall(refused + request(METADATA, 12, 6) + refused + refused + request(METADATA, 12, 8))
    substitute = request(API_VERSIONS, 0, 5)
    sent = substitute + request(METADATA, 12, 6) + substitute + substitute + request(METADATA, 12, 8)
    assert world.read(upstream, len(sent)) == sent
    other = struct.pack(">hi", 0, 0)
    upstream.sendall(answer(5, other) + cluster.metadata(6) + answer(5, other) + answer(5, other) + cluster.metadata(8))
    frames = [read_frame(world, client) for _ in range(5)]
    unsupported = frame(unsupported_version_answer(5))
    assert [frames[0], frames[2], frames[3]] == [unsupported] * 3
    assert decoded(frames[1][4:], METADATA, 12) == expected(cluster.metadata(6), METADATA, 12)
    assert (pair.pairing.open, pair.pairing.prepared.count, pair.client.dropped_bytes) == (0, 0, 0)
    ask(world, client, upstream, request(API_VERSIONS, 0, 5))
    upstream.sendall(answer(5, other))
    assert read_frame(world, client) == answer(5, other), "one that was asked for is passed on"


def test_too_many_prepared_answers_mute_the_client_until_half_of_them_have_left(joined):
    world, client, upstream, pair = joined()
    refused = request(API_VERSIONS, 9, 5)
    send_all(world, client, refused * (MOST_PREPARED + 1))
    substitute = request(API_VERSIONS, 0, 5)
    assert world.read(upstream, len(substitute) * (MOST_PREPARED + 1)) == substitute * (MOST_PREPARED + 1)
    assert pair.client.channel.mute_causes & mute.PEER
    assert world.pool.used > 0, "they are booked"
    given = answer(5, struct.pack(">hi", 0, 0))
    half = MOST_PREPARED + 1 - MOST_PREPARED // 2
    send_all(world, upstream, given * (half - 1))
    world.read(client, len(frame(unsupported_version_answer(5))) * (half - 1))
    assert pair.client.channel.mute_causes & mute.PEER
    upstream.sendall(given)
    world.until(lambda: not pair.client.channel.mute_causes & mute.PEER)
    finish(world, client, upstream)
    assert world.pool.used == 0


@pytest.mark.parametrize("size", [SMALL + 1, 2 * SMALL])
def test_a_refused_request_that_comes_in_pieces_is_replaced_by_its_first_one(joined, size):
    world, client, upstream, _ = joined(cut_requests=True)
    send_all(world, client, request(API_VERSIONS, 9, 5, bytes(size)) + request(METADATA, 12, 6))
    sent = request(API_VERSIONS, 0, 5) + request(METADATA, 12, 6)
    assert world.read(upstream, len(sent)) == sent
    upstream.sendall(answer(5, struct.pack(">hi", 0, 0)) + cluster.metadata(6))
    assert read_frame(world, client) == frame(unsupported_version_answer(5))
    reads_metadata(world, client, cluster.metadata(6))
    send_all(world, client, request(300, 0, 5, bytes(size)))
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert world.row["detail"].endswith("an unknown API (API 300) is not passed")


# What else goes on on the connection.


def test_the_tap_has_what_was_received(joined, tmp_path):
    world, client, upstream, _ = joined(**tapping(tmp_path))
    refused = request(API_VERSIONS, 9, 5)
    client.sendall(METADATA_ASKED + refused)
    world.read(upstream, len(METADATA_ASKED + PROBE))
    broken = frame(cluster.metadata()[4:40])
    upstream.sendall(cluster.metadata() + answer(5, b"\0\0\0\0\0\0"))
    for _ in range(2):
        read_frame(world, client)
    client.sendall(METADATA_ASKED)
    world.poll()
    upstream.sendall(broken)
    finish(world, client, upstream)
    world.relay.pairs._writer.flush_and_close(1000)
    found = [(one.direction, one.body) for one in read_frames(str(tmp_path))]
    requests = [METADATA_ASKED[4:], refused[4:], METADATA_ASKED[4:]]
    answers = [cluster.metadata()[4:], answer(5, b"\0\0\0\0\0\0")[4:], broken[4:]]
    assert [body for direction, body in found if direction == "request"] == requests
    assert [body for direction, body in found if direction == "response"] == answers


def test_large_answers_are_tapped_as_they_came(joined, tmp_path):
    world, client, upstream, _ = joined(**IN_PIECES, **tapping(tmp_path, queue_size=1 << 24))
    large = cluster.fetch(records=300_000)
    ask(world, client, upstream, request(FETCH, 17, 7))
    send_all(world, upstream, large)
    assert SECRET not in read_frame(world, client)
    finish(world, client, upstream)
    world.relay.pairs._writer.flush_and_close(1000)
    assert [one.body for one in read_frames(str(tmp_path)) if one.direction == "response"] == [large[4:]]


@pytest.mark.parametrize("ends", ["drain", "half_close", "client_closes"])
def test_the_end_waits_for_answers_and_these_are_rewritten(joined, ends):
    world, client, upstream, _ = joined()
    ask(world, client, upstream, METADATA_ASKED)
    client.sendall(request(API_VERSIONS, 9, 5))
    world.read(upstream, len(PROBE))
    if ends == "drain":
        world.relay.pairs.draining = True
        world.drain.start(10_000_000_000)
    elif ends == "half_close":
        client.shutdown(1)
    world.poll()
    upstream.sendall(cluster.metadata() + answer(5, b"\0\0\0\0\0\0"))
    if ends == "client_closes":
        client.close()
    else:
        world.poll(10)
        world.pass_time(0.5)  # a drain holds them until the client waits
        passed = split(world.ended(client))
        assert decoded(passed[0][4:], METADATA, 12) == expected(cluster.metadata(), METADATA, 12)
        assert passed[1:] == [frame(unsupported_version_answer(5))]
    finish(world, client, upstream)
    assert world.row["cause"] == ("drained" if ends == "drain" else "peer_closed")


def read_with(world: World, client: Any, upstream: Any, left: bytearray) -> bytes:
    """A frame, while the upstream sends what is left."""
    data = b""
    client.setblocking(False)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        wanted = 4 - len(data) if len(data) < 4 else 4 + int.from_bytes(data[:4], "big") - len(data)
        try:
            data += client.recv(wanted)
        except BlockingIOError:
            world.clock.ns += 250_000
            world.selector.poll(1)
        if left:
            with contextlib.suppress(BlockingIOError):
                del left[: upstream.send(left)]
    return data


def test_while_memory_is_short_a_small_answer_is_not_cut_and_a_large_one_has_its_first_part(joined):
    world, client, upstream, pair = joined(**IN_PIECES)
    world.pool.resize(1)
    set_send_buffer(pair.client.channel, 16_384)
    many = tuple(range(1, 3000))  # their addresses go far beyond the first KiB
    small, large = cluster.metadata(nodes=many), cluster.metadata(8, nodes=many, topics=4000)
    assert len(small) < FIRST_PIECE < SMALL < len(large)
    held = world.pool.account(0)
    held.charge(0, 1 << 20, world)
    try:
        ask(world, client, upstream, METADATA_ASKED, request(METADATA, 12, 8), request(FETCH, 17, 9))
        left = bytearray(small + large + cluster.fetch(9, records=300_000))
        upstream.setblocking(False)
        for original in (small, large):
            assert decoded(read_with(world, client, upstream, left)[4:], METADATA, 12) == expected(original, METADATA, 12)
        assert SECRET not in read_with(world, client, upstream, left)
    finally:
        held.release(0, 1 << 20, world)
    assert pair.state.value == "open"


def test_an_end_by_an_operator_drops_the_prepared_answers(joined):
    world, client, upstream, pair = joined()
    client.sendall(request(API_VERSIONS, 9, 5))
    world.read(upstream, len(PROBE))
    assert pair.pairing.prepared.booked > 0
    ending.end(pair, Cause.ADMIN, "", "internal")
    finish(world, client, upstream)
    assert (pair.pairing.prepared.count, pair.pairing.prepared.booked) == (0, 0)
