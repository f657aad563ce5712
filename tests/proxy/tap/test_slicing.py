from framegate.proxy.tap.record import (
    FLAG_REPLACED,
    FLAG_TRUNCATED,
    FLAG_WITHHELD,
    MAX_CHUNK_BYTES,
    REASON_CAPTURE,
    REASON_NONE,
    REASON_OVERSIZE,
    REASON_WITHHELD,
)
from framegate.proxy.tap.slicing import PieceCursor, cut_reason
from tests.fakes.cases import each_of


def test_the_cursor_reads_ranges_across_pieces() -> None:
    cursor = PieceCursor([b"abc", memoryview(b"de"), b"", b"fgh"])
    assert b"".join(cursor.parts(1, 1)) == b""
    assert b"".join(cursor.parts(1, 6)) == b"bcdef"
    assert b"".join(cursor.parts(6, 8)) == b"gh"


@each_of(
    ("size", "lost", "flags", "reason"),
    [
        (10, 0, 0, REASON_NONE),
        (10, 4, FLAG_TRUNCATED, REASON_CAPTURE),
        (10, 0, FLAG_REPLACED, REASON_CAPTURE),
        (10, 4, FLAG_TRUNCATED | FLAG_WITHHELD, REASON_WITHHELD),
        (MAX_CHUNK_BYTES, 0, 0, REASON_NONE),
        (MAX_CHUNK_BYTES + 1, 4, FLAG_WITHHELD, REASON_OVERSIZE),
    ],
)
def test_of_several_reasons_the_chunk_names_the_one_that_took_most(size: int, lost: int, flags: int, reason: int) -> None:
    assert cut_reason(size, lost, flags) == reason
