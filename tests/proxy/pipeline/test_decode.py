import datetime
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, StructType

from proxy.config.model import TapRule
from proxy.pipeline.decode import Block, read_slice, record_batch, record_batches
from proxy.pipeline.planner import DataLossError, Planner, Slice
from proxy.pipeline.schema import CHUNK_SCHEMA
from proxy.tap import record
from proxy.tap.log_reader import Joiner
from tests.fakes.runs import pieces_of
from tests.fakes.tap_log import START_NS, FakeProcessor, framed

SCHEMA = to_arrow_schema(CHUNK_SCHEMA, timezone="UTC")
METADATA_V9 = 3 << 16 | 9


def slices(directory: Path) -> list[Slice]:
    planner = Planner(directory, parallelism=1)
    return [part for parts in planner.partitions(planner.starts(), planner.ends()) for part in parts]


def blocks(directory: Path) -> list[Block]:
    return [block for part in slices(directory) for block in read_slice(part)]


def rows(directory: Path) -> list[dict[str, object]]:
    found = blocks(directory)
    batch = record_batch("s", found, SCHEMA)
    batch.validate(full=True)
    joined: list[dict[str, object]] = batch.to_pylist()
    assert [row for block in found for row in record_batch("s", [block], SCHEMA).to_pylist()] == joined
    return joined


def test_a_chunk_row_says_all_that_the_log_knows(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"first"])
    processor.send([b"body one", b""], connection=7, at_ns=START_NS + 1_999)
    processor.flush()
    row = rows(tmp_path)[1]
    assert row == {
        "stream": "s",
        "offset": blocks(tmp_path)[0].header.block_len,
        "chunk_index": 0,
        "capture_time": datetime.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=datetime.UTC),
        "connection_id": 7,
        "listener": "main",
        "principal": "CN=a",
        "peer": "10.0.0.1:7",
        "rule": "all",
        "direction": "request",
        "protocol": "framed",
        "kind": "frames",
        "capture": "full",
        "first_sequence": 0,
        "frame_count": 2,
        "original_bytes": 16,
        "reason": "none",
        "lost_frames": 0,
        "lost_bytes": 0,
        "lost_from": None,
        "data": framed([b"body one", b""]),
        "starts": [0, 12],
        "sizes": None,
        "request_key": None,
        "latency_us": None,
        "transfer_us": None,
    }


def test_answers_carry_keys_and_latencies_and_others_null(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"question"], protocol="kafka")
    processor.send([b"a", b"b"], direction="response", protocol="kafka", keys=[METADATA_V9, -1], latencies=[250, -1])
    processor.send([b"c"], direction="response", protocol="kafka", keys=[METADATA_V9], latencies=[7])
    processor.flush()
    assert [(row["request_key"], row["latency_us"]) for row in rows(tmp_path)] == [
        (None, None),
        ([METADATA_V9, -1], [250, -1]),
        ([METADATA_V9], [7]),
    ]


def test_cut_and_withheld_frames_keep_their_sizes_on_the_wire(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, rule=TapRule(name="short", max_frame_bytes=3))
    processor.send([b"12345", b"12"])
    processor.send([b"secret"], connection=2, sensitive=[0])
    processor.flush()
    cut, withheld = rows(tmp_path)
    assert (cut["sizes"], cut["starts"], cut["data"], cut["lost_bytes"]) == ([5, 2], [0, 7], b"\0\0\0\x05123\0\0\0\x0212", 2)
    assert (withheld["sizes"], withheld["data"], withheld["reason"]) == ([6], b"\0\0\0\x06", "withheld")


def test_a_gap_is_a_row_without_frames(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"before"])
    processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 5, 500, 1, START_NS)
    processor.close()
    row = rows(tmp_path)[1]
    assert (row["kind"], row["reason"], row["frame_count"], row["lost_frames"], row["lost_bytes"]) == ("gap", "queue_full", 0, 5, 500)
    assert (row["data"], row["starts"], row["first_sequence"]) == (b"", [], 1)
    assert row["lost_from"] == datetime.datetime.fromtimestamp(START_NS // 10**9, datetime.UTC)


def test_strings_of_joined_blocks_keep_their_meaning(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for connection in (3, 1, 2):
        processor.block([b"x"], connection=connection)
    assert [row["peer"] for row in rows(tmp_path)] == ["10.0.0.1:3", "10.0.0.1:1", "10.0.0.1:2"]


def test_payload_of_a_block_is_not_copied(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"x" * 1000])
    (block,) = blocks(tmp_path)
    batch = record_batch("s", [block], SCHEMA)
    assert batch.column("data").buffers()[2].address == np.frombuffer(block.data, "u1").ctypes.data


def test_small_blocks_share_a_batch_and_large_ones_do_not(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for size in (10, 10, 5_000_000, 5_000_000):
        processor.block([b"x" * size])
    counts = [batch.num_rows for batch in record_batches("s", iter(blocks(tmp_path)), SCHEMA)]
    assert counts == [3, 1]


def test_only_the_columns_asked_for_are_made(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"abc"])
    wanted = StructType().add("frame_count", "integer").add("starts", ArrayType(IntegerType())).add("stream", "string")
    asked = to_arrow_schema(wanted, timezone="UTC")
    batch = record_batch("s", blocks(tmp_path), asked)
    assert batch.schema.equals(asked, check_metadata=True)
    assert batch.to_pylist() == [{"frame_count": 1, "starts": [0], "stream": "s"}]


def test_types_are_exactly_those_that_spark_demands(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"abc"])
    batch = record_batch("s", blocks(tmp_path), SCHEMA)
    assert [column.type for column in batch.columns] == [field.type for field in SCHEMA]
    assert batch.schema.field("capture_time").type == pa.timestamp("us", tz="UTC")


def segment(directory: Path) -> Path:
    (found,) = directory.glob("*/*.*")
    return found


def damage(position_of: Callable[[Block], int], directory: Path) -> list[Slice]:
    """Three blocks, one byte of the second one wrong; the slices as planned before."""
    processor = FakeProcessor(directory)
    for body in (b"one", b"two", b"three"):
        processor.block([body])
    planned = slices(directory)
    second = blocks(directory)[1]
    data = bytearray(segment(directory).read_bytes())
    data[record.SEGMENT_HEADER_BYTES + second.header.offset + position_of(second)] ^= 1
    segment(directory).write_bytes(data)
    return planned


def test_a_block_whose_crc_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (part,) = damage(lambda block: block.header.data_at, tmp_path)
    with pytest.raises(DataLossError, match="its CRC does not fit"):
        list(read_slice(part))
    assert [bytes(block.data) for block in read_slice(part, fail_on_data_loss=False)] == [framed([b"one"]), framed([b"three"])]


def test_nothing_is_read_behind_a_damaged_header(tmp_path: Path) -> None:
    (part,) = damage(lambda _: 20, tmp_path)
    with pytest.raises(DataLossError, match="damaged at offset"):
        list(read_slice(part))
    assert [bytes(block.data) for block in read_slice(part, fail_on_data_loss=False)] == [framed([b"one"])]


def test_a_segment_sealed_since_it_was_planned_is_found(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"abc"])
    planned = slices(tmp_path)
    processor.close()
    assert [len(list(read_slice(part))) for part in planned] == [1]


def test_a_segment_deleted_since_it_was_planned_is_an_error(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"abc"])
    (part,) = slices(tmp_path)
    segment(tmp_path).unlink()
    with pytest.raises(DataLossError, match="was deleted before"):
        list(read_slice(part))
    assert list(read_slice(part, fail_on_data_loss=False)) == []


def test_a_table_that_contradicts_its_sections_is_refused(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"abc"])
    processor.send([b"def"])
    processor.flush()
    (block,) = blocks(tmp_path)
    body = bytearray(block.body)
    place = block.header.chunks_at + record.CHUNK_ROW_BYTES + 56
    body[place : place + 4] = (99).to_bytes(4, "little")
    with pytest.raises(record.FormatError, match="back to back"):
        record_batch("s", [Block(block.header, memoryview(body))], SCHEMA)


BODY = bytes(range(256)) * 20


def in_pieces(directory: Path, **sizes: int) -> FakeProcessor:
    """Two frames in pieces, each piece in a block of its own, and others between them."""
    processor = FakeProcessor(directory, **sizes)
    for index, (one, two) in enumerate(zip(pieces_of(BODY, [2000, 2000]), pieces_of(BODY, [100, 100]), strict=True)):
        processor.send([b"%d" % index, b""], connection=3)
        for connection, run in ((1, one), (2, two)):
            processor.part(run, len(BODY), connection=connection, at_ns=START_NS + index * 1_000_000, key=METADATA_V9, latency=7)
            processor.flush()
    return processor


def test_a_frame_that_was_cut_through_is_a_row_as_if_it_came_whole(tmp_path: Path) -> None:
    in_pieces(tmp_path)
    found = [row for row in rows(tmp_path) if row["connection_id"] != 3]
    assert [row["connection_id"] for row in found] == [1, 2]
    for row in found:
        assert (row["kind"], row["frame_count"], row["data"], row["starts"], row["sizes"]) == ("frames", 1, framed([BODY]), [0], [len(BODY)])
        assert (row["reason"], row["lost_frames"], row["lost_bytes"], row["lost_from"]) == ("none", 0, 0, None)
        assert (row["original_bytes"], row["request_key"], row["latency_us"], row["transfer_us"]) == (len(BODY) + 4, [METADATA_V9], [7], 2000)
    assert [row["frame_count"] for row in rows(tmp_path)] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize("segment_size", [1, 5000, 1 << 20])
def test_any_cut_of_the_log_into_partitions_gives_the_same_rows(tmp_path: Path, segment_size: int) -> None:
    processor = in_pieces(tmp_path, segment_size=segment_size)
    places = [block.header.offset for block in blocks(tmp_path)] + [int(processor.writer.bytes_flushed)]
    planner = Planner(tmp_path, parallelism=1)

    def read(start: int, end: int) -> list[dict[str, object]]:
        """The rows of a partition, as its task makes them."""
        (stream,) = planner.ends()
        joiner = Joiner()
        found: list[dict[str, object]] = []
        for part in (part for parts in planner.partitions({stream: start}, {stream: end}) for part in parts):
            for batch in record_batches("s", read_slice(part, joiner=joiner), SCHEMA):
                batch.validate(full=True)
                found += batch.to_pylist()
        return found

    expected = read(0, places[-1])
    assert len(expected) == 5
    for first in range(len(places)):
        for last in range(first, len(places)):
            assert read(places[first], places[last]) == [row for row in expected if places[first] <= cast(int, row["offset"]) < places[last]]


def test_a_frame_of_which_pieces_are_gone_says_so(tmp_path: Path) -> None:
    in_pieces(tmp_path, segment_size=1)
    for path in sorted(tmp_path.glob("*/*"))[:2]:
        path.unlink()
    found = [row for row in rows(tmp_path) if row["connection_id"] != 3]
    for row in found:
        assert (row["reason"], row["lost_bytes"], row["data"]) == ("pieces_lost", len(BODY), framed([BODY])[:4])
        assert (row["sizes"], row["starts"], row["frame_count"]) == ([len(BODY)], [0], 1)


def test_a_segment_in_which_are_pieces_only_has_no_rows(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.part(pieces_of(BODY, [100])[0], len(BODY))
    processor.flush()
    (part,) = slices(tmp_path)
    assert list(record_batches("s", read_slice(part), SCHEMA)) == []
