"""framegate.proxy.relay.bucket: a rate that is kept to within 5 % over a second, shared fairly, starving nobody and wasting nothing."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.relay.bucket import WHOLE, Bucket
from tests.fakes.readers import Reader, ReaderBench

SECOND = 1_000_000_000
STEPS = 500  # of a course, in a second
LATE_MS = 500


@pytest.fixture
def bench() -> Iterator[ReaderBench]:
    made = ReaderBench()
    yield made
    made.close()


def gain(bench: ReaderBench, reader: Reader, seconds: float) -> int:
    """What a reader reads in so much time."""
    before = reader.bytes
    bench.run(seconds)
    return reader.bytes - before


def course(bench: ReaderBench, bucket: Bucket, seconds: int, *, most: int = 8) -> list[int]:
    """What had passed after each step."""
    passed = [int(bucket.passed)]
    for _ in range(seconds * STEPS):
        bench.run(1 / STEPS, step_ms=1000 / STEPS, most=most)
        passed.append(int(bucket.passed))
    return passed


def seconds_of(passed: list[int]) -> list[int]:
    """What each second had, wherever it begins."""
    return [after - before for before, after in zip(passed, passed[STEPS:], strict=False)]


@pytest.mark.parametrize("count", [1, 2, 7, 50])
@pytest.mark.parametrize("rate", [1_000, 33_333, 1_000_000, 47_000_000, 1_000_000_000])
def test_every_second_of_bytes_is_within_5_percent(bench: ReaderBench, rate: int, count: int) -> None:
    bucket = bench.bucket(rate)
    size = max(4, rate // 1000)
    for _ in range(count):
        bench.add(bucket, more=lambda: size)
    seconds = seconds_of(course(bench, bucket, 3, most=8 if rate < SECOND else 40))
    assert 0.95 * rate <= min(seconds)
    assert max(seconds) <= 1.05 * rate


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("rate", [1, 3, 20, 333, 10_000, 200_000])
def test_every_second_of_frames_is_within_5_percent_and_a_frame(bench: ReaderBench, rate: int, count: int) -> None:
    bucket = bench.bucket(rate, frames=True)
    for _ in range(count):
        bench.add(bucket, more=lambda: 4)
    seconds = seconds_of(course(bench, bucket, 2, most=16))
    assert min(0.95 * rate, rate - 1) <= min(seconds)
    assert max(seconds) <= max(1.05 * rate, rate + 1)


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0, 10.0])
def test_a_frame_passes_however_large_and_is_paid_for_afterwards(bench: ReaderBench, share: float) -> None:
    rate = 100_000
    bucket = bench.bucket(rate)
    size = int(rate * share)
    bench.add(bucket, more=lambda: size)
    bench.add(bucket, more=lambda: size)
    passed = course(bench, bucket, 45 if share == 10.0 else 8)
    assert max(seconds_of(passed)) <= 1.05 * rate + 2 * size, "no more than the frames that were begun"
    periods = [second for first, second in itertools.pairwise(passed) if second - first >= size // 2]
    assert len(periods) >= 3, "nobody is shut out"
    lasted = len(passed) * 0.002
    assert passed[-1] <= rate * (lasted + 0.05) + 2 * size
    assert passed[-1] >= rate * lasted * 0.95 - size


@pytest.mark.parametrize("count", [2, 5, 50])
def test_those_that_are_always_busy_get_the_same_and_those_that_want_little_get_it(bench: ReaderBench, count: int) -> None:
    bucket = bench.bucket(1_000_000)
    sizes = itertools.cycle([4, 104, 900])
    readers = [bench.add(bucket, more=lambda size=size: size) for size, _ in zip(sizes, range(count), strict=False)]
    quiet = [bench.add(bucket) for _ in range(count)]
    for turn in range(5 * count):
        if turn == count:
            start = [reader.bytes for reader in readers]
        bench.run(0.1, step_ms=10)
        quiet[turn % count].frames.append(1000)
    had = [reader.bytes - before for reader, before in zip(readers, start, strict=True)]
    assert sum(had) ** 2 / (count * sum(one * one for one in had)) > 0.99, "Jain's index"
    assert all(reader.bytes >= 4_000 for reader in quiet)


def test_large_and_small_frames_take_turns_and_idle_readers_leave_their_rate(bench: ReaderBench) -> None:
    bucket = bench.bucket(1_000_000)
    idle = [bench.add(bucket, frames=[100]) for _ in range(9)]
    small, large = bench.add(bucket, more=lambda: 100), bench.add(bucket, more=lambda: 64_000)
    bench.run(10)
    assert large.bytes * bucket.quantum <= 1.1 * small.bytes * (64_000 + bucket.quantum), "a turn is a read of a quantum, and the rest of a frame"
    assert small.bytes + large.bytes >= 0.95 * 10_000_000
    assert [reader.bytes for reader in idle] == [100] * 9


@pytest.mark.parametrize("seconds", [1, 10])
def test_a_reader_that_was_idle_has_saved_nothing_and_one_that_was_busy_owes_nothing(bench: ReaderBench, seconds: int) -> None:
    bucket = bench.bucket(1_000_000)
    first, second = bench.add(bucket, more=lambda: 500), bench.add(bucket)
    bench.run(seconds)
    second.more = lambda: 500
    before = (first.bytes, second.bytes)
    bench.run(1)
    had = first.bytes - before[0], second.bytes - before[1]
    assert abs(had[0] - had[1]) <= 40_000


def test_after_a_rest_no_more_than_the_burst_is_there(bench: ReaderBench) -> None:
    bucket = bench.bucket(1_000_000)
    reader = bench.add(bucket, more=lambda: 100)
    bench.run(1)
    reader.more = None
    bench.run(1)  # nobody waits any more
    bench.run(3600, step_ms=60_000)
    reader.more = lambda: 100
    before = reader.bytes
    bench.events(1000)
    assert 20_000 <= reader.bytes - before <= 20_000 + bucket.quantum


def test_a_clock_that_jumps_gives_waiting_readers_half_a_second_and_no_more(bench: ReaderBench) -> None:
    bucket = bench.bucket(1_000)
    reader = bench.add(bucket, more=lambda: 10)
    bench.run(1)
    bench.clock.now += 10**18
    assert 950 + LATE_MS <= gain(bench, reader, 1) <= 1_050 + LATE_MS + bucket.quantum


@pytest.mark.parametrize("rate", [1, 7, 1_000, 1_000_003, 1 << 40])
@pytest.mark.parametrize("part", [1_000, 333_333, WHOLE])
def test_no_token_is_lost_or_made_by_counting(bench: ReaderBench, rate: int, part: int) -> None:
    bucket = bench.bucket(rate, part)
    start = bench.clock.now
    bucket.charge(20 * rate, start)
    for step_ns in itertools.islice(itertools.cycle([1_000, 1_234_567, 999_999, 77_000_000]), 800):
        bench.clock.now += step_ns
        bucket.admits(bench.clock.now, let_in=False)
        bucket.is_full(bench.clock.now)
    earned = int(bucket.level) - max(rate * part // 50 // WHOLE, 1) + 20 * rate
    expected = rate * part * (bench.clock.now - start) / (WHOLE * SECOND)
    assert abs(earned - expected) <= 2 + 0.001 * expected


def test_a_huge_debt_is_paid_at_the_highest_rate_too(bench: ReaderBench) -> None:
    bucket = bench.bucket(1 << 40)
    bucket.charge(3600 << 40, bench.clock.now)
    bench.clock.now += 3600 * SECOND
    assert not bucket.is_full(bench.clock.now) or bucket.level > 0
    assert abs(int(bucket.level)) <= (3600 << 40) // 1000
    bench.clock.now += 30 * SECOND
    assert bucket.is_full(bench.clock.now)


def test_a_rate_that_changes_holds_at_once_and_parts_that_change_all_the_time_lose_nothing(bench: ReaderBench) -> None:
    bucket = bench.bucket(100_000)
    reader = bench.add(bucket, more=lambda: 50)
    bench.run(1)
    for rate, part in ((1_000_000, WHOLE), (10_000, WHOLE), (500_000, WHOLE), (500_000, WHOLE // 10)):
        bucket.set_rate(rate, part)
        effective = rate * part // WHOLE
        assert 0.95 * effective - bucket.quantum <= gain(bench, reader, 1) <= 1.05 * effective
    reader.leave()
    bench.readers.remove(reader)
    bucket = bench.bucket(7, frames=True)
    reader = bench.add(bucket, more=lambda: 10)
    for turn in range(200):
        bucket.set_rate(7, WHOLE - turn % 2)
        bench.run(0.1, step_ms=10)
    assert 139 <= reader.whole <= 142


def test_a_rate_that_is_removed_lets_all_readers_in_and_a_part_of_zero_none(bench: ReaderBench) -> None:
    bucket = bench.bucket(10)
    readers = [bench.add(bucket, frames=[100]) for _ in range(9)]
    bench.run(0.01)
    assert bucket.waiting > 0
    bucket.set_rate(0, WHOLE)
    bench.events(3)
    assert ([reader.bytes for reader in readers], bucket.waiting) == ([100] * 9, 0)
    bucket = bench.bucket(1_000_000, 0)
    reader = bench.add(bucket, more=lambda: 500)
    bench.run(5)
    assert reader.bytes <= 500, "a first read, which owes"
    bucket.set_rate(1_000_000, WHOLE)
    assert gain(bench, reader, 1) >= 950_000


def test_a_reader_that_leaves_while_it_waits_is_forgotten(bench: ReaderBench) -> None:
    bucket = bench.bucket(100_000)
    readers = [bench.add(bucket, more=lambda: 500) for _ in range(5)]
    bench.run(1)
    for reader in readers[:4]:
        reader.leave()
    assert bucket.waiting <= 1
    assert gain(bench, readers[4], 1) >= 95_000
    bucket = bench.bucket(1, 0)
    bucket.charge(10, bench.clock.now)
    for _ in range(10_000):
        reader = Reader([bucket], [10])
        reader.read(bench.clock.now)
        assert reader.waits
        reader.leave()
    assert (bucket.waiting, len(bucket._queue)) == (0, 0)


def test_a_reader_that_is_let_in_and_never_reads_does_not_delay_others(bench: ReaderBench) -> None:
    bucket = bench.bucket(1_000_000)
    stuck = [bench.add(bucket, more=lambda: 500) for _ in range(20)]
    busy = bench.add(bucket, more=lambda: 500)
    bench.run(0.1)
    bench.readers = [busy]  # the others wait for their other side
    assert gain(bench, busy, 2) >= 0.95 * 2_000_000 - 21 * bucket.quantum
    assert all(reader.turns <= 3 for reader in stuck)


def test_two_buckets_do_not_pass_a_reader_to_and_fro(bench: ReaderBench) -> None:
    node, listener = bench.bucket(1_000_000), bench.bucket(1_000_000)
    readers = [bench.add(listener, node, more=lambda: 500) for _ in range(10)]
    other = bench.bucket(400_000)
    few = [bench.add(other, node, more=lambda: 500) for _ in range(2)]
    bench.run(5)
    assert 0.95 * 5_000_000 <= node.passed <= 1.05 * 5_000_000
    had = [reader.bytes for reader in readers]
    assert max(had) <= 1.1 * min(had) + 2 * node.quantum
    assert all(reader.bytes >= 0.9 * 0.4 * min(had) for reader in few), "a turn is a read of what the narrowest of them gives"


def test_a_reader_admitted_by_one_bucket_keeps_that_while_it_waits_for_another(bench: ReaderBench) -> None:
    """Else two buckets, each used up by others while the other one lets in, could do so again and again."""
    listener, node = bench.bucket(1_000), bench.bucket(1_000)
    node.charge(100, bench.clock.now)
    reader = Reader([listener, node], [10])
    assert reader.read(bench.clock.now) == 0
    assert node.waiting == 1
    listener.charge(10_000, bench.clock.now)
    bench.clock.advance_ms(100)
    bench.selector.poll(0)
    assert not reader.waits
    assert reader.read(bench.clock.now) == 10
    reader.frames.append(10)
    assert reader.read(bench.clock.now) == 0, "for one read"


def test_a_token_that_comes_while_one_is_being_used_is_not_lost(bench: ReaderBench) -> None:
    """A frame takes 40 ms to come; at 30 a second a token comes each 33: the next one is there."""
    bucket = bench.bucket(30, frames=True)
    frames = begun = 0
    for now_ms in range(10_000):
        bench.clock.advance_ms(1)
        bucket.is_full(bench.clock.now)  # as somebody else's turn would, it counts the tokens meanwhile
        if not begun and bucket.admits(bench.clock.now, let_in=False):
            begun = now_ms
        elif begun and now_ms - begun >= 40:
            bucket.charge(1, bench.clock.now)
            frames, begun = frames + 1, 0
    assert frames >= 235


def test_demand_is_what_passed_and_how_many_waited_here_or_for_another_bucket(bench: ReaderBench) -> None:
    bucket = bench.bucket(1_000_000)
    for _ in range(3):
        bench.add(bucket, more=lambda: 500)
    bench.run(1)
    bucket.demand(bench.clock.now)
    bench.run(0.2)
    used, waiting, wanting = bucket.demand(bench.clock.now)
    assert abs(used - WHOLE) < 50_000
    assert 2_500 < waiting == wanting <= 3_000
    for reader in bench.readers:
        reader.leave()
    bench.run(0.1)
    bucket.demand(bench.clock.now)
    bench.readers[0].frames.append(1000)
    bench.run(0.1)
    assert bucket.demand(bench.clock.now) == (10_000, 0, 0)
    bench.readers.clear()
    narrow, wide = bench.bucket(10_000), bench.bucket(1_000_000)
    bench.add(narrow, wide, more=lambda: 500)
    wide.demand(bench.clock.now)
    bench.run(1)
    _, waiting, wanting = wide.demand(bench.clock.now)
    assert (waiting, 900 <= wanting <= 1000) == (0, True)
    bench.readers[0].leave()
    bench.run(1)
    assert wide.demand(bench.clock.now) == (0, 0, 0)


@pytest.mark.parametrize("levels", [1, 2])
def test_tokens_of_time_that_the_process_ran_late_go_to_waiting_readers(bench: ReaderBench, levels: int) -> None:
    buckets = [bench.bucket(1_000_000) for _ in range(levels)]
    reader = bench.add(*buckets, more=lambda: 500)
    bench.run(1, most=60)
    before = reader.bytes
    for _ in range(20):
        bench.clock.advance_ms(LATE_MS)
        bench.selector.poll(0)
        bench.events(1000)
    passed = reader.bytes - before
    assert 0.97 * 20 * LATE_MS * 1000 <= passed <= 1.03 * 20 * LATE_MS * 1000


def test_new_connections_without_end_do_not_starve_an_old_one(bench: ReaderBench) -> None:
    """New connections, each with one read, that ask for as much as the rate."""
    bucket = bench.bucket(100_000)
    large = bench.add(bucket, frames=[50_000], more=lambda: 1000)
    for step in range(3000):
        for reader in [reader for reader in bench.readers if not reader.frames and reader.more is None and not reader.waits]:
            reader.leave()
            bench.readers.remove(reader)
        bench.add(bucket, frames=[1000])
        bench.run(0.01, step_ms=10)
        if step == 1500:
            before = large.bytes
    assert large.bytes > before


@pytest.mark.extended
@settings(max_examples=25, deadline=None)
@given(
    rate=st.sampled_from([50, 3_000, 400_000]),
    frames=st.booleans(),
    demands=st.lists(st.tuples(st.integers(4, 20_000), st.integers(0, 30)), min_size=1, max_size=6),
    steps=st.lists(st.integers(1, 2_000), min_size=5, max_size=20),
)
def test_every_reader_reads_all_it_has_in_time(rate: int, frames: bool, demands: list[tuple[int, int]], steps: list[int]) -> None:
    """However much the others want, at whatever times: who has something to read has read it once the rate was enough for all that was asked."""
    bench = ReaderBench()
    try:
        bucket = bench.bucket(rate, frames=frames)
        for size, count in demands:
            bench.add(bucket, frames=[size] * count)
        for step_ms in steps:
            bench.run(step_ms / 1000, step_ms=step_ms)
        asked = sum(count if frames else size * count for size, count in demands)
        reads = asked // int(bucket.quantum) + sum(count for _, count in demands) + len(demands)
        for _ in range(int(1000 * (asked / rate)) // 100 + 2 * reads + 50):
            bench.run(0.1, step_ms=100, most=2)
        assert [len(reader.frames) for reader in bench.readers] == [0] * len(demands)
        assert bucket.waiting == 0
    finally:
        bench.close()
