import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.tap import headers, record
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.record import FormatError
from tests.fakes.cases import each_of

I32 = st.integers(0, 2**31 - 1)
I64 = st.integers(0, 2**63 - 1)


def header(**changes: int) -> BlockHeader:
    facts = dict.fromkeys(BlockHeader._fields, 0)
    places = dict.fromkeys(("header_len", "chunks_at", "starts_at", "sizes_at", "answers_at", "data_at", "block_len"), 128)
    return BlockHeader(**{**facts, **places, **changes})


def test_a_block_header_has_the_size_that_the_format_names() -> None:
    assert headers.BLOCK_HEADER.size + headers.HEADER_CRC.size == record.BLOCK_HEADER_BYTES


@given(sequence=I64, offset=I64, first=I64, frames=I32, lost=I64, crc=st.integers(0, 2**32 - 1))
def test_block_header_round_trip(sequence: int, offset: int, first: int, frames: int, lost: int, crc: int) -> None:
    one = header(sequence=sequence, offset=offset, first_ns=first, request_frames=frames, lost_frames=lost, body_crc=crc)
    data = b"x" * 64 + headers.encode_block_header(one)
    assert headers.decode_block_header(data, 64) == one


def test_only_a_block_with_pieces_is_one_that_version_1_does_not_know() -> None:
    plain, pieces = (headers.encode_block_header(header(flags=flags)) for flags in (0, record.BLOCK_PIECES))
    assert (plain[:4], pieces[:4]) == (b"FGB1", b"FGB2")
    assert headers.decode_block_header(pieces).flags == record.BLOCK_PIECES


@given(position=st.integers(0, record.BLOCK_HEADER_BYTES - 1), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_block_header_is_found(position: int, flip: int) -> None:
    data = bytearray(headers.encode_block_header(header()))
    data[position] ^= flip
    with pytest.raises(FormatError):
        headers.decode_block_header(data)


@each_of(
    ("data", "words"),
    [
        *((bytes(length), f"{length} bytes of 128") for length in (0, 1, 127)),
        (bytes(128), "no block"),
        *(
            (headers.encode_block_header(header(**changes)), "sections")
            for changes in (
                {"header_len": 64},
                {"chunk_count": 1},
                {"chunk_count": -1},
                {"strings_len": 8},
                {"starts_count": 1},
                {"data_len": 1},
                {"data_at": 120},
                {"block_len": 129},
                {"block_len": 64},
            )
        ),
    ],
)
def test_a_block_header_that_is_short_or_does_not_fit_its_block_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        headers.decode_block_header(data)


def test_segment_header_round_trip() -> None:
    facts: dict[str, str | int] = {"node": "kante-é", "slot": "0", "stream": "s", "boot_id": "b", "created_ns": 2**62, "base": 2**40}
    data = headers.encode_segment_header(facts)
    assert len(data) == record.SEGMENT_HEADER_BYTES
    assert headers.decode_segment_header(data + b"more") == {**facts, "version": record.FORMAT_VERSION}


def test_a_segment_header_that_is_damaged_short_or_of_a_later_version_is_refused() -> None:
    good = headers.encode_segment_header({"base": 0})
    assert headers.decode_segment_header(good[:8] + struct.pack("<I", 1) + good[12:])["base"] == 0, "version 1"
    later = good[:8] + struct.pack("<I", record.FORMAT_VERSION + 1) + good[12:]
    damaged = good[:25] + bytes([good[25] ^ 1]) + good[26:]
    words = {b"G" + good[1:]: "magic", damaged: "damaged", later: "version 5, this reader knows up to 4", bytes(100): "100 bytes of 4096"}
    for data, part in words.items():
        with pytest.raises(FormatError, match=part):
            headers.decode_segment_header(data)


def test_a_segment_header_that_does_not_fit_is_refused() -> None:
    with pytest.raises(FormatError, match="does not fit"):
        headers.encode_segment_header({"node": "n" * 5000})
