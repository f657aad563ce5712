"""Reads what requests and answers say for the tables of the pipeline: clients, groups, topics, partitions, records, error codes.

``Contents`` collects columns; a message is a row of them, and a partition of a Produce request or answer, or of a Fetch answer, a row of others.
Record batches are counted by their headers, whatever their codec. A message may be stored in part: what is there is read, the rest is not known.

Source: record batches with magic 2 (``DefaultRecordBatch``); older ones have no count, so their records are not known.
"""

import base64
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import Api, Field, api
from framegate.proxy.kafka.values import string_at, varint_at
from framegate.proxy.kafka.walker import Walker

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
GROUP_APIS: Final = (8, 11, 12, 13, 14, 28, 68, 76, 88)
"""Requests of a member of a group: OffsetCommit, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, TxnOffsetCommit, and the heartbeats of consumer, share
and streams groups.
"""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NOT_KNOWN: Final = -(1 << 31)  # Stands for null in columns of integers
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
_MOST_TEXTS: Final = 4096


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


_LAYOUTS: Final[dict[int, _Layout]] = {}


def _layout(call: i64, answer: bool) -> _Layout:
    place = int(call << 1 | answer)
    found = _LAYOUTS.get(place)
    if found is None:
        found = _LAYOUTS[place] = _Layout(int(call), answer)
    return found


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
    """The columns. ``NOT_KNOWN`` and None stand for null."""

    def __init__(self) -> None:
        # client_id, acks, group_id, member_id, generation: of requests; the last two of answers, too. Acks are of Produce.
        self.client_id: Final[list[str | None]] = []
        self.acks: Final[list[int]] = []
        self.group_id: Final[list[str | None]] = []
        self.member_id: Final[list[str | None]] = []
        self.generation: Final[list[int]] = []
        self.error_code: Final[list[int]] = []  # of answers: the first one that is not 0, at the top or in an element; 0: all are
        self.fault: Final[list[str | None]] = []  # why a message was not read to its end
        self.counts: Final[list[int]] = []  # how many of the rows below belong to each message
        # topic, topic_id: one of the two; in rows of a Metadata answer, which have no partition, both, when a topic's id is met first
        self.topic: Final[list[str | None]] = []
        self.topic_id: Final[list[str | None]] = []
        # the number; NOT_KNOWN: of a message that was not read to its end, whatever it has behind the rows before
        self.partition: Final[list[int]] = []
        # records, codec, newest_ms: records of the batches, the codec of the last batch (``CODECS``), the greatest time of a record, ms of the epoch;
        # of Produce requests and Fetch answers. Control records of transactions do not count.
        self.records: Final[list[int]] = []
        self.record_bytes: Final[list[int]] = []  # of the batches
        self.codec: Final[list[int]] = []
        self.newest_ms: Final[list[int]] = []
        self.base_offset: Final[list[int]] = []  # of an answer: where the first record is in the partition
        # high_watermark, partition_error: of an answer
        self.high_watermark: Final[list[int]] = []
        self.partition_error: Final[list[int]] = []
        self._walker: Final = Walker()
        self._texts: Final[dict[bytes, str]] = {}
        self._known_ids: Final[set[str]] = set()
        self._row: i64 = -1  # of the present partition
        self._topic: str | None = None
        self._topic_id: str | None = None
        self._acks: int = NOT_KNOWN
        self._group: str | None = None
        self._member: str | None = None
        self._generation: int = NOT_KNOWN
        self._error: int = NOT_KNOWN
        self._base_offset: int = NOT_KNOWN
        self._newest: int = NOT_KNOWN
        self._codec: int = NOT_KNOWN

    def add(self, data: bytes, starts: list[int], ends: list[int], sizes: list[int], calls: list[int], answers: list[bool]) -> None:
        """Read messages. ``starts``, ``ends``: of each body in ``data``, as far as it is stored. ``calls``: API key << 16 | version of each request,
        or of the request that is answered.
        """
        for start, end, size, call, answer in zip(starts, ends, sizes, calls, answers, strict=True):
            self._message(data, start, end, size, call, answer)

    def _message(self, data: bytes, start: i64, end: i64, size: i64, call: i64, answer: bool) -> None:
        layout = _layout(call, answer)
        fault = layout.fault
        first = len(self.partition)
        self._forget()
        if layout.program is not None:
            try:
                fault = self._walk(layout, layout.program, data, start, end, size, answer)
            except KafkaFormatError as error:
                fault = str(error)
            if answer and fault is None and self._error == NOT_KNOWN:
                self._error = 0
        if fault is not None and layout.has_rows:
            self._topic = self._topic_id = None
            self._open(NOT_KNOWN)
        self.client_id.append(None if answer else self._text(data, start + _CLIENT_ID, end, False))
        self.acks.append(self._acks)
        self.group_id.append(self._group)
        self.member_id.append(self._member)
        self.generation.append(self._generation)
        self.error_code.append(self._error)
        self.fault.append(fault)
        self.counts.append(len(self.partition) - first)

    def _forget(self) -> None:
        """Nothing is known of the next message. A method of its own: mypyc would take None for the type of what is set so in the caller."""
        self._topic = self._topic_id = self._group = self._member = None
        self._acks = self._generation = self._error = NOT_KNOWN

    def _open(self, partition: int) -> None:
        """A row of a partition, of which nothing else is known yet."""
        self.topic.append(self._topic)
        self.topic_id.append(self._topic_id)
        self.partition.append(partition)
        self.records.append(NOT_KNOWN)
        self.record_bytes.append(NOT_KNOWN)
        self.codec.append(NOT_KNOWN)
        self.newest_ms.append(NOT_KNOWN)
        self.base_offset.append(NOT_KNOWN)
        self.high_watermark.append(NOT_KNOWN)
        self.partition_error.append(NOT_KNOWN)

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
            self._topic, self._topic_id = self._text(data, pos, end, layout.compact), None
        elif pos + _UUID <= end:
            self._take_id(data[pos : pos + _UUID], layout.key)

    def _take_of_partition(self, mark: i64, data: bytes, pos: i64, end: i64, compact: bool, answer: bool) -> None:
        row = self._row
        if mark == _PARTITION:
            if pos + 4 <= end:
                self._row = len(self.partition)
                self._open(int(read_i32_be(data, pos)))
        elif mark == _ERROR:
            self._take_error(data, pos, end)
        elif row >= 0 and mark == _RECORDS:
            self._take_records(row, data, pos, end, compact, answer)
        elif row >= 0 and pos + 8 <= end:
            number = i64(read_i64_be(data, pos))
            if number >= 0:
                (self.base_offset if mark == _OFFSET else self.high_watermark)[row] = int(number)

    def _take_error(self, data: bytes, pos: i64, end: i64) -> None:
        if pos + 2 <= end:
            code = int(read_i16_be(data, pos))
            if self._error == NOT_KNOWN and code != 0:
                self._error = code
            if self._row >= 0:
                self.partition_error[self._row] = code

    def _take_of_message(self, mark: i64, data: bytes, pos: i64, end: i64, compact: bool) -> None:
        if mark == _GROUP:
            self._group = self._text(data, pos, end, compact)
        elif mark == _MEMBER:
            self._member = self._member or self._text(data, pos, end, compact)
        elif mark == _ACKS:
            if pos + 2 <= end:
                self._acks = int(read_i16_be(data, pos))
        elif pos + 4 <= end:
            self._generation = int(read_i32_be(data, pos))

    def _take_id(self, value: bytes, key: i64) -> None:
        """Take a topic's id: instead of its name, or beside it in a Metadata answer."""
        text = None if value == _NO_UUID else base64.urlsafe_b64encode(value)[:22].decode()
        if key != METADATA:
            self._topic, self._topic_id = None, text
        elif text is not None and self._topic is not None and text not in self._known_ids:
            self._known_ids.add(text)
            self._topic_id = text
            self._open(NOT_KNOWN)

    def _text(self, data: bytes, pos: i64, end: i64, compact: bool) -> str | None:
        """The string at a position; None: null, or not stored whole."""
        size, begin = _length(data, pos, end, 0 if compact else 2)
        if size < 0 or begin + size > end:
            return None
        value = data[begin : begin + size]
        text = self._texts.get(value)
        if text is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            text = self._texts[value] = string_at(data, pos, compact)[0] or ""
        return text

    def _take_records(self, row: i64, data: bytes, pos: i64, end: i64, compact: bool, answer: bool) -> None:
        """Count the records of a partition, as far as they are stored."""
        size, begin = _length(data, pos, end, 0 if compact else 4)
        if size < -1:
            return
        size = max(size, 0)
        self.record_bytes[row] = int(size)
        self._base_offset = self._newest = self._codec = NOT_KNOWN
        self.records[row] = int(self._count(data, begin, begin + size, end))
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
                self._base_offset = int(read_i64_be(data, pos))
            attributes = i64(data[pos + _ATTRIBUTES])
            if attributes & _CONTROL == 0:
                count += records
                self._codec = int(attributes & _CODEC)
                newest = int(read_i64_be(data, pos + _NEWEST))
                if newest > self._newest:
                    self._newest = newest
            pos = after
        return count
