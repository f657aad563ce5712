"""control.plane.status: what is shown of the pool adds up."""

import pytest

from control.errors import InvalidArgumentError
from control.plane import MAX_PAGE_SIZE, PoolShare, PoolStatus, rows_per_page


def share(slot: int, begun: int, pending: int, tls: int) -> PoolShare:
    return PoolShare(slot=slot, share=100, begun=begun, pending=pending, tls=tls, tap=1000, waiting=1)


def test_usage_is_the_sum_of_the_kinds_without_the_tap() -> None:
    assert share(0, 1, 20, 300).usage == 321


def test_a_pool_uses_what_its_processors_use() -> None:
    status = PoolStatus(size=200, shares=(share(0, 1, 20, 300), share(1, 4, 0, 0)), processors=2, tap_limit=0, guaranteed={})
    assert status.usage == 325


def test_a_page_has_a_default_and_a_maximum_and_no_minus() -> None:
    assert [rows_per_page(asked) for asked in (0, 7, MAX_PAGE_SIZE, MAX_PAGE_SIZE + 1, 10**6)] == [100, 7, 1000, 1000, 1000]
    with pytest.raises(InvalidArgumentError) as caught:
        rows_per_page(-1)
    assert caught.value.violations[0].field == "page_size"
