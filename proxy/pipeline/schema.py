"""The columns of a chunk row: a chunk is the run of whole frames of one connection and direction that one read of the proxy gave.

``decode.py`` makes the columns. A reader asks for fewer with ``.schema(...)``: Spark pushes no projection into a Python source, so the schema given
to ``load`` is the only way to leave the payload on the disk.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

_INTS: Final = ArrayType(IntegerType(), containsNull=False)

# name, type, may be null
_COLUMNS: Final[tuple[tuple[str, DataType, bool], ...]] = (
    ("stream", StringType(), False),  # <node>.<slot>.<boot-id>
    ("offset", LongType(), False),  # logical offset of the block in its stream; with chunk_index a row's key for ever
    ("chunk_index", IntegerType(), False),  # position among the chunks of the block
    ("capture_time", TimestampType(), False),  # wall clock of the read; decreases within a stream only behind a row of kind clock
    ("connection_id", LongType(), True),  # null: a gap over more than one connection, ends that are missing, or no connection's
    ("listener", StringType(), True),
    ("principal", StringType(), True),  # null: nobody said who it is
    ("peer", StringType(), True),  # the client, host:port
    ("rule", StringType(), True),  # the tap rule that matched; rules: those in force from here on, as JSON; connection: what it was, as JSON
    ("direction", StringType(), False),  # request (from the client), response; request: of no direction
    ("protocol", StringType(), False),  # framed, kafka
    ("framing", StringType(), False),  # int32
    ("kind", StringType(), False),  # frames, gap, totals, clock, rules, connection; heard: a node was heard then, all before lost_until is here
    ("capture", StringType(), False),  # full, lengths, hash
    ("first_sequence", LongType(), True),  # number of the first frame on its connection and direction, from 0; null: unknown
    ("frame_count", IntegerType(), False),  # 0: other kinds than frames
    ("original_bytes", LongType(), False),  # the frames' bytes on the wire, headers included
    ("reason", StringType(), False),  # why bytes or frames are missing; none
    ("lost_frames", LongType(), False),  # gap: frames that passed and are not in the log; connection: ends that are not
    ("lost_bytes", LongType(), False),  # gap: their bytes; frames: bytes that the log does not have, cut, withheld or lost
    ("lost_from", TimestampType(), True),  # gap: when the first one was lost; totals: seen; clock: the time before the step; connection: accepted
    ("lost_until", TimestampType(), True),  # gap: when the last one was lost, or earlier; totals: seen; connection: when it ended
    ("certainty", StringType(), True),  # gap: exact; at_most: an upper bound; unknown: no count, lost_frames is 0
    ("seen_frames", LongType(), True),  # totals: frames that a rule matched, stored or not, between lost_from and lost_until
    ("seen_bytes", LongType(), True),  # totals: their bytes
    ("data", BinaryType(), False),  # the frames as they passed, each behind its int32 header, as far as the option payload keeps them
    ("starts", _INTS, False),  # where in data each frame begins
    ("sizes", _INTS, True),  # body sizes on the wire; null: as stored
    ("request_key", _INTS, True),  # kafka: api key << 16 | version of each request, or of the request that is answered; -1 unknown
    ("latency_us", _INTS, True),  # kafka answers: time since the request, to the first byte; -1 unknown
    ("request_size", _INTS, True),  # kafka answers: body size of the request; -1 unknown; null as a whole in logs before version 3
    ("correlation_id", _INTS, True),  # kafka: of each request or answer; -1 unknown; null as a whole for answers in logs before version 3
    ("transfer_us", LongType(), True),  # a frame that was cut through, alone in its chunk: from its first byte to its last; null: all came whole
    ("node", StringType(), False),  # of the stream; in an object store the name of its folder
)

CHUNK_SCHEMA: Final = StructType([StructField(name, kind, nullable) for name, kind, nullable in _COLUMNS])

CHUNK_TYPES: Final = {field.name: field.dataType.simpleString() for field in CHUNK_SCHEMA} | {"decoded": "binary"}
JOB_SCHEMA: Final = StructType([*CHUNK_SCHEMA, StructField("decoded", BinaryType(), True)])
"""The columns that a task of the job takes: also what Kafka's frames say (``frame_contents``), which costs more than all others."""
RESULT_SCHEMA: Final = StructType([StructField("kind", StringType()), StructField("value", BinaryType())])
"""The columns of what a task of the job gives (``batch_task``)."""


class SchemaError(ValueError):
    """The user's schema has a column that the source does not have."""


def check_projection(schema: StructType, known: Mapping[str, str]) -> StructType:
    """The schema, if each of its columns is one of the source's with the same type. Raises SchemaError, which names every column that does not
    fit. ``known``: the types by name.
    """
    faults = []
    for field in schema:
        kind = field.dataType.simpleString()  # without nullability, which a user may widen
        if field.name not in known:
            faults.append(f"{field.name}: no such column")
        elif kind != known[field.name]:
            faults.append(f"{field.name}: is {known[field.name]}, not {kind}")
    if faults:
        raise SchemaError(f"framegate source: {'; '.join(faults)}. Columns: {', '.join(known)}")
    return schema
