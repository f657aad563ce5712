"""Answers of framegate's own wait, booked, until they are taken."""

from framegate.proxy.network.memory_pool import PIECE_OVERHEAD
from framegate.proxy.relay.prepared_answers import PreparedAnswers
from tests.fakes.pools import found_in, pool_of


def test_each_is_taken_by_its_number_and_booked_until_then() -> None:
    pool = pool_of(1 << 20, lambda: 0)
    prepared = PreparedAnswers(pool.common)
    numbers = [prepared.put(body) for body in (b"one", b"", b"three")]
    assert (len(set(numbers)), min(numbers) > 0, prepared.count) == (3, True, 3)
    assert prepared.booked == pool.used == 8 + 3 * PIECE_OVERHEAD
    assert [prepared.take(number) for number in numbers[1:]] == [b"", b"three"]
    assert prepared.booked == pool.used == 3 + PIECE_OVERHEAD
    prepared.close()
    prepared.close()
    assert (prepared.count, pool.used, found_in(pool)) == (0, 0, [])


def test_numbers_begin_again_before_they_are_too_large_for_an_entry() -> None:
    prepared = PreparedAnswers(pool_of(1 << 20, lambda: 0).common)
    prepared._last = (1 << 30) - 1
    assert [prepared.put(b"a"), prepared.put(b"b")] == [1 << 30, 1]
    assert [prepared.take(1 << 30), prepared.take(1)] == [b"a", b"b"]
