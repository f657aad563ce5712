"""framegate.proxy.network.tls_record: what is whole, what is missing, and what is refused."""

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network.tls_record import LONGEST, RECORD_HEADER, is_refused, least_overhead, missing, most_plaintext, whole_records
from tests.fakes.cases import each_of


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


@each_of(
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


@each_of(
    ("version", "cipher", "overhead"),
    [
        ("TLSv1.3", "TLS_AES_256_GCM_SHA384", 22),
        ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256", 22),
        ("TLSv1.3", "TLS_AES_128_CCM_8_SHA256", 14),
        ("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384", 29),
        ("TLSv1.2", "ECDHE-RSA-CHACHA20-POLY1305", 21),
        ("TLSv1.2", "ECDHE-ECDSA-AES256-CCM8", 21),
        ("TLSv1.2", "ECDHE-ECDSA-AES256-CCM", 29),
        ("TLSv1.2", "ECDHE-RSA-AES256-SHA384", 70),
        ("TLSv1.2", "ECDHE-RSA-AES128-SHA256", 54),
    ],
)
def test_a_record_is_longer_than_its_plaintext(version: str, cipher: str, overhead: int) -> None:
    assert least_overhead(version, cipher) == overhead


@given(st.lists(st.integers(0, 900), max_size=30), st.integers(0, 2000))
def test_whole_records_are_counted_and_the_one_begun_behind_them(sizes: list[int], cut: int) -> None:
    stream = b"".join(record(size + 17) for size in sizes)[: cut or None]
    found, left = 0, len(stream)
    for size in sizes:
        if left < size + 22:
            break
        found += size
        left -= size + 22
    assert most_plaintext(stream, 22) == (found, left)


def test_a_record_that_will_be_refused_is_worth_a_look() -> None:
    assert most_plaintext(record(100) + record(10, b"\x04\x03")[:RECORD_HEADER], 22) == (83 + LONGEST, 0)
    assert most_plaintext(record(3), 22) == (0, 0)
