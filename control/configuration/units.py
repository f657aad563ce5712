"""Sizes, times and instants as text: ``100MiB``, ``64KB``, ``250ms``, ``1.5s``, ``1h30m``, ``2026-12-31T23:59:00Z``."""

import datetime
import re
from collections.abc import Sequence
from typing import Final

_BINARY: Final = {"TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}
_DECIMAL: Final = {"TB": 1000**4, "GB": 1000**3, "MB": 1000**2, "KB": 1000, "": 1}
_SIZE_UNITS: Final = {name.upper(): factor for name, factor in [*_BINARY.items(), *_DECIMAL.items()]}
_SIZE_UNITS.update({name.removesuffix("B"): factor for name, factor in _SIZE_UNITS.items() if name.endswith("IB")})
_DURATION_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_MAX: Final = 2**63 - 1  # the largest number of bytes, milliseconds or nanoseconds: 63 bits, as in the API and in the data path
_MAX_DIGITS: Final = 100
_LEAST_UNITS: Final = 10  # the least number of a unit to which a size is rounded
_FRACTION: Final = re.compile(r"\.(\d{1,9})(?=[Zz+-])")
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def counted(count: int, noun: str) -> str:
    """``1 connection``, ``2 connections``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_of(names: Sequence[object], most: int) -> str:
    """``a, b``, or ``a, b and 3 more`` if there are more names than that."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def parse_size(text: str) -> int:
    """Bytes of ``100MiB``, ``1.5GB``, ``4096``. Raises ValueError with a sentence that says what would be right."""
    match = _SIZE.fullmatch(text.strip().replace("_", ""))
    factor = _SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError("not a size: write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    size = _exact(match[1], factor)
    if size is None:
        raise ValueError("not a whole number of bytes")
    if size > _MAX:
        raise ValueError("not a size: it must be below 8388608TiB")
    return size


def parse_duration_ms(text: str) -> int:
    """Milliseconds of ``250ms``, ``30s``, ``1h30m``; ``0`` needs no unit. Raises ValueError with a sentence that says what would be right."""
    compact = text.strip().replace(" ", "")
    if compact == "0":
        return 0
    parts = _DURATION_PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError("not a time: write a number with ms, s, m, h or d, as in 30s or 10m")
    total = 0
    for number, unit in parts:
        value = _exact(number, _DURATION_UNITS_MS[unit])
        if value is None:
            raise ValueError("not a whole number of milliseconds")
        total += value
    if total > _MAX:
        raise ValueError("not a time: it is longer than 106751991167d")
    return total


def _exact(number: str, factor: int) -> int | None:
    """The product if it is a whole number, else None. For a number with more than 100 digits, one that is too large."""
    if len(number) > _MAX_DIGITS:
        return _MAX + 1
    whole, _, fraction = number.partition(".")
    scaled = int(whole + fraction) * factor
    divisor = int(10 ** len(fraction))
    return scaled // divisor if scaled % divisor == 0 else None


def format_size(size: int) -> str:
    """The shortest exact text: 104857600 is ``100MiB``, 1000 is ``1000B``."""
    return _shortest(size, _BINARY)


def format_about(size: int) -> str:
    """A size that nobody wrote, such as free space: rounded down to whole MiB; to whole KiB below 10 MiB; exact below 10 KiB."""
    unit = next((unit for unit in (_BINARY["MiB"], _BINARY["KiB"]) if size >= _LEAST_UNITS * unit), 1)
    return format_size(size // unit * unit)


def format_duration_ms(duration_ms: int) -> str:
    """The shortest exact text: 600000 is ``10m``, 1500 is ``1500ms``."""
    return _shortest(duration_ms, _DURATION_UNITS_MS)


def _shortest(value: int, units: dict[str, int]) -> str:
    """The value in the largest unit that divides it; ``units`` has the largest first."""
    *_, smallest = units
    unit = next((unit for unit, factor in units.items() if value and value % factor == 0), smallest)
    return f"{value // units[unit]}{unit}"


def parse_instant_ns(text: str, now_ns: int) -> int:
    """Nanoseconds since 1970 of ``2026-12-31T23:59:00Z`` (RFC 3339), or of a time from now, ``90m``; ``0`` stays 0, no instant. Raises ValueError
    with a sentence that says what would be right.
    """
    compact = text.strip()
    try:
        ahead_ms = parse_duration_ms(compact)
        found = now_ns + ahead_ms * 1_000_000 if ahead_ms else 0
    except ValueError:
        found = _instant_ns(compact)
    if not 0 <= found <= _MAX:
        raise ValueError("not an instant: it must be after 1970 and before 2262")
    return found


def _instant_ns(text: str) -> int:
    fraction = _FRACTION.search(text)  # of nanoseconds, which datetime does not have
    try:
        instant = datetime.datetime.fromisoformat(_FRACTION.sub("", text))
    except ValueError:
        instant = datetime.datetime.min
    if instant.tzinfo is None:
        raise ValueError("not an instant: write it with its zone, as in 2026-12-31T23:59:00Z, or a time from now, as in 90m")
    return (instant - _EPOCH) // _MICROSECOND * 1000 + (int(fraction[1].ljust(9, "0")) if fraction else 0)


def format_instant_ns(instant_ns: int) -> str:
    """The exact text: ``2026-12-31T23:59:00Z``, with nine digits of the second's fraction if there is one. 0 is ``0``."""
    whole, rest = divmod(instant_ns, 1_000_000_000)
    text = (_EPOCH + datetime.timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09}Z" if rest else f"{text}Z" if whole else "0"
