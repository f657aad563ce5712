"""framegate.proxy.network.der: elements as they are, and garbage refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.der import SEQUENCE, Element, elements, only
from tests.fakes.cases import each_of


@each_of("size", [0, 1, 127, 128, 255, 256, 70_000])
def test_lengths_of_each_form(size: int) -> None:
    length = bytes((size,)) if size < 128 else bytes((0x80 | (size.bit_length() + 7) // 8,)) + size.to_bytes((size.bit_length() + 7) // 8, "big")
    one = b"\x30" + length + b"x" * size
    assert list(elements(one + b"\x05\x00")) == [Element(SEQUENCE, b"x" * size, one), Element(5, b"", b"\x05\x00")]
    assert only(one) == b"x" * size


@each_of("bad", [b"\x30", b"\x30\x05abc", b"\x30\x80ab", b"\x30\x85\0\0\0\0\1a", b"\x30\x82\1", b"\x1f\x01a"])
def test_what_is_no_element_is_refused(bad: bytes) -> None:
    with pytest.raises(AuthenticationError, match="cannot be read"):
        list(elements(bad))


@each_of("bad", [b"", b"\x30\x00\x30\x00", b"\x31\x00"])
def test_what_is_not_one_sequence_is_refused(bad: bytes) -> None:
    with pytest.raises(AuthenticationError, match="a SEQUENCE is missing"):
        only(bad)


@given(st.binary(max_size=60))
def test_any_bytes_are_elements_or_refused(data: bytes) -> None:
    with contextlib.suppress(AuthenticationError):
        assert b"".join(item.encoded for item in elements(data)) == data
