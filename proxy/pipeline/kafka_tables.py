"""Makes the tables ``requests``, ``kafka_partitions`` and ``groups`` from the contents of Kafka's frames.

A request and its answer have the same correlation id on a connection; with it, and by their order in the log, they are put together. A request whose
answer has not come yet waits, from batch to batch, in the state. It gets its row without an answer (``OUTCOMES``) when

- it is a Produce with acks=0, which brokers do not answer;
- a later request of its connection was answered: answers come in order, so this one's is not in the log;
- its stream has ended, and was read to its end;
- the stream is ``WAIT_US`` further;
- more than ``MOST_OPEN`` wait: the oldest do not any longer.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.kafka.contents import FETCH, GROUP_APIS, METADATA, PRODUCE
from framegate.proxy.pipeline.frame_contents import CONTENTS_SCHEMA, stream_key
from framegate.proxy.pipeline.loss import LEDGER_STREAM
from framegate.proxy.pipeline.partial_sums import MICROSECONDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAIT_US: Final = 600_000_000
"""Longer than any answer takes: that to a JoinGroup comes at the latest after ``max.poll.interval.ms``, five minutes by default."""
MOST_OPEN: Final = 200_000
OUTCOMES: Final = ("answered", "acks_0", "unanswered", "unknown")
_ANSWERED, _ACKS_0, _UNANSWERED, _UNKNOWN = range(4)

_APIS: Final = pa.array([KAFKA_APIS.get(key, f"api-{key}") for key in range(1 << 15)])


@dataclasses.dataclass(slots=True)
class State:
    """What is kept between batches. Streams are named by ``stream_key``."""

    requests: pa.Table = dataclasses.field(default_factory=CONTENTS_SCHEMA.empty_table)  # those without an answer so far, as rows of the contents
    topics: dict[str, str] = dataclasses.field(default_factory=dict)  # the names of topics by their ids
    ends: dict[str, int] = dataclasses.field(default_factory=dict)  # how far each stream was read; a stream that has ended is forgotten
    answers: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # the listeners of each stream of which answers are in the log
    # by run (``_run``), the time up to which some answers are in no stream, microseconds
    lost_until: dict[str, int] = dataclasses.field(default_factory=dict)
    known_ends: dict[str, int | None] = dataclasses.field(default_factory=dict)  # ``make_tables`` was told of them

    def encode(self) -> bytes:
        """As an Arrow stream."""
        rest = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "requests"}
        schema = CONTENTS_SCHEMA.with_metadata({"state": json.dumps(rest)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(self.requests.replace_schema_metadata(schema.metadata))
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def decode(cls, data: bytes) -> "State":
        """The columns that this version has added since are null."""
        table = pa.ipc.open_stream(data).read_all()
        columns = [table[field.name] if field.name in table.column_names else pa.nulls(table.num_rows, field.type) for field in CONTENTS_SCHEMA]
        return cls(pa.table(columns, schema=CONTENTS_SCHEMA), **json.loads(table.schema.metadata[b"state"]))


def make_tables(
    state: State, contents: pa.Table, ends: Mapping[str, int], gaps: pa.Table | None, known_ends: Mapping[str, int | None]
) -> tuple[dict[str, pa.Table], State]:
    """The rows of a batch for the three tables, and the state behind it. ``gaps``: rows of the table ``gaps``; None: none. ``known_ends``: where each
    stream of the log ends; None: it is being written. Empty: that is not known.
    """
    known = {**state.ends, **ends}
    ended = _ended(known_ends, known)
    topics = {**state.topics, **_topics(contents)}
    now = State(known_ends=dict(known_ends), topics=topics, answers=_answers(state.answers, contents), lost_until=_lost_until(state.lost_until, gaps))
    rows, now.requests = _put_together(pa.concat_tables([state.requests, contents]), ended, now)
    now.ends = {name: end for name, end in known.items() if name not in ended}
    now.answers = {name: listeners for name, listeners in now.answers.items() if name in now.ends}
    live = {_run(name) for name in now.ends}
    now.lost_until = {run: us for run, us in now.lost_until.items() if run in live or run.endswith(f"/{LEDGER_STREAM}")}
    return {"requests": rows, "groups": _groups(rows), "kafka_partitions": _partitions(rows, topics)}, now


def _run(key: str) -> str:
    """The name of a stream without its slot, which a processor's stream and its recovery have in common."""
    return re.sub(r"[.][^./]+([.][^./]+)$", r"\1", key)


def _keys(rows: pa.Table) -> pa.ChunkedArray:
    """``stream_key`` of each row."""
    return pc.binary_join_element_wise(rows["node"], rows["stream"], "/")


def _ended(known_ends: Mapping[str, int | None], ends: Mapping[str, int]) -> set[str]:
    """The streams that were read to their ends, and so were the others of their runs, which may say what they lack."""
    open_runs = {_run(name) for name, end in known_ends.items() if end is None or ends.get(name, 0) < end}
    return {name for name in ends if name in known_ends and _run(name) not in open_runs}


def _answers(before: Mapping[str, list[str]], contents: pa.Table) -> dict[str, list[str]]:
    found = {stream: set(listeners) for stream, listeners in before.items()}
    fresh = contents.filter(pc.equal(contents["direction"], "response")).group_by(["node", "stream", "listener"]).aggregate([])
    for row in fresh.to_pylist():
        found.setdefault(stream_key(row["node"], row["stream"]), set()).add(row["listener"])
    return {stream: sorted(listeners) for stream, listeners in found.items()}


def _lost_until(before: Mapping[str, int], gaps: pa.Table | None) -> dict[str, int]:
    found = dict(before)
    if gaps is not None:
        lost = gaps.filter(pc.and_(pc.equal(gaps["direction"], "response"), pc.not_equal(gaps["reason"], "partial_frame")))
        until = pc.coalesce(lost["lost_until"], lost["capture_time"]).cast(MICROSECONDS).cast(pa.int64())
        for run, us in zip(map(_run, _keys(lost).to_pylist()), until.to_pylist(), strict=True):
            found[run] = max(us, found.get(run, us))
    return found


def _may_be_lost(us: int, node: str, key: str, state: State) -> bool:
    """Whether a gap may have the answer to a request of a time: one of the run, or a ledger that no longer tells which gaps there were."""
    runs = (_run(key), stream_key(node, LEDGER_STREAM), stream_key(LEDGER_STREAM, LEDGER_STREAM))
    return any(us <= state.lost_until.get(run, us - 1) for run in runs)


def _topics(contents: pa.Table) -> dict[str, str]:
    rows = contents.filter(pc.and_(pc.equal(contents["api_key"], METADATA), pc.equal(contents["direction"], "response")))
    found = pc.list_flatten(rows["partitions"])
    ids, names = (pc.struct_field(found, name).to_pylist() for name in ("topic_id", "topic"))
    return dict(zip(ids, names, strict=True))


def _codes(column: pa.ChunkedArray) -> "NDArray[Any]":
    codes: NDArray[Any] = pc.fill_null(column, "").combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return codes


def _pairs(keys: "list[NDArray[Any]]", order: "list[NDArray[Any]]", is_second: "NDArray[np.bool_]") -> "NDArray[np.int64]":
    """For each row that comes directly behind one that is no second, with the same keys and by their order: the index of that one; else -1."""
    place = np.lexsort((*reversed(order), *reversed(keys)))
    before, behind = place[:-1], place[1:]
    same = is_second[behind] & ~is_second[before]
    for key in keys:
        same &= key[before] == key[behind]
    found = np.full(len(place), -1, dtype="i8")
    found[behind[same]] = before[same]
    return found


def _put_together(events: pa.Table, ended: Iterable[str], state: State) -> tuple[pa.Table, pa.Table]:
    """The rows of requests that are decided, with the partitions of request and answer; and the requests that wait."""
    is_answer = pc.equal(events["direction"], "response").to_numpy()
    keys = _keys(events)
    stream, connection = _codes(keys), pc.fill_null(events["connection_id"], -1).to_numpy()
    known = pc.is_valid(events["correlation_id"]).to_numpy()
    correlation = np.where(known, pc.fill_null(events["correlation_id"], 0).to_numpy(), np.arange(len(known)) + (1 << 32))
    log = [events[name].to_numpy() for name in ("offset", "chunk_index", "frame_index")]
    asked_at = _pairs([stream, connection, correlation], [*log], is_answer)
    answers = np.flatnonzero(is_answer)
    requests = asked_at[answers]
    is_open = ~is_answer
    is_open[requests[requests >= 0]] = False
    opened = np.flatnonzero(is_open)

    rank = np.empty(len(known), dtype="i8")
    rank[np.lexsort((*reversed(log), stream))] = np.arange(len(known))
    last_answered: dict[tuple[int, int], int] = {}  # the greatest rank of a request with an answer, by connection
    paired = requests[requests >= 0]
    for each in paired[np.argsort(rank[paired])].tolist() if len(opened) else ():
        last_answered[stream[each], connection[each]] = rank[each]
    passed = [last_answered.get((stream[each], connection[each]), -1) > rank[each] for each in opened]
    outcome = _outcomes(events, opened, stream, passed, pc.is_in(keys, pa.array([*ended], pa.string())).to_numpy())
    late = np.flatnonzero(outcome < 0)[:-MOST_OPEN]
    outcome[late] = _UNKNOWN
    decided = opened[outcome >= 0]
    outcome = outcome[outcome >= 0]
    rest = events.take(pa.array(opened[~np.isin(opened, decided)]))
    lone, lone_keys = events.take(pa.array(decided)), keys.take(pa.array(decided))
    asked_us = lone["capture_time"].cast(pa.int64()).to_pylist()
    for index in np.flatnonzero(outcome == _UNANSWERED).tolist():
        node, key, listener = (column[index].as_py() for column in (lone["node"], lone_keys, lone["listener"]))
        if listener not in state.answers.get(key, ()) or _may_be_lost(asked_us[index], node, key, state):
            outcome[index] = _UNKNOWN
    return pa.concat_tables([_answered(events.take(pa.array(answers)), events, requests), _alone(lone, outcome)]), rest


def _outcomes(
    events: pa.Table, opened: "NDArray[np.int64]", stream: "NDArray[Any]", passed: list[bool], over: "NDArray[np.bool_]"
) -> "NDArray[np.int8]":
    """What becomes of each open request: an index of OUTCOMES; -1: it waits. ``over``: the stream of each event has ended."""
    times = events["capture_time"].cast(pa.int64()).to_numpy()
    newest = np.full(int(stream.max(initial=-1)) + 1, 0, dtype="i8")
    np.maximum.at(newest, stream, times)
    acks = pc.fill_null(events["acks"], -1).to_numpy()
    found = np.where(over[opened] | (newest[stream[opened]] - times[opened] >= WAIT_US), _UNANSWERED, -1)
    found = np.where(passed, _UNKNOWN, found)
    return np.where(acks[opened] == 0, _ACKS_0, found).astype("i1")


def _answered(answers: pa.Table, events: pa.Table, requests: "NDArray[np.int64]") -> pa.Table:
    """Rows of requests with their answers; what only the request says is null where it is not in the log."""
    asked = events.take(pa.array(requests, mask=requests < 0))
    before = pc.add(pc.fill_null(answers["latency_us"], 0).cast(pa.int64()), pc.fill_null(answers["transfer_us"], 0))
    time = pc.if_else(pc.is_valid(answers["latency_us"]), pc.subtract(answers["capture_time"].cast(pa.int64()), before), None)
    members = [pc.if_else(pc.equal(table["member_id"], ""), None, table["member_id"]) for table in (answers, asked)]
    own = {
        "client_id": asked["client_id"], "acks": asked["acks"], "group_id": asked["group_id"], "member_id": pc.coalesce(*members),
        "generation": pc.coalesce(answers["generation"], asked["generation"]), "fault": pc.coalesce(asked["fault"], answers["fault"]),
        "request_time": pc.coalesce(asked["capture_time"], time.cast(MICROSECONDS)),
        "request_size": pc.coalesce(answers["request_size"], asked["size"]),
        "answer_size": answers["size"], "outcome": pa.repeat(pa.scalar(OUTCOMES[_ANSWERED]), answers.num_rows),
        "asked": asked["partitions"], "answered": answers["partitions"],
    }  # fmt: skip
    return _rows(answers, own)


def _alone(requests: pa.Table, outcome: "NDArray[np.int8]") -> pa.Table:
    """Rows of requests without an answer."""
    words = pa.array(OUTCOMES).take(pa.array(outcome))
    nothing = {
        name: requests[kind].take(pa.nulls(requests.num_rows, pa.int32())) for name, kind in (("answer_size", "size"), ("answered", "partitions"))
    }
    time, size, asked = requests["capture_time"], requests["size"], requests["partitions"]
    return _rows(requests, {"request_time": time, "request_size": size, "outcome": words, "asked": asked, **nothing})


def _rows(place: pa.Table, own: Mapping[str, Any]) -> pa.Table:
    names = [name for name in CONTENTS_SCHEMA.names if name not in own and name not in ("size", "partitions")]
    text = {"connection": _connection(place["connection_id"]), "api": _APIS.take(place["api_key"])}
    table = pa.table({**{name: place[name] for name in names}, **own, **text})
    return table.select(sorted(table.column_names))


def _connection(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Connections as logs write them."""
    number = ids.cast(pa.uint64(), safe=False)
    parts = [
        pc.shift_right(number, pa.scalar(57, pa.uint64())),
        pc.bit_wise_and(pc.shift_right(number, pa.scalar(29, pa.uint64())), pa.scalar((1 << 28) - 1, pa.uint64())),
        pc.bit_wise_and(number, pa.scalar((1 << 29) - 1, pa.uint64())),
    ]
    return pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), "-")


def _groups(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows["api_key"], pa.array(GROUP_APIS, pa.int32())))


def _partitions(rows: pa.Table, topics: Mapping[str, str]) -> pa.Table:
    """A row for each partition of Produce requests and Fetch answers. Partitions of Produce answers are joined to those of the requests; one that
    is not in its request as far as that is in the log has a row, too.
    """
    produce, fetch = (rows.filter(pc.equal(rows["api_key"], key)) for key in (PRODUCE, FETCH))
    asked, told = _exploded(produce, "asked"), _exploded(produce, "answered")
    both = pa.concat_tables([asked, told])
    is_told = np.arange(both.num_rows) >= asked.num_rows
    names = _codes(pc.coalesce(both["topic_id"], both["topic"]))
    numbers = pc.fill_null(both["partition"], -1).to_numpy()
    asked_at = _pairs([both["row"].to_numpy(), names, numbers], [is_told], is_told)[asked.num_rows :]
    told_at = np.full(asked.num_rows, -1, dtype="i8")
    found = np.flatnonzero(asked_at >= 0)
    told_at[asked_at[found]] = found
    at = pa.array(told_at, mask=told_at < 0)
    joined = asked
    for name in ("base_offset", "error_code"):
        joined = joined.set_column(joined.column_names.index(name), name, told[name].take(at))
    lone = pc.or_(pc.is_valid(told["partition"]), pc.is_null(produce["asked"].take(told["row"])))
    partitions = pa.concat_tables([joined, told.filter(pc.and_(lone, pa.array(asked_at < 0)))])
    fetched = _exploded(fetch, "answered")
    return pa.concat_tables([_placed(produce, partitions, topics), _placed(fetch, fetched, topics)])


def _exploded(rows: pa.Table, name: str) -> pa.Table:
    """The partitions of a list column, with the index of their ``row``."""
    lists = rows[name].combine_chunks()
    found = lists.flatten()
    names = [field.name for field in found.type]
    parents = pc.list_parent_indices(lists).cast(pa.int64())
    return pa.table({"row": parents, **dict(zip(names, found.flatten(), strict=True))})


def _placed(rows: pa.Table, partitions: pa.Table, topics: Mapping[str, str]) -> pa.Table:
    place = rows.take(partitions["row"])
    ids = pa.array(topics, pa.string())
    named = pa.array(topics.values(), pa.string()).take(pc.index_in(partitions["topic_id"], ids))
    own = {name: partitions[name] for name in partitions.column_names if name not in ("row", "topic", "topic_id")}
    own["topic"] = pc.coalesce(partitions["topic"], named, partitions["topic_id"])
    own["fault"] = pc.if_else(pc.is_null(partitions["partition"]), place["fault"], None)
    return pa.table({**{name: place[name] for name in place.column_names if name not in (*own, "asked", "answered")}, **own})
