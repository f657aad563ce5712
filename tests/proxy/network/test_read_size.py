"""framegate.proxy.network.read_size: how much is asked for, by what reads gave."""

from framegate.proxy.network.read_size import FIRST_READ, MAX_READ, MIN_READ, adapted
from tests.fakes.cases import each_of


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
