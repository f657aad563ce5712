"""framegate.proxy.cells.bounds: each bound is a series of each set of labels, in every export."""

import itertools

from framegate.proxy.cells import bounds
from tests.fakes.cases import each_of


@each_of("name", bounds.__all__)
def test_bounds_go_up_and_are_few(name: str) -> None:
    values = getattr(bounds, name)
    assert all(one < other for one, other in itertools.pairwise(values))
    assert values[0] > 0
    assert len(values) <= (17 if name == "HANDLER_BOUNDS" else 14)
