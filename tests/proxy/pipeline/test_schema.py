import pytest
from pyspark.sql.types import ArrayType, IntegerType, StructType

from framegate.proxy.pipeline.decode import _MAKERS
from framegate.proxy.pipeline.schema import CHUNK_TYPES, JOB_SCHEMA, SchemaError, check_projection


def test_every_column_can_be_made() -> None:
    assert [field.name for field in JOB_SCHEMA] == list(_MAKERS)


def test_a_projection_may_reorder_and_widen_nullability() -> None:
    asked = StructType().add("frame_count", "integer").add("stream", "string").add("starts", ArrayType(IntegerType()))
    assert check_projection(asked, CHUNK_TYPES) is asked


def test_every_column_that_does_not_fit_is_named() -> None:
    with pytest.raises(SchemaError, match="nonsense: no such column; offset: is bigint, not int"):
        check_projection(StructType().add("stream", "string").add("nonsense", "integer").add("offset", "integer"), CHUNK_TYPES)
