import pyarrow as pa

from framegate.proxy.pipeline.partial_sums import MICROSECONDS, add_up, count, minute
from tests.fakes.cases import each_of

MINUTE_US = 60_000_000


@each_of(("at", "begun"), [(0, 0), (MINUTE_US - 1, 0), (MINUTE_US, MINUTE_US), (-1, -MINUTE_US)])
@each_of("zone", ["UTC", "Asia/Kolkata"])
def test_a_minute_is_that_of_utc(at: int, begun: int, zone: str) -> None:
    times = pa.chunked_array([pa.array([at, None]).cast(pa.timestamp("us", zone))])
    assert minute(times).type == MICROSECONDS
    assert minute(times).cast(pa.int64()).to_pylist() == [begun, None]


def test_a_condition_that_is_null_does_not_hold() -> None:
    assert count(pa.chunked_array([[True, False, None]])).to_pylist() == [1, 0, 0]


def test_null_is_a_key_and_what_is_lacking_is_nothing() -> None:
    rows = pa.table({"key": ["a", None, "a", None], "n": [1, 2, 3, None], "first": [9, 7, 8, 6]})
    added = add_up(rows, {"n": "sum", "more": "sum", "first": "min"}).sort_by("first")
    assert added.to_pylist() == [{"key": None, "n": 2, "more": 0, "first": 6}, {"key": "a", "n": 4, "more": 0, "first": 8}]
    assert add_up(rows.slice(0, 0), {"n": "sum", "more": "sum", "first": "min"}).num_rows == 0
    assert add_up(added, {"n": "sum", "more": "sum", "first": "min"}).sort_by("first") == added, "sums of sums are the same"
