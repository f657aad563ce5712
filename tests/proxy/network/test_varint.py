"""framegate.proxy.network.varint: the sizes of Protobuf's delimited streams."""

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, SIZE_BUCKETS
from framegate.proxy.network.varint import VARINT
from tests.fakes.cases import each_of


def scan(data: bytes, limit: int = -1) -> tuple[int, int, int, int]:
    frames, end, rest, fault = VARINT.scan(data, 0, limit, vec[i64]([0] * SIZE_BUCKETS))
    return int(frames), int(end), int(rest), int(fault)


@each_of(
    ("header", "size"),
    [
        *((b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xff\x7f", 16_383), (b"\x80\x80\x01", 16_384)),
        *((b"\x96\x01", 150), (b"\xff\xff\xff\xff\x07", 0x7FFFFFFF), (b"\x85\x00", 5), (b"\x85\x80\x80\x80\x00", 5)),
        *((b"\x80\x80\x80\x80\x08", -1), (b"\xff\xff\xff\xff\x0f", -1), (b"\xff\xff\xff\xff\xff", -1)),
    ],
)
def test_a_size_is_read_as_protobuf_writes_it(header: bytes, size: int) -> None:
    assert (VARINT.header_size(header + b"x", 0), VARINT.body_size(header + b"x", 0)) == (len(header), size)
    for cut in range(1, len(header)):
        assert VARINT.header_size(header[:cut], 0) == -1
        assert scan(header[:cut]) == (0, 0, -1, OK)
    if size < 0:
        assert scan(b"\x01a" + header) == (1, 2, 0, NEGATIVE_SIZE)


def test_a_negative_number_of_ten_bytes_is_refused_at_its_fifth() -> None:
    minus_one = b"\xff" * 9 + b"\x01"
    assert scan(minus_one[:4])[3] == OK
    assert scan(minus_one[:5])[3] == scan(minus_one)[3] == NEGATIVE_SIZE


@each_of(("limit", "fault"), [(149, FRAME_TOO_LARGE), (150, OK), (151, OK)])
def test_the_limit_is_judged_with_the_last_byte_of_the_size(limit: int, fault: int) -> None:
    assert scan(b"\x96", limit) == (0, 0, -1, OK)
    assert scan(b"\x96\x01", limit)[3] == fault
