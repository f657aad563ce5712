"""framegate.proxy.relay.pairing_stats: what requests took and what passed, by API; the same however frames come in runs."""

import random
import struct

from framegate.proxy.cells import ANSWER_BOUNDS, MEASURED_APIS, RESPONSE_ERRORS
from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.network.run import Run
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.pairing_stats import PairingStats, error_row
from tests.fakes.cases import each_of
from tests.fakes.kafka_frames import answer, request
from tests.proxy.relay.conftest import run_of_frames

MS = 1_000_000
NO_ACKS = b"\xff\xff" + struct.pack(">hi", 0, 30000)


def part_of(data: bytes) -> Run:
    """The first piece of a frame that is cut through."""
    return Run([data], len(data), b"", 0, 0, 0, 0, 1 | 2)


def times(stats: PairingStats) -> dict[str, tuple[int, int]]:
    """How many were answered, and ns in sum, by API."""
    return {
        name: (int(histogram.count), int(histogram.sum)) for name, histogram in zip(MEASURED_APIS, stats.durations, strict=True) if histogram.count
    }


def sizes(stats: PairingStats) -> dict[str, tuple[int, int]]:
    """Bytes asked and answered, by API."""
    found = {name: (int(stats.io[2 * row]), int(stats.io[2 * row + 1])) for row, name in enumerate(MEASURED_APIS)}
    return {name: both for name, both in found.items() if any(both)}


def test_an_api_that_is_not_in_the_list_is_other() -> None:
    for key in range(-1, 200):
        stats = PairingStats()
        stats.begin_asked(key, 7)
        stats.end_asked()
        name = KAFKA_APIS.get(key, "")
        assert sizes(stats) == {name if name in MEASURED_APIS else "other": (7, 0)}, key


def test_an_answer_is_measured_from_when_its_request_was_read() -> None:
    stats = PairingStats()
    pairing = Pairing(stats)
    pairing.requests(run_of_frames(request(0, 9, 1, b"\0\0\0\xff\xff"), request(1, 16, 2, bytes(20))), 10 * MS)
    pairing.requests(run_of_frames(request(1, 16, 3)), 30 * MS)
    assert times(stats) == {}
    pairing.answers(run_of_frames(answer(1), answer(2, bytes(100))), 40 * MS, False)
    pairing.answers(run_of_frames(answer(3)), 530 * MS, False)
    assert times(stats) == {"Produce": (1, 30 * MS), "Fetch": (2, 530 * MS)}
    assert stats.answered == 3
    fetch = stats.durations[MEASURED_APIS.index("Fetch")]
    assert {bound for bound, number in zip(ANSWER_BOUNDS, fetch.buckets, strict=False) if number} == {0.03125, 0.5}


@each_of("seed", range(20))
def test_frames_count_the_same_however_they_come_in_runs(seed: int) -> None:
    """Requests and answers in runs of any length are as each by itself, at the times of their runs."""
    chance = random.Random(seed)
    keys = [chance.choice((1, 3, 3, 3, 12, 99)) for _ in range(60)]
    asked = [request(key, 1, number, bytes(chance.randrange(50))) for number, key in enumerate(keys)]
    answers = [answer(number, bytes(chance.randrange(50))) for number in range(60)]
    ask_at, answer_at = (sorted(chance.choices((1, 2, 5, 9), k=60)) for _ in range(2))

    def drive(together: bool) -> PairingStats:
        stats = PairingStats()
        pairing = Pairing(stats)
        for frames, at, take in (
            (asked, ask_at, pairing.requests),
            (answers, [10 + at for at in answer_at], lambda run, now: pairing.answers(run, now, False)),
        ):
            position = 0
            while position < 60:
                end = position + 1
                while together and end < 60 and at[end] == at[position] and chance.random() < 0.9:
                    end += 1
                take(run_of_frames(*frames[position:end]), at[position] * MS)
                position = end
        return stats

    alone, in_runs = drive(False), drive(True)
    assert (times(in_runs), sizes(in_runs)) == (times(alone), sizes(alone))
    assert [list(histogram.buckets) for histogram in in_runs.durations] == [list(histogram.buckets) for histogram in alone.durations]
    assert sum(ask for ask, _ in sizes(in_runs).values()) == sum(len(frame) - 4 for frame in asked)
    assert sum(told for _, told in sizes(in_runs).values()) == sum(len(frame) - 4 for frame in answers)


def test_what_is_never_answered_or_not_known_passes_all_the_same() -> None:
    """Produce without acks; a frame that is no request; answers when pairing is lost."""
    stats = PairingStats()
    pairing = Pairing(stats)
    silent = request(0, 3, 1, NO_ACKS)
    pairing.requests(run_of_frames(silent, request(3, 9, 2)), 0)
    assert sizes(stats) == {"Produce": (len(silent) - 4, 0), "Metadata": (len(request(3, 9, 2)) - 4, 0)}
    before = sizes(stats)["Metadata"]
    pairing.requests(run_of_frames(b"\0\0\0\3odd", request(3, 9, 3)), 0)
    assert pairing.lost
    pairing.answers(run_of_frames(answer(2, bytes(6))), 5, False)
    assert sizes(stats) == {"Produce": (len(silent) - 4, 0), "Metadata": (2 * before[0], 0), "other": (3, 10)}
    assert (times(stats), stats.open) == ({}, 0)


def test_bare_tokens_have_no_api_and_a_frame_in_pieces_counts_whole_when_it_begins() -> None:
    stats = PairingStats()
    pairing = Pairing(stats)
    pairing.requests(run_of_frames(request(17, 0, 1)), 0)
    pairing.answers(run_of_frames(answer(1)), 2 * MS, False)
    pairing.requests(run_of_frames(b"\0\0\0\x04abcd"), 3 * MS)
    pairing.answers(run_of_frames(b"\0\0\0\x02ok"), 7 * MS, False)
    assert times(stats) == {"SaslHandshake": (1, 2 * MS), "other": (1, 4 * MS)}
    assert sizes(stats)["other"] == (4, 2)
    stats = PairingStats()
    pairing = Pairing(stats)
    large, told = request(1, 16, 1, bytes(300)), answer(1, bytes(500))
    pairing.request_part(part_of(large[:60]), 1 * MS)
    assert sizes(stats) == {"Fetch": (len(large) - 4, 0)}
    pairing.answer_part(part_of(told[:60]), 4 * MS)
    assert (sizes(stats), times(stats)) == ({"Fetch": (len(large) - 4, len(told) - 4)}, {"Fetch": (1, 3 * MS)})


def test_a_request_that_a_handler_has_changed_came_once() -> None:
    stats = PairingStats()
    pairing = Pairing(stats)
    first = request(3, 9, 1)
    pairing.requests(run_of_frames(first), 0)
    pairing.take_out(0)
    pairing.put_in(0, run_of_frames(request(3, 9, 1, bytes(1000))), 2 * MS)
    pairing.requests(run_of_frames(first), 3 * MS)
    assert sizes(stats) == {"Metadata": (2 * (len(first) - 4), 0)}
    pairing.answers(run_of_frames(answer(1)), 5 * MS, False)
    assert times(stats) == {"Metadata": (1, 3 * MS)}


def test_pairs_of_a_listener_count_together_and_not_into_each_other() -> None:
    stats = PairingStats()
    first, second = Pairing(stats), Pairing(stats)
    first.requests(run_of_frames(request(3, 9, 1)), 1 * MS)
    second.requests(run_of_frames(request(3, 9, 1)), 1 * MS)
    first.answers(run_of_frames(answer(1)), 2 * MS, False)
    second.answers(run_of_frames(answer(1)), 9 * MS, False)
    assert times(stats) == {"Metadata": (2, 9 * MS)}


def test_every_error_code_has_a_row() -> None:
    assert [RESPONSE_ERRORS[error_row(code)] for code in (27, 90, -1, 3000)] == ["rebalance_in_progress", "producer_fenced", "other", "other"]
