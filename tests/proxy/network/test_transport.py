"""framegate.proxy.network.transport: what is every transport's own; what all of them promise is in tests/conformance/test_transport.py."""

import pytest

from framegate.proxy.network.transport import FIRST_READ, MAX_READ, MIN_READ, Transport, adapted
from tests.fakes.cases import each_of
from tests.fakes.transport import memory_transports


@each_of(("wanted", "least"), [(0, 1), (1, 1), (2, 2), (1 << 31, 1 << 31)])
def test_so_many_bytes_must_lie_in_the_socket_as_are_wanted_and_at_least_one(wanted: int, least: int) -> None:
    assert memory_transports()[0].least(wanted) == least


def test_what_cannot_be_looked_at_says_so() -> None:
    with pytest.raises(NotImplementedError):
        Transport.peek(memory_transports()[0], 1)


def test_a_new_one_has_passed_nothing_and_owes_nothing() -> None:
    made, _ = memory_transports()
    assert (made.wire_received, made.wire_sent, made.pending_write, made.booked, made.clean_end) == (0, 0, 0, 0, True)


@each_of(
    ("suits", "size", "length", "expected"),
    [
        (FIRST_READ, FIRST_READ, FIRST_READ, 4 * FIRST_READ),
        (FIRST_READ, FIRST_READ, FIRST_READ // 2, FIRST_READ),
        (FIRST_READ, FIRST_READ, 1, FIRST_READ // 2),
        (MIN_READ, MIN_READ, 1, MIN_READ),
        (MAX_READ, MAX_READ, MAX_READ, MAX_READ),
        (MAX_READ // 2, MAX_READ // 2, MAX_READ // 2, MAX_READ),
        (FIRST_READ, 4, 4, FIRST_READ),
        (FIRST_READ, MAX_READ, 1, FIRST_READ),
    ],
)
def test_full_reads_ask_for_more_and_nearly_empty_ones_for_less(suits, size, length, expected):
    assert adapted(suits, size, length) == expected
