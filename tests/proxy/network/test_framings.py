"""framegate.proxy.network.framings: what a configuration may name, and what the record and the model call it."""

import typing

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.config import model
from framegate.proxy.config.model import HeaderConfig
from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, SIZE_BUCKETS, Framing
from framegate.proxy.network.framings import FRAMINGS, LINES, LINES_CRLF, VARINT, FixedHeaderFraming, LineFraming, framing_of
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.receive import Receive, ReceiveLimit
from framegate.proxy.network.stats import SideStats
from framegate.proxy.tap import record
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock


def test_the_configuration_and_the_record_name_them_alike() -> None:
    assert {name: framing.name for name, framing in FRAMINGS.items()} == {name: name for name in FRAMINGS}
    assert {*FRAMINGS, "header"} == set(typing.get_args(model.Framing)) == set(record.FRAMINGS)
    assert record.FRAMINGS[record.FRAMING_INT32] == "int32"


def test_two_sides_with_one_header_speak_the_same() -> None:
    made: dict[HeaderConfig, Framing] = {}
    first = framing_of("header", HeaderConfig(size=6, width=2), made)
    assert framing_of("header", HeaderConfig(size=6, width=2), made) is first
    assert framing_of("header", HeaderConfig(size=6, width=3), made) is not first
    assert framing_of("varint", None, made) is FRAMINGS["varint"]


def test_a_header_is_as_its_keys_say() -> None:
    config = HeaderConfig(size=9, offset=1, width=3, byte_order="little", counts="rest", other_bytes="set", fill="0a0b0c0d0e0f")
    framing = framing_of("header", config, {})
    assert isinstance(framing, FixedHeaderFraming)
    assert framing.header_of(0x0102) == b"\x0a\x07\x01\x00\x0b\x0c\x0d\x0e\x0f"
    assert (framing.extra, framing.keeps) == (5, False)
    whole = framing_of("header", HeaderConfig(size=9, counts="frame"), {})
    assert isinstance(whole, FixedHeaderFraming)
    assert (whole.extra, whole.keeps, whole.header_of(1)) == (9, True, b"\0\0\0\x0a" + bytes(5))


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


def receive(framing: LineFraming, limit: int = 100) -> Receive:
    return Receive(MemoryPool(1 << 20, FakeClock().now_ns).common, ReceiveLimit(limit), SideStats(), 0, 0, framing)


@each_of("framing", [LINES, LINES_CRLF])
@each_of("step", [1, 3, 1000])
def test_the_longest_line_counts_its_body_only(framing: LineFraming, step: int) -> None:
    for size, fault in ((9, OK), (10, OK), (11, FRAME_TOO_LARGE)):
        reader = receive(framing, 10)
        data = b"ab" + framing.delimiter + b"x" * size + framing.delimiter
        frames = 0
        for at in range(0, len(data), step):
            if reader.fault == OK:
                run = reader.feed(data[at : at + step])
                frames += 0 if run is None else int(run.frames)
        assert (reader.fault, frames) == (fault, 2 if fault == OK else 1)


@each_of("framing", [LINES, LINES_CRLF])
def test_a_line_without_an_end_is_refused_when_no_end_can_save_it(framing: LineFraming) -> None:
    for size, fault in ((10, OK), (9 + len(framing.delimiter), OK), (10 + len(framing.delimiter), FRAME_TOO_LARGE)):
        whole = receive(framing, 10)
        whole.feed(b"x" * size)
        bytewise = receive(framing, 10)
        for _ in range(size):
            if bytewise.fault == OK:
                bytewise.feed(b"x")
        behind = receive(framing, 10)
        behind.feed(b"ab" + framing.delimiter + b"x" * size)
        assert whole.fault == bytewise.fault == behind.fault == fault


@each_of(("framing", "data", "reach"), [(LINES, b"ab\ncd\n", 3), (LINES_CRLF, b"a\nb\r\nc", 5), (LINES, b"abc", 3), (LINES, b"", 0)])
def test_what_belongs_to_the_frame_begun_ends_with_its_line(framing: LineFraming, data: bytes, reach: int) -> None:
    assert receive(framing).reach(data) == reach


def test_an_end_in_two_reads_ends_the_frame_begun_and_no_other() -> None:
    reader = receive(LINES_CRLF)
    reader.feed(b"abc\r")
    assert (reader.reach(b"\nnext\r\n"), reader.reach(b"x\nnext\r\n"), reader.reach(b"\r\nnext")) == (1, 8, 2)
    run = reader.feed(b"\n")
    assert run is not None
    assert (run.frames, reader.reach(b"\nnext\r\n")) == (1, 7)


def test_a_line_begun_misses_at_least_one_byte() -> None:
    reader = receive(LINES)
    assert (reader.missing(), reader.longest()) == (1, 102)
    reader.feed(b"abc")
    assert (reader.missing(), reader.size, reader.staged, reader.can_cut) == (1, -1, 3, False)


@each_of(("framing", "size"), [(LINES, 12), (LINES_CRLF, 11)])
def test_the_size_that_is_told_of_a_line_that_is_too_long_is_that_of_its_body(framing: LineFraming, size: int) -> None:
    """What may be the first byte of its end is none of the body."""
    data = b"x" * 11 + b"\r"
    for reads in ((data,), (data[:4], data[4:]), (b"ab" + framing.delimiter + data,)):
        reader = receive(framing, 10)
        for read in reads:
            reader.feed(read)
        assert (reader.fault, reader.faulty_size) == (FRAME_TOO_LARGE, size)


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
