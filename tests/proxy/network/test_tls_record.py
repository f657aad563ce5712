"""proxy.network.tls_record: what is whole, what is missing, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.network.tls_record import LONGEST, RECORD_HEADER, is_refused, missing, whole_records


def record(size: int, version: bytes = b"\x03\x03") -> bytes:
    return b"\x17" + version + size.to_bytes(2, "big") + b"x" * size


@given(st.lists(st.integers(0, 900), max_size=30), st.integers(0, 2000), st.binary(max_size=9))
def test_whole_records_end_where_a_record_ends(sizes: list[int], cut: int, before: bytes) -> None:
    stream = b"".join(record(size) for size in sizes)[: cut or None]
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + RECORD_HEADER + size)
    assert whole_records(before + stream, len(before)) == len(before) + max(end for end in ends if end <= len(stream))


@given(st.integers(0, 0xFFFF), st.data())
def test_what_is_missing_makes_a_header_or_a_record_whole(size: int, data: st.DataObject) -> None:
    whole = record(size)
    have = data.draw(st.integers(0, len(whole)))
    assert missing(whole[:have]) == (RECORD_HEADER if have < RECORD_HEADER else len(whole)) - have


@pytest.mark.parametrize(
    ("begun", "refused"),
    [
        (b"", False),
        (b"\x17\x02\x03\xff", False),
        (record(0), False),
        (record(LONGEST - RECORD_HEADER), False),
        (record(LONGEST - RECORD_HEADER + 1), True),
        (record(0xFFFF)[:RECORD_HEADER], True),
        (record(10, b"\x02\x03")[:RECORD_HEADER], True),
        (record(10, b"\x04\x03")[:RECORD_HEADER], True),
    ],
)
def test_a_record_is_refused_for_its_header(begun: bytes, refused: bool) -> None:
    assert is_refused(begun) is refused
