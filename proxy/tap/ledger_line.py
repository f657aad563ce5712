"""A line of the ledger: the CRC32 of its JSON, and the JSON; ``ledger`` says what the lines mean."""

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["NEVER", "DamageError", "Pair", "Span", "decode", "encode", "integer", "joined", "pairs", "span"]

Pair = tuple[str, str]
"""A listener's name and a direction."""
Span = tuple[int, int]
"""Two times, wall clock."""
NEVER: Final[Span] = (0, 0)


class DamageError(ValueError):
    """A line that its writer did not write so."""


def encode(record: Mapping[str, Any]) -> bytes:
    """The line, with its line feed."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> dict[str, Any]:
    """What a line without its line feed says; it has an event, of any version.

    Raises:
        DamageError: it is not as it was written.
    """
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        raise DamageError("its CRC does not fit")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamageError(str(error)) from error
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise DamageError("no event")
    return record


def integer(record: Mapping[str, Any], name: str) -> int:
    """A member that is a number from 0.

    Raises:
        DamageError: it is missing, or none.
    """
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise DamageError(f"{name} is no number: {value!r}")
    return value


def pairs(record: Mapping[str, Any]) -> list[Pair]:
    """The member ``tapped``.

    Raises:
        DamageError: it is missing, or none.
    """
    tapped = record.get("tapped")
    if not isinstance(tapped, list):
        raise DamageError("tapped is no list")
    found: list[Pair] = []
    for item in tapped:
        if not (isinstance(item, list) and len(item) == 2 and all(isinstance(word, str) for word in item)):
            raise DamageError(f"not a listener and a direction: {item!r}")
        found.append((item[0], item[1]))
    return found


def span(record: Mapping[str, Any], prefix: str, otherwise: Span) -> Span:
    """The members ``<prefix>from_ns`` and ``<prefix>until_ns``; ``otherwise`` of a version that did not write them.

    Raises:
        DamageError: one is missing, or no number.
    """
    names = (f"{prefix}from_ns", f"{prefix}until_ns")
    return (integer(record, names[0]), integer(record, names[1])) if names[1] in record else otherwise


def joined(left: Span, right: Span) -> Span:
    """A time that holds both."""
    if NEVER in (left, right):
        return max(left, right)
    return min(left[0], right[0]), max(left[1], right[1])
