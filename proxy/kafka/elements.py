"""Removes elements of arrays from a message, and appends others: what is not allowed leaves a request, and comes back as errors in its answer.

An element is removed from the innermost array around the field that decides: the topic of a Produce request, the topic of one group of an OffsetFetch
request. The rest of the message is slices of what it was.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from librt.strings import read_i32_be
from mypy_extensions import i64

from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import Field, known_api
from framegate.proxy.kafka.values import string_at, varint, varint_at
from framegate.proxy.kafka.walker import Walker

__all__ = ["Removal", "appended", "without_elements"]

_ARRAY: Final = 1  # marks
_ARRAY_END: Final = 2
_ELEMENT_END: Final = 3
_ELEMENT: Final = 4  # an element begins
_VALUE: Final = 5  # an element begins, and decides
_NAME: Final = 6  # a field that decides
_walker: Final = Walker()
_programs: Final[dict[tuple[int, int, bool, str], Program]] = {}


class Removal(NamedTuple):
    """``pieces``: the new body; ``removed``: the texts of the fields that decided."""

    pieces: list[bytes]
    removed: list[str]


def without_elements(key: int, version: int, data: bytes, start: i64, end: i64, wanted: str, refuse: Callable[[str], bool]) -> Removal | None:
    """Remove elements from a request.

    Args:
        key, version: of the request.
        data, start, end: its body.
        wanted: what the field identifies that decides, or its name; see ``fields``.
        refuse: whether an element with this text is removed. A null stays.

    Returns:
        The new request, None: nothing was removed. An array of which nothing is left is empty, not null: for some requests null means all.

    Raises:
        KafkaFormatError: the request does not follow its schema, or its version is not understood.
    """
    program = _removal_program(key, version, wanted)
    marks = _walker.walk(program, data, start, end)
    pieces: list[bytes] = []
    removed: list[str] = []
    kept: list[bytes] = []
    done = start
    array: i64 = 0
    element: i64 = 0
    before: i64 = 0
    refused = False
    index: i64 = 0
    while index < i64(len(marks)):
        mark = marks[index]
        pos = marks[index + 1]
        if mark == _ARRAY:
            array = pos
            before = i64(len(removed))
            kept = []
        elif mark == _ARRAY_END:
            if i64(len(removed)) > before:
                pieces += (data[done:array], _count(len(kept), program.compact), *kept)
                done = pos
        elif mark == _ELEMENT_END:
            if not refused:
                kept.append(data[element:pos])
        else:
            if mark != _NAME:
                element = pos
                refused = False
            if mark != _ELEMENT and _is_refused(data, pos, program.compact, refuse, removed):
                refused = True
        index += 2
    if not removed:
        return None
    pieces.append(data[done:end])
    return Removal(pieces, removed)


def _is_refused(data: bytes, pos: i64, compact: bool, refuse: Callable[[str], bool], removed: list[str]) -> bool:
    text = string_at(data, pos, compact)[0]
    if text is None or not refuse(text):
        return False
    removed.append(text)
    return True


def _count(count: int, compact: bool) -> bytes:
    return varint(count + 1) if compact else struct.pack(">i", count)


def _removal_program(key: int, version: int, wanted: str) -> Program:
    found = _programs.get((key, version, False, wanted))
    if found is None:
        known = known_api(key, version)
        marks: dict[str, int] = {}
        for array, path in _deciding(known.fields(False), version, wanted, "", ""):
            marks |= {array + "<": _ARRAY, array + "[]<": _ELEMENT, array + "[]>": _ELEMENT_END, array + ">": _ARRAY_END}
            marks |= {path + "<": _VALUE if path.endswith("[]") else _NAME}
        found = _programs[key, version, False, wanted] = compile_program(known, version, answer=False, marks=marks)
    return found


def _deciding(fields: list[Field], version: int, wanted: str, prefix: str, array: str) -> list[tuple[str, str]]:
    """The paths of the fields that decide, each behind that of the innermost array around it; a field in no array decides nothing."""
    found: list[tuple[str, str]] = []
    for field in fields:
        if field.is_in(version):
            path = prefix + field.name
            if wanted in (field.entity, field.name) and not field.fields and (array or field.array):
                found.append((path, path + "[]") if field.array else (array, path))
            found += _deciding(field.fields, version, wanted, path + ".", path if field.array else array)
    return found


def appended(key: int, version: int, data: bytes, start: i64, end: i64, array: str, elements: list[bytes]) -> list[bytes]:
    """Append elements to an array at the top of an answer.

    Args:
        key, version: of the request.
        data, start, end: the body of the answer.
        array: the name of the array.
        elements: as they are in a message of this version; see ``error_answers.error_elements``.

    Returns:
        The new body in pieces.

    Raises:
        KafkaFormatError: the answer does not follow its schema, or its version is not understood.
    """
    program = _programs.get((key, version, True, array))
    if program is None:
        asked = {array + "<": _ARRAY, array + ">": _ARRAY_END}
        program = _programs[key, version, True, array] = compile_program(known_api(key, version), version, answer=True, marks=asked)
    marks = _walker.walk(program, data, start, end)
    first, last = marks[1], marks[3]
    if program.compact:
        count, content = varint_at(data, first)
        count -= 1
    else:
        count, content = i64(read_i32_be(data, first)), first + 4
    return [data[start:first], _count(max(count, 0) + len(elements), program.compact), data[content:last], *elements, data[last:end]]
