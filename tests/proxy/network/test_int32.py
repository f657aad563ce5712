"""framegate.proxy.network.int32: what is wrong with a size. What it shares with all framings is in tests/proxy/network/test_every_framing.py."""

import struct

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, SIZE_BUCKETS
from framegate.proxy.network.int32 import INT32
from tests.fakes.cases import each_of

UNLIMITED = -1


def buckets() -> vec[i64]:
    return vec[i64]([0] * SIZE_BUCKETS)


@each_of("header", [0x80000000, 0xFFFFFFFF])
def test_negative_sizes_are_refused_whatever_the_limit(header: int) -> None:
    for limit in (UNLIMITED, 10, 2**31 - 1):
        assert INT32.scan(struct.pack(">I", header), 0, limit, buckets()) == (0, 0, 0, NEGATIVE_SIZE)


def test_the_largest_size_does_not_wrap() -> None:
    data = struct.pack(">i", 0x7FFFFFFF) + b"ab"
    assert INT32.scan(data, 0, UNLIMITED, buckets()) == (0, 0, 0x7FFFFFFF - 2, OK)
    assert INT32.scan(data, 0, 0x7FFFFFFF, buckets()) == (0, 0, 0x7FFFFFFF - 2, OK)
    assert INT32.scan(data, 0, 0x7FFFFFFE, buckets())[3] == FRAME_TOO_LARGE
