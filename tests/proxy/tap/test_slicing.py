from proxy.tap.slicing import PieceCursor


def test_the_cursor_reads_ranges_across_pieces() -> None:
    cursor = PieceCursor([b"abc", memoryview(b"de"), b"", b"fgh"])
    assert b"".join(cursor.parts(1, 1)) == b""
    assert b"".join(cursor.parts(1, 6)) == b"bcdef"
    assert b"".join(cursor.parts(6, 8)) == b"gh"
