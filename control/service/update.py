"""The one implementation of an update: which fields change (AIP-134), their values within the ranges of the configuration's keys, the audit row.

A resource is a message and a class of the configuration's model with the same fields, by name or by ``FIELD_NAMES``; their types say how a value
becomes another: enums and words, repeated fields and tuples, messages and sections, Timestamps and ns. A new field needs nothing here.
"""

import dataclasses
import functools
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from framegate.control.bounds import FIELD_NAMES
from framegate.control.errors import ControlError, InvalidArgumentError, Violation
from framegate.control.events import Row
from framegate.control.service.interceptor import blocked, note
from framegate.control.service.validate import Violations, required
from framegate.control.steering.transactions import Changed, etag_of
from framegate.proxy.config.key import field_types, keys

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Reader = Callable[[Any, str, Violations], Any]  # Reads a field in another way than by its type: message, path, violations; returns the model's value
MAX_ENTRIES: Final = 1_000
_MAX_TEXT: Final = 256


@functools.cache
def _pairs(message: Any, model: Any, own_names: tuple[tuple[str, str], ...] = ()) -> dict[str, tuple[FieldDescriptor, str]]:
    known, names = field_types(model), FIELD_NAMES | dict(own_names)
    named = {described.name: (described, names.get(described.name, described.name)) for described in message.fields}
    return {name: pair for name, pair in named.items() if pair[1] in known}


def _prefix(enum: EnumDescriptor) -> str:
    return str(enum.values[0].name).removesuffix("UNSPECIFIED")


def _word(enum: EnumDescriptor, number: int) -> str:
    """The model's word of a value: ``peer_reset`` of CAUSE_PEER_RESET."""
    return str(enum.values_by_number[number].name).removeprefix(_prefix(enum)).lower()


def _inner(model: type, name: str) -> Any:
    """The type of a section, or of the sections of a tuple."""
    hint = field_types(model)[name]
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


def fill(message: M, model: Any, **names: str) -> M:
    """Set the fields of a message to the values of a model that are not None, and return it. ``names``: the model's names by the message's, besides
    those of ``FIELD_NAMES``.
    """
    kind: Any = type(model)
    for name, (described, own) in _pairs(message.DESCRIPTOR, kind, tuple(names.items())).items():
        value = getattr(model, own)
        if value is None:
            continue
        if described.enum_type is not None:
            words = [f"{_prefix(described.enum_type)}{word.upper() or 'UNSPECIFIED'}" for word in _listed(value)]
            numbers = [described.enum_type.values_by_name[word].number for word in words]
            value = numbers if described.is_repeated else numbers[0]
        field = getattr(message, name)
        if isinstance(field, Timestamp):
            if value:
                field.FromNanoseconds(value)
        elif described.message_type is None:
            field.extend(value) if described.is_repeated else setattr(message, name, value)
        elif described.is_repeated:
            for item in value:
                fill(field.add(), item)
        else:
            field.SetInParent()
            fill(field, value)
    return message


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _read(message: Message, model: Any, path: str, violations: Violations) -> Any:
    """A message as a model; fields that are not set have their defaults."""
    pairs = _pairs(message.DESCRIPTOR, model)
    return model(**{own: _field(message, described, model, own, f"{path}.{name}", violations) for name, (described, own) in pairs.items()})


def _field(message: Message, described: FieldDescriptor, model: type, own: str, path: str, violations: Violations) -> Any:
    value = getattr(message, described.name)
    if described not in [present for present, _ in message.ListFields()]:
        field = next(field for field in dataclasses.fields(typing.cast(Any, model)) if field.name == own)
        if field.default is not dataclasses.MISSING:
            return field.default
    if not described.is_repeated:
        return _one(value, described, model, own, path, violations)
    if len(value) > MAX_ENTRIES:
        violations.add(path, f"must have at most {MAX_ENTRIES} entries, not {len(value)}")
        return ()
    found = tuple(_one(item, described, model, own, f"{path}[{index}]", violations) for index, item in enumerate(value))
    return tuple(dict.fromkeys(found)) if described.enum_type is not None else found


def _one(value: Any, described: FieldDescriptor, model: type, own: str, path: str, violations: Violations) -> Any:
    key = keys(model)[own]
    if described.message_type is not None:
        return _read(value, _inner(model, own), path, violations)
    if described.enum_type is not None:
        if value == 0 or value not in described.enum_type.values_by_number:
            violations.add(path, f"must be one of {', '.join(item.name for item in described.enum_type.values[1:])}")
            return ""
        return _word(described.enum_type, value)
    if isinstance(value, str):
        if not 1 <= len(value) <= _MAX_TEXT:
            violations.add(path, f"must have 1 to {_MAX_TEXT} characters, not {len(value)}")
    elif not key.takes(value):
        unit = " bytes" if key.unit.startswith("bytes") else ""
        violations.add(path, f"must be {key.least} to {key.most}{unit}, not {value}")
    return value


class Resource:
    """A resource that can be updated.

    Args:
        key: the field with its name, which every request must have; empty: there is only one such resource.
        fixed: fields that cannot be changed, besides the key.
        readers: how fields are read that the model has in another form.
    """

    def __init__(
        self,
        message: type[Message],
        model: type,
        field: str,
        key: str = "",
        fixed: Iterable[str] = (),
        readers: Mapping[str, tuple[str, Reader]] = {},
    ) -> None:
        self.field = field
        self.key = key
        self._model = model
        self._readers = readers
        self.fields = {name: own for name, (_, own) in _pairs(message.DESCRIPTOR, model).items() if name not in (key, *fixed)}
        self.fields |= {name: own for name, (own, _) in readers.items()}
        sections = {field.name for field in message.DESCRIPTOR.fields if field.message_type is not None and not field.is_repeated}
        self._sections = (sections & self.fields.keys()) - readers.keys()

    def paths(self, message: Message, mask: FieldMask, violations: Violations) -> list[str]:
        """The paths that an update changes: those of the mask, or, if it is empty, of the fields that are set; ``*`` means all. ``mask``:
        ``update_mask`` of the request.
        """
        if not mask.paths:
            present = [described.name for described, _ in message.ListFields() if described.name in self.fields]
            return sorted(path for name in present for path in self._leaves(name, getattr(message, name)))
        inner = {name: _pairs(getattr(message, name).DESCRIPTOR, _inner(self._model, self.fields[name])) for name in self._sections}
        known = {*self.fields, *(f"{name}.{each}" for name, pairs in inner.items() for each in pairs)}
        for path in mask.paths:
            if path != "*" and path not in known:
                violations.add("update_mask", f"has the unknown path {path!r}; known are {', '.join(sorted(self.fields))} and *")
        return sorted(self.fields) if "*" in mask.paths else sorted({*mask.paths} & known)

    def _leaves(self, name: str, value: Any) -> list[str]:
        return [f"{name}.{inner.name}" for inner, _ in value.ListFields()] if name in self._sections else [name]

    def changes(self, message: Message, paths: Iterable[str], violations: Violations) -> dict[str, Any]:
        """The new values by the model's names, of a section a mapping: those of the message, or the defaults of fields that are not set."""
        changes: dict[str, Any] = {}
        for path in paths:
            name, _, inner = path.partition(".")
            own = self.fields[name]
            described: Any = message.DESCRIPTOR.fields_by_name[name]
            if name in self._readers:
                if own not in changes:
                    changes[own] = self._readers[name][1](message, f"{self.field}.{name}", violations)
            elif name not in self._sections:
                changes[own] = _field(message, described, self._model, own, f"{self.field}.{name}", violations)
            else:
                section, model = getattr(message, name), _inner(self._model, own)
                for each, (inside, its) in _pairs(section.DESCRIPTOR, model).items():
                    if not inner or inner == each:
                        changes.setdefault(own, {})[its] = _field(section, inside, model, its, f"{self.field}.{name}.{each}", violations)
        return changes

    def row(self, value: Any, paths: Iterable[str]) -> Row:
        """The values of some paths, for the audit row; of sections the fields that are not the default."""
        row: Row = {}
        for path in paths:
            name, _, inner = path.partition(".")
            found = getattr(value, self.fields[name])
            row[path] = plain(getattr(found, FIELD_NAMES.get(inner, inner)) if inner else found)
        return row

    def renamed(self, error: InvalidArgumentError) -> InvalidArgumentError:
        """The error with paths of the request in place of the model's names."""
        names = {own: name for name, own in reversed(self.fields.items())}

        def path(field: str) -> str:
            head = field.partition("[")[0].partition(".")[0]
            return f"{self.field}.{names.get(head, head)}{field[len(head) :]}"

        return InvalidArgumentError([Violation(path(item.field), item.description) for item in error.violations])


def plain(value: Any) -> Any:
    """A value as JSON; of a model the fields that are not the default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: (getattr(value, field.name), field.default) for field in dataclasses.fields(value)}
        return {name: plain(found) for name, (found, default) in fields.items() if found != default}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def lowers(before: Any, after: Any) -> bool:
    """Whether no limit in a model is raised, and nothing else is changed; 0 is no limit."""
    if dataclasses.is_dataclass(before) and not isinstance(before, type):
        return all(lowers(getattr(before, field.name), getattr(after, field.name)) for field in dataclasses.fields(before))
    if isinstance(before, int) and isinstance(after, int) and not isinstance(before, bool):
        return before == after or (after > 0 and (not before or after < before))
    return bool(before == after)


async def audited(call: Awaitable[Changed[T]], row: Callable[[T], Any], resource: Resource | None = None, *, validate_only: bool = False) -> T:
    """Make a change, and note the values before and after it for the audit row; returns the value after it."""
    try:
        changed = await call
    except ControlError as error:
        if error.changed is not None:
            note(*map(row, error.changed))
        if resource is not None and isinstance(error, InvalidArgumentError):
            raise resource.renamed(error) from error
        raise
    if not validate_only:
        note(*map(row, changed))
    return changed.after


async def update(
    request: Any, resource: Resource, change: Callable[..., Awaitable[Changed[T]]], row: Callable[[T], Any] | None = None, *, empty: bool = False
) -> T:
    """Answer an ``Update…`` method; returns the value after the change.

    Args:
        request: with the resource, its etag, ``update_mask`` and ``validate_only``.
        change: of steering: takes the resource's name, if it has one, the new values by the model's names, ``etag`` and ``validate_only``.
        row: a value for the audit row; None: the paths that change.
        empty: whether a request may change nothing.
    """
    violations, wanted = Violations(), getattr(request, resource.field)
    name = [required(getattr(wanted, resource.key), f"{resource.field}.{resource.key}", violations)] if resource.key else []
    paths = resource.paths(wanted, request.update_mask, violations)
    changes = resource.changes(wanted, paths, violations)
    if not paths and not empty and not request.update_mask.paths:
        violations.add(resource.field, f"sets none of {', '.join(sorted(resource.fields))}")
    violations.check()
    etag = wanted.etag
    if (late := blocked()) is not None:
        judged = await change(*name, changes, etag=etag, validate_only=True)
        if not lowers(*judged):
            raise late
        etag = etag_of(judged.before)  # so that it is this value that is lowered
    call = change(*name, changes, etag=etag, validate_only=request.validate_only)
    return await audited(call, row or (lambda value: resource.row(value, paths)), resource, validate_only=request.validate_only)
