"""Pages of lists in memory."""

import pytest

from framegate.control.errors import InvalidArgumentError
from framegate.control.service.paging import page

ITEMS = [(name, name.upper()) for name in "abcde"]


def test_the_pages_together_are_the_list() -> None:
    first, token = page(ITEMS, 2, "")
    second, token = page(ITEMS, 2, token)
    third, token = page(ITEMS, 2, token)
    assert (first, second, third, token) == (["A", "B"], ["C", "D"], ["E"], "")


def test_a_list_that_fits_has_no_next_page() -> None:
    assert page(ITEMS, 5, "") == (["A", "B", "C", "D", "E"], "")
    assert page([], 5, "") == ([], "")


def test_items_that_come_between_two_pages_repeat_nothing() -> None:
    _, token = page(ITEMS, 2, "")
    assert page([("0", "new"), *ITEMS], 2, token)[0] == ["C", "D"]


@pytest.mark.parametrize("token", ["!", "%%%", "enp6eg==", "é"])
def test_a_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        page(ITEMS, 2, token)
    assert caught.value.violations[0].field == "page_token"
