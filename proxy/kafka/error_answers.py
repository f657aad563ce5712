"""Answers to requests that are refused: Kafka's own error codes, in the form of the request's version, as a broker with access rules gives them.

The form follows from the schemas. Each error code in the answer is set. Where the answer has a list of results, it has one for each thing that the
request names (topics, partitions, groups, resources); a result copies what identifies it from the request. All else has the schema's defaults.

Refusals are rare, so this works on objects: a value of fixed size is its bytes, a string its content, an array a list, a struct a dict.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from framegate.proxy.kafka.schema import FIXED_SIZES, Api, Field
from framegate.proxy.kafka.values import varint, varint_at

__all__ = [
    "CLUSTER_AUTHORIZATION_FAILED",
    "FETCH_SESSION_ID_NOT_FOUND",
    "GROUP_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "error_answer",
    "error_results",
    "result_list",
]

TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
FETCH_SESSION_ID_NOT_FOUND: Final = 70

_CODES: Final = ("ErrorCode", "PartitionErrorCode")
_PARTITIONS: Final = ("Index", "Partition", "PartitionIndex", "PartitionId")
_PARTITION_LISTS: Final = ("Partitions", "PartitionData", "PartitionIndexes")
# The lists of a request and an answer that belong together, where no identifier in the schema says so.
_LISTS: Final[dict[int, tuple[str, str]]] = {
    10: ("CoordinatorKeys", "Coordinators"),
    30: ("Creations", "Results"),
    31: ("Filters", "FilterResults"),
    32: ("Resources", "Results"),
    33: ("Resources", "Responses"),
    44: ("Resources", "Responses"),
    51: ("Upsertions", "Results"),
    57: ("FeatureUpdates", "Results"),
}

Value = object
Struct = dict[str, object]


class _Reader:
    """Reads fields of a message that a walker has passed, so that all lengths are right."""

    def __init__(self, data: bytes, position: i64, version: int, compact: bool) -> None:
        self._data: Final = data
        self._pos: i64 = position
        self._version: Final = version
        self._compact: Final = compact

    def fields(self, fields: Iterable[Field]) -> Struct:
        found: Struct = {}
        for field in fields:
            if field.is_in(self._version) and field.tag(self._version) < 0:
                found[field.name] = self._array(field) if field.array else self._value(field, field.is_nullable(self._version))
        if self._compact:
            self.skip_tags()
        return found

    def skip_tags(self) -> None:
        count = self._varint()
        while count > 0:
            self._varint()
            size = self._varint()
            self._pos += size
            count -= 1

    def skip_string(self) -> None:
        self._pos += 2 + max(i64(read_i16_be(self._data, self._pos)), 0)

    def _varint(self) -> i64:
        value, self._pos = varint_at(self._data, self._pos)
        return value

    def _length(self, width: i64) -> i64:
        if self._compact:
            return self._varint() - 1
        self._pos += width
        return i64(read_i16_be(self._data, self._pos - 2)) if width == 2 else i64(read_i32_be(self._data, self._pos - 4))

    def _array(self, field: Field) -> list[Value] | None:
        count = self._length(4)
        if count < 0:
            return None
        items: list[Value] = []
        while count > 0:
            items.append(self._value(field, False))
            count -= 1
        return items

    def _value(self, field: Field, nullable: bool) -> Value:
        if field.fields:
            if nullable:
                self._pos += 1
                if self._data[self._pos - 1] == 0xFF:
                    return None
            return self.fields(field.fields)
        size: i64 = FIXED_SIZES.get(field.kind, -1)
        if size < 0:
            size = self._length(2 if field.kind == "string" else 4)
            if size < 0:
                return None
        self._pos += size
        return self._data[self._pos - size : self._pos]


class _Writer:
    """Writes fields; those that have no value get their default."""

    def __init__(self, version: int, compact: bool) -> None:
        self.parts: list[bytes] = []
        self._version: Final = version
        self._compact: Final = compact

    def fields(self, fields: Iterable[Field], values: Mapping[str, Value]) -> None:
        for field in fields:
            if not field.is_in(self._version) or field.tag(self._version) >= 0:
                continue
            value = values.get(field.name)
            if field.array:
                self._array(field, value)
            else:
                self._value(field, value)
        if self._compact:
            self.parts.append(b"\0")

    def length(self, size: int, width: int) -> None:
        self.parts.append(varint(size + 1) if self._compact else size.to_bytes(width, "big", signed=True))

    def _array(self, field: Field, value: Value) -> None:
        items = value if isinstance(value, list) else []
        self.length(len(items), 4)
        for item in items:
            self._value(field, item)

    def _value(self, field: Field, value: Value) -> None:
        nullable = field.is_nullable(self._version)
        if field.fields:
            if nullable:
                self.parts.append(b"\xff" if value is None else b"\1")
            if not nullable or value is not None:
                self.fields(field.fields, value if isinstance(value, dict) else {})
        elif field.kind in FIXED_SIZES:
            self.parts.append(value if isinstance(value, bytes) else _default(field))
        elif isinstance(value, bytes) or not nullable or field.kind == "records":
            content = value if isinstance(value, bytes) else b""
            self.length(len(content), 2 if field.kind == "string" else 4)
            self.parts.append(content)
        else:
            self.length(-1, 2 if field.kind == "string" else 4)


def _default(field: Field) -> bytes:
    """The bytes of a field of fixed size."""
    size = FIXED_SIZES[field.kind]
    if field.kind in ("float64", "uuid"):
        return bytes(size)
    text = {"": "0", "true": "1", "false": "0"}.get(field.default, field.default)
    return int(text, 0).to_bytes(size, "big", signed=field.kind != "uint16")


def _identifier(field: Field, version: int) -> str:
    """What the elements of an array are identified by; empty: nothing that the schema names."""
    if field.entity and field.kind:
        return field.entity
    named = next((each.entity for each in field.fields if each.entity in _IDENTIFIERS and each.is_in(version)), "")
    return named or next((each.name for each in field.fields if each.name == "TopicId" and each.is_in(version)), "")


_IDENTIFIERS: Final = ("topicName", "groupId", "transactionalId")


def result_list(api: Api, version: int) -> tuple[Field, Field] | None:
    """The list of a request whose elements have one result each in a list of the answer, and that list; None: there is none."""
    asked = [field for field in api.fields(answer=False) if field.array and field.is_in(version)]
    for field in api.fields(answer=True):
        if field.array and field.fields and field.is_in(version) and field.tag(version) < 0:
            found = _source(api.key, version, field, asked)
            if found is not None:
                return found, field
    return None


def _source(key: int, version: int, results: Field, asked: Iterable[Field]) -> Field | None:
    """The array of the request whose elements have the results."""
    if not _has_code(results, version):
        return None
    pair = _LISTS.get(key, ("", ""))
    identifier = _identifier(results, version)
    for field in asked:
        if not field.array or not field.is_in(version):
            continue
        if (field.name, results.name) == pair or (identifier and identifier == _identifier(field, version)):
            return field
        if field.name in _PARTITION_LISTS and _partition(results.fields) and not identifier:
            return field
        if field.name == results.name and field.fields and not identifier:
            return field
    return None


def _has_code(field: Field, version: int) -> bool:
    """Whether the elements of an array have an error code, of their own or within."""
    return any((each.name in _CODES or _has_code(each, version)) and each.is_in(version) for each in field.fields)


def _partition(fields: Iterable[Field]) -> str:
    return next((each.name for each in fields if each.name in _PARTITIONS), "")


def error_answer(api: Api, version: int, request: bytes, code: int) -> bytes:
    """The answer to a refused request.

    Args:
        api, version: of the request; the version is understood.
        request: its body, which follows its schema.
        code: the error.

    Returns:
        The body of the answer, from the correlation id on.
    """
    asked = _read(api, version, request)
    writer = _Writer(version, api.is_flexible(version))
    writer.parts.append(request[4:8])
    if api.has_header_tags(version, answer=True):
        writer.parts.append(b"\0")
    writer.fields(api.fields(answer=True), _results(api, version, api.fields(answer=True), api.fields(answer=False), asked, code.to_bytes(2, "big")))
    return b"".join(writer.parts)


def error_results(api: Api, version: int, request: bytes, code: int, denied: Iterable[int]) -> list[bytes]:
    """The results in the answer's list (``result_list``) for some elements of the request's list, encoded."""
    lists = result_list(api, version)
    assert lists is not None, "only elements of a list are refused one by one"
    source, results = lists
    items = _read(api, version, request)[source.name]
    assert isinstance(items, list), "it has elements"
    found: list[bytes] = []
    for index in denied:
        writer = _Writer(version, api.is_flexible(version))
        writer.fields(results.fields, _result(api, version, results, source, items[index], code.to_bytes(2, "big")))
        found.append(b"".join(writer.parts))
    return found


def _read(api: Api, version: int, request: bytes) -> Struct:
    reader = _Reader(request, 8, version, api.is_flexible(version))
    reader.skip_string()
    if api.has_header_tags(version, answer=False):
        reader.skip_tags()
    return reader.fields(api.fields(answer=False))


def _results(api: Api, version: int, fields: Iterable[Field], asked: list[Field], values: Struct, code: bytes) -> Struct:
    """The values of an answer, or of a result in it."""
    found: Struct = {}
    below = False
    for field in fields:
        if field.array and field.fields and field.is_in(version):
            source = _source(api.key, version, field, asked)
            items = None if source is None else values.get(source.name)
            if source is not None and isinstance(items, list):
                results = [_result(api, version, field, source, item, code) for item in items]
                found[field.name] = results
                below = below or any(_has_error(item) for item in results)
    if not below or int.from_bytes(code, "big") != TOPIC_AUTHORIZATION_FAILED:  # that is said of each partition, or topic
        found.update((field.name, code) for field in fields if field.name in _CODES)
    return found


def _has_error(result: Struct) -> bool:
    return any(name in _CODES or (isinstance(value, list) and any(_has_error(item) for item in value)) for name, value in result.items())


def _result(api: Api, version: int, results: Field, source: Field, item: Value, code: bytes) -> Struct:
    """The result for one element of a list in the request."""
    if not isinstance(item, dict):
        values = _results(api, version, results.fields, [], {}, code)
        identifier = _identifier(source, version)
        for field in results.fields:
            if (field.entity == identifier and identifier) or field.name in (_partition(results.fields), "Key"):
                values[field.name] = item
        return values
    values = _results(api, version, results.fields, source.fields, item, code)
    for field in results.fields:
        for other in source.fields:
            if not field.array and not field.fields and field.name not in _CODES and other.is_in(version) and _same(field, other):
                values[field.name] = item.get(other.name)
    return values


def _same(field: Field, other: Field) -> bool:
    """Whether a field of a result has what a field of the request identifies."""
    if field.kind != other.kind or other.array:
        return False
    both_partitions = field.name in _PARTITIONS and other.name in _PARTITIONS
    return field.name == other.name or both_partitions or (field.entity == other.entity and field.entity in _IDENTIFIERS) or field.name == "User"
