"""framegate.control.bounds: one rule for all pages."""

import pytest

from framegate.control.bounds import MAX_PAGE_SIZE, rows_per_page
from framegate.control.errors import InvalidArgumentError


def test_a_page_has_a_default_and_a_maximum_and_no_minus() -> None:
    assert [rows_per_page(asked) for asked in (0, 7, MAX_PAGE_SIZE, MAX_PAGE_SIZE + 1, 10**6)] == [100, 7, 1000, 1000, 1000]
    with pytest.raises(InvalidArgumentError) as caught:
        rows_per_page(-1)
    assert caught.value.violations[0].field == "page_size"
