"""framegate.proxy.network.fixed_header: an integer somewhere in a header of one length."""

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.network.fixed_header import FixedHeaderFraming
from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, SIZE_BUCKETS
from framegate.proxy.network.framings import FRAMINGS
from tests.fakes.cases import each_of


def fault(framing: FixedHeaderFraming, data: bytes, limit: int) -> int:
    return int(framing.scan(data, 0, limit, vec[i64]([0] * SIZE_BUCKETS))[3])


@each_of("little", [False, True])
@each_of("width", range(1, 9))
@each_of(("offset", "behind"), [(0, 2), (3, 2), (3, 0), (0, 0)])
def test_the_integer_is_found_and_written(width: int, offset: int, behind: int, little: bool) -> None:
    others = bytes(range(1, offset + behind + 1))
    framing = FixedHeaderFraming("header", header=offset + width + behind, offset=offset, width=width, little=little, fill=others)
    for size in {0, 1, 200, min((1 << 8 * width) - 1, 0x7FFFFFFF)}:
        header = framing.header_of(size)
        assert header[offset : offset + width] == size.to_bytes(width, "little" if little else "big")
        assert header[:offset] + header[offset + width :] == others == framing.other_bytes(b"x" + header + b"y", 1)
        assert (framing.header_size(header, 0), framing.body_size(header, 0)) == (len(header), size)
    assert framing.max_body == min((1 << 8 * width) - 1, 0x7FFFFFFF)


@each_of(("extra", "written"), [(0, 10), (2, 12), (7, 17)])
def test_the_integer_may_count_the_header_too(extra: int, written: int) -> None:
    framing = FixedHeaderFraming("header", header=7, offset=3, width=2, extra=extra)
    header = framing.header_of(10)
    assert (header[3:5], framing.body_size(header, 0), framing.max_body) == (written.to_bytes(2, "big"), 10, 65_535 - extra)
    for size in range(extra):
        assert fault(framing, bytes(3) + size.to_bytes(2, "big") + bytes(2), -1) == NEGATIVE_SIZE, "it does not even count itself"
    assert fault(framing, bytes(3) + extra.to_bytes(2, "big") + bytes(2), -1) == OK


@each_of("name", ["int16", "int32_inclusive"])
def test_a_signed_size_may_be_negative(name: str) -> None:
    framing = FRAMINGS[name]
    width = int(framing.most_header)
    assert isinstance(framing, FixedHeaderFraming)
    assert fault(framing, b"\x80" + bytes(width - 1), -1) == NEGATIVE_SIZE
    assert fault(framing, b"\xff" * width, -1) == NEGATIVE_SIZE
    assert fault(framing, b"\x7f" + b"\xff" * (width - 1), -1) == OK


@each_of("little", [False, True])
@each_of("value", [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_four_bytes_are_signed_or_not(value: int, little: bool) -> None:
    header = b"x" + value.to_bytes(4, "little" if little else "big")
    for extra in (0, 5):
        unsigned = FixedHeaderFraming("header", header=5, offset=1, little=little, extra=extra)
        signed = FixedHeaderFraming("header", header=5, offset=1, little=little, extra=extra, signed=True)
        assert unsigned.body_size(b"z" + header, 1) == value - extra
        assert signed.body_size(b"z" + header, 1) == value - extra - (1 << 32 if value > 0x7FFFFFFF else 0)


@each_of("data", [b"\xff" * 8, b"\x80" + bytes(7), b"\0\0\0\1" + bytes(4)])
def test_an_unsigned_size_that_no_frame_has_is_too_large(data: bytes) -> None:
    assert fault(FixedHeaderFraming("header", header=8, width=8), data, 0x7FFFFFFF) == FRAME_TOO_LARGE


def test_the_presets_are_what_the_protocols_say() -> None:
    assert FRAMINGS["grpc_message"].header_of(0x01020304) == b"\0\1\2\3\4"
    assert FRAMINGS["mysql_packet"].header_of(0x010203) == b"\3\2\1\0"
    assert FRAMINGS["uint32_le"].header_of(0x01020304) == b"\4\3\2\1"
    assert FRAMINGS["int32_inclusive"].header_of(6) == b"\0\0\0\x0a"
    assert [int(FRAMINGS[name].max_body) for name in ("mysql_packet", "int16", "int32_inclusive")] == [0xFFFFFF, 0x7FFF, 0x7FFFFFFF - 4]
