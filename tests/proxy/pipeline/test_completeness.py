"""The rows of the table completeness; ``test_queries`` has what its view says."""

import pyarrow as pa

from framegate.proxy.pipeline import completeness
from framegate.proxy.pipeline.columns import arrow_schema
from framegate.proxy.pipeline.completeness import SUMS
from tests.proxy.pipeline.test_queries import Log, tables


def test_what_a_row_of_completeness_says_by_itself_is_in_the_file() -> None:
    nothing = dict.fromkeys(completeness.SUMS, 0)

    def row(minute: int, **sums: int) -> dict[str, int]:
        return {"minute": minute, **nothing, **sums}

    parts = [row(1, seen=5), row(1, stored=3, sampled=1, withheld=1), row(2, seen=2), row(2, stored=1), row(3, stored=1), row(4, lost=1, seen=1)]
    whole = completeness.merge(pa.Table.from_pylist(parts))
    assert dict(zip(whole["minute"].to_pylist(), whole["state"].to_pylist(), strict=True)) == {1: "complete", 2: "partial", 3: "partial", 4: "lost"}
    again = completeness.merge(pa.concat_tables([whole, completeness.merge(pa.Table.from_pylist([row(2, stored=1), row(3, seen=2)]))]))
    assert dict(zip(again["minute"].to_pylist(), again["state"].to_pylist(), strict=True)) == {1: "complete", 2: "complete", 3: "partial", 4: "lost"}


def test_the_table_has_its_columns() -> None:
    log = Log().stream("n.0.b").stored(0, 1).gap(0, 1, until=9)
    frames, facts = tables(log)
    for rows in (completeness.of_frames(frames), completeness.of_gaps_and_totals(facts)):
        assert [*rows.schema] == [*arrow_schema("completeness")][:-2]
    assert set(SUMS.values()) == {"sum", "min"}
