"""The columns of the tables: each is described, has one type, and is in a table."""

import pyarrow as pa

from framegate.proxy.pipeline import columns
from framegate.proxy.pipeline.columns import PARTITIONS, TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema


def test_each_column_is_in_a_table_and_has_one_type() -> None:
    fields = {(field.name, field.type) for table in TABLE_SCHEMAS for field in arrow_schema(table)}
    assert sorted(name for name, _ in fields) == sorted(columns._COLUMNS)


def test_the_partitions_come_last_and_follow_from_a_time_in_utc() -> None:
    for table, time in TIME_COLUMNS.items():
        schema = arrow_schema(table)
        assert [f"{name} {columns._COLUMNS[name][0]}" for name in schema.names[-2:]] == PARTITIONS.split(", ")
        assert schema.field(time).type == pa.timestamp("us", "UTC")
        assert all(field.metadata[b"comment"] for field in schema)
