"""Whole messages as objects: for requests and answers that are rare, such as a refusal. All others are changed in place.

A struct is a dict by field name, an array a list, a string or bytes are bytes, a null is None, a uuid 16 bytes and a float 8. Integers are integers.
Records are read as None: nobody needs them, and they are large.
"""

import struct
from typing import Any, Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError, Side
from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import FIXED_SIZES, Api, Field, known_api
from framegate.proxy.kafka.values import varint, varint_at
from framegate.proxy.kafka.walker import Walker

MAX_ELEMENTS: Final = 100_000
"""Elements of arrays in a message that is read as objects. One with more is refused: an element may have 1 byte there, and 200 here."""

_BLOBS: Final = ("uuid", "float64")  # of fixed size, and bytes here
_programs: Final[dict[int, Program]] = {}
_walker: Final = Walker()


class _Reader:
    """Reads a message that a walker has walked, so that its lengths are right."""

    def __init__(self, data: bytes, position: i64, version: int, flexible: bool, side: Side) -> None:
        self.position: i64 = position
        self._elements: i64 = 0
        self._side: Final[Side] = side
        self._data: Final = data
        self._version: Final = version
        self._flexible: Final = flexible

    def length(self, width: int) -> i64:
        """A length or count; -1: null."""
        if self._flexible:
            value, self.position = varint_at(self._data, self.position)
            return value - 1
        pos = self.position
        self.position += width
        return i64(read_i16_be(self._data, pos)) if width == 2 else i64(read_i32_be(self._data, pos))

    def take(self, size: i64) -> bytes:
        self.position += size
        return self._data[self.position - size : self.position]

    def fields(self, fields: list[Field]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        tagged: dict[int, Field] = {}
        for field in fields:
            if field.is_in(self._version):
                tag = field.tag(self._version)
                if tag < 0:
                    found[field.name] = self._field(field)
                else:
                    tagged[tag] = field
        if self._flexible:
            count, self.position = varint_at(self._data, self.position)
            for _ in range(count):
                tag, self.position = varint_at(self._data, self.position)
                size, self.position = varint_at(self._data, self.position)
                if tag in tagged:
                    found[tagged[tag].name] = self._field(tagged[tag])
                else:
                    self.position += size
        return found

    def _field(self, field: Field) -> Any:
        if field.array:
            count = self.length(4)
            self._elements += max(count, 0)
            if self._elements > MAX_ELEMENTS:
                raise KafkaFormatError(f"a message of more than {MAX_ELEMENTS} elements", self.position, side=self._side)
            return None if count < 0 else [self._value(field) for _ in range(count)]
        if field.fields and field.is_nullable(self._version) and self.take(1)[0] >= 0x80:
            return None
        return self._value(field)

    def _value(self, field: Field) -> Any:
        if field.fields:
            return self.fields(field.fields)
        size = FIXED_SIZES.get(field.kind)
        if size is not None:
            data = self.take(size)
            return data if field.kind in _BLOBS else int.from_bytes(data, "big", signed=field.kind != "uint16")
        length = self.length(2 if field.kind == "string" else 4)
        if field.kind == "records":
            self.position += max(length, 0)
            return None
        return None if length < 0 else self.take(length)


def decode(key: int, version: int, data: bytes, start: i64, end: i64, *, answer: bool = False) -> dict[str, Any]:
    """A request or answer, without its header. Raises KafkaFormatError: it does not follow its schema, its version is not understood, or it has more
    than MAX_ELEMENTS elements.
    """
    api = known_api(key, version)
    place = (key << 16 | version) << 1 | answer
    program = _programs.get(place)
    if program is None:
        program = _programs[place] = compile_program(api, version, answer=answer, marks={}, surplus=not answer)
    _walker.walk(program, data, start, end)
    flexible = api.is_flexible(version)
    reader = _Reader(data, start + (4 if answer else 8), version, flexible, program.side)
    if not answer:
        client_id = i64(read_i16_be(data, reader.position))
        reader.position += 2 + max(client_id, 0)
    if api.has_header_tags(version, answer):
        reader.fields([])
    return reader.fields(api.fields(answer))


def default(field: Field, version: int) -> Any:
    """The value that Kafka gives to a field that nobody sets."""
    if field.default == "null":
        return None
    if field.array:
        return []
    if field.is_nullable(version) and not field.default:
        return None
    if field.fields:
        return {}
    if field.kind in FIXED_SIZES:
        if field.kind in _BLOBS:
            return bytes(FIXED_SIZES[field.kind])
        return 1 if field.default == "true" else int(field.default or "0", 0)
    return field.default.encode()


def _length(value: int, flexible: bool, width: int) -> bytes:
    return varint(value + 1) if flexible else value.to_bytes(width, "big", signed=True)


def _write_fields(out: list[bytes], fields: list[Field], values: dict[str, Any], version: int, flexible: bool) -> None:
    tagged: list[tuple[int, Field, Any]] = []
    for field in fields:
        if field.is_in(version):
            value = values[field.name] if field.name in values else default(field, version)
            tag = field.tag(version)
            if tag < 0:
                _write_field(out, field, value, version, flexible)
            elif value != default(field, version):
                tagged.append((tag, field, value))
    if flexible:
        out.append(varint(len(tagged)))
        for tag, field, value in sorted(tagged, key=_tag_number):
            content: list[bytes] = []
            _write_field(content, field, value, version, flexible)
            data = b"".join(content)
            out += (varint(tag), varint(len(data)), data)


def _tag_number(item: tuple[int, Field, Any]) -> int:
    return item[0]


def _write_field(out: list[bytes], field: Field, value: Any, version: int, flexible: bool) -> None:
    if field.array:
        out.append(_length(-1 if value is None else len(value), flexible, 4))
        for element in value or ():
            _write_value(out, field, element, version, flexible)
    elif field.fields and field.is_nullable(version):
        out.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            _write_value(out, field, value, version, flexible)
    else:
        _write_value(out, field, value, version, flexible)


def _write_value(out: list[bytes], field: Field, value: Any, version: int, flexible: bool) -> None:
    if field.fields:
        _write_fields(out, field.fields, value, version, flexible)
    elif field.kind in FIXED_SIZES:
        out.append(value if field.kind in _BLOBS else value.to_bytes(FIXED_SIZES[field.kind], "big", signed=field.kind != "uint16"))
    else:
        if value is None and not field.is_nullable(version):
            value = b""
        out.append(_length(-1 if value is None else len(value), flexible, 2 if field.kind == "string" else 4))
        out.append(value or b"")


def encode_answer(api: Api, version: int, correlation_id: int, values: dict[str, Any]) -> bytes:
    """The body of an answer, header included. Fields without a value have their defaults, unknown ones are left out."""
    flexible = api.is_flexible(version)
    out = [struct.pack(">i", correlation_id)]
    if api.has_header_tags(version, True):
        out.append(b"\x00")
    _write_fields(out, api.fields(True), values, version, flexible)
    return b"".join(out)


def encode_element(field: Field, version: int, value: Any, flexible: bool) -> bytes:
    """An element of an array."""
    out: list[bytes] = []
    _write_value(out, field, value, version, flexible)
    return b"".join(out)
