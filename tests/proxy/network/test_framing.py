"""proxy.network.framing: what all framings share, and what is wrong with a size."""

import pytest

from proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, SIZE_BOUNDS, SIZE_BUCKETS, foreign_protocol, judge, size_bucket


@pytest.mark.parametrize(
    ("size", "limit", "fault"),
    [
        *((9, 10, OK), (10, 10, OK), (11, 10, FRAME_TOO_LARGE), (0, 0, OK), (1, 0, FRAME_TOO_LARGE)),
        *((0x7FFFFFFF, -1, OK), (0x7FFFFFFF, 0x7FFFFFFF, OK), (0x7FFFFFFF, 0x7FFFFFFE, FRAME_TOO_LARGE)),
        *((-1, -1, NEGATIVE_SIZE), (-1, 10, NEGATIVE_SIZE), (-0x80000000, -1, NEGATIVE_SIZE)),
    ],
)
def test_the_limit_counts_the_body_only(size: int, limit: int, fault: int) -> None:
    assert judge(size, limit) == fault


def test_a_size_equal_to_a_bound_belongs_to_it() -> None:
    for index, bound in enumerate(SIZE_BOUNDS):
        assert size_bucket(bound - 1) == size_bucket(bound) == index
        assert size_bucket(bound + 1) == index + 1
    assert size_bucket(0) == 0
    assert size_bucket(0x7FFFFFFF) == SIZE_BUCKETS - 1 == len(SIZE_BOUNDS)


ZOOKEEPER = "conf cons crst dirs dump envi gtmk hash icfg isro kill mntr reqs ruok srst srvr stat stmk sysp wchc wchp wchs"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x16\x03\x04\x00", "TLS"),
        (b"\x15\x03\x03\x00", "TLS"),
        (b"\x15\x03\x03\x01", ""),
        (b"\x15\x04\x03\x00", ""),
        (b"\x16\x03\x05\x00", ""),
        (b"GET ", "HTTP"),
        (b"POST", "HTTP"),
        (b"PRI ", "HTTP/2"),
        (b"SSH-", "SSH"),
        *((word.encode(), f"ZooKeeper's four-letter word {word}") for word in ZOOKEEPER.split()),
        (b"RUOK", ""),
        (b"imok", ""),
        (b"\0\0\0\x16", ""),
        (b"\xff\xff\xff\xff", ""),
        (b"GET", ""),
        (b"GET /", "HTTP"),
        (b"", ""),
    ],
)
def test_other_protocols_betray_themselves(header: bytes, name: str) -> None:
    assert foreign_protocol(header) == name
