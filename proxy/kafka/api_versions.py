"""ApiVersions: answers narrowed to what framegate understands, and the messages of ApiVersions that framegate itself sends."""

import struct
from typing import Final

from librt.strings import read_i16_be
from librt.vecs import vec
from mypy_extensions import i32, i64

from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import API_VERSIONS, api, known_api
from framegate.proxy.kafka.values import varint
from framegate.proxy.kafka.walker import Walker

UNSUPPORTED_VERSION: Final = 35

_ARRAY: Final = 1  # marks
_ELEMENT: Final = 2
_ELEMENT_END: Final = 3
_ARRAY_END: Final = 4
_MARKS: Final = {"ApiKeys<": _ARRAY, "ApiKeys[]<": _ELEMENT, "ApiKeys[]>": _ELEMENT_END, "ApiKeys>": _ARRAY_END}
_walker: Final = Walker()
_programs: Final[dict[int, Program]] = {}


def _program(version: i64) -> Program:
    found = _programs.get(version)
    if found is None:
        found = _programs[version] = compile_program(known_api(API_VERSIONS, version), version, answer=True, marks=_MARKS)
    return found


def narrowed(version: i64, data: bytes, start: i64, end: i64, greatest: "vec[i32] | None" = None) -> list[bytes] | None:
    """Remove what framegate does not understand from an ApiVersions answer: APIs that it does not know, and versions above those that it knows.

    Least versions, features and the throttle time stay. An answer with UNSUPPORTED_VERSION has the form of version 0, whatever was asked.

    ``data``: has the body of the answer, from the correlation id on. ``greatest``: by API key, the greatest version that is offered, -1 none; None:
    all that are understood.

    Returns the new body in pieces; None: nothing changes.

    Raises KafkaFormatError: the answer does not follow its schema, or the version is unknown.
    """
    if end - start >= 6 and i64(read_i16_be(data, start + 4)) == UNSUPPORTED_VERSION:
        version = 0
    program = _program(version)
    marks = _walker.walk(program, data, start, end)
    elements: list[bytes] = []
    changed = False
    array: i64 = 0
    element: i64 = 0
    index: i64 = 0
    while index < i64(len(marks)):
        pos = marks[index + 1]
        if marks[index] == _ARRAY:
            array = pos
        elif marks[index] == _ELEMENT:
            element = pos
        elif marks[index] == _ELEMENT_END:
            known = api(read_i16_be(data, element))
            most: i64 = -1 if known is None else known.most if greatest is None else min(i64(greatest[known.key]), known.most)
            if most < i64(read_i16_be(data, element + 2)):
                changed = True
            elif most < i64(read_i16_be(data, element + 4)):
                changed = True
                elements.append(data[element : element + 4] + struct.pack(">h", most) + data[element + 6 : pos])
            else:
                elements.append(data[element:pos])
        elif changed:  # _ARRAY_END
            count = varint(len(elements) + 1) if program.compact else struct.pack(">i", len(elements))
            return [data[start:array], count, *elements, data[pos:end]]
        index += 2
    return None


def unsupported_version_answer(correlation_id: int) -> bytes:
    """The body of a broker's answer to an ApiVersions request of a version that it does not know: version 0, with the versions of ApiVersions."""
    known = known_api(API_VERSIONS, 0)
    return struct.pack(">ihihhh", correlation_id, UNSUPPORTED_VERSION, 1, API_VERSIONS, known.least, known.most)


def probe_request(correlation_id: int) -> bytes:
    """The body of an ApiVersions request of version 0: the smallest one that every broker answers."""
    return struct.pack(">hhih", API_VERSIONS, 0, correlation_id, -1)
