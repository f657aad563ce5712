"""Which rows are written: those from a level on, and of them not those whose event is silenced. Both can be changed at any time."""

from collections.abc import Mapping
from typing import Final

from framegate.control.errors import InvalidArgumentError, Violation
from framegate.control.logs.catalog import EVENTS
from framegate.proxy.config.log import LEVELS, LogLevel

__all__ = ["ALWAYS", "Levels"]

ALWAYS: Final = "audit"
"""The event whose rows are always written: a change is made only if its row can be kept."""
_RANKS: Final[Mapping[str, int]] = {level: rank for rank, level in enumerate(LEVELS)}


class Levels:
    """What is in force. Any thread may ask, one at a time may change.

    Attributes:
        level: the least that is written.
        silenced: names of events that are not, whatever their level.
    """

    def __init__(self, level: LogLevel = "info") -> None:
        self.level: LogLevel = level
        self.silenced: frozenset[str] = frozenset()

    def passes(self, event: str, level: str) -> bool:
        """Whether a row is written."""
        return event == ALWAYS or (_RANKS[level] >= _RANKS[self.level] and event not in self.silenced)

    def change(self, level: LogLevel | None, events: Mapping[str, bool]) -> None:
        """Put another level in force, and silence events or have them written again; all of it or nothing.

        Args:
            level: None: it stays.
            events: by name, whether their rows are written; those that are not named stay.

        Raises:
            InvalidArgumentError: there is no such event, or it is one whose rows are always written.
        """
        faults = [Violation("events", f"there is no event {name!r:.100}; deploy/log.md lists them") for name in events if name not in EVENTS]
        if not events.get(ALWAYS, True):
            faults.append(Violation("events", f"rows {ALWAYS} are always written: nothing is changed that is not audited"))
        if faults:
            raise InvalidArgumentError(faults)
        silent = {name for name, written in events.items() if not written}
        self.silenced = (self.silenced | silent) - (events.keys() - silent)
        if level is not None:
            self.level = level
