"""What stands in messages about quotas and rates."""

from typing import get_args

import pytest

from proxy.server.limit_rows import DemandRow, PartRow, RateCounter, RateLevel
from proxy.server.shape import shape_of


@pytest.mark.parametrize("level", get_args(RateLevel))
@pytest.mark.parametrize("counter", get_args(RateCounter))
def test_a_part_and_a_demand_are_of_one_level_and_counter(level: RateLevel, counter: RateCounter) -> None:
    assert shape_of(PartRow).fault({"level": level, "name": "", "counter": counter, "part": -1}) == ""
    assert shape_of(DemandRow).fault({"level": level, "name": "a", "counter": counter, "used": 1, "waiting": 1000, "wanting": 1000}) == ""


@pytest.mark.parametrize("row", [{"level": "nobody"}, {"counter": "bytes"}, {"part": "1"}])
def test_another_word_is_a_fault(row: dict[str, object]) -> None:
    assert shape_of(PartRow).fault({"level": "node", "name": "", "counter": "request_bytes", "part": 1, **row}) != ""
