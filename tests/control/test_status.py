"""framegate.control.status: what is shown of the pool adds up."""

from framegate.control.status import PoolShare, PoolStatus


def share(slot: int, begun: int, pending: int, tls: int) -> PoolShare:
    return PoolShare(slot=slot, share=100, begun=begun, pending=pending, tls=tls, tap=1000, waiting=1)


def test_usage_is_the_sum_of_the_kinds_without_the_tap() -> None:
    assert share(0, 1, 20, 300).usage == 321


def test_a_pool_uses_what_its_processors_use() -> None:
    shares = (share(0, 1, 20, 300), share(1, 4, 0, 0))
    status = PoolStatus(kind="bounded", size=200, shares=shares, processors=2, tap_limit=0, guaranteed={})
    assert status.usage == 325
