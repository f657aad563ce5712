"""proxy.network.cause: the closed list, the same in the cells."""

from proxy.cells import CAUSES
from proxy.network.cause import Cause


def test_the_cells_know_the_same_causes() -> None:
    assert tuple(cause.value for cause in Cause) == CAUSES
