"""The log on stdout: one row for each event."""

import dataclasses
from typing import Annotated, Final, Literal

from framegate.proxy.config.key import Key

__all__ = ["DEFAULT_LOG", "LEAST_EVERY_MS", "LEVELS", "AccessConfig", "LogConfig", "LogFormat", "LogLevel"]

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error")
"""The least severe first."""
_DAY_MS: Final = 86_400_000
LEAST_EVERY_MS: Final = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Further rows of connections, besides the one at their end (``closed``)."""

    open: bool = False
    every_ms: Annotated[int, Key("ms", (0, _DAY_MS))] = 600_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The rows on stdout."""

    format: LogFormat = "json"
    level: Annotated[LogLevel, Key(effect="now")] = "info"
    access: AccessConfig = AccessConfig()


DEFAULT_LOG: Final = LogConfig()
