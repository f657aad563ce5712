"""Requests in audit rows: any request can be shown, and the result has a bounded length."""

import base64
import hashlib
import math
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from framegate.control.events import Row
from framegate.control.logs.forms import as_json

MAX_QUOTED: Final = 16 * 1024  # about how many characters of texts and keys of one message are shown
MAX_VALUE: Final = 32 * 1024  # Characters of the JSON of a value before or after a change that are shown whole
_ENTRY: Final = 8  # what an entry counts besides its text, for quotes and commas
_WIDE: Final = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})
_REAL: Final = frozenset({FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT})


def cut(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters; of a longer one the beginning and its length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def bounded(value: Any) -> Any:
    """A value of JSON for an audit row; of one above ``MAX_VALUE`` its beginning, and the length and SHA-256 of its JSON text."""
    try:
        text = as_json(value)
    except (TypeError, ValueError):  # no JSON: the log says so
        return value
    if len(text) <= MAX_VALUE:
        return value
    return {"beginning": text[:MAX_VALUE], "characters": len(text), "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()}


def shown(message: Message) -> Row:
    """A message as values of JSON: as ``MessageToDict`` with the fields' own names, without fields that are marked ``debug_redact`` anywhere in it.
    It never raises: values that protobuf's JSON does not allow (a time out of range, a path of a mask) are shown as they are. Texts are cut when
    ``MAX_QUOTED`` is reached, and the number of entries left out is shown.
    """
    return _Quotation().message(message)


class _Quotation:
    def __init__(self) -> None:
        self._left = MAX_QUOTED

    def message(self, message: Message) -> Row:
        row: Row = {}
        for field, value in message.ListFields():
            if not field.GetOptions().debug_redact:
                row[field.name] = self._field(field, value)
        return row

    def _field(self, field: FieldDescriptor, value: Any) -> Any:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            pairs = iter(value.items())
            found = {self._text(str(key)): self._value(kind.fields_by_name["value"], item) for key, item in pairs if self._has_room()}
            return found if len(found) == len(value) else {**found, "…": f"{len(value) - len(found)} more"}
        if field.is_repeated:
            items: list[Any] = []
            for item in value:
                if not self._has_room():
                    return [*items, f"… {len(value) - len(items)} more"]
                items.append(self._value(field, item))
            return items
        return self._value(field, value)

    def _value(self, field: FieldDescriptor, value: Any) -> Any:
        match value:
            case Timestamp() | Duration():
                return _time(value)
            case FieldMask():
                return self._text(",".join(value.paths))
            case Message():
                return self.message(value)
            case bytes():
                return self._text(base64.b64encode(value).decode())
            case str():
                return self._text(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        if field.cpp_type in _WIDE or (field.cpp_type in _REAL and not math.isfinite(value)):
            return str(value)
        return value

    def _has_room(self) -> bool:
        self._left -= _ENTRY
        return self._left > 0

    def _text(self, text: str) -> str:
        shortened = cut(text, max(self._left, 0))
        self._left -= len(shortened)
        return shortened


def _time(value: Timestamp | Duration) -> str:
    try:
        return value.ToJsonString()
    except ValueError:
        return f"{value.seconds} s and {value.nanos} ns"
