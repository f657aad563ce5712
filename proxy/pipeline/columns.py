"""The columns of the tables: names, types and descriptions.

A column has one type wherever it occurs, and names do not change. A later version may add columns; the rows from before have null in them. Times are
UTC, in microseconds.
"""

from typing import Final

import pyarrow as pa

from framegate.proxy.pipeline.partial_sums import MICROSECONDS

_OF_CONNECTIONS: Final = {
    "opened_time": ("timestamp", "when the connection was accepted"),
    "closed_time": ("timestamp", "when both sides were closed"),
    "duration_ms": ("bigint", "milliseconds from opened_time to closed_time"),
    "request_frames": ("bigint", "whole frames received from the client, recorded or not"),
    "request_bytes": ("bigint", "bytes of these"),
    "response_frames": ("bigint", "whole frames received from the upstream or a handler"),
    "response_bytes": ("bigint", "bytes of these"),
    "unforwarded_bytes": ("bigint", "bytes that were received and not forwarded"),
    "cause": ("string", "why the connection ended: the words of errors-and-causes.md"),
    "detail": ("string", "details of the cause; null: none"),
    "side": ("string", "who caused the end: downstream (the client), upstream, or internal (framegate)"),
    "level": ("string", "of the row closed in framegate's log: info, warning or error, by the cause"),
    "end_state": ("string", "state of the connection when the cause occurred"),
    "upstream": ("string", "name of the upstream; null: a handler answers"),
    "endpoint": ("string", "address of the upstream that was tried last; null: none"),
    "broker": ("int", "node id of the Kafka broker that the client reached, -1: the bootstrap; null: a listener without brokers"),
    "mechanism": ("string", "SASL mechanism of the login; null: none"),
    "tls_version": ("string", "TLS version of the client's connection; null: plaintext, or no complete handshake"),
    "software": ("string", "software of a Kafka client, as it says; null: it does not"),
    "software_version": ("string", "its version"),
    "attempted_user": ("string", "name with which a login failed; null: none"),
    "handshake_us": ("bigint", "microseconds of the client's TLS handshake and login; null: neither"),
    "connect_us": ("bigint", "microseconds until the upstream was reached, or the last attempt failed; null: no attempt has ended"),
    "attempts": ("int", "attempts to reach the upstream"),
}
_COLUMNS: Final = {
    # of the place of a frame, an answer or a gap
    "node": ("string", "name of the framegate; of a fleet in an object store, of its folder"),
    "stream": ("string", "stream of the tap's log: <node>.<slot>.<boot-id>"),
    "offset": ("bigint", "offset of the block in its stream; with stream, chunk_index and frame_index the key of a frame"),
    "chunk_index": ("int", "position of the chunk in its block"),
    "capture_time": ("timestamp", "wall clock of the proxy's read that brought the end of the frame, or of the gap or the end of the connection"),
    "connection": ("string", "connection as logs and the CLI write it: slot-generation-counter; null: a gap over several"),
    "connection_id": ("bigint", "the same as a number"),
    "listener": ("string", "name of the listener"),
    "principal": ("string", "authenticated client; null: it said no name"),
    "peer": ("string", "address of the client, host:port"),
    "rule": ("string", "tap rule that matched"),
    "protocol": ("string", "framed or kafka"),
    "framing": ("string", "form of the size before a frame: int32"),
    "direction": ("string", "request (from the client) or response"),
    # of a frame or an answer
    "capture": ("string", "what the rule keeps: full, lengths or hash"),
    "transfer_us": ("bigint", "microseconds from the first byte to the last of a frame that passed in pieces; null: it came whole"),
    "frame_index": ("int", "position of the frame in its chunk"),
    "sequence": ("bigint", "number of the frame on its connection and direction, from 0"),
    "size": ("int", "bytes of the body on the wire"),
    "kept_size": ("int", "bytes of the body that are in payload"),
    "payload": ("binary", "the body without its size, as far as it was kept"),
    "api_key": (
        "int",
        "Kafka API of the request, or of the request that is answered; null for requests of which the log has not the first 8 bytes as they passed",
    ),
    "api_version": ("int", "version of that API"),
    "latency_us": ("int", "microseconds from the request to the first byte of its answer"),
    "request_time": ("timestamp", "when the request had come whole"),
    "request_size": ("int", "bytes of the body of the request that is answered"),
    "answer_size": ("int", "bytes of the body of the answer"),
    "correlation_id": ("int", "Kafka's number of the request and its answer"),
    # of a Kafka request
    "api": ("string", "name of the API"),
    "client_id": ("string", "what the client calls itself; null: it does not, or the request is not in the log"),
    "outcome": ("string", "answered; acks_0: a Produce that brokers do not answer; unanswered; unknown: the answer may be missing from the log"),
    "acks": ("int", "acks of a Produce: 0, 1 or -1 (all); null: another API, or not in the log"),
    "error_code": ("int", "first error of the answer, or the error of the partition: Kafka's number, 0 for none; null: not known"),
    "fault": ("string", "why the request or the answer was not decoded to its end; null: it was"),
    "topic": ("string", "name of the topic; its id, where no Metadata answer of this batch or before told the name"),
    "partition": ("int", "number of the partition; null: of a message that was not decoded to its end, whatever else it has"),
    "records": ("bigint", "records that were written or read, by the headers of their batches, without control records; null: not known"),
    "record_bytes": ("bigint", "bytes of their batches"),
    "codec": ("string", "compression of the last batch: none, gzip, snappy, lz4 or zstd"),
    "newest_record_time": ("timestamp", "greatest time of a record, as its producer or the broker set it"),
    "base_offset": ("bigint", "offset of the first batch in the partition, as the answer says"),
    "high_watermark": ("bigint", "end of what consumers may read in the partition, as the answer says"),
    "group_id": ("string", "name of the group"),
    "member_id": ("string", "id of the member; of a LeaveGroup for several, the first"),
    "generation": ("int", "generation of the group, or epoch of the member"),
    # of a gap
    "first_sequence": ("bigint", "number of the first missing frame on its connection and direction"),
    "lost_from": ("timestamp", "when the first missing frame passed"),
    "lost_until": ("timestamp", "when the last missing frame passed"),
    "lost_frames": ("bigint", "frames that passed and are not in the log"),
    "lost_bytes": ("bigint", "bytes of these frames"),
    "reason": ("string", "why bytes or frames are missing; none"),
    "certainty": ("string", "of the counts: exact; at_most, an upper bound; unknown"),
    "lost_ends": ("bigint", "connections that ended and have no row in the table connections"),
    **_OF_CONNECTIONS,
    # sums by minute: rows of the same minute add up
    "minute": ("timestamp", "begin of the minute"),
    "until": ("timestamp", "the last minute of a gap over several; else the same as minute"),
    "frames": ("bigint", "frames that were captured"),
    "bytes": ("bigint", "bytes of these frames on the wire, with their sizes"),
    "cut_bytes": ("bigint", "bytes of bodies that rules left out"),
    "totals": ("bigint", "how often the log states the frames seen"),
    "seen": ("bigint", "frames that a rule matched"),
    "stored": ("bigint", "frames that are in the log whole, in part, as a hash or as their length"),
    "withheld": ("bigint", "frames that are in the log as their length because of credentials"),
    "sampled": ("bigint", "frames that a rule left out"),
    "lost": ("bigint", "frames that gaps count exactly"),
    "at_most": ("bigint", "frames that gaps count as an upper bound"),
    "unknown": ("bigint", "gaps without a count"),
    "shared": ("bigint", "frames of gaps over several minutes, counted in each"),
    "first_offset": ("bigint", "least offset of the blocks of this minute alone"),
    "state": ("string", "unknown, at_most, lost, complete or partial, as far as this row alone tells"),
    # of a node
    "heard_time": ("timestamp", "when the node was heard"),
    "complete_until": (
        "timestamp",
        "before this time all frames of the node are in the tables, or a row says what is missing; null: it had ended in order",
    ),
    # the partitions
    "date": ("date", "UTC date of the row's time"),
    "hour": ("int", "UTC hour of the row's time"),
}
_PLACE: Final = "node stream offset chunk_index capture_time connection connection_id listener principal peer rule protocol framing direction"
PLACE: Final = tuple(_PLACE.split())
"""The common columns of frames, requests and gaps. Stream, offset, chunk_index and frame_index together are a frame's key."""
_REQUEST: Final = "api_key api api_version correlation_id client_id outcome request_time latency_us"
_TABLES: Final = {
    "nodes": "node heard_time complete_until",
    "traffic_by_minute": "minute node listener principal direction frames bytes cut_bytes lost_frames lost_bytes",
    "requests": f"{_PLACE} frame_index sequence api_key api_version correlation_id request_time request_size answer_size latency_us transfer_us "
    "api client_id outcome acks error_code fault",
    "kafka_partitions": f"{_PLACE} frame_index {_REQUEST} acks topic partition records record_bytes codec newest_record_time base_offset "
    "high_watermark error_code fault",
    "groups": f"{_PLACE} frame_index {_REQUEST} group_id member_id generation error_code fault",
    "gaps": f"{_PLACE} first_sequence lost_from lost_until lost_frames lost_bytes reason certainty lost_ends",
    "connections": "node stream offset chunk_index capture_time connection connection_id listener principal peer rule protocol opened_time "
    "closed_time duration_ms request_frames request_bytes response_frames response_bytes unforwarded_bytes cause detail side level end_state "
    "upstream endpoint broker mechanism tls_version client_id software software_version attempted_user handshake_us connect_us attempts",
    "completeness": "node stream listener direction minute until totals seen stored withheld sampled lost at_most unknown shared first_offset state",
    "frames": f"{_PLACE} capture reason transfer_us frame_index sequence size kept_size payload api_key api_version latency_us request_size "
    "correlation_id",
}
_ARROW: Final = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "binary": pa.binary(), "timestamp": MICROSECONDS, "date": pa.date32(),
}  # fmt: skip


def _sql(names: str) -> str:
    return ", ".join(f"{name} {_COLUMNS[name][0]}" for name in names.split())


FRAME_COLUMNS: Final = tuple(_TABLES["frames"].split())
PARTITIONS: Final = _sql("date hour")
TABLE_SCHEMAS: Final = {table: _sql(names) for table, names in _TABLES.items()}
"""The columns by table, as Spark SQL writes them; the partitions come behind them. A batch is committed to the tables in this order."""
TIME_COLUMNS: Final = {
    table: next(name for name in ("minute", "capture_time", "heard_time") if name in names.split()) for table, names in _TABLES.items()
}  # the column by which the rows of each table are partitioned


def arrow_schema(table: str) -> pa.Schema:
    """The columns and partitions of a table; the metadata of each field has its description, as ``comment``."""
    fields = [column.split() for column in f"{TABLE_SCHEMAS[table]}, {PARTITIONS}".split(", ")]
    return pa.schema([pa.field(name, _ARROW[kind], metadata={"comment": _COLUMNS[name][1]}) for name, kind in fields])
