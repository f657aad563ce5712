"""Compiles the schema of a message into a program: a flat array of operations that ``walker`` executes over its bytes.

A program finds positions. Marks say which ones: a mark is a path, and a number that the walker reports with the position. The path of a field is its
name behind those of the structs around it, with dots; then ``<`` for where the field begins or ``>`` for where it ends. ``Topics<`` is where the
array begins, its size included; ``Topics[]<`` and ``Topics[]>`` are where each element begins and ends; ``Topics.Name<`` is where the name in each
element begins, its length included.

Fields of fixed size without marks between them are one operation. Tagged fields that the schema has are walked too, and must have the size that
stands before them: some clients go by that size, Kafka's does not. Others are skipped by their size.
"""

from collections.abc import Mapping
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.errors import Side
from framegate.proxy.kafka.schema import FIXED_SIZES, Api, Field

# Operations with their operands. Those from READS on first read a number, of the kind in their low bits.
SKIP: Final = 0  # bytes
MARK: Final = 1  # number
LOOP: Final = 2  # the element's first operation: at an element's end
LEAVE: Final = 3  # TAG, what follows the tagged fields: at the end of a tagged field's content
PEEK: Final = 4  # mark, byte, 1 or 0: ends the program with the mark if the next byte is this one and the first tag (1), or is not this one (0)
END: Final = 5  # 1: the message must end here
NUMBER: Final = 6  # mark: where the last number began
READS: Final = 8
KIND_BITS: Final = 3
KIND: Final = 7
INT8: Final = 1  # a kind is its number of bytes
INT16: Final = 2
INT32: Final = 4
VARINT: Final = 0
BYTES: Final = 1  # nullable: a string or bytes
ARRAY: Final = 2  # nullable, what follows: elements are walked
FLAT: Final = 3  # nullable, bytes of an element: elements are skipped
STRUCT: Final = 4  # what follows: a nullable struct
TAGS: Final = 5  # what follows: the number of tagged fields
TAG: Final = 6  # the number of one
TAG_SIZE: Final = 7  # TAG, what follows, how many are known; of each its number and its first operation

SIZE_MARK: Final = 0  # the mark that stands before the marks of a tagged field: where the size of its content begins
MAX_DEPTH: Final = 64  # Entries of the walker's stack: no schema needs more than half of them


class Program:
    """The operations of one message in one version."""

    def __init__(self, code: "vec[i64]", compact: bool, side: Side) -> None:
        self.code: Final = code  # the operations, each with its operands
        self.compact: Final = compact  # lengths in the message are varints
        self.side: Final[Side] = side  # that sends the message, and is at fault if it does not follow its schema


class _Compiler:
    def __init__(self, api: Api, version: int, marks: Mapping[str, int]) -> None:
        self.code: list[int] = []
        self._flexible = api.is_flexible(version)
        self._version = version
        self._marks = marks
        self._pending = 0  # bytes of fixed size that are not skipped yet

    def add(self, *words: int) -> int:
        if self._pending:
            self.code += (SKIP, self._pending)
            self._pending = 0
        self.code += words
        return len(self.code)

    def add_read(self, what: int, kind: int, *words: int) -> int:
        return self.add(what << KIND_BITS | (VARINT if self._flexible else kind), *words)

    def skip(self, size: int) -> None:
        self._pending += size

    def _mark(self, path: str) -> None:
        number = self._marks.get(path)
        if number is not None:
            self.add(MARK, number)

    def is_marked(self, path: str) -> bool:
        return any(mark.startswith(path) and mark[len(path)] in "<>.[" for mark in self._marks)

    def add_fields(self, fields: list[Field], path: str) -> None:
        tagged: list[tuple[int, Field]] = []
        for field in fields:
            if field.is_in(self._version):
                tag = field.tag(self._version)
                if tag < 0:
                    self.add_field(field, path)
                else:
                    tagged.append((tag, field))
        if self._flexible:
            self.add_tags(tagged, path)

    def add_field(self, field: Field, path: str) -> None:
        path += field.name
        self._mark(path + "<")
        nullable = field.is_nullable(self._version)
        if field.array:
            self._add_array(field, path, nullable)
        elif field.fields and nullable:
            exit = self.add(STRUCT << KIND_BITS | INT8, 0) - 1
            self.add_fields(field.fields, path + ".")
            self.code[exit] = self.add()
        else:
            self._add_value(field, path, nullable)
        self._mark(path + ">")

    def _add_value(self, field: Field, path: str, nullable: bool) -> None:
        """A field that is no array, or an element of an array."""
        if field.fields:
            self.add_fields(field.fields, path + ".")
        elif field.kind in FIXED_SIZES:
            self.skip(FIXED_SIZES[field.kind])
        else:
            self.add_read(BYTES, INT16 if field.kind == "string" else INT32, nullable)

    def _add_array(self, field: Field, path: str, nullable: bool) -> None:
        if field.kind in FIXED_SIZES and not self.is_marked(path + "[]"):
            self.add_read(FLAT, INT32, nullable, FIXED_SIZES[field.kind])
            return
        start = self.add_read(ARRAY, INT32, nullable, 0)
        self._mark(path + "[]<")
        self._add_value(field, path, False)
        self._mark(path + "[]>")
        self.code[start - 1] = self.add(LOOP, start)

    def add_tags(self, known: list[tuple[int, Field]], path: str, erase: int = -1) -> None:
        """The tagged fields. ``erase``: the mark with which the program ends before tag 0."""
        outer = self.add(TAGS << KIND_BITS | VARINT, 0) - 1
        again = len(self.code)
        if erase >= 0:
            self.add(PEEK, erase, 0, 1)
        self.add(TAG << KIND_BITS | VARINT)
        table = self.add(TAG_SIZE << KIND_BITS | VARINT, again, 0, len(known), *[0] * (2 * len(known))) - 2 * len(known)
        exits = [outer, table - 2]
        for index, (tag, field) in enumerate(known):
            self.code[table + 2 * index] = tag
            self.code[table + 2 * index + 1] = len(self.code)
            if self.is_marked(path + field.name):
                self.add(NUMBER, SIZE_MARK)
            self.add_field(field, path)
            exits.append(self.add(LEAVE, again, 0) - 1)
        for exit in exits:
            self.code[exit] = len(self.code)


def compile_program(
    api: Api, version: int, *, answer: bool, marks: Mapping[str, int], head: bool = False, erase: int = -1, surplus: bool = False
) -> Program:
    """Compile the program of a request or answer; it begins with the header.

    Args:
        api, version, answer: the message; the version is one that is understood.
        marks: the positions that are asked for; paths that the version does not have are ignored.
        head: the program ends after the last top-level field that has a mark; else it ends where the message must end.
        surplus: bytes behind the last field are allowed, which brokers ignore.
        erase: the program also ends, with this mark, before node endpoints that are not empty: before tag 0, or before the last top-level array.
    """
    compiler = _Compiler(api, version, marks)
    compiler.skip(4 if answer else 8)
    if not answer:
        compiler.add(BYTES << KIND_BITS | INT16, 1)
    if api.has_header_tags(version, answer):
        compiler.add_tags([], "")
    fields = [field for field in api.fields(answer) if field.is_in(version)]
    plain = [field for field in fields if field.tag(version) < 0]
    tagged = [(field.tag(version), field) for field in fields if field.tag(version) >= 0]
    to_tags = not head or any(compiler.is_marked(field.name) for _, field in tagged)
    if not to_tags:
        while plain and not compiler.is_marked(plain[-1].name):
            plain.pop()
    for field in plain:
        if erase >= 0 and field.name == "NodeEndpoints":
            compiler.add(PEEK, erase, 1, 0)
        compiler.add_field(field, "")
    if api.is_flexible(version) and to_tags:
        compiler.add_tags(tagged, "", erase)
    compiler.add(END, not (head or surplus))
    code = vec[i64](capacity=len(compiler.code))
    for word in compiler.code:
        code = append(code, word)
    return Program(code, api.is_flexible(version), "upstream" if answer else "downstream")
