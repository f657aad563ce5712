"""Finds fields of requests and answers in place: topics, groups, transactional ids, or any field by its name.

What a field identifies is in Kafka's schemas: ``topicName``, ``groupId``, ``transactionalId``, ``brokerId``, ``producerId``.
"""

from typing import Final

from librt.strings import read_i16_be
from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import Field, known_api
from framegate.proxy.kafka.values import string_at
from framegate.proxy.kafka.walker import Walker

__all__ = ["FieldFinder", "client_id", "paths"]

_CLIENT_ID: Final = 8  # position in a request's header
_BEGIN: Final = 1  # marks
_END: Final = 2


def paths(fields: list[Field], version: int, wanted: str, prefix: str = "") -> list[str]:
    """The paths (see ``program``) of fields that identify ``wanted``, or are called so; of an array of values the path of its elements."""
    found: list[str] = []
    for field in fields:
        if field.is_in(version):
            path = prefix + field.name
            if wanted in (field.entity, field.name):
                found.append(path + "[]" if field.array and not field.fields else path)
            found += paths(field.fields, version, wanted, path + ".")
    return found


class FieldFinder:
    """Finds the same kind of fields in one message after the other.

    Args:
        wanted: what they identify, or their name.
        answer: look into answers, not requests.

    Attributes:
        is_whole: the last message was there to the last of these fields.
        compact: the form of strings in the last message, for ``string_at``.
    """

    def __init__(self, wanted: str, *, answer: bool = False) -> None:
        self.is_whole: bool = True
        self.compact: bool = False
        self._wanted: Final = wanted
        self._answer: Final = answer
        self._walker: Final = Walker()
        self._programs: Final[dict[int, Program]] = {}

    def spans(self, key: i64, version: i64, data: bytes, start: i64, end: i64, size: i64 = -1) -> "vec[i64]":
        """Where the fields begin and end in ``data``, lengths included: begin, end, begin, end …

        Args:
            key, version: of the request.
            data: has the body of the message from ``start`` to ``end``.
            start, end: see above.
            size: bytes of the whole body, if only its first part is there; then the fields within that part are found, and ``is_whole`` is set.

        Raises:
            KafkaFormatError: the message does not follow its schema, or its version is not understood.
        """
        program = self._program(key, version)
        walker = self._walker
        walker.begin(program, start, end if size < 0 else start + size)
        self.is_whole = walker.feed(data, start, end)
        self.compact = program.compact
        marks = walker.marks
        found = vec[i64]()
        index: i64 = 0
        while index + 3 < i64(len(marks)):
            if marks[index] == _BEGIN and marks[index + 2] == _END and marks[index + 3] <= end:
                found = append(append(found, marks[index + 1]), marks[index + 3])
            index += 2
        return found

    def texts(self, key: i64, version: i64, data: bytes, start: i64, end: i64, size: i64 = -1) -> list[str | None]:
        """The fields, which are strings; see ``spans``."""
        spans = self.spans(key, version, data, start, end, size)
        return [string_at(data, spans[index], self.compact)[0] for index in range(0, len(spans), 2)]

    def _program(self, key: i64, version: i64) -> Program:
        found = self._programs.get(key << 16 | version)
        if found is None:
            known = known_api(key, version)
            marks: dict[str, int] = {}
            for path in paths(known.fields(self._answer), version, self._wanted):
                marks[path + "<"] = _BEGIN
                marks[path + ">"] = _END
            found = self._programs[key << 16 | version] = compile_program(known, version, answer=self._answer, marks=marks, head=True)
        return found


def client_id(data: bytes, start: i64, end: i64) -> str | None:
    """The client id in the header of a request whose body is in ``data``. Raises KafkaFormatError if it is not there."""
    pos = start + _CLIENT_ID
    if pos + 2 > end or pos + 2 + i64(read_i16_be(data, pos)) > end or read_i16_be(data, pos) < -1:
        raise KafkaFormatError("a client id beyond the end of the message", _CLIENT_ID, side="downstream")
    return string_at(data, pos, False)[0]
