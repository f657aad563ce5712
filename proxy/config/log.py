"""The log on stdout: one row for each event."""

import dataclasses
from typing import Annotated, Final, Literal

from framegate.proxy.config.key import Key

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
OnAuditFailure = Literal["refuse", "count"]
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error")  # the least severe first
_DAY_MS: Final = 86_400_000
LEAST_EVERY_MS: Final = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Rows of connections: further ones besides the one at their end (``closed``), and which of those are written."""

    open: bool = False
    every_ms: Annotated[int, Key("ms", (0, _DAY_MS))] = 600_000
    sample: Annotated[float, Key("share", (0.0, 1.0))] = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Where the rows about changes go besides stdout, and what happens to a change whose row cannot be written."""

    file: Annotated[str | None, Key("path")] = None
    on_failure: OnAuditFailure = "refuse"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The rows on stdout."""

    format: LogFormat = "json"
    level: Annotated[LogLevel, Key(effect="now")] = "info"
    access: AccessConfig = AccessConfig()
    audit: AuditConfig = AuditConfig()


DEFAULT_LOG: Final = LogConfig()
