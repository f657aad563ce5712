"""Memory that nobody can take hostage (``proxy/network/MEMORY.md``): peers of every bad kind beside good ones, over real sockets.

The clock is the test's: it goes a quarter of a millisecond with each poll, so that ``WITHIN`` polls are the time that a small frame may wait.
"""

import functools
import re
from collections.abc import Callable

import pytest

from framegate.proxy.network import mute
from tests.fakes.crowd import KIB, MIB, Couple, Crowd
from tests.fakes.peer import Peer

pytestmark = pytest.mark.slow  # each has 60 connections and more, many of them TLS

FRAME = 64 * KIB
WITHIN = 400  # polls: 100 ms of the clock
BUFFER = 16 * KIB  # of the kernel, ahead of those who do not read


# Hostages. Each takes a couple that has just joined.


def announces(couple: Couple) -> None:
    """Silent after a header that announces the largest frame that there may be."""
    part(couple.client, MIB, 4)


def announces_answer(couple: Couple) -> None:
    """The upstream is silent after such a header."""
    part(couple.upstream, MIB, 4)


def stops_short(couple: Couple) -> None:
    """Silent after 60 KiB of a frame of 64 KiB."""
    part(couple.client, FRAME, 60 * KIB)


def trickles(couple: Couple) -> None:
    """A small frame, a byte at a time."""
    couple.client.give(FRAME)
    couple.client.sends = 1


def stops_within_large(couple: Couple) -> None:
    """Silent within a frame that is large, and passes whole."""
    part(couple.client, 600 * KIB, 150 * KIB)


def never_reads(couple: Couple) -> None:
    """Asks for answers, and never reads them."""
    couple.client.reads = 0
    couple.upstream.give(*[FRAME] * 20)


def dribbles(couple: Couple) -> None:
    """Reads its answers very slowly."""
    couple.client.reads = 16
    couple.upstream.give(*[FRAME] * 20)


def upstream_never_reads(couple: Couple) -> None:
    couple.upstream.reads = 0
    couple.client.give(*[FRAME] * 20)


def part(peer: Peer, size: int, sent: int) -> None:
    """Send the beginning of a frame."""
    peer.give(size)
    while peer.sent < sent:
        peer.sends = sent - peer.sent
        before = peer.sent
        peer.turn()
        if peer.sent == before:
            break  # the kernel has no room: as good as stopped there
    peer.sends = 0


Kind = Callable[[Couple], None]
KINDS: tuple[Kind, ...] = (announces, announces_answer, stops_short, trickles, stops_within_large, never_reads, dribbles, upstream_never_reads)
FILLING: tuple[Kind, ...] = (stops_short, stops_within_large, never_reads, dribbles, upstream_never_reads)


def take_hostage(crowd: Crowd, kind: Kind, count: int = 60) -> None:
    """So many of a kind; of one that fills the pool as many more as it takes."""
    for _ in range(count):
        kind(crowd.join(buffer=BUFFER))
    crowd.rest()
    if kind in FILLING:
        fill(crowd, kind)


def fill(crowd: Crowd, kind: Kind | None = None) -> None:
    """Hostages, one by one, until so much is held that requests are read with care, and stays so."""
    while not crowd.is_short:
        assert len(crowd.couples) < 200, crowd.standing()
        (kind or upstream_never_reads)(crowd.join(buffer=BUFFER))
        crowd.rest()


def overfill(make_crowd: Callable[..., Crowd], **options: int) -> Crowd:
    """A pool of a MiB, for frames of as much, of which two are held by upstreams that never read: whoever comes with a large frame must wait."""
    crowd = make_crowd(pool=2 * MIB, limit=MIB - 4, cut_answers=True, **options)
    fill(crowd)
    crowd.resize(MIB)
    return crowd


def passes(crowd: Crowd, couple: Couple, size: int, times: int = 3) -> None:
    """Frames of a good client go there and back, a few at a time, each within 100 ms."""
    for _ in range(times):
        couple.client.give(*[size] * 2)
        crowd.settle(lambda: couple.client.done, WITHIN)
        couple.upstream.give(*[size] * 2)
        crowd.settle(lambda: couple.upstream.done, WITHIN)


def has_asked(couple: Couple) -> bool:
    """Its client's large frame waits for memory, or may be read."""
    channel = couple.pair.client.channel
    low_memory = None if channel is None else channel.read_half.low_memory
    return low_memory is not None and low_memory.slot is not None


def make_small(make_crowd: Callable[..., Crowd]) -> Crowd:
    """The least pool for frames of a MiB."""
    return make_crowd(pool=MIB, limit=MIB - 4, answer_limit=MIB - 4, cut_answers=True)


# Small frames.


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_small_frames_pass_while_the_pool_is_held(make_crowd, kind):
    """Sixty of one kind: an open client and a new one are served, each way."""
    crowd = make_small(make_crowd)
    good = crowd.join()
    take_hostage(crowd, kind)
    for size in (100, FRAME):
        passes(crowd, good, size)
        passes(crowd, crowd.join(), size)
    assert not crowd.rows, "nobody is closed while nobody waits"


def test_small_frames_pass_while_large_ones_wait(make_crowd):
    """Many wait for a turn that nothing of theirs can bring: small frames do not wait with them."""
    crowd = overfill(make_crowd)
    good = crowd.join()
    for _ in range(10):
        crowd.join().client.give(MIB)
    crowd.rest()
    assert crowd.pool.waiting > 0, crowd.standing()
    for size in (100, FRAME):
        passes(crowd, good, size)
        passes(crowd, crowd.join(), size)


def test_a_frame_that_comes_in_two_halves_while_memory_is_short_passes(make_crowd):
    """It lies in the kernel until it is whole, whatever the beginning that came first: of the header, of the body, all but one byte."""
    crowd = make_small(make_crowd)
    good = crowd.join()
    take_hostage(crowd, upstream_never_reads, 30)
    for first in (1, 4, 5, 1000, 20_000, FRAME - 1):
        for size in (FRAME, 200 * KIB):
            part(good.client, size, len(good.client.given) + first)
            crowd.turn(5)
            good.client.sends = MIB
            crowd.settle(lambda: good.client.done)


# Large frames that pass whole.


def test_large_frames_take_turns_the_oldest_first_and_all_are_finished(make_crowd):
    crowd = make_crowd(pool=2 * MIB, limit=MIB - 4, cut_answers=True)
    fill(crowd)
    asking = [crowd.join() for _ in range(6)]
    for couple in asking:
        couple.upstream.reads = 0
    for couple in asking:  # each has asked before the next one sends
        couple.client.give(900 * KIB)
        crowd.settle(functools.partial(has_asked, couple))
    finished: list[int] = []

    def all_finished() -> bool:
        for couple in asking:
            couple.upstream.reads = MIB
            if couple.client.done and couple.id not in finished:
                finished.append(couple.id)
        return len(finished) == len(asking)

    crowd.settle(all_finished)
    assert finished == [couple.id for couple in asking]
    assert not crowd.rows
    assert crowd.pool.waiting == 0


def serve_large_frame(crowd: Crowd) -> Couple:
    """A couple whose large frame waits for memory, and passes within seconds: others are closed for it, and each row says why."""
    waiting = crowd.join()
    waiting.client.give(MIB)
    crowd.rest()
    assert crowd.pool.waiting == 1, crowd.standing()
    crowd.pass_time(6)
    crowd.settle(lambda: waiting.client.done)
    assert crowd.rows
    for row in crowd.rows:
        assert (row["cause"], row["side"]) in (("send_stalled", "upstream"), ("receive_stalled", "downstream"))
        assert re.search(r"\d+ bytes", row["detail"]), row["detail"]
        assert "others waited" in row["detail"]
    return waiting


def test_a_connection_that_holds_memory_others_wait_for_must_move_or_is_closed(make_crowd):
    """Those that do not read are closed, with a word that says why, no more of them than it takes; the frame that waited is finished in seconds."""
    crowd = overfill(make_crowd, stall_s=300)
    crowd.pass_time(20, step_ms=100)
    assert not crowd.rows, "nobody is closed while nobody waits"
    waiting = serve_large_frame(crowd)
    assert crowd.row_of(waiting) is None
    before = len(crowd.rows)
    assert before < len(crowd.couples) - 1, "no more of them are closed than the one who waits needs"
    crowd.pass_time(20, step_ms=100)
    assert len(crowd.rows) == before, "nobody is closed after nobody waits any more"


def test_a_connection_that_we_mute_is_not_closed_for_it(make_crowd):
    """A frame begun whose connection is muted cannot move; others wait, and it is let be."""
    crowd = make_crowd(pool=2 * MIB, limit=MIB - 4, cut_answers=True, stall_s=300)
    held_up = crowd.join()
    part(held_up.client, 900 * KIB, 300 * KIB)
    crowd.rest()
    held_up.pair.client.channel.mute(mute.TAP)
    assert held_up.held > 100 * KIB
    fill(crowd)
    crowd.resize(MIB)
    serve_large_frame(crowd)
    assert crowd.row_of(held_up) is None
    held_up.pair.client.channel.unmute(mute.TAP)
    held_up.client.sends = MIB
    crowd.settle(lambda: held_up.client.done, step_ns=1_000_000)


# Sizes that change, connections that end.


@pytest.mark.parametrize("whole_answers", [True, False], ids=["whole", "cut_through"])
def test_shrinking_while_full_loses_nothing_and_growing_lets_go_on(make_crowd, whole_answers):
    crowd = make_crowd(pool=4 * MIB, limit=MIB - 4, answer_limit=MIB - 4, cut_answers=not whole_answers)
    good = crowd.join()
    held = [crowd.join(buffer=BUFFER) for _ in range(16)]
    for index, couple in enumerate(held):
        (couple.upstream if index % 2 else couple.client).reads = 0
        couple.client.give(*[FRAME] * 6, MIB, FRAME)
        couple.upstream.give(*[FRAME] * 6, MIB, FRAME)
    crowd.rest()
    crowd.resize(MIB)
    crowd.turn(5)
    passes(crowd, good, FRAME)
    crowd.resize(2 * MIB)
    crowd.turn(5)
    crowd.resize(MIB)
    for couple in held:
        couple.client.reads = couple.upstream.reads = MIB
    crowd.settle(lambda: all(couple.done for couple in held), step_ns=1_000_000)
    assert not crowd.rows
    assert crowd.pool.used == 0


@pytest.mark.parametrize("ending", ["reset", "close", "end_of_both"])
def test_whatever_ends_gives_back_what_it_held(make_crowd, ending):
    crowd = make_crowd(pool=2 * MIB, limit=2 * MIB - 4, answer_limit=2 * MIB - 4, cut_answers=True, half_close_s=1)
    good = crowd.join()
    for _ in range(4):
        for kind in KINDS:
            kind(crowd.join(buffer=BUFFER))
    for _ in range(3):
        crowd.join().client.give(2 * MIB)
    crowd.rest()
    fill(crowd)
    for couple in crowd.couples[1:]:
        if ending == "reset":
            couple.client.reset()
        else:
            couple.client.close()
        if ending == "end_of_both":
            couple.upstream.close()
        crowd.turn()
    for couple in crowd.couples[1:]:
        couple.upstream.close()
    crowd.pass_time(4)
    assert len(crowd.rows) == len(crowd.couples) - 1
    assert crowd.pool.used == 0
    assert crowd.pool.waiting == 0
    passes(crowd, good, MIB)
