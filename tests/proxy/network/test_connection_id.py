"""framegate.proxy.network.connection_id: 64 bits and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network.connection_id import ConnectionIds, format_connection_id, make_connection_id, parse_connection_id, slot_of
from tests.fakes.cases import each_of


@given(st.integers(0, 63), st.integers(0, 2**28 - 1), st.integers(0, 2**29 - 1))
def test_text_and_back(slot: int, generation: int, counter: int) -> None:
    packed = make_connection_id(slot, generation, counter)
    assert 0 <= packed < 2**63
    assert format_connection_id(packed) == f"{slot}-{generation}-{counter}"
    assert parse_connection_id(format_connection_id(packed)) == packed
    assert slot_of(packed) == slot


@each_of("text", ["", "1", "1-2", "1-2-3-4", "a-2-3", "-1-2-3", "64-0-0", "0-268435456-0", "0-0-536870912", "1-2-٣", "1--3", "+1-2-3"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a connection id|does not fit"):
        parse_connection_id(text)


def test_ids_count_up_and_wrap_within_their_field() -> None:
    ids = ConnectionIds(3, 5)
    assert [format_connection_id(ids.next()) for _ in range(2)] == ["3-5-1", "3-5-2"]
    ids._counter = 2**29 - 1
    assert format_connection_id(ids.next()) == "3-5-0"


def test_an_id_that_is_given_back_is_the_next() -> None:
    ids = ConnectionIds(3, 5)
    ids.next()
    ids.next()
    ids.give_back()
    assert format_connection_id(ids.next()) == "3-5-2"
    ids._counter = 0
    ids.give_back()
    ids.next()
    assert format_connection_id(ids.next()) == "3-5-1"


def test_a_generation_beyond_its_field_wraps() -> None:
    assert format_connection_id(ConnectionIds(0, 2**28 + 7).next()) == "0-7-1"
