"""control.steering.division: a rate among processors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.steering.division import WHOLE, Asked, divided


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ([Asked()], [WHOLE]),
        ([Asked(), Asked()], [500_000, 500_000]),
        ([Asked(100_000), Asked()], [551_500, 448_500]),
        ([Asked(0, 1000), Asked()], [WHOLE, 0]),
        ([Asked(0, 1000), Asked(0, 3000)], [250_000, 750_000]),
        ([Asked(200_000), Asked(790_000, 1000)], [206_000, 794_000]),
        ([Asked(800_000), Asked(100_000, 3000)], [250_000, 750_000]),
        ([Asked(800_000, 0, 9000), Asked(100_000, 3000)], [750_000, 250_000]),
        ([Asked(600_000), Asked(600_000)], [500_000, 500_000]),
        ([Asked(100_000, 0, 1000, 400_000), Asked(300_000, 1000)], [400_000, 600_000]),
        ([Asked(100_000, 0, 1000, 600_000), Asked(300_000, 1000)], [500_000, 500_000]),
    ],
    ids=[
        "one",
        "idle",
        "some",
        "all of it",
        "by users",
        "content first",
        "no more than its part",
        "as it was",
        "too much",
        "held up elsewhere",
        "no more than its share",
    ],
)
def test_who_wants_little_gets_it_and_the_others_share_by_users(asked: list[Asked], parts: list[int]) -> None:
    assert list(divided(WHOLE, dict(enumerate(asked))).values()) == parts


ASKED = st.builds(Asked, st.integers(0, WHOLE), st.one_of(st.just(0), st.integers(1, 10**8)), st.integers(0, 10**8))


@given(asked=st.lists(ASKED, min_size=1, max_size=20), whole=st.integers(0, WHOLE))
def test_all_of_it_is_given_and_no_more(asked: list[Asked], whole: int) -> None:
    parts = divided(whole, dict(enumerate(asked)))
    assert parts.keys() == set(range(len(asked)))
    assert min(parts.values()) >= 0
    assert whole - len(asked) <= sum(parts.values()) <= whole


@given(asked=st.lists(ASKED, min_size=2, max_size=8))
def test_each_user_that_is_held_up_has_the_same_and_nobody_has_more(asked: list[Asked]) -> None:
    parts = divided(WHOLE, dict(enumerate(asked)))
    held_up = [parts[number] / max(each.users, 1000) for number, each in enumerate(asked) if each.users]
    if not held_up:
        return
    assert max(held_up) - min(held_up) <= 1
    for number, each in enumerate(asked):
        if not each.users:
            assert parts[number] / max(each.before, 1000) <= max(held_up) + 1
