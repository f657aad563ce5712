"""Executes a program over the bytes of a message: finds positions, and refuses what does not follow the schema.

Every length and every count is compared with the bytes that the message has left; nothing is allocated by it. Programs are loops over arrays that the
schema nests, so a message cannot nest deeper than its schema. Skipping needs no look at the bytes: records and strings cost one addition.

A message may come in pieces that are cut anywhere: between them the walker keeps its place in the program, and the part of a number that it has read.
"""

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError, Side
from framegate.proxy.kafka.program import (
    ARRAY,
    BYTES,
    FLAT,
    INT16,
    INT32,
    KIND,
    KIND_BITS,
    LEAVE,
    LOOP,
    MARK,
    MAX_DEPTH,
    NUMBER,
    PEEK,
    READS,
    SKIP,
    STRUCT,
    TAG,
    TAGS,
    VARINT,
    Program,
)

_MAX_VARINT: Final = 35  # bits that five bytes have


def _no_marks() -> "vec[i64]":
    return vec[i64](capacity=32)


class Walker:
    """Walks over one message after the other."""

    def __init__(self) -> None:
        self.marks: vec[i64] = _no_marks()  # of the message, in the order of their positions: number, position, number, position …
        self.position: i64 = 0  # of the next byte
        self.tags_left: i64 = 0  # tagged fields that follow where a program ended before tag 0; 0 where it ended before an array
        self._code: vec[i64] = vec[i64]()
        self._side: Side = "upstream"
        self._stack: vec[i64] = vec[i64]([0] * MAX_DEPTH)
        self._place: i64 = 0
        self._top: i64 = 0
        self._start: i64 = 0
        self._limit: i64 = 0
        self._received: i64 = 0
        self._value: i64 = 0
        self._number: i64 = 0  # where it begins
        self._got: i64 = 0  # of a number that is not whole: bits of a varint, else bytes

    def begin(self, program: Program, start: i64, end: i64) -> None:
        """The next message: its positions go from ``start`` to ``end``."""
        self.marks = _no_marks()
        self.position = self._received = self._start = start
        self._limit = end
        self._code = program.code
        self._side = program.side
        self._place = self._top = self._value = self._got = self.tags_left = 0

    def walk(self, program: Program, data: bytes, start: i64, end: i64) -> "vec[i64]":
        """The marks of a whole message. Raises KafkaFormatError."""
        self.begin(program, start, end)
        self.feed(data, start, end)
        return self.marks

    def _fault(self, what: str, position: i64) -> KafkaFormatError:
        return KafkaFormatError(what, position, side=self._side)

    @property
    def ahead(self) -> i64:
        """How many of the next bytes belong to a value that is skipped."""
        return self.position - self._received

    def pass_by(self, size: i64) -> None:
        """Count bytes that need not be fed; at most ``ahead``."""
        self._received += size

    def feed(self, data: bytes, start: i64, end: i64) -> bool:  # noqa: C901 (one loop on local variables, so that an operation costs 2 ns)
        """Walk over the next piece of the message; whether the program has ended. Raises KafkaFormatError."""
        code = self._code
        stack = self._stack
        marks = self.marks
        place = self._place
        top = self._top
        value = self._value
        got = self._got
        shift = start - self._received  # from positions in the message to those in the piece
        origin = self._start + shift  # of the message, in the piece
        pos = self.position + shift
        limit = self._limit + shift
        stop = end if end < limit else limit
        number = self._number + shift
        ended = False
        while pos <= stop:
            op = code[place]
            if op < READS:
                if op == SKIP:
                    pos += code[place + 1]
                    place += 2
                    if pos > limit:
                        raise self._fault("the end of the message within fields", limit - origin)
                elif op == MARK:
                    marks = append(append(marks, code[place + 1]), pos - shift)
                    place += 2
                elif op == LOOP:
                    left = stack[top - 1] - 1
                    if left > 0:
                        stack[top - 1] = left
                        place = code[place + 1]
                    else:
                        top -= 1
                        place += 2
                elif op == LEAVE:
                    if pos != limit:
                        raise self._fault("a tagged field with another size", pos - origin)
                    top -= 1
                    limit = stack[top] + shift
                    stop = end if end < limit else limit
                    left = stack[top - 2] - 1
                    if left > 0:
                        stack[top - 2] = left
                        place = code[place + 1]
                    else:
                        top -= 2
                        place = code[place + 2]
                elif op == PEEK:
                    if pos == stop:
                        if stop == limit:
                            raise self._fault("the end of the message before a number", pos - origin)
                        break
                    if code[place + 3] == 0:
                        ended = i64(data[pos]) != code[place + 2]
                    elif i64(data[pos]) == code[place + 2] and stack[top - 1] < 0:
                        self.tags_left = stack[top - 2]
                        ended = True
                    if ended:
                        marks = append(append(marks, code[place + 1]), pos - shift)
                        break
                    place += 4
                elif op == NUMBER:
                    marks = append(append(marks, code[place + 1]), number - shift)
                    place += 2
                else:
                    if code[place + 1] == 1 and pos != limit:
                        raise self._fault("bytes behind the last field", pos - origin)
                    ended = True
                    break
                continue
            kind = op & KIND
            if got == 0:
                number = pos
                value = 0
            if kind == VARINT:
                if got == 0 and pos < stop and data[pos] < 0x80:
                    value = i64(data[pos])
                    pos += 1
                else:
                    byte: i64 = 0x80
                    while byte >= 0x80 and pos < stop:
                        byte = i64(data[pos])
                        value |= (byte & 0x7F) << got
                        pos += 1
                        got += 7
                        if got == _MAX_VARINT and byte >= 0x10:
                            raise self._fault("a varint of more than 32 bits", pos - origin)
                    if byte >= 0x80:
                        if stop == limit:
                            raise self._fault("the end of the message within a number", pos - origin)
                        break
                    if byte == 0 and op >> KIND_BITS == TAG:
                        raise self._fault("a tag with leading zeros", pos - origin)
                    got = 0
            elif got == 0 and pos + kind <= stop:
                if kind == INT16:
                    value = i64(read_i16_be(data, pos))
                elif kind == INT32:
                    value = i64(read_i32_be(data, pos))
                else:
                    value = i64(data[pos])
                    value -= (value >> 7) << 8
                pos += kind
            else:
                while got < kind and pos < stop:
                    value = value << 8 | i64(data[pos])
                    pos += 1
                    got += 1
                if got < kind:
                    if stop == limit:
                        raise self._fault("the end of the message within a number", pos - origin)
                    break
                value -= (value >> (8 * kind - 1)) << (8 * kind)
                got = 0
            what = op >> KIND_BITS
            if what <= FLAT:
                if kind == VARINT:
                    value -= 1
                if value < 0:
                    if value < -1 or code[place + 1] == 0:
                        raise self._fault(f"a length of {value}", pos - origin)
                    value = 0
                if what == BYTES:
                    place += 2
                elif what == FLAT:
                    value *= code[place + 2]
                    place += 3
                if value > limit - pos:
                    raise self._fault(f"a length of {value} where {limit - pos} bytes are left", pos - origin)
                if what != ARRAY:
                    pos += value
                elif value == 0:
                    place = code[place + 2]
                else:
                    stack[top] = value
                    top += 1
                    place += 3
            elif what == STRUCT:
                place = code[place + 1] if value < 0 else place + 2
            elif what == TAGS:
                if value > (limit - pos) >> 1:
                    raise self._fault(f"{value} tagged fields where {limit - pos} bytes are left", pos - origin)
                if value == 0:
                    place = code[place + 1]
                else:
                    stack[top] = value
                    stack[top + 1] = -1
                    top += 2
                    place += 2
            elif what == TAG:
                if value <= stack[top - 1]:
                    raise self._fault(f"tag {value} behind tag {stack[top - 1]}", pos - origin)
                stack[top - 1] = value
                place += 1
            else:  # TAG_SIZE
                if value > limit - pos:
                    raise self._fault(f"a tagged field of {value} bytes where {limit - pos} are left", pos - origin)
                entry = place + 4
                last = entry + 2 * code[place + 3]
                while entry < last and code[entry] != stack[top - 1]:
                    entry += 2
                if entry < last:
                    stack[top] = limit - shift
                    top += 1
                    limit = pos + value
                    stop = end if end < limit else limit
                    place = code[entry + 1]
                else:
                    pos += value
                    left = stack[top - 2] - 1
                    if left > 0:
                        stack[top - 2] = left
                        place = code[place + 1]
                    else:
                        top -= 2
                        place = code[place + 2]
        self.marks = marks
        self._place = place
        self._top = top
        self._value = value
        self._got = got
        self._number = number - shift
        self.position = pos - shift
        self._limit = limit - shift
        self._received += end - start
        return ended
