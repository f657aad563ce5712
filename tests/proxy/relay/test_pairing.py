"""Pairing: Kafka's request and answer headers, byte for byte (kafka-broker.md §6)."""

import itertools
import struct

import pytest

from framegate.proxy.kafka.produce_acks import produce_acks
from framegate.proxy.network.run import Run
from framegate.proxy.relay.pairing import FOUND, IN_HEAD, MAX_OPEN, Pairing
from framegate.proxy.relay.pairing_stats import PairingStats
from framegate.proxy.relay.prepared_answers import PreparedAnswers
from framegate.proxy.tap.frame_tap import RequestFacts
from tests.fakes import kafka_frames
from tests.fakes.cases import each_of
from tests.fakes.framing_model import varint
from tests.fakes.kafka_frames import framed as frame
from tests.fakes.pools import pool_of
from tests.proxy.relay.conftest import run_of_frames

CLIENT_ID = b"\x00\x08producer"


def request(key: int, version: int, correlation: int, rest: bytes = b"") -> bytes:
    return kafka_frames.request(key, version, correlation, rest, CLIENT_ID)


def answer(correlation: int, rest: bytes = b"\0\0") -> bytes:
    return kafka_frames.answer(correlation, rest)


class Exchange:
    """One pairing, driven by whole runs at chosen times."""

    def __init__(self) -> None:
        self.stats = PairingStats()
        self.pairing = Pairing(self.stats)
        self.now_us = 0

    def ask(self, *frames: bytes) -> list[int]:
        self.pairing.requests(run_of_frames(*frames), self.now_us * 1000)
        return list(self.pairing.sensitive)

    def reply(self, *frames: bytes) -> list[tuple[int, int]]:
        self.pairing.answers(run_of_frames(*frames), self.now_us * 1000, True)
        return list(zip(self.pairing.keys, self.pairing.latencies, strict=True))


@pytest.fixture
def kafka() -> Exchange:
    return Exchange()


def test_an_answer_gets_key_version_and_latency_of_its_request(kafka):
    kafka.ask(request(18, 4, 0), request(3, 13, 1))
    kafka.now_us = 250
    assert kafka.reply(answer(0)) == [(18 << 16 | 4, 250)]
    kafka.now_us = 300
    kafka.ask(request(1, 17, 2))
    kafka.now_us = 1000
    assert kafka.reply(answer(1), answer(2)) == [(3 << 16 | 13, 1000), (1 << 16 | 17, 700)]
    assert (kafka.pairing.open, kafka.stats.open, kafka.stats.answered, kafka.stats.lost) == (0, 0, 3, 0)


def test_ids_may_go_backwards_and_repeat(kafka):
    kafka.ask(request(18, 4, 8), request(11, 9, 7), request(17, 1, 2147483640), request(17, 1, 2147483640), request(3, 13, -5))
    assert [key >> 16 for key, _ in kafka.reply(answer(8), answer(7), answer(2147483640), answer(2147483640), answer(-5))] == [18, 11, 17, 17, 3]
    assert not kafka.pairing.lost


@each_of(
    ("version", "rest"),
    [
        (2, struct.pack(">hi", 0, 30000)),
        (3, b"\xff\xff" + struct.pack(">hi", 0, 30000)),
        (8, b"\x00\x02tx" + struct.pack(">hi", 0, 30000)),
        (9, b"\x00" + b"\x00" + struct.pack(">hi", 0, 30000)),
        (12, b"\x01\x05\x02ab" + b"\x03tx" + struct.pack(">hi", 0, 30000)),
    ],
    fresh={"kafka": Exchange},
)
def test_acks_0_is_read_and_never_queued(kafka, version, rest):
    data = request(0, version, 5, rest)
    assert produce_acks(data, 4, len(data), version) == 0
    kafka.ask(data)
    assert kafka.pairing.open == 0
    data = data.replace(struct.pack(">hi", 0, 30000), struct.pack(">hi", -1, 30000))
    assert produce_acks(data, 4, len(data), version) == -1
    kafka.ask(data)
    assert kafka.reply(answer(5)) == [(version, 0)]


def places(kafka, *numbers):
    """Whether answers of these ids are what is expected, in this order."""
    kafka.reply(*(answer(number) for number in numbers))
    return not kafka.pairing.lost and kafka.pairing.open == 0


@each_of("place", range(6))
@each_of("answered", [0, 14], fresh={"kafka": Exchange})
def test_open_requests_are_taken_out_and_put_in(kafka, place, answered):
    kafka.ask(*(request(3, 9, number) for number in range(answered + 5)))
    kafka.reply(*(answer(number) for number in range(answered)))
    kafka.pairing.put_in(place, run_of_frames(request(0, 3, 5, b"\xff\xff" + struct.pack(">hi", 0, 30000))), 5)
    assert kafka.pairing.open == 5, "one that expects no answer is not put in"
    kafka.pairing.put_in(place, run_of_frames(request(1, 13, 77)), 5)
    assert (kafka.pairing.open, kafka.stats.open) == (6, 6)
    numbers = list(range(answered, answered + 5))
    numbers.insert(place, 77)
    kafka.pairing.take_out((place + 3) % 6)
    del numbers[(place + 3) % 6]
    assert (kafka.pairing.open, kafka.stats.open) == (5, 5)
    assert places(kafka, *numbers)


def string(text: bytes | None) -> bytes:
    """Kafka's nullable string."""
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text


def compact(text: bytes | None) -> bytes:
    return varint(0) if text is None else varint(len(text) + 1) + text


def produce(version: int, acks: int, client_id: bytes | None, transaction: bytes | None = None, tags: list[bytes] | None = None) -> bytes:
    """A Produce request, its head complete, behind it some of the rest."""
    rest = b""
    if version >= 9:
        rest += varint(len(tags or [])) + b"".join(varint(index) + varint(len(tag)) + tag for index, tag in enumerate(tags or []))
        rest += compact(transaction)
    elif version >= 3:
        rest += string(transaction)
    return kafka_frames.request(0, version, 5, rest + struct.pack(">hi", acks, 30000) + b"records" * 9, string(client_id))


def split(frame: bytes, *cuts: int) -> Run:
    """A run of one frame that came in pieces."""
    ends = [0, *cuts, len(frame)]
    pieces: list[bytes | memoryview] = [frame[left:right] for left, right in itertools.pairwise(ends)]
    data = bytes(pieces.pop())
    return Run(pieces, len(frame) - len(data), data, len(data), len(data), 1, 0)


HEADS = [
    *(produce(version, 0, client_id) for version in (0, 2) for client_id in (None, b"", b"c" * 600, b"c" * 32767)),
    *(
        produce(version, 0, client_id, transaction)
        for version in (3, 8, 9, 11, 13)
        for client_id in (None, b"", b"c" * 600, b"c" * 32767)
        for transaction in (None, b"", b"t" * 600, b"t" * 32767)
    ),
    *(produce(version, 0, b"c" * 32767, b"t" * 32767, [b"tag" * 100, b"", b"x" * 60000]) for version in (9, 11)),
]


@each_of("data", HEADS, fresh={"kafka": Exchange})
def test_acks_0_is_read_whatever_stands_before_it_in_whole_and_split_frames(kafka, data):
    kafka.ask(data)
    for cut in (1, 4, 5, 12, 13, 14, 100, len(data) // 2, len(data) - 1):
        kafka.pairing.requests(split(data, cut), 0)
    kafka.pairing.requests(split(data, *range(10, len(data) - 1, max(1, len(data) // 50))), 0)
    assert (kafka.pairing.open, kafka.pairing.lost) == (0, False)


def test_a_producer_with_a_long_name_that_never_asks_for_acks_is_never_full(kafka):
    data = produce(9, 0, b"c" * 600, b"t" * 600)
    for _ in range(MAX_OPEN + 1):
        kafka.pairing.requests(split(data, 50), 0)
    assert (kafka.pairing.full, kafka.pairing.lost) == (False, False)


@each_of("acks", [0, 1, -1])
@each_of("version", [2, 3, 8, 9, 12])
@each_of("end", range(510, 516), fresh={"kafka": Exchange})
def test_acks_on_both_sides_of_the_first_look_at_a_split_frame(kafka, version, acks, end):
    before = len(produce(version, acks, b"")) - 4 - 63
    data = produce(version, acks, b"c" * (end - before))
    assert data.index(struct.pack(">hi", acks, 30000)) + 2 == end
    kafka.pairing.requests(split(data, 5), 0)
    assert (kafka.pairing.open, kafka.pairing.lost) == (0 if acks == 0 else 1, False)


@each_of("version", [2, 3, 9, 11])
@each_of("acks", [0, 1])
def test_a_small_head_may_be_split_anywhere(version, acks):
    data = produce(version, acks, b"client", b"tx", [b"tag"])
    for cut in range(1, len(data)):
        pairing = Pairing(PairingStats())
        pairing.requests(split(data, cut), 0)
        pairing.requests(split(data, *range(1, cut + 1)), 0)
        assert (pairing.open, pairing.lost) == (2 * acks, False), cut


@each_of(
    "data",
    [
        kafka_frames.request(0, 3, 5, b"", string(b"client")),
        kafka_frames.request(0, 3, 5, b"\x7f\xff" + b"t" * 50, string(b"client")),
        kafka_frames.request(0, 9, 5, b"\xff" * 50, string(b"client")),
        produce(9, 0, b"client", None, [b""] * 17),
    ],
    fresh={"kafka": Exchange},
)
def test_a_produce_whose_acks_cannot_be_found_loses_the_pairing(kafka, data):
    kafka.ask(request(3, 9, 1), data)
    assert (kafka.pairing.open, kafka.stats.open, kafka.stats.lost) == (0, 0, 1)
    assert kafka.reply(answer(1)) == [(-1, -1)]


def test_a_split_head_beyond_reach_loses_the_pairing_and_a_whole_one_is_read(kafka):
    data = produce(9, 0, b"client", None, [b"x" * 140_000])
    kafka.ask(data)
    assert (kafka.pairing.open, kafka.pairing.lost) == (0, False)
    kafka.pairing.requests(split(data, 100), 0)
    assert (kafka.pairing.open, kafka.stats.lost) == (0, 1)


def test_a_produce_that_has_an_answer_is_not_passed_over(kafka):
    kafka.ask(produce(3, 1, b"c"), request(3, 9, 6))
    assert kafka.reply(answer(6)) == [(-1, -1)]
    assert kafka.pairing.lost


def test_any_other_mismatch_turns_pairing_off_and_counts_once(kafka):
    kafka.ask(request(3, 9, 1), request(3, 9, 2))
    assert kafka.reply(answer(2), answer(1)) == [(-1, -1), (-1, -1)]
    assert kafka.pairing.lost
    assert (kafka.pairing.open, kafka.stats.open, kafka.stats.lost) == (0, 0, 1)
    assert kafka.ask(request(3, 9, 3)) == []
    assert kafka.reply(answer(3)) == [(-1, -1)]
    kafka.pairing.lose()
    assert kafka.stats.lost == 1


def test_every_bit_of_a_correlation_id_counts():
    for bit in range(32):
        kafka = Exchange()
        kafka.ask(request(3, 9, 5))
        wrong = 5 ^ 1 << bit
        kafka.reply(answer(wrong if wrong < 1 << 31 else wrong - (1 << 32)))
        assert kafka.pairing.lost, bit


@each_of("bad", [frame(b""), frame(b"\0\x03\0\x09\0\0\0")], fresh={"kafka": Exchange})
def test_a_frame_without_room_for_a_header_is_no_request(kafka, bad):
    kafka.ask(request(3, 9, 1), bad)
    assert kafka.pairing.lost


@each_of("bad", [frame(b""), frame(b"\0\0\0"), answer(1)], fresh={"kafka": Exchange})
def test_an_answer_without_a_request_loses_the_pairing(kafka, bad):
    assert kafka.reply(bad) == [(-1, -1)]
    assert kafka.pairing.lost


def test_full_above_ten_thousand_open(kafka):
    for index in range(MAX_OPEN):
        kafka.ask(request(1, 4, index))
    assert not kafka.pairing.full
    kafka.ask(request(1, 4, MAX_OPEN))
    assert kafka.pairing.full
    kafka.reply(*(answer(index) for index in range(MAX_OPEN // 2 + 1)))
    assert not kafka.pairing.full
    kafka.reply(*(answer(index) for index in range(MAX_OPEN // 2 + 1, MAX_OPEN + 1)))
    assert (kafka.pairing.open, kafka.pairing.lost) == (0, False)


def test_sasl_requests_and_their_answers_are_sensitive(kafka):
    assert kafka.ask(request(18, 3, 1), request(17, 1, 2), request(36, 1, 3), request(3, 9, 4)) == [1, 2]
    kafka.reply(answer(1), answer(2), answer(3), answer(4))
    assert list(kafka.pairing.sensitive) == [1, 2]
    assert kafka.ask(request(3, 9, 5)) == []
    assert kafka.ask(request(36, 2, 6)) == [0]
    kafka.reply(answer(5), answer(6))
    assert list(kafka.pairing.sensitive) == [1]


@each_of(
    "tokens", [[b"\0user\0canary-password"], [b"n,,n=u,r=abc", b"c=biws,r=abc,p=proof"], [b""], [b"\0A\0pw", b"", b"x"]], fresh={"kafka": Exchange}
)
def test_raw_tokens_after_handshake_v0_are_sensitive_on_both_sides(kafka, tokens):
    assert kafka.ask(request(17, 0, 1, b"\x00\x05PLAIN")) == [0]
    kafka.reply(answer(1))
    assert list(kafka.pairing.sensitive) == [0]
    for token in tokens:
        assert kafka.ask(frame(token)) == [0]
        assert kafka.reply(frame(b"v=server-secret")) == [(-1, 0)]
        assert list(kafka.pairing.sensitive) == [0]
    assert kafka.ask(request(3, 9, 2)) == []
    assert kafka.reply(answer(2)) == [(3 << 16 | 9, 0)]
    assert list(kafka.pairing.sensitive) == []
    assert not kafka.pairing.lost


def test_a_token_that_looks_like_a_request_is_withheld_before_the_first_raw_answer(kafka):
    kafka.ask(request(17, 0, 1))
    assert kafka.ask(request(3, 9, 7)) == [0]


def test_after_pairing_is_lost_an_authenticated_connection_shows_no_answer(kafka):
    kafka.ask(request(36, 1, 1))
    kafka.reply(answer(1))
    kafka.reply(answer(77))
    kafka.reply(answer(78), answer(79))
    assert list(kafka.pairing.sensitive) == [0, 1]
    assert kafka.ask(request(3, 9, 2), request(36, 1, 3)) == [1]


@each_of("cut", range(1, 30), fresh={"kafka": Exchange})
def test_a_frame_begun_by_an_earlier_read_counts_first(kafka, cut):
    first, second = request(36, 2, 1, b"password"), request(3, 9, 2)
    data = first[cut:] + second
    run = Run([first[:cut]], cut, data, len(first) - cut, len(data), 2, 0)
    kafka.pairing.requests(run, 0)
    assert list(kafka.pairing.sensitive) == [0]
    left = answer(1, b"x" * 40)
    data = left[3:] + answer(2)
    kafka.pairing.answers(Run([left[:3]], 3, data, len(left) - 3, len(data), 2, 0), 5000, True)
    assert list(kafka.pairing.keys) == [36 << 16 | 2, 3 << 16 | 9]
    assert list(kafka.pairing.sensitive) == [0]


def test_release_gives_the_gauge_back_and_without_a_tap_nothing_is_gathered(kafka):
    kafka.ask(request(3, 9, 1), request(3, 9, 2))
    kafka.pairing.answers(run_of_frames(answer(1)), 0, False)
    assert (len(kafka.pairing.keys), kafka.stats.answered, kafka.stats.open) == (0, 1, 1)
    kafka.pairing.release()
    assert (kafka.stats.open, kafka.stats.lost) == (0, 0)


def asked(kafka: Exchange) -> list[tuple[int, int]]:
    return list(zip(kafka.pairing.request_sizes, kafka.pairing.correlation_ids, strict=True))


def test_sizes_stay_with_their_requests_when_the_queue_grows_and_turns(kafka):
    for number in range(10):
        kafka.ask(request(3, 9, number))
        kafka.reply(answer(number))
    kafka.ask(*(request(3, 9, number, bytes(number)) for number in range(100)))
    kafka.reply(*(answer(number) for number in range(100)))
    small = len(request(3, 9, 0)) - 4
    assert asked(kafka) == [(small + number, number) for number in range(100)]


def test_of_a_raw_token_only_the_size_is_known_and_of_an_answer_without_request_nothing(kafka):
    kafka.ask(request(17, 0, 1))
    kafka.reply(answer(1))
    kafka.ask(b"\0\0\0\x05token")
    kafka.reply(b"\0\0\0\x05reply")
    assert (list(kafka.pairing.keys), asked(kafka)) == ([-1], [(5, -1)])
    kafka.reply(answer(77))
    assert (list(kafka.pairing.keys), asked(kafka)) == ([-1], [(-1, -1)])


def test_facts_are_noted_only_while_a_tap_needs_them(kafka):
    pairing = kafka.pairing
    kafka.ask(request(3, 9, 1))
    pairing.facts = facts = RequestFacts()
    named = request(3, 9, 2)[4:12] + b"\0\3app"
    pairing.requests(split(struct.pack(">i", 13) + named, 3, 9), 0)
    assert (list(facts.keys), facts.names) == ([3 << 16 | 9], [None, "app"])
    kafka.ask(request(17, 0, 3), b"\0\0\0\x05token")
    assert (list(facts.keys), facts.name) == ([17 << 16, -1], "producer")
    pairing.request_part(split(struct.pack(">i", 600) + named + bytes(587), 3), 0)
    assert list(facts.keys) == [-1], "a token, whatever it looks like, until a token was answered"


def test_a_long_name_in_a_split_frame_is_read(kafka):
    kafka.pairing.facts = facts = RequestFacts()
    data = request(3, 9, 2)[4:12] + struct.pack(">h", 32000) + b"n" * 32000
    kafka.pairing.requests(split(struct.pack(">i", len(data)) + data, 5, 700), 0)
    assert facts.name == "n" * 32000


def test_the_oldest_open_request_has_its_time_and_the_first_one_names_the_client(kafka):
    assert (kafka.pairing.oldest_ns, kafka.pairing.client) == (0, None)
    first = run_of_frames(request(3, 9, 0), kafka_frames.request(3, 9, 1, b"", b"\xff\xff"))
    kafka.pairing.identify(first)
    assert kafka.pairing.client.client_id == "producer"
    for now_us in (5, 6):
        kafka.now_us = now_us
        kafka.ask(request(17, 0, now_us))
        kafka.ask(b"\0\0\0\5token")
    seen = [kafka.pairing.oldest_ns]
    for reply in (answer(5), b"\0\0\0\4resp", answer(6), b"\0\0\0\4resp"):
        kafka.reply(reply)
        seen.append(kafka.pairing.oldest_ns)
    assert seen == [5000, 5000, 6000, 6000, 0], "of raw tokens, too"


# In front of a cluster.


def test_answers_to_be_looked_at_are_found_where_they_are():
    prepared = PreparedAnswers(pool_of(1 << 20, lambda: 0).common)
    pairing = Pairing(PairingStats(), prepared)
    asked = [(12, 0), (3, 12), (0, 9), (0, 10), (1, 15), (1, 16), (18, 3), (10, 0)]
    for key, version in asked:
        pairing.requests(run_of_frames(request(key, version, 7, b"\0\0\0\1")), 0)
    pairing.requests(run_of_frames(request(300, 4, 7)), 0)
    pairing.replace_last(b"mine")
    answers = [answer(7, bytes(index)) for index in range(len(asked) + 1)]
    run = run_of_frames(*answers)
    pairing.answers(run, 1000, True)
    starts = list(run.starts())
    wanted = [index for index, (key, version) in enumerate(asked) if key in (3, 18, 10) or (key, version) in ((0, 10), (1, 16))]
    numbers = list(pairing.found)
    found = [tuple(numbers[at : at + FOUND]) for at in range(0, len(numbers), FOUND)]
    assert found[:-1] == [(starts[index] + 4, index + 4, asked[index][0] << 16 | asked[index][1]) for index in wanted]
    place, size, number = found[-1]
    assert (place, size, prepared.take(-number)) == (starts[-1] + 4, len(asked) + 4, b"mine")
    assert pairing.keys[len(asked)] == 18 << 16, "as the upstream was asked"
    assert (pairing.request_sizes[len(asked)], pairing.correlation_ids[len(asked)]) == (-1, 7)
    pairing.answers(run_of_frames(), 2000, False)
    assert len(pairing.found) == 0


def test_an_answer_that_began_in_an_earlier_read_is_found_there():
    pairing = Pairing(PairingStats(), PreparedAnswers(pool_of(1 << 20, lambda: 0).common))
    pairing.requests(run_of_frames(request(3, 12, 7), request(3, 12, 8)), 0)
    first, second = answer(7, bytes(50)), answer(8)
    pairing.answers(Run([first[:10]], 10, first[10:] + second, len(first) - 10, len(first + second) - 10, 2, 0), 0, False)
    assert list(pairing.found) == [IN_HEAD, 54, 3 << 16 | 12, len(first) - 6, 6, 3 << 16 | 12]
    pairing.requests(run_of_frames(request(1, 17, 9)), 0)
    pairing.answer_part(run_of_frames(answer(9, bytes(50))), 0)
    assert list(pairing.found) == [4, 54, 1 << 16 | 17]


def test_a_plain_listener_finds_nothing(kafka):
    kafka.ask(request(3, 12, 7))
    kafka.reply(answer(7))
    assert len(kafka.pairing.found) == 0
