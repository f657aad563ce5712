"""Checks of requests, and pages of lists. Checks append to a list of violations, so that one answer names every wrong field."""

import base64
import binascii
from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.duration_pb2 import Duration

from framegate.control.bounds import rows_per_page
from framegate.control.configuration.units import format_duration_ms
from framegate.control.errors import InvalidArgumentError, Violation
from framegate.control.service.convert import channel_number
from framegate.control.service.quoting import cut
from framegate.control.steering.filter import Filter
from framegate.control.v1.channel_service_pb2 import ChannelSelector

MAX_IDS: Final = 1_000
MAX_REASON: Final = 256
_MAX_VIOLATIONS: Final = 100
_DESCRIPTION: Final = 512  # Characters: a request may have one very long path in its mask
T = TypeVar("T")


class Violations:
    """Collects the faults of a request: the first ``_MAX_VIOLATIONS``, and the number of others."""

    def __init__(self) -> None:
        self._items: list[Violation] = []
        self._more = 0

    def add(self, field: str, description: str) -> None:
        """Add a wrong field; ``description`` is a sentence without the field's name."""
        if len(self._items) < _MAX_VIOLATIONS:
            self._items.append(Violation(field, cut(description, _DESCRIPTION)))
        else:
            self._more += 1

    def check(self) -> None:
        """Raise InvalidArgumentError if there are any."""
        if self._more:
            self._items.append(Violation("…", f"{self._more} more"))
        if self._items:
            raise InvalidArgumentError(self._items)


def required(value: str, field: str, violations: Violations) -> str:
    """A text that must not be empty."""
    if not value:
        violations.add(field, "is required")
    return value


def check_required(value: str, field: str) -> None:
    """Raise InvalidArgumentError if the only required field of a request is empty."""
    if not value:
        raise InvalidArgumentError([Violation(field, "is required")])


def reason(text: str, violations: Violations, *, needed: bool = False) -> str:
    """The reason of a change: one line of at most ``MAX_REASON`` characters."""
    if needed and not text.strip():
        violations.add("reason", "is required")
    elif len(text) > MAX_REASON:
        violations.add("reason", f"must have at most {MAX_REASON} characters, not {len(text)}")
    elif not text.isprintable():
        violations.add("reason", "must be one line of printable characters")
    return text


def selection(selector: ChannelSelector, violations: Violations) -> tuple[int, ...] | Filter:
    """The channels that a selector names, or its filter. Raises InvalidArgumentError about the filter."""
    match selector.WhichOneof("selector"):
        case "filter":
            required(selector.filter.strip(), "selector.filter", violations)
            return Filter(selector.filter, "selector.filter")
        case "channels":
            texts = selector.channels.ids
            if not 1 <= len(texts) <= MAX_IDS:
                violations.add("selector.channels.ids", f"must hold 1 to {MAX_IDS} ids, not {len(texts)}")
            numbers = [channel_number(text, f"selector.channels.ids[{index}]", violations.add) for index, text in enumerate(texts[:MAX_IDS])]
            return tuple(dict.fromkeys(number for number in numbers if number is not None))
        case _:
            violations.add("selector", "must name channels or have a filter")
            return ()


def duration_ms(value: Duration, field: str, most_ms: int, violations: Violations, least_ms: int = 1) -> int:
    """Milliseconds, rounded up; 0 if it is zero or absent."""
    length_ms = -(-(value.seconds * 10**9 + value.nanos) // 10**6)
    if length_ms and not least_ms <= length_ms <= most_ms:
        violations.add(field, f"must be {format_duration_ms(least_ms)} to {format_duration_ms(most_ms)}, or 0")
    return length_ms


def page(items: Sequence[tuple[str, T]], asked: int, token: str) -> tuple[list[T], str]:
    """One page of (key, item) pairs, in the given order. The token has the last key of the page before, so that items which come and go between two
    pages do not shift the others. ``asked``: ``page_size`` of the request. ``token``: ``page_token`` of the request. Returns the page, and the token
    of the next one; empty after the last page. Raises InvalidArgumentError: a negative size, or a token of another list or of an item that is gone.
    """
    size = rows_per_page(asked)
    start = 0
    if token:
        last = _decode(token)
        start = next((index + 1 for index, (key, _) in enumerate(items) if key == last), -1)
        if start < 0:
            raise _bad_token()
    chosen = items[start : start + size]
    more = start + size < len(items)
    return [item for _, item in chosen], _encode(chosen[-1][0]) if more else ""


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError) as error:
        raise _bad_token() from error


def _bad_token() -> InvalidArgumentError:
    return InvalidArgumentError([Violation("page_token", "is not a next_page_token of this list, or too old; begin again without one")])
