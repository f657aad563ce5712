import datetime
import json
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, StructType

from framegate.proxy.config.model import TapRule
from framegate.proxy.network.authenticator import ANONYMOUS
from framegate.proxy.pipeline.decode import NOBODY, loss_batch, record_batch, record_batches
from framegate.proxy.pipeline.loss import Loss
from framegate.proxy.pipeline.planner import Planner
from framegate.proxy.pipeline.position import Position
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.slices import CHUNK_DTYPE, Block, read_slice
from framegate.proxy.tap import record
from framegate.proxy.tap.log_reader import Joiner
from tests.fakes.runs import pieces_of
from tests.fakes.slices import blocks, damage, slices, whole
from tests.fakes.tap_log import START_NS, FakeProcessor, framed

SCHEMA = to_arrow_schema(CHUNK_SCHEMA, timezone="UTC")
METADATA_V9 = 3 << 16 | 9


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
        "node": "s",
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
        "framing": "int32",
        "kind": "frames",
        "capture": "full",
        "first_sequence": 0,
        "frame_count": 2,
        "original_bytes": 16,
        "reason": "none",
        "lost_frames": 0,
        "lost_bytes": 0,
        "data": framed([b"body one", b""]),
        "starts": [0, 12],
        **dict.fromkeys(("lost_from", "lost_until", "certainty", "seen_frames", "seen_bytes", "sizes", "request_key", "latency_us")),
        **dict.fromkeys(("request_size", "correlation_id", "transfer_us")),
    }


def test_answers_carry_keys_and_latencies_and_others_null(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"ask"], protocol="kafka")
    processor.send([b"a", b"b"], direction="response", protocol="kafka", keys=[METADATA_V9, -1], latencies=[250, -1])
    processor.send([b"c"], direction="response", protocol="kafka", keys=[METADATA_V9], latencies=[7])
    processor.flush()
    assert [(row["request_key"], row["latency_us"]) for row in rows(tmp_path)] == [
        ([-1], None),
        ([METADATA_V9, -1], [250, -1]),
        ([METADATA_V9], [7]),
    ]


def test_requests_under_kafka_carry_the_key_and_correlation_id_of_their_own_header(tmp_path: Path) -> None:
    def request(key: int, correlation: int, rest: bytes = b"") -> bytes:
        return struct.pack(">hhi", key, 9, correlation) + rest

    processor = FakeProcessor(tmp_path, boot_id="full")
    processor.block([request(3, 77), request(0, 78, b"more"), request(3, 79)[:7], b"", request(-1, 80)], protocol="kafka")
    processor.send([request(17, 5, b"token"), request(3, 6)], protocol="kafka", connection=2, sensitive=[0])
    processor.send([request(3, 8)], connection=3)  # framed
    processor.flush()
    known = [(row["request_key"], row["correlation_id"], row["latency_us"]) for row in rows(tmp_path)]
    assert known == [([METADATA_V9, 9, -1, -1, -1], [77, 78, -1, -1, -1], None), ([-1, METADATA_V9], [-1, 6], None), (None, None, None)]
    cut = record_batch("s", blocks(tmp_path), SCHEMA, keep=0).to_pylist()
    assert [(row["request_key"], row["correlation_id"]) for row in cut] == [row[:2] for row in known], "what Spark is not given was read all the same"


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        ({"max_frame_bytes": 8}, [METADATA_V9]),
        ({"max_frame_bytes": 7}, [-1]),
        ({"capture": "lengths"}, None),
        ({"capture": "hash"}, None),
        ({"blank": ("4-7",)}, None),
    ],
)
def test_what_is_not_in_the_log_as_it_passed_is_no_key(tmp_path: Path, rule: dict[str, Any], keys: list[int] | None) -> None:
    processor = FakeProcessor(tmp_path, rule=TapRule(name="some", **rule))
    processor.block([struct.pack(">hhi", 3, 9, 77) + b"rest"], protocol="kafka")
    assert [row["request_key"] for row in rows(tmp_path)] == [keys]


def test_cut_and_withheld_frames_keep_their_sizes_on_the_wire(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, rule=TapRule(name="short", max_frame_bytes=3))
    processor.send([b"12345", b"12"])
    processor.send([b"secret"], connection=2, sensitive=[0])
    processor.flush()
    cut, withheld = rows(tmp_path)
    assert (cut["sizes"], cut["starts"], cut["data"], cut["lost_bytes"]) == ([5, 2], [0, 7], b"\0\0\0\x05123\0\0\0\x0212", 2)
    assert (withheld["sizes"], withheld["data"], withheld["reason"]) == ([6], b"\0\0\0\x06", "withheld")


def lose(directory: Path) -> None:
    """A log with a frame and a gap behind it."""
    processor = FakeProcessor(directory)
    processor.block([b"before"])
    processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 5, 500, 1, START_NS)
    processor.close()


def test_a_gap_is_a_row_without_frames(tmp_path: Path) -> None:
    lose(tmp_path)
    row = rows(tmp_path)[1]
    assert (row["kind"], row["reason"], row["frame_count"], row["lost_frames"], row["lost_bytes"]) == ("gap", "queue_full", 0, 5, 500)
    assert (row["data"], row["starts"], row["first_sequence"]) == (b"", [], 1)
    assert row["lost_from"] == datetime.datetime.fromtimestamp(START_NS // 10**9, datetime.UTC)
    assert row["certainty"] == "exact"
    assert row["lost_until"] is not None


START = datetime.datetime.fromtimestamp(START_NS // 10**9, datetime.UTC)
SECOND = datetime.timedelta(seconds=1)


def remade(block: Block, index: int, **fields: int) -> Block:
    """The block with another row in the place of one."""
    body = bytearray(block.body)
    at = block.header.chunks_at + index * record.CHUNK_ROW_BYTES
    row = record.ChunkRow(*record.CHUNK_ROW.unpack_from(body, at))
    record.CHUNK_ROW.pack_into(body, at, *row._replace(**fields))
    return Block(block.header, memoryview(body))


def a_gap(directory: Path) -> Block:
    lose(directory)
    return next(block for block in blocks(directory) if np.frombuffer(block.table, dtype=CHUNK_DTYPE)["kind"][0] == record.KIND_GAP)


def row_of(block: Block) -> dict[str, object]:
    found: dict[str, object] = record_batch("s", [block], SCHEMA).to_pylist()[0]
    return found


def test_a_gap_says_until_when_and_how_far_it_can_be_believed(tmp_path: Path) -> None:
    gap = a_gap(tmp_path)
    until = {"original_bytes": START_NS + 2 * 10**9}
    at_most = row_of(remade(gap, 0, flags=record.FLAG_AT_MOST, **until))
    assert (at_most["certainty"], at_most["lost_from"], at_most["lost_until"], at_most["original_bytes"]) == ("at_most", START, START + 2 * SECOND, 0)
    assert row_of(remade(gap, 0, flags=record.FLAG_UNKNOWN))["certainty"] == "unknown"
    old = row_of(remade(gap, 0, original_bytes=0, capture_ns=START_NS + 10**9))
    assert old["lost_until"] == old["capture_time"] == START + SECOND, "before version 3 a gap knew when it was written only"


def test_totals_say_what_was_seen_and_lose_nothing(tmp_path: Path) -> None:
    row = row_of(remade(a_gap(tmp_path), 0, kind=record.KIND_TOTALS, reason=0, original_bytes=START_NS + 10**9))
    assert (row["kind"], row["seen_frames"], row["seen_bytes"], row["lost_frames"], row["lost_bytes"]) == ("totals", 5, 500, 0, 0)
    assert (row["lost_from"], row["lost_until"], row["certainty"], row["original_bytes"]) == (START, START + SECOND, None, 0)


def test_clock_and_rules_are_rows(tmp_path: Path) -> None:
    gap = a_gap(tmp_path)
    clock = row_of(remade(gap, 0, kind=record.KIND_CLOCK, reason=0, lost_frames=0, lost_bytes=0))
    assert (clock["kind"], clock["lost_from"], clock["lost_until"], clock["lost_frames"], clock["certainty"]) == ("clock", START, None, 0, None)
    rules = row_of(remade(gap, 0, kind=record.KIND_RULES, reason=0, lost_frames=0, lost_bytes=0, lost_from_ns=0))
    assert (rules["kind"], rules["rule"], rules["lost_from"], rules["seen_frames"]) == ("rules", "all", None, None)


def test_the_end_of_a_connection_is_a_row_with_its_json_and_its_times(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.end(7, at_ns=START_NS + 10**9, lasted_ns=10**9)
    processor.close()
    (row,) = rows(tmp_path)
    place = {"kind": "connection", "connection_id": 7, "listener": "main", "principal": "CN=a", "peer": "10.0.0.1:7", "direction": "request"}
    times = {"capture_time": START + SECOND, "lost_from": START, "lost_until": START + SECOND}
    nothing = {"frame_count": 0, "original_bytes": 0, "lost_frames": 0, "lost_bytes": 0, "data": b"", "starts": [], "certainty": None}
    assert row.items() >= (place | times | nothing).items()
    assert json.loads(str(row["rule"])).items() >= {"id": "0-0-7", "tap_rule": "all", "cause": "peer_closed"}.items()


def with_requests(block: Block, requests: list[int] | None) -> Block:
    """The block with sizes and ids of the requests of its answers; None: as an older version wrote it, without."""
    header = block.header
    end = header.answers_at + 8 * header.answers_count
    more = b"".join(number.to_bytes(4, "little", signed=True) for number in requests or [])
    body = bytes(block.body[:end]) + more + bytes(block.body[header.data_at : header.data_at + header.data_len])
    flags = header.flags & ~record.BLOCK_REQUESTS if requests is None else header.flags | record.BLOCK_REQUESTS
    return Block(header._replace(flags=flags, data_at=end + len(more)), memoryview(body))


def test_answers_of_version_3_know_their_requests_and_older_ones_do_not(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for number in range(3):
        processor.send([b"ask"], protocol="kafka")
        processor.send([b"a", b"b"], direction="response", protocol="kafka", keys=[METADATA_V9, -1], latencies=[number, -1])
        processor.send([b"c"], direction="response", protocol="kafka", keys=[METADATA_V9], latencies=[9])
        processor.flush()
    first, second, third = blocks(tmp_path)
    found = record_batch("s", [with_requests(first, None), with_requests(second, [100, -1, 7, 41, -1, 42]), with_requests(third, None)], SCHEMA)
    found.validate(full=True)
    assert [(row["latency_us"], row["request_size"], row["correlation_id"]) for row in found.to_pylist()] == [
        (None, None, [-1]), ([0, -1], None, None), ([9], None, None),
        (None, None, [-1]), ([1, -1], [100, -1], [41, -1]), ([9], [7], [42]),
        (None, None, [-1]), ([2, -1], None, None), ([9], None, None),
    ]  # fmt: skip


# Payload that is cut on the way


@pytest.mark.parametrize("keep", [0, 1, 3, 5, 1000])
def test_of_a_payload_that_is_cut_sizes_stay_right(tmp_path: Path, keep: int) -> None:
    bodies = [b"12345", b"", b"123", b"1234567"]
    processor = FakeProcessor(tmp_path)
    processor.send(bodies)
    processor.send(bodies[:1], connection=2)
    processor.flush()
    processor.point(2, "request").lose(record.REASON_QUEUE_FULL, 5, 500, 1, START_NS)
    short = FakeProcessor(tmp_path, boot_id="b1", rule=TapRule(name="short", max_frame_bytes=4))
    short.send(bodies)
    short.flush()
    processor.close()
    found = record_batch("s", blocks(tmp_path), SCHEMA, keep=keep)
    found.validate(full=True)
    for row in found.to_pylist():
        if row["kind"] != "frames":
            assert (row["data"], row["starts"], row["sizes"]) == (b"", [], None)
            continue
        expected = bodies if row["frame_count"] == 4 else bodies[:1]
        room = min(keep, 4) if row["rule"] == "short" else keep
        stored = [len(body).to_bytes(4, "big") + body[:room] for body in expected]
        assert row["data"] == b"".join(stored)
        assert row["starts"] == [sum(map(len, stored[:index])) for index in range(len(stored))]
        assert (row["sizes"] or [len(body) for body in expected]) == [len(body) for body in expected]
        assert row["original_bytes"] == sum(len(body) + 4 for body in expected)


def test_payload_that_is_short_enough_is_not_copied(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"x" * 1000])
    (block,) = blocks(tmp_path)
    for keep in (None, 1000):
        batch = record_batch("s", [block], SCHEMA, keep=keep)
        assert batch.column("data").buffers()[2].address == np.frombuffer(block.data, "u1").ctypes.data


def test_a_frame_that_was_cut_through_is_cut_as_one_that_came_whole(tmp_path: Path) -> None:
    in_pieces(tmp_path)
    batch = record_batch("s", [block for block in blocks(tmp_path) if block.header.chunk_count], SCHEMA, keep=300)
    found = [row for row in batch.to_pylist() if row["connection_id"] != 3]
    assert [row["data"] for row in found] == [framed([BODY])[:304]] * 2
    assert [row["sizes"] for row in found] == [[len(BODY)]] * 2


# What cannot be read


def test_a_loss_is_a_row_for_each_listener_and_direction() -> None:
    pairs = (("main", "request"), ("main", "response"), (None, "request"))
    batch = loss_batch(Loss("edge.0.a", 640, 1280, record.REASON_VANISHED, START_NS, START_NS + 10**9, pairs), SCHEMA)
    batch.validate(full=True)
    found = batch.to_pylist()
    assert [(row["listener"], row["direction"]) for row in found] == list(pairs)
    assert [row["chunk_index"] for row in found] == [0, 1, 2]
    for row in found:
        assert (row["stream"], row["offset"], row["kind"], row["reason"], row["certainty"]) == ("edge.0.a", 640, "gap", "vanished", "unknown")
        assert (row["lost_from"], row["lost_until"], row["capture_time"]) == (START, START + SECOND, START + SECOND)
        assert (row["lost_frames"], row["lost_bytes"], row["frame_count"], row["data"], row["starts"]) == (0, 0, 0, b"", [])
        assert (row["principal"], row["rule"], row["connection_id"], row["seen_frames"]) == (None, None, None, None)


def test_a_loss_of_which_no_time_is_known_has_none() -> None:
    (row,) = loss_batch(Loss("a", 0, -1, record.REASON_DAMAGED, 0, 0, ((None, "request"),)), SCHEMA).to_pylist()
    assert (row["lost_from"], row["lost_until"], row["capture_time"]) == (None, None, datetime.datetime.fromtimestamp(0, datetime.UTC))


def test_a_loss_comes_between_what_is_before_and_behind_it(tmp_path: Path) -> None:
    (part,) = damage(lambda block: block.header.data_at, tmp_path)
    batches = list(record_batches("s", read_slice(part, fail_on_data_loss=False), SCHEMA))
    assert [[row["kind"] for row in batch.to_pylist()] for batch in batches] == [["frames"], ["gap", "gap"], ["frames"]]
    places = [row["offset"] for batch in batches for row in batch.to_pylist()]
    assert places == sorted(places)
    gap = batches[1].to_pylist()[0]
    assert (gap["reason"], gap["lost_from"], gap["lost_until"]) == ("damaged", START, START)


def test_strings_of_joined_blocks_keep_their_meaning(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for connection in (3, 1, 2):
        processor.block([b"x"], connection=connection)
    assert [row["peer"] for row in rows(tmp_path)] == ["10.0.0.1:3", "10.0.0.1:1", "10.0.0.1:2"]


def test_a_client_that_nobody_named_has_no_principal(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for connection, principal in enumerate((ANONYMOUS, "CN=a", None), 1):
        processor.point(connection, "request", listener=ANONYMOUS, principal=principal)
        processor.send([b"x"], connection=connection)
    processor.flush()
    assert [(row["principal"], row["listener"]) for row in rows(tmp_path)] == [(None, ANONYMOUS), ("CN=a", ANONYMOUS), (None, ANONYMOUS)]
    assert NOBODY == ANONYMOUS


def test_small_blocks_share_a_batch_and_large_ones_do_not(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for size in (10, 10, 5_000_000, 5_000_000):
        processor.block([b"x" * size])
    counts = [batch.num_rows for batch in record_batches("s", iter(blocks(tmp_path)), SCHEMA)]
    assert counts == [3, 1]


def test_only_the_columns_asked_for_are_made_and_without_the_payload_nothing_is_cut(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"12345", b"123"])
    wanted = StructType().add("frame_count", "integer").add("starts", ArrayType(IntegerType())).add("stream", "string")
    asked = to_arrow_schema(wanted, timezone="UTC")
    for keep in (None, 0):
        batch = record_batch("s", blocks(tmp_path), asked, keep=keep)
        assert batch.schema.equals(asked, check_metadata=True)
        assert batch.to_pylist() == [{"frame_count": 2, "starts": [0, 9], "stream": "s"}]


def test_types_are_exactly_those_that_spark_demands(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"abc"])
    batch = record_batch("s", blocks(tmp_path), SCHEMA)
    assert [column.type for column in batch.columns] == [field.type for field in SCHEMA]
    assert batch.schema.field("capture_time").type == pa.timestamp("us", tz="UTC")


def test_a_table_that_contradicts_its_sections_is_refused(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"abc"])
    processor.send([b"def"])
    processor.flush()
    (block,) = blocks(tmp_path)
    with pytest.raises(record.FormatError, match="back to back"):
        record_batch("s", [remade(block, 1, data_offset=99)], SCHEMA)


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
    places = [block.header.offset for block in blocks(tmp_path)] + [int(processor.writer.thread.bytes_flushed)]
    planner = Planner(tmp_path, parallelism=1)

    def read(start: int, end: int) -> list[dict[str, object]]:
        """The rows of a partition, as its task makes them."""
        (stream,) = planner.ends()
        joiner = Joiner()
        found: list[dict[str, object]] = []
        for part in whole(planner.partitions(Position({stream: start}), Position({stream: end}))):
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
