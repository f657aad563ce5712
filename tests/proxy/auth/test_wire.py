"""framegate.proxy.auth.wire: every type there and back, and nothing believed that is not there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.wire import MalformedError, Reader, Writer
from tests.fakes.cases import each_of

TEXT = st.none() | st.text(max_size=300).filter(lambda text: len(text.encode(errors="ignore")) < 32768)


def written(name: str, *values: object, **extra: object) -> bytes:
    writer = Writer()
    getattr(writer, name)(*values, **extra)
    return writer.message()


@each_of(("name", "bits"), [("int16", 16), ("int32", 32), ("int64", 64)])
def test_integers(name: str, bits: int) -> None:
    for value in (0, 1, -1, (1 << (bits - 1)) - 1, -(1 << (bits - 1))):
        data = written(name, value)
        assert data == value.to_bytes(bits // 8, "big", signed=True)
        assert getattr(Reader(data), name)("x") == value
        for size in range(len(data)):
            with pytest.raises(MalformedError):
                getattr(Reader(data[:size]), name)("x")


@each_of(("value", "data"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (0xFFFFFFFF, b"\xff\xff\xff\xff\x0f")])
def test_varints(value: int, data: bytes) -> None:
    assert written("uvarint", value) == data
    assert Reader(data).uvarint("x") == value


@each_of("data", [b"", b"\x80", b"\xff" * 5, b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x01"])
def test_what_is_no_varint(data: bytes) -> None:
    with pytest.raises(MalformedError):
        Reader(data).uvarint("x")


@given(TEXT, st.booleans())
def test_strings(text: str | None, compact: bool) -> None:
    try:
        data = written("string", text, compact=compact)
    except UnicodeEncodeError:
        return
    reader = Reader(data)
    assert reader.nullable_string("x", compact=compact) == text
    reader.end("x")
    with pytest.raises(MalformedError):
        Reader(data[:-1]).nullable_string("x", compact=compact)


def test_a_string_that_must_be_there_and_be_text() -> None:
    for data, words in ((b"\xff\xff", "x is null"), (b"\0\1\xff", "x is not UTF-8"), (b"\xff\xfe", "x of -2 bytes"), (b"\x7f\xff", "x of 32767")):
        with pytest.raises(MalformedError, match=words):
            Reader(data).string("x")


@given(st.binary(max_size=300), st.booleans())
def test_bytes(value: bytes, compact: bool) -> None:
    assert Reader(written("data", value, compact=compact)).data("x", compact=compact) == value


@each_of("size", [0x7FFFFFFF, -1, -2, 3])
def test_an_array_is_not_begun_that_cannot_be(size: int) -> None:
    read: list[int] = []
    reader = Reader(size.to_bytes(4, "big", signed=True) + b"\0" * 5)
    with pytest.raises(MalformedError, match=f"x of {size} elements"):
        reader.array("x", lambda: read.append(1), 2)
    assert read == []


def test_tagged_fields_are_passed_over_in_order_only() -> None:
    reader = Reader(b"\x02\x00\x03abc\x05\x00z")
    reader.tags("x")
    assert reader.raw(1, "x") == b"z"
    for data in (b"\x02\x05\x00\x05\x00", b"\x01\x00\x7f", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(MalformedError):
            Reader(data).tags("x")
    with pytest.raises(MalformedError, match="2 bytes behind x"):
        Reader(b"ab").end("x")
