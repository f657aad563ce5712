"""Decodes words of tap rules: names of Kafka's APIs, and ranges of a body's bytes. Control uses it to validate rules, a processor to apply them."""

import itertools
import re
from typing import Final, NamedTuple

from framegate.proxy.config.limits import MAX_INT32
from framegate.proxy.kafka.schema import apis

KAFKA_APIS: Final = {api.key: api.name for api in apis()}  # Kafka's APIs by key; others are shown as api-<key>

MAX_API: Final = 32767
_KEYS: Final = {name.lower(): key for key, name in KAFKA_APIS.items()}
_RANGE: Final = re.compile(r"(\d{1,10})-(\d{0,10})")


class ByteRange(NamedTuple):
    """The bytes of a body from ``start`` to before ``end``, as far as they exist; 0 <= start < end <= 2147483647."""

    start: int
    end: int


def api_key(text: str) -> int:
    """The key of a Kafka API from its name in any case, the key itself, or ``api-<key>``. Raises ValueError."""
    known = _KEYS.get(text.lower())
    if known is not None:
        return known
    number = text.lower().removeprefix("api-")
    if not (number.isascii() and number.isdigit() and int(number) <= MAX_API):
        raise ValueError("not a Kafka API: write its name, as in Produce, or its key")
    return int(number)


def byte_range(text: str) -> ByteRange:
    """The range of ``0-15`` (the first 16 bytes) or ``64-`` (all from the 65th on). Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a range of bytes: write the first and the last, as in 0-15, or 64- for the rest")
    start = int(match[1])
    end = int(match[2]) + 1 if match[2] else MAX_INT32
    if not start < end <= MAX_INT32:
        raise ValueError(f"not a range of bytes: the first is after the last, or the last above {MAX_INT32 - 1}")
    return ByteRange(start, end)


def overlap(ranges: list[ByteRange]) -> bool:
    """Whether two of the ranges share a byte."""
    ordered = sorted(ranges)
    return any(before.end > after.start for before, after in itertools.pairwise(ordered))
