"""Reads what requests and answers say for the tables of the pipeline: clients, groups, topics, partitions, records, error codes.

``Contents`` collects columns; a message is a row of them, and a partition of a Produce request or answer, or of a Fetch answer, a row of others.
Record batches are counted by their headers, whatever their codec. A message may be stored in part: what is there is read, the rest is not known.

Source: record batches with magic 2 (``DefaultRecordBatch``); older ones have no count, so their records are not known.
"""

import base64
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i32_le, read_i64_be
from librt.vecs import append, vec
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


class Contents:
    """The columns. ``NOT_KNOWN`` stands for null; strings are indices of ``texts``, and -1 for null."""

    def __init__(self) -> None:
        self.texts: Final[list[str]] = []  # each one once
        # client_id, acks, group_id, member_id, generation: of requests; the last two of answers, too. Acks are of Produce.
        self.client_id: vec[i64] = vec[i64]()
        self.acks: vec[i64] = vec[i64]()
        self.group_id: vec[i64] = vec[i64]()
        self.member_id: vec[i64] = vec[i64]()
        self.generation: vec[i64] = vec[i64]()
        self.error_code: vec[i64] = vec[i64]()  # of answers: the first one that is not 0, at the top or in an element; 0: all are
        self.fault: vec[i64] = vec[i64]()  # why a message was not read to its end
        self.counts: vec[i64] = vec[i64]()  # how many of the rows below belong to each message
        # topic, topic_id: one of the two; in rows of a Metadata answer, which have no partition, both, when a topic's id is met first
        self.topic: vec[i64] = vec[i64]()
        self.topic_id: vec[i64] = vec[i64]()
        # the number; NOT_KNOWN: of a message that was not read to its end, whatever it has behind the rows before
        self.partition: vec[i64] = vec[i64]()
        # records, codec, newest_ms: records of the batches, the codec of the last batch (``CODECS``), the greatest time of a record, ms of the epoch;
        # of Produce requests and Fetch answers. Control records of transactions do not count.
        self.records: vec[i64] = vec[i64]()
        self.record_bytes: vec[i64] = vec[i64]()  # of the batches
        self.codec: vec[i64] = vec[i64]()
        self.newest_ms: vec[i64] = vec[i64]()
        self.base_offset: vec[i64] = vec[i64]()  # of an answer: where the first record is in the partition
        # high_watermark, partition_error: of an answer
        self.high_watermark: vec[i64] = vec[i64]()
        self.partition_error: vec[i64] = vec[i64]()
        self._walker: Final = Walker()
        self._indices: Final[dict[bytes, int]] = {}  # of ``texts``
        self._known_ids: Final[set[i64]] = set()
        # of the last message
        self._layout: _Layout | None = None
        self._kind: i64 = -1
        self._row: i64 = -1  # of the present partition
        self._topic: i64 = -1
        self._topic_id: i64 = -1
        self._acks: i64 = NOT_KNOWN
        self._group: i64 = -1
        self._member: i64 = -1
        self._generation: i64 = NOT_KNOWN
        self._error: i64 = NOT_KNOWN
        self._base_offset: i64 = NOT_KNOWN
        self._newest: i64 = NOT_KNOWN
        self._codec: i64 = NOT_KNOWN

    def add(self, data: bytes, places: bytes) -> None:
        """Read messages. ``places``: of each, five little-endian int32: where its body begins and ends in ``data``, as far as it is stored; its size;
        the API key << 16 | version of the request, or of the request that is answered; and 1 for an answer, 0 for a request.
        """
        end = i64(len(places))
        at: i64 = 0
        while at < end:
            self._message(
                data,
                i64(read_i32_le(places, at)),
                i64(read_i32_le(places, at + 4)),
                i64(read_i32_le(places, at + 8)),
                i64(read_i32_le(places, at + 12)),
                read_i32_le(places, at + 16) == 1,
            )
            at += _PLACE_BYTES

    def _message(self, data: bytes, start: i64, end: i64, size: i64, call: i64, answer: bool) -> None:
        kind = call << 1 | i64(answer)
        layout = self._layout
        if layout is None or kind != self._kind:
            layout = _LAYOUTS.get(int(kind))
            if layout is None:
                layout = _LAYOUTS[int(kind)] = _Layout(int(call), answer)
            self._layout, self._kind = layout, kind
        fault = layout.fault
        first = i64(len(self.partition))
        self._topic = self._topic_id = self._group = self._member = -1
        self._acks = self._generation = self._error = NOT_KNOWN
        if layout.program is not None:
            try:
                fault = self._walk(layout, layout.program, data, start, end, size, answer)
            except KafkaFormatError as error:
                fault = str(error)
            if answer and fault is None and self._error == NOT_KNOWN:
                self._error = 0
        if fault is not None and layout.has_rows:
            self._topic = self._topic_id = -1
            self._open(NOT_KNOWN)
        self.client_id = append(self.client_id, -1 if answer else self._text(data, start + _CLIENT_ID, end, False))
        self.acks = append(self.acks, self._acks)
        self.group_id = append(self.group_id, self._group)
        self.member_id = append(self.member_id, self._member)
        self.generation = append(self.generation, self._generation)
        self.error_code = append(self.error_code, self._error)
        self.fault = append(self.fault, -1 if fault is None else self._index(fault.encode(), fault))
        self.counts = append(self.counts, i64(len(self.partition)) - first)

    def _open(self, partition: i64) -> None:
        """A row of a partition, of which nothing else is known yet."""
        self.topic = append(self.topic, self._topic)
        self.topic_id = append(self.topic_id, self._topic_id)
        self.partition = append(self.partition, partition)
        self.records = append(self.records, NOT_KNOWN)
        self.record_bytes = append(self.record_bytes, NOT_KNOWN)
        self.codec = append(self.codec, NOT_KNOWN)
        self.newest_ms = append(self.newest_ms, NOT_KNOWN)
        self.base_offset = append(self.base_offset, NOT_KNOWN)
        self.high_watermark = append(self.high_watermark, NOT_KNOWN)
        self.partition_error = append(self.partition_error, NOT_KNOWN)

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
            self._topic = self._text(data, pos, end, layout.compact)
            self._topic_id = -1
        elif pos + _UUID <= end:
            self._take_id(data[pos : pos + _UUID], layout.key)

    def _take_of_partition(self, mark: i64, data: bytes, pos: i64, end: i64, compact: bool, answer: bool) -> None:
        row = self._row
        if mark == _PARTITION:
            if pos + 4 <= end:
                self._row = i64(len(self.partition))
                self._open(i64(read_i32_be(data, pos)))
        elif mark == _ERROR:
            self._take_error(data, pos, end)
        elif row >= 0 and mark == _RECORDS:
            self._take_records(row, data, pos, end, compact, answer)
        elif row >= 0 and pos + 8 <= end:
            number = i64(read_i64_be(data, pos))
            if number < 0:
                return
            if mark == _OFFSET:
                self.base_offset[row] = number
            else:
                self.high_watermark[row] = number

    def _take_error(self, data: bytes, pos: i64, end: i64) -> None:
        if pos + 2 <= end:
            code = i64(read_i16_be(data, pos))
            if self._error == NOT_KNOWN and code != 0:
                self._error = code
            if self._row >= 0:
                self.partition_error[self._row] = code

    def _take_of_message(self, mark: i64, data: bytes, pos: i64, end: i64, compact: bool) -> None:
        if mark == _GROUP:
            self._group = self._text(data, pos, end, compact)
        elif mark == _MEMBER:
            if self._member < 0 or not self.texts[self._member]:
                self._member = self._text(data, pos, end, compact)
        elif mark == _ACKS:
            if pos + 2 <= end:
                self._acks = i64(read_i16_be(data, pos))
        elif pos + 4 <= end:
            self._generation = i64(read_i32_be(data, pos))

    def _take_id(self, value: bytes, key: i64) -> None:
        """Take a topic's id: instead of its name, or beside it in a Metadata answer."""
        index: i64 = -1
        if value != _NO_UUID:
            text = base64.urlsafe_b64encode(value)[:22]
            index = self._index(text, text.decode())
        if key != METADATA:
            self._topic, self._topic_id = -1, index
        elif index >= 0 and self._topic >= 0 and index not in self._known_ids:
            self._known_ids.add(index)
            self._topic_id = index
            self._open(NOT_KNOWN)

    def _text(self, data: bytes, pos: i64, end: i64, compact: bool) -> i64:
        """The string at a position; -1: null, or not stored whole. Bytes that are no UTF-8 are replaced."""
        size, begin = _length(data, pos, end, 0 if compact else 2)
        if size < 0 or begin + size > end:
            return -1
        value = data[begin : begin + size]
        index = self._indices.get(value)
        return self._index(value, value.decode(errors="replace")) if index is None else index

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
        self.record_bytes[row] = size
        self._base_offset = self._newest = self._codec = NOT_KNOWN
        self.records[row] = self._count(data, begin, begin + size, end)
        self.codec[row], self.newest_ms[row] = self._codec, self._newest
        if answer:
            self.base_offset[row] = self._base_offset

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
