"""framegate.proxy.network.int32: where frames begin and end, and what is wrong with a size."""

import struct

from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, SIZE_BUCKETS
from framegate.proxy.network.int32 import INT32
from tests.fakes.cases import each_of

UNLIMITED = -1


def frame(size: int) -> bytes:
    return struct.pack(">i", size) + b"x" * size


def buckets() -> vec[i64]:
    return vec[i64]([0] * SIZE_BUCKETS)


def test_nothing_is_no_frame() -> None:
    assert INT32.scan(b"", 0, UNLIMITED, buckets()) == (0, 0, 0, OK)


@each_of("size", [0, 1, 3, 4, 255, 256, 257, 70_000])
def test_one_frame_cut_everywhere_near_its_edges(size: int) -> None:
    data = frame(size)
    assert INT32.scan(data, 0, UNLIMITED, buckets()) == (1, len(data), 0, OK)
    assert INT32.scan(data + b"\0", 0, UNLIMITED, buckets()) == (1, len(data), -3, OK)
    for cut in (1, 2, 3):
        assert INT32.scan(data[:cut], 0, UNLIMITED, buckets()) == (0, 0, cut - 4, OK)
        assert INT32.header_size(data[:cut], 0) == cut - 4
    if size:
        assert INT32.scan(data[:4], 0, UNLIMITED, buckets()) == (0, 0, size, OK)
        assert INT32.scan(data[:-1], 0, UNLIMITED, buckets()) == (0, 0, 1, OK)


def test_a_scan_may_start_within() -> None:
    assert INT32.scan(b"tail" + frame(2) + frame(5)[:6], 4, UNLIMITED, buckets()) == (1, 10, 3, OK)


@each_of("header", [0x80000000, 0xFFFFFFFF])
def test_negative_sizes_are_refused_whatever_the_limit(header: int) -> None:
    for limit in (UNLIMITED, 10, 2**31 - 1):
        assert INT32.scan(struct.pack(">I", header), 0, limit, buckets()) == (0, 0, 0, NEGATIVE_SIZE)


def test_the_largest_size_does_not_wrap() -> None:
    data = struct.pack(">i", 0x7FFFFFFF) + b"ab"
    assert INT32.scan(data, 0, UNLIMITED, buckets()) == (0, 0, 0x7FFFFFFF - 2, OK)
    assert INT32.scan(data, 0, 0x7FFFFFFF, buckets()) == (0, 0, 0x7FFFFFFF - 2, OK)
    assert INT32.scan(data, 0, 0x7FFFFFFE, buckets())[3] == FRAME_TOO_LARGE


def test_frames_before_a_faulty_header_are_good() -> None:
    good = frame(3) + frame(0)
    for fault, header in ((NEGATIVE_SIZE, b"\xff\xff\xff\xff"), (FRAME_TOO_LARGE, b"\0\0\0\x0b")):
        assert INT32.scan(good + header, 0, 10, buckets()) == (2, len(good), 0, fault)
        assert INT32.scan(good + header[:3], 0, 10, buckets()) == (2, len(good), -1, OK)


def test_whole_frames_are_counted_by_size() -> None:
    sizes = buckets()
    INT32.scan(frame(256) + frame(257) + frame(0) + frame(5)[:4], 0, UNLIMITED, sizes)
    assert list(sizes) == [2, 1] + [0] * 10


@given(st.lists(st.integers(0, 600), max_size=20), st.integers(0, 700), st.integers(0, 9))
def test_scan_agrees_with_the_sizes_that_were_written(sizes: list[int], cut: int, start: int) -> None:
    stream = b"".join(frame(size) for size in sizes)
    data = b"s" * start + stream[: max(len(stream) - cut, 0)]
    ends = [start]
    for size in sizes:
        ends.append(ends[-1] + 4 + size)
    whole = [end for end in ends if end <= len(data)]
    counted = buckets()
    frames, end, rest, fault = INT32.scan(data, start, UNLIMITED, counted)
    assert (frames, end, fault) == (len(whole) - 1, whole[-1], OK)
    assert sum(counted) == frames
    left = len(data) - end
    if left == 0:
        assert rest == 0
    elif left < 4:
        assert rest == left - 4 == INT32.header_size(data, end)
    else:
        assert rest == 4 + sizes[frames] - left
    starts = INT32.frame_starts(data, start, end, -start, vec[i64]())
    assert [int(item) for item in starts] == [item - start for item in whole[:-1]]
    writer = BytesWriter()
    INT32.write_starts(data, start, end, -start, writer)
    assert writer.getvalue() == struct.pack(f"<{frames}i", *starts)


@given(st.integers(0, 0x7FFFFFFF))
def test_a_header_says_what_it_was_made_of(size: int) -> None:
    header = INT32.header_of(size)
    assert (INT32.header_size(header, 0), INT32.body_size(header, 0)) == (4, size)
