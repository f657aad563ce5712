"""Parses the options of the Data Source ``framegate``; ``source`` describes them. Needs no Spark."""

import dataclasses
import datetime
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from framegate.proxy.pipeline.planner import MAX_PARTITION_BYTES

__all__ = ["CONSUMER_NAME", "OptionError", "SourceOptions", "parse_payload", "parse_time"]

CONSUMER_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NAMES: Final = (
    *("path", "startingOffsets", "failOnDataLoss", "payload", "parallelism"),
    *("maxBytesPerTrigger", "maxPartitionBytes", "consumer", "owner"),
)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class OptionError(ValueError):
    """An option of the source that is missing or has a wrong value; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, parsed; ``source`` describes them."""

    path: Path
    from_latest: bool = False
    since_ns: int = 0
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    keep: int | None = None
    consumer: str = ""
    owner: str = ""
    parallelism: int = 2
    max_partition_bytes: int = MAX_PARTITION_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse Spark's options; case does not matter in their names. Raises OptionError for the first wrong one."""
        known = {name.lower() for name in _NAMES}
        unknown = sorted(name for name in options if name.lower() not in known)
        if unknown:
            raise OptionError(f"{', '.join(unknown)}: no such option; there are {', '.join(_NAMES)}")
        options = {name.lower(): value for name, value in options.items()}
        path = options.get("path")
        if not path:
            raise OptionError("path: name the tap's directory")
        starting = options.get("startingoffsets", "earliest")
        fail = options.get("failondataloss", "true").lower()
        if fail not in ("true", "false"):
            raise OptionError(f"failOnDataLoss: true or false, not {fail}")
        consumer = options.get("consumer", "")
        if consumer and not re.fullmatch(CONSUMER_NAME, consumer):
            raise OptionError(f"consumer: letters, digits, dot, dash and underscore, not {consumer}")
        parallelism = options.get("parallelism", str(os.cpu_count() or 1))
        if not parallelism.isdecimal() or int(parallelism) < 1:
            raise OptionError(f"parallelism: a whole number from 1, not {parallelism}")
        limit = options.get("maxbytespertrigger")
        room = options.get("maxpartitionbytes")
        return cls(
            path=Path(path),
            from_latest=starting == "latest",
            since_ns=0 if starting in ("earliest", "latest") else parse_time(starting),
            max_bytes_per_trigger=None if limit is None else _size("maxBytesPerTrigger", limit),
            fail_on_data_loss=fail == "true",
            keep=parse_payload(options.get("payload", "full")),
            consumer=consumer,
            owner=options.get("owner", ""),
            parallelism=int(parallelism),
            max_partition_bytes=MAX_PARTITION_BYTES if room is None else _size("maxPartitionBytes", room),
        )


def parse_time(text: str) -> int:
    """Nanoseconds of the wall clock at an RFC 3339 time. Raises OptionError: it is none, or has no offset from UTC."""
    try:
        at = datetime.datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError("no offset")
    except ValueError:
        raise OptionError(f"startingOffsets: earliest, latest or a time like 2026-05-01T08:00:00Z, not {text}") from None
    return round((at - _EPOCH) / datetime.timedelta(microseconds=1)) * 1000


def parse_payload(text: str) -> int | None:
    """How many bytes of each body to keep; None: all. Raises OptionError for another text."""
    if text in ("full", "none"):
        return None if text == "full" else 0
    return _size("payload", text, "none, full or bytes like 64 or 4k")


def _size(name: str, text: str, wanted: str = "bytes above 0, like 67108864 or 64m") -> int:
    """Bytes as Spark writes them: 1048576, 64m, 1g."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise OptionError(f"{name}: {wanted}, not {text}")
    return int(found[1]) * _UNITS[found[2]]
