"""Requests with their answers, the partitions of Produce and Fetch, and groups: from the log to the rows of the tables, without Spark."""

import dataclasses
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from framegate.proxy.config.model import TapRule
from framegate.proxy.pipeline import kafka_tables
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, arrow_schema
from framegate.proxy.pipeline.decode import record_batch
from framegate.proxy.pipeline.frame_contents import read_contents, stream_key
from framegate.proxy.pipeline.kafka_tables import State, make_tables
from framegate.proxy.pipeline.loss import LEDGER_STREAM
from framegate.proxy.pipeline.schema import JOB_SCHEMA
from framegate.proxy.pipeline.slices import Block
from tests.fakes.kio_messages import answer_body, request_body, sample, schema
from tests.fakes.record_batches import batch, record
from tests.fakes.slices import blocks
from tests.fakes.tap_log import START_NS, FakeProcessor

SCHEMA = to_arrow_schema(JOB_SCHEMA, timezone="UTC")
SECOND_NS = 1_000_000_000
PRODUCE, FETCH, METADATA, HEARTBEAT, API_VERSIONS = 0 << 16 | 9, 1 << 16 | 12, 3 << 16 | 12, 12 << 16 | 4, 18 << 16 | 3
Rows = dict[str, list[dict[str, Any]]]


def entity(call: int, answer: bool = False, **values: Any) -> Any:
    import random

    return dataclasses.replace(sample(schema(call >> 16, call & 0xFFFF, answer), random.Random(1), most=1, least=1), **values)


def produce(correlation: int, topic: str, *counts: int, acks: int = -1, client: str = "c") -> bytes:
    made = entity(PRODUCE, acks=acks)
    (part,) = made.topic_data
    (one,) = part.partition_data
    data = tuple(dataclasses.replace(one, index=index, records=batch(*[record()] * count)) for index, count in enumerate(counts))
    topics = (dataclasses.replace(part, name=topic, partition_data=data),)
    return request_body(dataclasses.replace(made, topic_data=topics), correlation, client)


def produced(correlation: int, topic: str, *offsets: int) -> bytes:
    made = entity(PRODUCE, answer=True)
    (part,) = made.responses
    (one,) = part.partition_responses
    data = tuple(
        dataclasses.replace(one, index=index, base_offset=offset, error_code=type(one.error_code)(3 if offset < 0 else 0))
        for index, offset in reversed(list(enumerate(offsets)))  # brokers need not keep the order
    )
    return answer_body(dataclasses.replace(made, responses=(dataclasses.replace(part, name=topic, partition_responses=data),)), correlation)


class Log:
    """A log that is written and read batch by batch."""

    def __init__(self, directory: Path, **facts: Any) -> None:
        self.directory = directory
        self.processor = FakeProcessor(directory, **facts)
        self.state = State()
        self._read = 0

    def ask(self, call: int, body: bytes, at_s: float = 0, connection: int = 1) -> None:
        self.processor.send([body], connection=connection, protocol="kafka", at_ns=START_NS + int(at_s * SECOND_NS))

    def tell(self, call: int, body: bytes, at_s: float = 1, latency: int = 500_000, connection: int = 1) -> None:
        facts: dict[str, Any] = {"keys": [call], "latencies": [latency], "direction": "response", "connection": connection}
        facts["correlations"] = [int.from_bytes(body[:4], "big")]
        self.processor.send([body], protocol="kafka", at_ns=START_NS + int(at_s * SECOND_NS), **facts)

    def batch(
        self, *, known_ends: Mapping[str, int | None] = {}, gaps: pa.Table | None = None, split: bool = False, nodes: tuple[str, ...] = ("",)
    ) -> Rows:
        """The rows of the next batch; ``split``: its blocks are read by different tasks, the last one first; ``nodes``: they are in the folders of
        each of them.
        """
        self.processor.flush()
        fresh = blocks(self.directory)[self._read :]
        self._read += len(fresh)
        groups: list[list[Block]] = [[block] for block in reversed(fresh)] if split else [fresh] if fresh else []
        made_of = [(group, node) for group in groups for node in nodes]
        values = [record_batch(self.processor.stream, group, SCHEMA, node=node)["decoded"][0].as_py() for group, node in made_of]
        contents, ends = read_contents(value for value in values if value is not None)
        made, state = make_tables(self.state, contents, ends, gaps, known_ends)
        self.state = State.decode(state.encode())
        for name, table in made.items():
            wanted = arrow_schema(name).remove_metadata()
            assert table.select([column for column in wanted.names if column not in ("date", "hour")]).cast(pa.schema(list(wanted)[:-2])) is not None
        return {name: table.to_pylist() for name, table in made.items()}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def picked(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize("batches", [1, 2])
def test_a_produce_and_its_answer_are_rows_of_the_request_and_of_each_partition(log: Log, batches: int) -> None:
    log.ask(PRODUCE, produce(5, "orders", 3, 1, client="shop"))
    if batches == 2:
        assert log.batch() == {"requests": [], "kafka_partitions": [], "groups": []}
    log.tell(PRODUCE, produced(5, "orders", 40, -1))
    rows = log.batch()
    (request,) = rows["requests"]
    names = ("api", "api_version", "correlation_id", "client_id", "principal", "connection", "outcome", "acks", "error_code", "fault", "latency_us")
    assert picked([request], *names) == [("Produce", 9, 5, "shop", "CN=a", "0-0-1", "answered", -1, 3, None, 500_000)]
    assert (request["capture_time"] - request["request_time"]).total_seconds() == 1
    names = ("topic", "partition", "records", "base_offset", "error_code", "codec", "client_id", "offset", "outcome", "fault")
    at = request["offset"]
    assert picked(rows["kafka_partitions"], *names) == [
        ("orders", 0, 3, 40, 0, "none", "shop", at, "answered", None),
        ("orders", 1, 1, None, 3, "none", "shop", at, "answered", None),
    ]
    assert log.state.requests.num_rows == 0


def test_answers_find_their_requests_in_the_order_of_the_log(log: Log) -> None:
    """The same correlation id twice, on two connections, read by several tasks."""
    for connection in (1, 2):
        for turn in range(2):
            log.ask(PRODUCE, produce(5, f"t{connection}-{turn}", 1), connection=connection)
            log.processor.flush()
            log.tell(PRODUCE, produced(5, f"t{connection}-{turn}", turn), connection=connection)
            log.processor.flush()
    rows = log.batch(split=True)
    assert sorted(picked(rows["kafka_partitions"], "topic", "base_offset", "connection_id", "error_code")) == [
        (f"t{connection}-{turn}", turn, connection, 0) for connection in (1, 2) for turn in range(2)
    ]


def test_streams_of_the_same_name_in_the_folders_of_two_nodes_are_not_mixed(log: Log) -> None:
    log.ask(PRODUCE, produce(5, "orders", 1))
    log.batch(nodes=("a",))
    log.tell(PRODUCE, produced(5, "orders", 40))
    names = ("node", "client_id", "outcome", "base_offset", "connection")
    rows = log.batch(nodes=("b", "a"))
    assert picked(rows["kafka_partitions"], *names[:4]) == [("a", "c", "answered", 40), ("b", None, "answered", 40)]
    assert picked(rows["requests"], "node", "client_id") == [("b", None), ("a", "c")]
    assert sorted(log.state.ends) == ["a/edge.0.b0", "b/edge.0.b0"]


def test_a_produce_with_acks_0_has_its_row_at_once(log: Log) -> None:
    log.ask(PRODUCE, produce(5, "orders", 2, acks=0))
    rows = log.batch()
    names = ("outcome", "acks", "error_code", "answer_size", "latency_us")
    assert picked(rows["requests"], *names) == [("acks_0", 0, None, None, None)]
    assert picked(rows["kafka_partitions"], "topic", "records", "error_code", "outcome") == [("orders", 2, None, "acks_0")]


def wait(log: Log, seconds: float) -> list[tuple[Any, ...]]:
    """What became of the request at 0 s, when another request of the stream comes so much later."""
    log.ask(HEARTBEAT, request_body(entity(HEARTBEAT), 99), at_s=seconds, connection=9)
    return [row for row in picked(log.batch()["requests"], "correlation_id", "outcome") if row[0] != 99]


@pytest.mark.parametrize(("answers", "outcome"), [(True, "unanswered"), (False, "unknown")])
def test_a_request_waits_ten_minutes_for_its_answer(log: Log, answers: bool, outcome: str) -> None:
    """Where no answers are in the log at all, nothing is known of this one."""
    if answers:
        log.tell(API_VERSIONS, answer_body(entity(API_VERSIONS, answer=True), 7), at_s=0, connection=2)
    log.ask(PRODUCE, produce(5, "orders", 1))
    log.batch()
    limit = kafka_tables.WAIT_US / 1e6
    assert wait(log, limit - 1e-6) == []
    assert wait(log, limit) == [(5, outcome)]
    assert wait(log, limit + 1) == []


@pytest.mark.parametrize(
    ("gap", "outcome"),
    [
        ({}, "unknown"),
        ({"listener": None}, "unknown"),
        ({"stream": "edge.recovery.b0"}, "unknown"),
        ({"stream": LEDGER_STREAM}, "unknown"),
        ({"stream": LEDGER_STREAM, "node": LEDGER_STREAM}, "unknown"),
        ({"stream": LEDGER_STREAM, "node": "other"}, "unanswered"),
        ({"node": "other"}, "unanswered"),
        ({"direction": "request"}, "unanswered"),
        ({"listener": "other"}, "unknown"),
        ({"stream": "edge.0.b1"}, "unanswered"),
        ({"reason": "partial_frame"}, "unanswered"),
        ({"early": True}, "unanswered"),
    ],
)
def test_an_answer_that_may_be_in_a_gap_is_unknown(log: Log, gap: dict[str, Any], outcome: str) -> None:
    import datetime

    log.tell(API_VERSIONS, answer_body(entity(API_VERSIONS, answer=True), 7), at_s=0, connection=2)
    log.ask(PRODUCE, produce(5, "orders", 1))
    at = datetime.datetime.fromtimestamp(START_NS / 1e9 - (1 if gap.pop("early", False) else 0), datetime.UTC)
    usual = {
        "node": "edge",
        "stream": log.processor.stream,
        "listener": "main",
        "direction": "response",
        "reason": "queue_full",
        "lost_until": at,
        "capture_time": at,
    }
    log.batch(gaps=pa.Table.from_pylist([usual | gap], arrow_schema("gaps").remove_metadata()))
    assert wait(log, 600) == [(5, outcome)]


def test_a_request_that_was_passed_over_has_an_answer_that_is_not_in_the_log(log: Log) -> None:
    for number in (1, 2, 3):
        log.ask(PRODUCE, produce(number, "orders", 1))
    log.tell(PRODUCE, produced(2, "orders", 7))
    assert sorted(picked(log.batch()["requests"], "correlation_id", "outcome")) == [(1, "unknown"), (2, "answered")]
    assert log.state.requests["correlation_id"].to_pylist() == [3]


@pytest.mark.parametrize(("end", "recovery_end", "decided"), [(0, 0, True), (1, 0, False), (None, 0, False), (0, None, False), (0, 64, False)])
def test_at_the_end_of_its_stream_a_request_is_unanswered(log: Log, end: int | None, recovery_end: int | None, decided: bool) -> None:
    """Ends by the ledger: beyond what was read of the stream; of the stream that control writes for it."""
    log.tell(API_VERSIONS, answer_body(entity(API_VERSIONS, answer=True), 7), at_s=0)
    log.ask(PRODUCE, produce(5, "orders", 1))
    log.processor.close()
    read = blocks(log.directory)[-1].header
    stream = stream_key("edge", log.processor.stream)
    ends = {stream: None if end is None else read.offset + read.block_len + end, "edge/edge.recovery.b0": recovery_end, "other/edge.0.b0": None}
    rows = log.batch(known_ends=ends)
    assert [row for row in picked(rows["requests"], "correlation_id", "outcome") if row[0] == 5] == ([(5, "unanswered")] if decided else [])
    assert (stream in log.state.ends) != decided


def test_no_more_requests_wait_than_there_is_room_for(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tables, "MOST_OPEN", 2)
    for number in (1, 2, 3):
        log.ask(PRODUCE, produce(number, "orders", 1), connection=number)
    assert picked(log.batch()["requests"], "correlation_id", "outcome") == [(1, "unknown")]
    assert log.state.requests["correlation_id"].to_pylist() == [2, 3]


def test_topics_have_the_names_that_metadata_told(log: Log) -> None:
    call = FETCH + 4
    (topic,) = entity(METADATA, answer=True).topics
    fetched = entity(call, answer=True)
    (part,) = fetched.responses
    answers = [
        answer_body(dataclasses.replace(fetched, responses=(dataclasses.replace(part, topic_id=topic.topic_id),)), number) for number in (1, 2)
    ]
    log.tell(call, answers[0])
    (before,) = log.batch()["kafka_partitions"]
    log.tell(METADATA, answer_body(dataclasses.replace(entity(METADATA, answer=True), topics=(dataclasses.replace(topic, name="orders"),)), 5))
    log.batch()
    log.tell(call, answers[1])
    (after,) = log.batch()["kafka_partitions"]
    assert (len(before["topic"]), after["topic"]) == (22, "orders")
    assert (after["client_id"], after["outcome"], after["api"]) == (None, "answered", "Fetch")


def test_groups_have_the_requests_of_members(log: Log) -> None:
    asked = entity(HEARTBEAT, group_id="billing", member_id="m-1", generation_id=4)
    log.ask(HEARTBEAT, request_body(asked, 1, "worker"))
    code = type(entity(HEARTBEAT, answer=True).error_code)(27)
    log.tell(HEARTBEAT, answer_body(entity(HEARTBEAT, answer=True, error_code=code), 1))
    join = 11 << 16 | 9
    log.ask(join, request_body(entity(join, group_id="billing", member_id=""), 2, "worker"))
    log.tell(join, answer_body(entity(join, answer=True, member_id="m-2", generation_id=5, error_code=type(code)(0)), 2))
    names = ("api", "client_id", "group_id", "member_id", "generation", "error_code", "outcome")
    assert picked(log.batch()["groups"], *names) == [
        ("Heartbeat", "worker", "billing", "m-1", 4, 27, "answered"),
        ("JoinGroup", "worker", "billing", "m-2", 5, 0, "answered"),
    ]


@pytest.mark.parametrize(
    ("rule", "client", "records"),
    [
        ({"capture": "lengths"}, None, [None]),
        ({"capture": "hash"}, None, [None]),
        ({"max_frame_bytes": 30}, "c", [None]),
        ({"max_frame_bytes": 200}, "c", [1, 1, None]),
    ],
)
def test_what_a_rule_leaves_out_is_not_known_and_never_0(tmp_path: Path, rule: dict[str, Any], client: str | None, records: list[int | None]) -> None:
    log = Log(tmp_path, rule=TapRule(name="cut", **rule))
    log.ask(PRODUCE, produce(5, "orders", 1, 1, 1))
    log.tell(PRODUCE, produced(5, "orders", 40, 41, 42))
    rows = log.batch()
    names = ("api", "correlation_id", "client_id", "fault", "latency_us")
    assert picked(rows["requests"], *names) == [("Produce", 5, client, "not captured whole", 500_000)]
    assert picked(rows["kafka_partitions"], "records")[: len(records)] == [(count,) for count in records]
    assert "not captured whole" in {row["fault"] for row in rows["kafka_partitions"]}


def test_bytes_that_are_no_request_have_a_fault(log: Log) -> None:
    log.ask(PRODUCE, struct.pack(">hhih", 0, 9, 1, -1) + b"\0\0\xff\xff\xff\xff\xff")
    log.tell(PRODUCE, struct.pack(">i", 1) + b"\0\xff\xff")
    rows = log.batch()
    (request,) = rows["requests"]
    assert "of a Kafka message" in request["fault"]
    assert picked(rows["kafka_partitions"], "topic", "partition", "records", "fault") == [(None, None, None, request["fault"])]


def test_a_batch_without_kafka_has_no_rows(log: Log) -> None:
    assert log.batch() == {"requests": [], "kafka_partitions": [], "groups": []}
    assert set(log.batch()) < set(TABLE_SCHEMAS)
