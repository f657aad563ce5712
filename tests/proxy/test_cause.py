"""framegate.proxy.cause: the closed list, the same in the cells and in the network layer."""

from framegate.proxy.cause import ORDERLY_CAUSES, Cause
from framegate.proxy.cells import CAUSES, DURATION_ERRORS


def test_the_cells_know_the_same_causes() -> None:
    assert tuple(cause.value for cause in Cause) == CAUSES
    assert {type(word) for word in CAUSES} == {str}


def test_an_end_is_orderly_or_an_error() -> None:
    assert set(DURATION_ERRORS[1:]) == {cause.value for cause in Cause} - {cause.value for cause in ORDERLY_CAUSES}
