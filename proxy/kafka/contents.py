"""Reads what requests and answers say for the tables of the pipeline: clients, groups, topics, partitions, records, error codes.

``Contents`` collects columns; a message is a row of them, and a partition of a Produce request or answer, or of a Fetch answer, a row of others.
Record batches are counted by their headers, whatever their codec. A message may be stored in part: what is there is read, the rest is not known.

Source: record batches with magic 2 (``DefaultRecordBatch``); older ones have no count, so their records are not known.
"""

import base64
from typing import Final, final

from librt.strings import read_i16_be, read_i32_be, read_i32_le, read_i64_be, read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import Api, Field, api
from framegate.proxy.kafka.values import varint_at
from framegate.proxy.kafka.walker import Walker

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
GROUP_APIS: Final = (8, 11, 12, 13, 14, 28, 68, 76, 88)
"""Requests of a member of a group: OffsetCommit, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, TxnOffsetCommit, and the heartbeats of consumer, share
and streams groups.
"""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NOT_KNOWN: Final[i64] = -(1 << 31)  # Stands for null in columns of integers
CUT: Final = "not captured whole"

_TOPIC: Final = 1
_TOPIC_ID: Final = 2
_PARTITION: Final = 3
_RECORDS: Final = 4
_ERROR: Final = 5
_OFFSET: Final = 6
_HIGH_WATERMARK: Final = 7
_ACKS: Final = 8
_GROUP: Final = 9
_MEMBER: Final = 10
_GENERATION: Final = 11

_PARTITIONS: Final = {
    (PRODUCE, False): {
        "Acks<": _ACKS,
        "TopicData.Name<": _TOPIC,
        "TopicData.TopicId<": _TOPIC_ID,
        "TopicData.PartitionData.Index<": _PARTITION,
        "TopicData.PartitionData.Records<": _RECORDS,
    },
    (PRODUCE, True): {
        "Responses.Name<": _TOPIC,
        "Responses.TopicId<": _TOPIC_ID,
        "Responses.PartitionResponses.Index<": _PARTITION,
        "Responses.PartitionResponses.BaseOffset<": _OFFSET,
    },
    (FETCH, True): {
        "Responses.Topic<": _TOPIC,
        "Responses.TopicId<": _TOPIC_ID,
        "Responses.Partitions.PartitionIndex<": _PARTITION,
        "Responses.Partitions.HighWatermark<": _HIGH_WATERMARK,
        "Responses.Partitions.Records<": _RECORDS,
    },
    (METADATA, True): {"Topics.Name<": _TOPIC, "Topics.TopicId<": _TOPIC_ID},
}
_OF_MEMBER: Final = {"MemberId<": _MEMBER, "GenerationId<": _GENERATION, "GenerationIdOrMemberEpoch<": _GENERATION, "MemberEpoch<": _GENERATION}
_OF_GROUP: Final = {"GroupId<": _GROUP, "Members.MemberId<": _MEMBER, **_OF_MEMBER}
_CODES: Final = ("ErrorCode", "PartitionErrorCode")
_ANSWER_HEADER: Final[i64] = 4
_CLIENT_ID: Final[i64] = 8  # behind API key, version and correlation id
_UUID: Final[i64] = 16
_NO_UUID: Final = bytes(16)
_BATCH_START: Final[i64] = 12  # base offset and length, which does not count them
_MAGIC: Final[i64] = 16
_ATTRIBUTES: Final[i64] = 22  # the low byte
_CODEC: Final[i64] = 7
_CONTROL: Final[i64] = 32
_NEWEST: Final[i64] = 35
_COUNT: Final[i64] = 57
_BATCH_HEADER: Final[i64] = 61
_PLACE_BYTES: Final[i64] = 20
_RECENT: Final[i64] = 64  # how many texts are found again without a hash

_COLUMNS: Final = (
    "client_id acks group_id member_id generation error_code fault counts",
    "topic topic_id partition records record_bytes codec newest_ms base_offset high_watermark partition_error",
)
# of messages
_CLIENT_COLUMN: Final[i64] = 0  # of requests
_ACKS_COLUMN: Final[i64] = 1  # of Produce requests
_GROUP_COLUMN: Final[i64] = 2  # of requests
_MEMBER_COLUMN: Final[i64] = 3
_GENERATION_COLUMN: Final[i64] = 4
_ERROR_COLUMN: Final[i64] = 5  # of answers: the first one that is not 0, at the top or in an element; 0: all are
_FAULT_COLUMN: Final[i64] = 6  # why a message was not read to its end
_COUNT_COLUMN: Final[i64] = 7  # how many of the rows of partitions belong to each message
# of partitions. topic, topic_id: one of the two; in rows of a Metadata answer, which have no partition, both, when a topic's id is met first
_TOPIC_COLUMN: Final[i64] = 0
_TOPIC_ID_COLUMN: Final[i64] = 1
_PARTITION_COLUMN: Final[i64] = 2  # null: of a message that was not read to its end, whatever it has behind the rows before
# of Produce requests and Fetch answers: records of the batches, without control records of transactions; bytes of the batches; the codec of the last
# batch (``CODECS``); the greatest time of a record, ms of the epoch
_RECORDS_COLUMN: Final[i64] = 3
_BYTES_COLUMN: Final[i64] = 4
_CODEC_COLUMN: Final[i64] = 5
_NEWEST_COLUMN: Final[i64] = 6
_OFFSET_COLUMN: Final[i64] = 7  # of an answer: where the first record is in the partition
_HIGH_WATERMARK_COLUMN: Final[i64] = 8  # of an answer
_PARTITION_ERROR_COLUMN: Final[i64] = 9  # of an answer


class _Layout:
    """How the messages of one API and version are read."""

    def __init__(self, call: int, answer: bool) -> None:
        self.key: Final[i64] = call >> 16
        self.fault: str | None = None
        self.program: Program | None = None  # None where nothing of them is asked for, or where they are not understood: then ``fault`` says so
        self.compact: bool = False
        # a message that cannot be read to its end has a row of an unknown partition
        self.has_rows: Final = self.key == PRODUCE or (self.key == FETCH and answer)
        found = api(call >> 16)
        version = call & 0xFFFF
        if found is None or not found.least <= version <= found.most:
            self.fault = f"version {version} of API {call >> 16} is not understood"
            return
        marks = _marks(found, version, answer)
        if marks:
            self.program = compile_program(found, version, answer=answer, marks=marks, surplus=not answer)
            self.compact = self.program.compact


def _marks(known: Api, version: int, answer: bool) -> dict[str, int]:
    marks: dict[str, int] = {}
    if answer:
        _add_codes(known.fields(True), "", version, marks)
    if known.key in GROUP_APIS:
        marks.update(_OF_MEMBER if answer else _OF_GROUP)
    marks.update(_PARTITIONS.get((known.key, answer), {}))
    return marks


def _add_codes(fields: list[Field], path: str, version: int, marks: dict[str, int]) -> None:
    for field in fields:
        if field.is_in(version):
            if field.name in _CODES:
                marks[f"{path}{field.name}<"] = _ERROR
            _add_codes(field.fields, f"{path}{field.name}.", version, marks)


_LAYOUTS: Final[dict[int, _Layout]] = {}  # by API key << 17 | version << 1 | 1 for answers


def _length(data: bytes, pos: i64, end: i64, width: i64) -> tuple[i64, i64]:
    """A length at a position, and the position behind it; -1: null, -2: not stored whole. ``width``: its bytes; 0: a varint that counts from 1."""
    if width == 0:
        last = pos
        while last < end and data[last] >= 0x80:
            last += 1
        if last >= end:
            return -2, end
        size, after = varint_at(data, pos)
        return size - 1, after
    if pos + width > end:
        return -2, end
    return (i64(read_i16_be(data, pos)) if width == 2 else i64(read_i32_be(data, pos))), pos + width


@final
class _Rows:
    """Columns behind each other in one array: a row costs the values that are set, all others are ``NOT_KNOWN``."""

    def __init__(self, columns: str) -> None:
        self.names: Final = columns.split()
        self.values: vec[i64] = vec[i64]()
        self.capacity: i64 = 0  # of each column
        self.count: i64 = 0

    def reserve(self, more: i64) -> None:
        """Make place for rows."""
        before, old = self.values, self.capacity
        if self.count + more <= old:
            return
        self.capacity = max(self.count + more, 2 * old)
        values = self.values = vec[i64]([NOT_KNOWN] * (self.capacity * i64(len(self.names))))
        for column in range(i64(len(self.names))):
            for row in range(self.count):
                values[column * self.capacity + row] = before[column * old + row]

    def add(self) -> i64:
        """A row of which nothing is known yet; returns its number."""
        if self.count == self.capacity:
            self.reserve(1)
        self.count += 1
        return self.count - 1

    def set(self, column: i64, row: i64, value: i64) -> None:
        self.values[column * self.capacity + row] = value


class Contents:
    """``NOT_KNOWN`` stands for null; strings are indices of ``texts``."""

    def __init__(self) -> None:
        self.texts: Final[list[str]] = []  # each one once
        self._messages: Final = _Rows(_COLUMNS[0])
        self._partitions: Final = _Rows(_COLUMNS[1])
        self._walker: Final = Walker()
        self._indices: Final[dict[bytes, int]] = {}  # of ``texts``
        self._recent: Final[list[bytes]] = [b""] * _RECENT
        self._recent_indices: vec[i64] = vec[i64]([-1] * _RECENT)
        self._known_ids: Final[set[i64]] = set()
        # of the last message
        self._layout: _Layout | None = None
        self._kind: i64 = -1
        self._message: i64 = -1  # its row
        self._row: i64 = -1  # of the present partition
        self._topic: i64 = NOT_KNOWN
        self._topic_id: i64 = NOT_KNOWN
        self._member: i64 = NOT_KNOWN
        self._error: i64 = NOT_KNOWN
        self._base_offset: i64 = NOT_KNOWN
        self._newest: i64 = NOT_KNOWN
        self._codec: i64 = NOT_KNOWN

    def column(self, name: str) -> memoryview:
        """A column, of messages or of partitions, by its name in ``_COLUMNS``."""
        rows = self._messages if name in self._messages.names else self._partitions
        begin = rows.names.index(name) * rows.capacity
        return memoryview(rows.values)[begin : begin + rows.count]

    def add(self, data: bytes, places: bytes) -> None:
        """Read messages. ``places``: five columns of little-endian int32, one behind the other: where each body begins and ends in ``data``, as far
        as it is stored; its size; the API key << 16 | version of the request, or of the one that is answered; and 1 for an answer, 0 for a request.
        """
        count = i64(len(places)) // _PLACE_BYTES
        self._messages.reserve(count)
        self._partitions.reserve(count)
        column = 4 * count
        for at in range(0, column, 4):
            self._add(
                data,
                i64(read_i32_le(places, at)),
                i64(read_i32_le(places, at + column)),
                i64(read_i32_le(places, at + 2 * column)),
                i64(read_i32_le(places, at + 3 * column)),
                read_i32_le(places, at + 4 * column) == 1,
            )

    def _add(self, data: bytes, start: i64, end: i64, size: i64, call: i64, answer: bool) -> None:
        kind = call << 1 | i64(answer)
        layout = self._layout
        if layout is None or kind != self._kind:
            layout = _LAYOUTS.get(int(kind))
            if layout is None:
                layout = _LAYOUTS[int(kind)] = _Layout(int(call), answer)
            self._layout, self._kind = layout, kind
        fault = layout.fault
        messages = self._messages
        first = self._partitions.count
        self._message = messages.add()
        self._topic = self._topic_id = self._member = self._error = NOT_KNOWN
        if layout.program is not None:
            try:
                fault = self._walk(layout, layout.program, data, start, end, size, answer)
            except KafkaFormatError as error:
                fault = str(error)
            if self._error != NOT_KNOWN or (answer and fault is None):
                messages.set(_ERROR_COLUMN, self._message, 0 if self._error == NOT_KNOWN else self._error)
        if fault is not None and layout.has_rows:
            self._topic = self._topic_id = NOT_KNOWN
            self._open(NOT_KNOWN)
        if not answer:
            messages.set(_CLIENT_COLUMN, self._message, self._text(data, start + _CLIENT_ID, end, False))
        if fault is not None:
            messages.set(_FAULT_COLUMN, self._message, self._index(fault.encode(), fault))
        messages.set(_COUNT_COLUMN, self._message, self._partitions.count - first)

    def _open(self, partition: i64) -> None:
        """A row of a partition, of which nothing else is known yet."""
        rows = self._partitions
        row = rows.add()
        rows.set(_TOPIC_COLUMN, row, self._topic)
        rows.set(_TOPIC_ID_COLUMN, row, self._topic_id)
        rows.set(_PARTITION_COLUMN, row, partition)

    def _walk(self, layout: _Layout, program: Program, data: bytes, start: i64, end: i64, size: i64, answer: bool) -> str | None:
        """Read what the marks tell; returns why there may be more. Raises KafkaFormatError."""
        walker = self._walker
        walker.begin(program, start, start + size)
        fault: KafkaFormatError | None = None
        ended = True
        try:
            ended = walker.feed(data, start, end)
        except KafkaFormatError as error:
            fault = error
        marks = walker.marks
        self._row = -1
        index: i64 = 0
        while index < i64(len(marks)):
            mark, pos = marks[index], marks[index + 1]
            index += 2
            if mark <= _TOPIC_ID:
                self._take_topic(mark, data, pos, end, layout)
            elif mark <= _HIGH_WATERMARK:
                self._take_of_partition(mark, data, pos, end, layout.compact, answer)
            else:
                self._take_of_message(mark, data, pos, end, layout.compact)
        if fault is not None:
            raise fault
        return None if ended else CUT

    def _take_topic(self, mark: i64, data: bytes, pos: i64, end: i64, layout: _Layout) -> None:
        self._row = -1
        if mark == _TOPIC:
            self._topic, self._topic_id = self._text(data, pos, end, layout.compact), NOT_KNOWN
        elif pos + _UUID <= end:
            self._take_id(data[pos : pos + _UUID], layout.key)

    def _take_of_partition(self, mark: i64, data: bytes, pos: i64, end: i64, compact: bool, answer: bool) -> None:
        row = self._row
        if mark == _PARTITION:
            if pos + 4 <= end:
                self._row = self._partitions.count
                self._open(i64(read_i32_be(data, pos)))
        elif mark == _ERROR:
            self._take_error(data, pos, end)
        elif row >= 0 and mark == _RECORDS:
            self._take_records(row, data, pos, end, compact, answer)
        elif row >= 0 and pos + 8 <= end:
            number = i64(read_i64_be(data, pos))
            if number >= 0:
                self._partitions.set(_OFFSET_COLUMN if mark == _OFFSET else _HIGH_WATERMARK_COLUMN, row, number)

    def _take_error(self, data: bytes, pos: i64, end: i64) -> None:
        if pos + 2 <= end:
            code = i64(read_i16_be(data, pos))
            if self._error == NOT_KNOWN and code != 0:
                self._error = code
            if self._row >= 0:
                self._partitions.set(_PARTITION_ERROR_COLUMN, self._row, code)

    def _take_of_message(self, mark: i64, data: bytes, pos: i64, end: i64, compact: bool) -> None:
        if mark == _GROUP:
            self._messages.set(_GROUP_COLUMN, self._message, self._text(data, pos, end, compact))
        elif mark == _MEMBER:
            if self._member < 0 or not self.texts[self._member]:
                self._member = self._text(data, pos, end, compact)
                self._messages.set(_MEMBER_COLUMN, self._message, self._member)
        elif mark == _ACKS:
            if pos + 2 <= end:
                self._messages.set(_ACKS_COLUMN, self._message, i64(read_i16_be(data, pos)))
        elif pos + 4 <= end:
            self._messages.set(_GENERATION_COLUMN, self._message, i64(read_i32_be(data, pos)))

    def _take_id(self, value: bytes, key: i64) -> None:
        """Take a topic's id: instead of its name, or beside it in a Metadata answer."""
        index: i64 = NOT_KNOWN
        if value != _NO_UUID:
            text = base64.urlsafe_b64encode(value)[:22]
            index = self._index(text, text.decode())
        if key != METADATA:
            self._topic, self._topic_id = NOT_KNOWN, index
        elif index >= 0 and self._topic >= 0 and index not in self._known_ids:
            self._known_ids.add(index)
            self._topic_id = index
            self._open(NOT_KNOWN)

    def _text(self, data: bytes, pos: i64, end: i64, compact: bool) -> i64:
        """The string at a position; null also if it is not stored whole. Bytes that are no UTF-8 are replaced."""
        size, begin = _length(data, pos, end, 0 if compact else 2)
        if size < 0 or begin + size > end:
            return NOT_KNOWN
        slot = (size + i64(data[begin + size - 1])) % _RECENT  # the byte before an empty string is of its length
        recent = self._recent[slot]
        if size == i64(len(recent)) and self._recent_indices[slot] >= 0:
            at: i64 = 0
            while at + 8 <= size and read_i64_le(recent, at) == read_i64_le(data, begin + at):
                at += 8
            while at < size and recent[at] == data[begin + at]:
                at += 1
            if at == size:
                return self._recent_indices[slot]
        value = data[begin : begin + size]
        found = self._indices.get(value)
        index = self._index(value, value.decode(errors="replace")) if found is None else i64(found)
        self._recent[slot], self._recent_indices[slot] = value, index
        return index

    def _index(self, key: bytes, text: str) -> i64:
        """The index of a text; ``key`` identifies it."""
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = len(self.texts)
            self.texts.append(text)
        return index

    def _take_records(self, row: i64, data: bytes, pos: i64, end: i64, compact: bool, answer: bool) -> None:
        """Count the records of a partition, as far as they are stored."""
        size, begin = _length(data, pos, end, 0 if compact else 4)
        if size < -1:
            return
        size = max(size, 0)
        self._base_offset = self._newest = self._codec = NOT_KNOWN
        rows = self._partitions
        rows.set(_BYTES_COLUMN, row, size)
        rows.set(_RECORDS_COLUMN, row, self._count(data, begin, begin + size, end))
        rows.set(_CODEC_COLUMN, row, self._codec)
        rows.set(_NEWEST_COLUMN, row, self._newest)
        if answer:
            rows.set(_OFFSET_COLUMN, row, self._base_offset)

    def _count(self, data: bytes, pos: i64, stop: i64, end: i64) -> i64:
        """The records of the batches up to ``stop``, of which what lies before ``end`` is stored. A Fetch answer may end within a batch."""
        count: i64 = 0
        while pos + _BATCH_HEADER <= stop:
            if pos + _BATCH_HEADER > end or data[pos + _MAGIC] != 2:
                return NOT_KNOWN
            after = pos + _BATCH_START + i64(read_i32_be(data, pos + 8))
            records = i64(read_i32_be(data, pos + _COUNT))
            if after < pos + _BATCH_HEADER or records < 0:
                return NOT_KNOWN
            if after > stop:
                break
            if self._base_offset == NOT_KNOWN:
                self._base_offset = i64(read_i64_be(data, pos))
            attributes = i64(data[pos + _ATTRIBUTES])
            if attributes & _CONTROL == 0:
                count += records
                self._codec = attributes & _CODEC
                newest = i64(read_i64_be(data, pos + _NEWEST))
                if newest > self._newest:
                    self._newest = newest
            pos = after
        return count
