import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tap import record
from proxy.tap.record import BlockHeader, FormatError

I32 = st.integers(0, 2**31 - 1)
I64 = st.integers(0, 2**63 - 1)


def header(**changes: int) -> BlockHeader:
    facts = dict.fromkeys(BlockHeader._fields, 0)
    places = dict.fromkeys(("header_len", "chunks_at", "starts_at", "sizes_at", "answers_at", "data_at", "block_len"), 128)
    return BlockHeader(**{**facts, **places, **changes})


def test_the_structs_have_the_sizes_that_the_format_names() -> None:
    assert record.BLOCK_HEADER.size + record.HEADER_CRC.size == record.BLOCK_HEADER_BYTES
    assert record.CHUNK_ROW.size == record.CHUNK_ROW_BYTES
    assert record.BLOCK_HEADER_BYTES % record.SECTION_ALIGNMENT == 0
    assert record.CHUNK_ROW_BYTES % record.SECTION_ALIGNMENT == 0


def test_the_published_fields_are_the_row_struct_without_holes() -> None:
    sizes = {"<i8": 8, "<i4": 4, "|u1": 1, "<u2": 2}
    position = 0
    for _, kind, offset in record.CHUNK_FIELDS:
        assert offset == position
        assert offset % sizes[kind] == 0
        position += sizes[kind]
    assert position == record.CHUNK_ROW_BYTES
    assert tuple(name for name, _, _ in record.CHUNK_FIELDS) == record.ChunkRow._fields


def test_codes_index_their_words() -> None:
    assert record.DIRECTIONS[record.DIRECTION_RESPONSE] == "response"
    assert record.KINDS[record.KIND_GAP] == "gap"
    assert record.CAPTURES[record.CAPTURE_HASH] == "hash"
    assert record.PROTOCOLS[record.PROTOCOL_KAFKA] == "kafka"
    for word in record.REASONS:
        assert record.REASONS[getattr(record, f"REASON_{word.upper()}")] == word


@given(sequence=I64, offset=I64, first=I64, frames=I32, lost=I64, crc=st.integers(0, 2**32 - 1))
def test_block_header_round_trip(sequence: int, offset: int, first: int, frames: int, lost: int, crc: int) -> None:
    one = header(sequence=sequence, offset=offset, first_ns=first, request_frames=frames, lost_frames=lost, body_crc=crc)
    data = b"x" * 64 + record.encode_block_header(one)
    assert record.decode_block_header(data, 64) == one


def test_only_a_block_with_pieces_is_one_that_version_1_does_not_know() -> None:
    plain, pieces = (record.encode_block_header(header(flags=flags)) for flags in (0, record.BLOCK_PIECES))
    assert (plain[:4], pieces[:4]) == (b"FGB1", b"FGB2")
    assert record.decode_block_header(pieces).flags == record.BLOCK_PIECES


@given(position=st.integers(0, record.BLOCK_HEADER_BYTES - 1), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_block_header_is_found(position: int, flip: int) -> None:
    data = bytearray(record.encode_block_header(header()))
    data[position] ^= flip
    with pytest.raises(FormatError):
        record.decode_block_header(data)


@pytest.mark.parametrize("length", [0, 1, 127])
def test_a_short_block_header_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match=f"{length} bytes of 128"):
        record.decode_block_header(bytes(length))


def test_zeros_are_no_block() -> None:
    with pytest.raises(FormatError):
        record.decode_block_header(bytes(128))


@pytest.mark.parametrize(
    "changes",
    [
        {"header_len": 64},
        {"chunk_count": 1},
        {"chunk_count": -1},
        {"strings_len": 8},
        {"starts_count": 1},
        {"data_len": 1},
        {"data_at": 120},
        {"block_len": 129},
        {"block_len": 64},
    ],
)
def test_sections_outside_the_block_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(FormatError, match="sections"):
        record.decode_block_header(record.encode_block_header(header(**changes)))


def test_segment_header_round_trip() -> None:
    facts: dict[str, str | int] = {"node": "kante-é", "slot": "0", "stream": "s", "boot_id": "b", "created_ns": 2**62, "base": 2**40}
    data = record.encode_segment_header(facts)
    assert len(data) == record.SEGMENT_HEADER_BYTES
    assert record.decode_segment_header(data + b"more") == {**facts, "version": record.FORMAT_VERSION}


def test_a_newer_version_is_refused_by_name() -> None:
    data = bytearray(record.encode_segment_header({"base": 0}))
    struct.pack_into("<I", data, 8, record.FORMAT_VERSION + 1)
    with pytest.raises(FormatError, match="version 4, this reader knows up to 3"):
        record.decode_segment_header(bytes(data))


def test_segments_of_version_1_are_read() -> None:
    data = bytearray(record.encode_segment_header({"base": 0}))
    struct.pack_into("<I", data, 8, 1)
    assert record.decode_segment_header(bytes(data))["base"] == 0


@pytest.mark.parametrize(("position", "words"), [(0, "magic"), (25, "damaged")])
def test_a_damaged_segment_header_is_refused(position: int, words: str) -> None:
    data = bytearray(record.encode_segment_header({"base": 0}))
    data[position] ^= 1
    with pytest.raises(FormatError, match=words):
        record.decode_segment_header(bytes(data))


def test_a_short_segment_header_is_refused() -> None:
    with pytest.raises(FormatError, match="100 bytes of 4096"):
        record.decode_segment_header(bytes(100))


def test_a_segment_header_that_does_not_fit_is_refused() -> None:
    with pytest.raises(FormatError, match="does not fit"):
        record.encode_segment_header({"node": "n" * 5000})


def test_names() -> None:
    assert record.stream_name("edge-1", "0", "b7") == "edge-1.0.b7"
    assert record.segment_file(7, sealed=False) == "00000000000000000007.open"
    assert record.segment_file(7, sealed=True) == "00000000000000000007.seg"
    assert [record.padding(n, 8) for n in (0, 1, 7, 8, 9)] == [0, 7, 1, 0, 7]
