"""framegate.proxy.relay.frequent: counts are never too high, too low by at most the stated share, and few."""

import random
from collections import Counter

from framegate.proxy.relay.frequent import CAPACITY, Frequent, Key


def key(number: int) -> Key:
    return ("l", f"user-{number}", "", "")


def test_up_to_twice_the_capacity_all_counts_are_exact_and_one_more_forgets_the_least() -> None:
    frequent = Frequent(2)
    for number, amount in enumerate((5, 1, 4, 1)):
        frequent.add(key(number), amount)
        frequent.add(key(number), amount)
    assert (frequent.counts, frequent.missed) == ({key(0): 10, key(1): 2, key(2): 8, key(3): 2}, 0)
    frequent.add(key(4), 1)
    assert (frequent.counts, frequent.missed) == ({key(0): 8, key(2): 6}, 2)


def test_counts_of_any_stream_are_within_the_stated_share_and_each_key_above_it_is_there() -> None:
    for seed in range(20):
        chosen = random.Random(seed)
        frequent, exact = Frequent(10), Counter[Key]()
        for _ in range(5_000):
            one, amount = key(int(chosen.paretovariate(0.5)) % 10_000), chosen.randint(1, 9)
            frequent.add(one, amount)
            exact[one] += amount
        most = exact.total() // 11
        assert len(frequent.counts) <= 20
        assert frequent.missed <= most
        assert all(exact[one] - frequent.missed <= count <= exact[one] for one, count in frequent.counts.items())
        assert {one for one, count in exact.items() if count > most} <= frequent.counts.keys()


def test_ten_thousand_names_that_come_once_do_not_hide_one_that_comes_a_hundred_times() -> None:
    frequent = Frequent()
    for number in range(10_000):
        frequent.add(key(number), 1)
        if number % 100 == 0:
            frequent.add(key(-1), 1)
    assert max(frequent.counts, key=lambda one: frequent.counts[one]) == key(-1)
    assert 100 - 10_100 // (CAPACITY + 1) <= frequent.counts[key(-1)] <= 100
    assert len(frequent.counts) <= 2 * CAPACITY
