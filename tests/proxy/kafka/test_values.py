"""framegate.proxy.kafka.values: varints and strings."""

from framegate.proxy.kafka.values import string_at, varint, varint_at
from tests.fakes.cases import each_of


@each_of(
    ("value", "data"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (0xFFFFFFFF, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_varint_there_and_back(value: int, data: bytes) -> None:
    assert varint(value) == data
    assert varint_at(b"#" + data + b"\xff", 1) == (value, 1 + len(data))


@each_of(
    ("data", "compact", "found"),
    [
        (b"\x00\x02ab", False, ("ab", 5)),
        (b"\x00\x00ab", False, ("", 3)),
        (b"\xff\xffab", False, (None, 3)),
        (b"\x03abc", True, ("ab", 4)),
        (b"\x01abc", True, ("", 2)),
        (b"\x00abc", True, (None, 2)),
        (b"\x03\xc3\x28", True, ("\ufffd(", 4)),
    ],
)
def test_a_string(data: bytes, compact: bool, found: tuple[str | None, int]) -> None:
    assert string_at(b"#" + data, 1, compact) == found
