"""framegate.proxy.network.framing: what all framings share, and what is wrong with a size."""

from framegate.proxy.network.framing import SIZE_BOUNDS, SIZE_BUCKETS, foreign_protocol, size_bucket
from tests.fakes.cases import each_of


def test_a_size_equal_to_a_bound_belongs_to_it() -> None:
    for index, bound in enumerate(SIZE_BOUNDS):
        assert size_bucket(bound - 1) == size_bucket(bound) == index
        assert size_bucket(bound + 1) == index + 1
    assert size_bucket(0) == 0
    assert size_bucket(0x7FFFFFFF) == SIZE_BUCKETS - 1 == len(SIZE_BOUNDS)


ZOOKEEPER = "conf cons crst dirs dump envi gtmk hash icfg isro kill mntr reqs ruok srst srvr stat stmk sysp wchc wchp wchs"


@each_of(
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
