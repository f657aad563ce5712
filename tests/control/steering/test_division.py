"""control.steering.division: a rate among processors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.fleet.demands import Demand
from control.steering.division import WHOLE, divided


def held_up(used: int, connections: int) -> Demand:
    return Demand(used, connections, connections)


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ([Demand(0)], [WHOLE]),
        ([Demand(0), Demand(0)], [500_000, 500_000]),
        ([Demand(100_000), Demand(0)], [551_500, 448_500]),
        ([held_up(0, 1000), Demand(0)], [WHOLE, 0]),
        ([held_up(0, 1000), held_up(0, 3000)], [250_000, 750_000]),
        ([Demand(200_000), held_up(790_000, 1000)], [206_000, 794_000]),
        ([Demand(800_000), held_up(100_000, 3000)], [250_000, 750_000]),
        ([Demand(600_000), Demand(600_000)], [500_000, 500_000]),
    ],
    ids=["one", "idle", "some", "all of it", "by connections", "content first", "no more than its part", "too much"],
)
def test_who_wants_little_gets_it_and_the_others_share_by_connections(asked: list[Demand], parts: list[int]) -> None:
    assert list(divided(WHOLE, dict(enumerate(asked))).values()) == parts


ASKED = st.builds(lambda used, waiting: Demand(used, waiting, waiting), st.integers(0, WHOLE), st.one_of(st.just(0), st.integers(1, 10**8)))


@given(asked=st.lists(ASKED, min_size=1, max_size=20), whole=st.integers(0, WHOLE))
def test_all_of_it_is_given_and_no_more(asked: list[Demand], whole: int) -> None:
    parts = divided(whole, dict(enumerate(asked)))
    assert parts.keys() == set(range(len(asked)))
    assert min(parts.values()) >= 0
    assert whole - len(asked) <= sum(parts.values()) <= whole


@given(asked=st.lists(ASKED, min_size=2, max_size=8))
def test_each_connection_that_is_held_up_has_the_same_and_nobody_has_more(asked: list[Demand]) -> None:
    parts = divided(WHOLE, dict(enumerate(asked)))
    had = [parts[number] / max(each.wanting, 1000) for number, each in enumerate(asked) if each.waiting]
    if had:
        assert max(had) - min(had) <= 1
        assert all(parts[number] / 1000 <= max(had) + 1 for number, each in enumerate(asked) if not each.waiting)
