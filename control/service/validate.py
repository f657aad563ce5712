"""What a request may say. Every function appends to a list of violations, so that one answer names every field that is wrong."""

from collections.abc import Collection
from typing import Final

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from framegate.control.errors import InvalidArgumentError, Violation
from framegate.control.service.convert import channel_number
from framegate.control.service.quoting import cut
from framegate.control.v1.channel_service_pb2 import ChannelSelector

__all__ = ["MAX_IDS", "MAX_REASON", "MAX_VIOLATIONS", "Violations", "changed_fields", "reason", "required", "selection"]

MAX_IDS: Final = 1_000
MAX_REASON: Final = 256
MAX_VIOLATIONS: Final = 100
_DESCRIPTION: Final = 512
"""Characters; a request may have an unknown path of a mask as long as itself."""


class Violations:
    """Collects what is wrong with a request: the first ``MAX_VIOLATIONS``, and how many there are besides."""

    def __init__(self) -> None:
        self._items: list[Violation] = []
        self._more = 0

    def add(self, field: str, description: str) -> None:
        """One more field that is wrong; ``description`` is a sentence without the field's name."""
        if len(self._items) < MAX_VIOLATIONS:
            self._items.append(Violation(field, cut(description, _DESCRIPTION)))
        else:
            self._more += 1

    def check(self) -> None:
        """Raise InvalidArgumentError when there were any."""
        if self._more:
            self._items.append(Violation("…", f"{self._more} more"))
        if self._items:
            raise InvalidArgumentError(self._items)


def required(value: str, field: str, violations: Violations) -> str:
    """A text that must not be empty."""
    if not value:
        violations.add(field, "is required")
    return value


def reason(text: str, violations: Violations, *, needed: bool = False) -> str:
    """The reason of a change: one line of at most ``MAX_REASON`` characters."""
    if needed and not text.strip():
        violations.add("reason", "is required")
    elif len(text) > MAX_REASON:
        violations.add("reason", f"must have at most {MAX_REASON} characters, not {len(text)}")
    elif not text.isprintable():
        violations.add("reason", "must be one line of printable characters")
    return text


def selection(selector: ChannelSelector, violations: Violations) -> tuple[tuple[int, ...], str | None, str | None]:
    """The channels that a selector names, or its listener, or its principal."""
    match selector.WhichOneof("selector"):
        case "listener":
            return (), required(selector.listener, "selector.listener", violations), None
        case "principal":
            return (), None, required(selector.principal, "selector.principal", violations)
        case "channels":
            texts = selector.channels.ids
            if not 1 <= len(texts) <= MAX_IDS:
                violations.add("selector.channels.ids", f"must hold 1 to {MAX_IDS} ids, not {len(texts)}")
            numbers = [channel_number(text, f"selector.channels.ids[{index}]", violations.add) for index, text in enumerate(texts[:MAX_IDS])]
            return tuple(dict.fromkeys(number for number in numbers if number is not None)), None, None
        case _:
            violations.add("selector", "must name channels, a listener or a principal")
            return (), None, None


def changed_fields(message: Message, mask: FieldMask, known: Collection[str], field: str, violations: Violations) -> set[str]:
    """The fields that an update is about (AIP-134): those of the mask, or those that are set when it is empty; ``*`` is all.

    Args:
        message: holds the new values.
        mask: ``update_mask`` of the request.
        known: the fields that may be changed.
        field: the name of ``message`` in the request.
        violations: gets what is wrong: unknown paths, fields of the mask without a value, nothing to change.
    """
    paths = list(mask.paths)
    for path in paths:
        if path != "*" and path not in known:
            violations.add("update_mask", f"has the unknown path {path!r}; known are {', '.join(sorted(known))} and *")
    if not paths:
        changed = {name for name in known if message.HasField(name)}
        if not changed:
            violations.add(field, f"sets none of {', '.join(sorted(known))}")
        return changed
    changed = set(known) if "*" in paths else set(paths) & set(known)
    for name in sorted(changed):
        if not message.HasField(name):
            violations.add(f"{field}.{name}", "is required, for the update mask names it")
    return changed
