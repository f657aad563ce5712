"""What framegate writes of itself: one row for each thing that happened, on stdout."""

import dataclasses
from typing import Annotated, Final, Literal

from proxy.config.key import Key

__all__ = ["DEFAULT_LOG", "LEAST_EVERY_MS", "LEVELS", "AccessConfig", "LogConfig", "LogFormat", "LogLevel"]

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error")
"""The least grave first."""
_DAY_MS: Final = 86_400_000
LEAST_EVERY_MS: Final = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """The rows of connections, besides the one that each has at its end (``closed``)."""

    open: Annotated[bool, Key("whether each connection also has a row when it is open: let in, and its upstream reached (``opened``)")] = False
    every_ms: Annotated[
        int,
        Key(
            "a connection that lives longer has a row so often, with what it has come to since it was opened (``access``); the first up to a quarter "
            "later, so that many which came together are not told of together. 0 never, else at least 10s",
            "ms",
            (0, _DAY_MS),
        ),
    ] = 600_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The rows on stdout."""

    format: Annotated[LogFormat, Key("``json``, one object a line, for machines; ``text``, one line a row, for people at a terminal")] = "json"
    level: Annotated[
        LogLevel, Key("rows below it are not written, and not counted as dropped; those about changes (``audit``) always are", live=True)
    ] = "info"
    access: Annotated[AccessConfig, Key("the rows of connections")] = AccessConfig()


DEFAULT_LOG: Final = LogConfig()
