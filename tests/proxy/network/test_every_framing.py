"""What every framing keeps, and that nobody but a framing knows of headers."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.config.model import HeaderConfig
from framegate.proxy.network.framing import FRAME_TOO_LARGE, OK, SIZE_BUCKETS, Framing, size_bucket
from framegate.proxy.network.framings import FRAMINGS, framing_of
from framegate.proxy.network.memory_pool import BEGUN, MemoryPool
from framegate.proxy.network.receive import NEVER_CUT, Receive, ReceiveLimit
from framegate.proxy.network.run import PART_LAST, Run
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock

OWN = framing_of("header", HeaderConfig(size=7, offset=2, width=3, byte_order="little", counts="rest", fill="01020304"), {})
ALL: Final[dict[str, Framing]] = {**FRAMINGS, "header": OWN}
each = pytest.mark.parametrize("framing", ALL.values(), ids=ALL)
headed = each_of("framing", [framing for framing in ALL.values() if framing.tail == 0])
bodies = st.lists(st.integers(0, 600), max_size=12)


def stream(framing: Framing, sizes: list[int]) -> bytes:
    return b"".join(framing.header_of(size) + bytes([97 + index % 26]) * size + framing.delimiter for index, size in enumerate(sizes))


def buckets() -> vec[i64]:
    return vec[i64]([0] * SIZE_BUCKETS)


@headed
@each_of("size", [0, 1, 127, 128, 255, 256, 16_383, 16_384, 32_767])
def test_a_header_that_is_not_whole_says_what_it_misses(framing: Framing, size: int) -> None:
    header = framing.header_of(size)
    assert framing.least_header <= len(header) <= framing.most_header
    for cut in range(len(header)):
        missing = -framing.header_size(header[:cut], 0)
        assert 1 <= missing <= len(header) - cut
        assert framing.scan(header[:cut], 0, -1, buckets()) == (0, 0, -missing if cut else 0, OK)
    assert (framing.header_size(b"x" + header, 1), framing.body_size(b"x" + header, 1)) == (len(header), size)


@each
@given(sizes=bodies, cut=st.integers(0, 700), start=st.integers(0, 9))
def test_what_was_written_is_found(framing: Framing, sizes: list[int], cut: int, start: int) -> None:
    whole = stream(framing, sizes)
    data = b"s" * start + whole[: max(len(whole) - cut, 0)]
    ends = [start]
    for size in sizes:
        ends.append(ends[-1] + len(framing.header_of(size)) + size + framing.tail)
    ends = [end for end in ends if end <= len(data)]
    counted = buckets()
    frames, end, rest, fault = framing.scan(data, start, -1, counted)
    assert (frames, end, fault) == (len(ends) - 1, ends[-1], OK)
    expected = [0] * SIZE_BUCKETS
    for size in sizes[:frames]:
        expected[size_bucket(size)] += 1
    assert list(counted) == expected
    left = len(data) - end
    if left == 0:
        assert rest == 0
    elif framing.header_size(data, end) < 0:
        assert rest == framing.header_size(data, end)
    else:
        assert rest == framing.header_size(data, end) + framing.body_size(data, end) - left
    starts = [int(item) for item in framing.frame_starts(data, start, end, -start, vec[i64]())]
    assert starts == [item - start for item in ends[:-1]]
    writer = BytesWriter()
    framing.write_starts(data, start, end, -start, writer)
    assert writer.getvalue() == b"".join(item.to_bytes(4, "little") for item in starts)


@each
@pytest.mark.parametrize(("size", "fault"), [(299, OK), (300, OK), (301, FRAME_TOO_LARGE)])
def test_the_limit_counts_the_body_only(framing: Framing, size: int, fault: int) -> None:
    good = stream(framing, [5, 0])
    frames, end, _, found = framing.scan(good + stream(framing, [size]), 0, 300, buckets())
    assert (frames, found) == (2 if fault else 3, fault)
    assert fault == OK or end == len(good)


@each
@settings(max_examples=100)
@given(
    sizes=bodies.filter(bool),
    reads=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    cut_from=st.sampled_from([NEVER_CUT, 0, 100, 400]),
    limit=st.sampled_from([-1, 450]),
)
def test_any_split_of_the_reads_gives_the_same_frames(framing: Framing, sizes: list[int], reads: list[int], cut_from: int, limit: int) -> None:
    pool = MemoryPool(1 << 20, FakeClock().now_ns)
    stats = SideStats()
    receive = Receive(pool.common, ReceiveLimit(limit), stats, cut_from, 0, framing)
    data = stream(framing, sizes)
    good = next((index for index, size in enumerate(sizes) if 0 <= limit < size), len(sizes))
    runs: list[Run] = []
    position = turn = 0
    while position < len(data) and receive.fault == OK:
        count = reads[turn % len(reads)]
        if receive.is_within_cut or receive.cut:
            count = min(count, receive.missing())
        run = receive.feed(data[position : position + count])
        position += count
        turn += 1
        while run is not None:
            runs.append(run)
            run = receive.take_part()
    assert receive.fault == (OK if good == len(sizes) else FRAME_TOO_LARGE)
    passed = b"".join(bytes(piece) for run in runs for piece in run.pieces())
    whole = stream(framing, sizes[:good])
    assert passed == whole
    assert sum(run.frames for run in runs) == good == sum(stats.frame_sizes)
    at = done = 0
    for run in runs:
        assert run.framing is framing
        if run.part == 0:
            assert [at + int(start) for start in run.starts()] == [len(stream(framing, sizes[:index])) for index in range(done, done + run.frames)]
            assert run.first_sizes() == (len(framing.header_of(sizes[done])), sizes[done])
        else:
            assert run.frames == (1 if run.part & PART_LAST else 0)
        at += run.size
        done += int(run.frames)
        pool.common.release(BEGUN, run.lease)
    receive.drop()
    assert pool.used == 0
