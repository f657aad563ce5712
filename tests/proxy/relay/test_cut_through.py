"""Large frames that pass in pieces: judged first, held little, ended with what began them, counted as whole ones are."""

import struct

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network.framing import SIZE_BUCKETS
from framegate.proxy.relay import ending
from tests.fakes import kafka_frames
from tests.fakes.crowd import KIB, MIB, Couple, Crowd
from tests.fakes.peer import Peer
from tests.fakes.world import SMALL
from tests.proxy.relay.conftest import begin_drain, close_couple

LIMIT = 2 * MIB
WINDOW = 512 * KIB  # held of one direction at most
PIECE = 64 * KIB


@pytest.fixture
def crowd(make_crowd) -> Crowd:
    return make_crowd(pool=8 * MIB, limit=LIMIT, answer_limit=LIMIT, cut_requests=True, cut_answers=True, stall_s=30)


@pytest.fixture(params=["request", "answer"])
def ends(request):
    """Which peer of a couple sends the frame in question, and which receives it."""

    def sides(couple: Couple) -> tuple[Peer, Peer]:
        return couple.peers if request.param == "request" else (couple.upstream, couple.client)

    sides.side = "downstream" if request.param == "request" else "upstream"
    return sides


def part(crowd: Crowd, source: Peer, size: int) -> None:
    """Let so many bytes more of what it was given go out, and arrive as far as they will."""
    end = min(source.sent + size, len(source.given))
    while source.sent < end:
        source.sends = end - source.sent
        crowd.turn()
    source.sends = 0
    crowd.rest()


def side_stats(crowd: Crowd):
    counters = crowd.counters.listeners["l"]
    return counters.downstream, counters.upstream


def cut_short(crowd: Crowd) -> list[int]:
    return [int(stats.cut_short) for stats in side_stats(crowd)]


# Passing.


def test_the_first_piece_goes_out_before_the_last_comes_in(crowd, ends):
    couple = crowd.join()
    source, sink = ends(couple)
    source.give(MIB)
    part(crowd, source, 300 * KIB)
    assert sink.seen >= SMALL
    assert crowd.pool.used <= PIECE
    before = sink.seen
    part(crowd, source, 100 * KIB)
    assert sink.seen > before
    part(crowd, source, MIB)
    assert sink.seen == MIB
    assert cut_short(crowd) == [0, 0]


@pytest.mark.parametrize("size", [SMALL - 1, SMALL, SMALL + 1])
def test_frames_above_the_limit_of_small_ones_pass_in_pieces_and_no_other_does(crowd, ends, size):
    couple = crowd.join()
    source, sink = ends(couple)
    source.give(100, size, 100)
    part(crowd, source, 100 + size - 1)
    assert (sink.seen > 100) == (size > SMALL)  # that no other goes on, the peer looks at with every byte
    part(crowd, source, 101)
    assert sink.seen == size + 200
    assert crowd.pool.used == 0


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_limit_is_judged_before_a_byte_goes_on(crowd, ends, extra):
    couple = crowd.join()
    source, sink = ends(couple)
    source.give(100)
    source.give_frame(struct.pack(">i", LIMIT + extra) + bytes(400 * KIB if extra > 0 else LIMIT + extra))
    if extra > 0:
        crowd.settle(lambda: crowd.rows or sink.ended)
        assert sink.seen == 100
        close_couple(crowd, couple)
        assert (crowd.row["cause"], crowd.row["side"]) == ("frame_too_large", ends.side)
        assert cut_short(crowd) == [0, 0]
    else:
        crowd.settle(lambda: couple.done)
        assert sink.frames == 2


def test_a_limit_that_changes_does_not_judge_a_frame_that_is_begun(make_crowd):
    crowd = make_crowd(pool=8 * MIB, limit=LIMIT, cut_requests=True)
    couple = crowd.join()
    couple.client.give(MIB, 300 * KIB)
    part(crowd, couple.client, 400 * KIB)
    crowd.limit.value = 280 * KIB
    couple.client.sends = MIB
    crowd.settle(lambda: couple.upstream.ended)
    assert couple.upstream.seen == MIB
    close_couple(crowd, couple)
    assert crowd.row["cause"] == "frame_too_large"


@pytest.mark.parametrize("protocol", ["framed", "kafka"])
def test_counts_are_those_of_frames_that_pass_whole(make_crowd, protocol):
    """Rows, frames, bytes and sizes of the same traffic, once in pieces and once whole."""
    found = []
    for cut in (True, False):
        crowd = make_crowd(protocol, pool=8 * MIB, limit=LIMIT, answer_limit=LIMIT, cut_requests=cut, cut_answers=cut)
        couple = crowd.join()
        for number, size in enumerate((100, MIB, 300 * KIB, 20, SMALL - 50, 2 * MIB - 100)):
            couple.client.give_frame(kafka_frames.request(1, 4, number, bytes(size)))
            crowd.settle(lambda couple=couple: couple.done)
            couple.upstream.give_frame(kafka_frames.answer(number, bytes(size // 2)))
            crowd.settle(lambda couple=couple: couple.done)
        couple.client.close()
        crowd.turn(3)
        couple.upstream.close()
        crowd.settle(lambda crowd=crowd: crowd.rows)
        row = crowd.row
        pairing = crowd.counters.listeners["l"].pairing
        stats = []
        for side in side_stats(crowd):
            stats.append([side.frames_received, side.frames_sent, side.bytes_received, side.bytes_sent, side.lost_bytes])
            stats.append([side.frame_sizes[index] for index in range(SIZE_BUCKETS)])
        found.append((row["frames"], row["bytes"], row["lost"], row["cause"], stats, int(pairing.answered), int(pairing.lost)))
    assert found[0] == found[1]
    assert found[0][0] == {"request": 6, "response": 6}


def test_pieces_are_measured_as_runs_are_also_in_a_pipe(make_crowd):
    """One large answer: its first piece is sent, those behind it go through a pipe without TLS."""
    crowd = make_crowd("framed", pool=8 * MIB, limit=LIMIT, answer_limit=LIMIT, cut_answers=True)
    couple = crowd.join()
    counters = crowd.counters.listeners["l"]
    couple.upstream.give(*[2 * MIB - 100] * 20)
    crowd.settle(lambda: couple.done)
    assert counters.upstream.reads == counters.downstream.forwards.count > 2


def test_pairing_goes_on_through_frames_in_pieces(make_crowd):
    """Large answers in any place, large requests in any place, several open: each answer finds its request."""
    crowd = make_crowd("kafka", pool=8 * MIB, limit=LIMIT, answer_limit=LIMIT, cut_requests=True, cut_answers=True)
    couple = crowd.join()
    pairing = crowd.counters.listeners["l"].pairing
    for first in (0, 5):
        for number in range(first, first + 5):
            couple.client.give_frame(kafka_frames.request(1, 16, number, bytes(400 * KIB if number % 2 else 10)))
        crowd.settle(lambda: couple.client.done)
        assert pairing.open == 5
        for number in range(first, first + 5):
            couple.upstream.give_frame(kafka_frames.answer(number, bytes(500 * KIB if number % 3 else 10)))
        crowd.settle(lambda: couple.upstream.done)
        assert pairing.open == 0
    assert (int(pairing.answered), int(pairing.lost)) == (10, 0)


# A receiver that is slow.


def test_little_is_held_of_a_frame_whose_receiver_does_not_read(crowd, ends):
    couple = crowd.join(buffer=16 * KIB)
    source, sink = ends(couple)
    sink.reads = 0
    source.give(*[LIMIT] * 4)
    crowd.rest()
    assert crowd.pool.used <= WINDOW
    assert crowd.highest <= WINDOW
    sink.reads = 10 * KIB
    crowd.settle(lambda: sink.seen > 200 * KIB)
    sink.reads = MIB
    crowd.settle(lambda: couple.done)
    assert crowd.highest <= WINDOW
    assert not crowd.rows


def test_the_other_direction_goes_on_beside_one_that_stands(crowd, ends):
    couple = crowd.join(buffer=16 * KIB)
    source, sink = ends(couple)
    sink.reads = 0
    source.give(*[LIMIT] * 2)
    crowd.rest()
    sink.give(100, MIB, 100)
    crowd.settle(lambda: sink.done)
    sink.reads = MIB
    crowd.settle(lambda: couple.done)


# A sender that does not come to the end.


@pytest.mark.parametrize(("behind", "resets"), [(0, False), (100, False), (300 * KIB, False), (0, True)])
def test_an_end_within_a_frame_ends_the_other_side_at_once(crowd, ends, behind, resets):
    """By an orderly end, or a reset. The frame is never completed, and what came before it is whole."""
    couple = crowd.join()
    source, sink = ends(couple)
    if behind:
        source.give(behind)
    source.give(MIB)
    part(crowd, source, behind + 400 * KIB)
    if resets:
        source.reset()
    else:
        source.end()
    crowd.settle(lambda: sink.ended, turns=50)
    assert (behind if resets else behind + SMALL) <= sink.seen < behind + MIB
    if not resets:
        source.close()
    sink.close()
    crowd.settle(lambda: crowd.rows, turns=50)
    ended = {"downstream": "peer_closed", "upstream": "upstream_closed"}
    assert crowd.row["cause"] in ({"peer_reset"} if resets else {"peer_closed", ended[ends.side]})
    assert crowd.row["side"] == ends.side
    assert "within a frame" in crowd.row["detail"]
    assert crowd.row["frames"] == {"request": 0, "response": 0} | {"request" if source is couple.client else "response": 1 if behind else 0}
    assert cut_short(crowd) == [1, 1]
    assert crowd.pool.used == 0


@pytest.mark.parametrize("stalls", ["sender", "receiver"])
def test_a_sender_or_receiver_that_stalls_within_a_frame_is_the_end_of_both(crowd, ends, stalls):
    couple = crowd.join(buffer=0 if stalls == "sender" else 16 * KIB)
    source, sink = ends(couple)
    if stalls == "sender":
        source.give(MIB)
        part(crowd, source, 400 * KIB)
        crowd.pass_time(29, step_ms=250)
        assert not crowd.rows
        crowd.pass_time(12, step_ms=250)
    else:
        sink.reads = 0
        source.give(LIMIT)
        crowd.rest()
        crowd.pass_time(90, step_ms=250)  # the kernel may take some more at first
    close_couple(crowd, couple)
    assert (crowd.row["cause"], crowd.row["side"] == ends.side) == (("receive_stalled", True) if stalls == "sender" else ("send_stalled", False))
    if stalls == "sender":
        assert sink.seen < MIB
        assert "within a frame" in crowd.row["detail"]
        assert cut_short(crowd) == [1, 1]
    assert crowd.pool.used == 0


# Mutes and drain wait for the end of the frame.


def test_a_drain_waits_for_the_end_of_the_frame(make_crowd):
    crowd = make_crowd(pool=8 * MIB, limit=LIMIT, cut_requests=True, quiet_s=1)
    couple = crowd.join()
    couple.client.give(MIB, MIB)
    part(crowd, couple.client, 400 * KIB)
    begin_drain(crowd, 30)
    crowd.pass_time(25)  # clients are not read any more
    assert not crowd.rows
    couple.client.sends = 200 * KIB
    crowd.settle(lambda: couple.upstream.seen == MIB)
    crowd.pass_time(1.5)
    crowd.settle(lambda: couple.upstream.ended)
    assert couple.upstream.seen == MIB
    close_couple(crowd, couple)
    assert crowd.row["cause"] == "drained"
    assert cut_short(crowd) == [0, 0]


def test_what_still_comes_of_a_frame_that_was_cut_short_is_no_frame(crowd, ends):
    """Its receiver does not read when the operator closes, and its sender sends on."""
    couple = crowd.join(buffer=16 * KIB)
    source, sink = ends(couple)
    sink.reads = 0
    source.give(LIMIT)
    crowd.rest()
    ending.end(couple.pair, Cause.ADMIN, "", "internal")
    crowd.turn(50)
    crowd.pass_time(1.5)
    crowd.settle(lambda: crowd.rows)
    assert crowd.row["detail"].startswith("within a frame, after ")
    assert cut_short(crowd) == [1, 1]
    assert sum(crowd.row["frames"].values()) == 0
    assert crowd.pool.used == 0


# While memory is short.


def test_frames_in_pieces_ask_for_no_memory(make_crowd):
    """The pool is full of what upstreams do not read; large answers and requests pass, for nothing of them is held."""
    crowd = make_crowd(pool=MIB, limit=MIB - 4, answer_limit=8 * MIB, cut_requests=True, cut_answers=True)
    good = crowd.join()
    while not crowd.is_short:
        couple = crowd.join(buffer=16 * KIB)
        couple.upstream.reads = 0
        couple.client.give(*[PIECE] * 20)
        crowd.rest()
        assert len(crowd.couples) < 200, crowd.standing()
    for _ in range(3):
        good.upstream.give(8 * MIB)
        good.client.give(MIB)
        crowd.settle(lambda: good.done)
    assert not crowd.rows
