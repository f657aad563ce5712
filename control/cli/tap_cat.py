"""Prints records of the tap's log: the output of ``framegate tap cat``."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from framegate.control.cli.options import EXIT_NOT_FOUND
from framegate.control.cli.output import counted, print_note, write_bytes, write_text
from framegate.control.cli.tap_cursor import Cursor, matching, start_offset
from framegate.control.cli.tap_records import Entry, Frame, Trouble, Wanted, entry_line, frame_line, frames_of, is_whole, trouble_line
from framegate.proxy.network.connection_id import parse_connection_id
from framegate.proxy.tap.log_reader import streams
from framegate.proxy.tap.record import KIND_CONNECTION, KIND_FRAMES, KIND_RULES

_CHUNK: Final = 1 << 16


def filter_of(since_ns: int | None, until_ns: int | None, given: Mapping[str, Any]) -> Wanted:
    """The filter for the options of a command."""
    return Wanted(
        since_ns=since_ns,
        until_ns=until_ns,
        connections=frozenset(parse_connection_id(text) for text in given["connections"]),
        listeners=frozenset(given["listeners"]),
        apis=frozenset(given["apis"]),
        **{name: given[name] for name in ("direction", "client", "min_size", "max_size", "totals")},
    )


def cursors_of(roots: Sequence[str], patterns: Sequence[str], since_ns: int | None) -> list[Cursor]:
    """A cursor for each stream of some logs; exits with 3 when a pattern matches none."""
    names = [(root, name) for root in roots for name in streams(root)]
    for pattern in patterns:
        if not matching([name for _, name in names], [pattern]):
            print_note(f"{roots[0]} has no stream {pattern}; `framegate tap ls {roots[0]}` lists the streams")
            sys.exit(EXIT_NOT_FOUND)
    return [Cursor(root, name, start_offset(root, name, since_ns)) for root, name in names if matching([name], patterns)]


def show(items: Iterable[Entry | Trouble], wanted: Wanted, limit: int | None, writer: "Lines | RawBodies") -> bool:
    """Write records. Returns True when more frames exist than the limit."""
    left = limit
    for item in items:
        if isinstance(item, Trouble):
            writer.trouble |= not item.taken
            writer.note(trouble_line(item))
        elif item.row.kind == KIND_RULES:
            writer.rules(entry_line(item))
        elif item.row.kind == KIND_CONNECTION:
            writer.connection(entry_line(item))
        elif item.row.kind != KIND_FRAMES:
            writer.note(entry_line(item))
        else:
            for frame in frames_of(item.block, item.row, wanted):
                if left is not None:
                    if not left:
                        return True
                    left -= 1
                writer.frame(frame)
    return False


class Lines:
    """Writes lines to standard output. ``trouble``: a part of the log could not be read."""

    def __init__(self, payload: int) -> None:
        """``payload``: number of body bytes to show."""
        self.trouble = False
        self._payload = payload
        self._waiting: list[str] = []
        self._size = 0
        self._rules = ""  # written before the next record

    def frame(self, frame: Frame) -> None:
        self.note(frame_line(frame, self._payload))

    def rules(self, line: str) -> None:
        """Write the rules in force before the next record, unless other rules come first."""
        self._rules = line

    def connection(self, line: str) -> None:
        """Write the end of a connection."""
        self.note(line)

    def note(self, line: str) -> None:
        """Write any other record."""
        for text in filter(None, (self._rules, line)):
            self._waiting.append(text)
            self._size += len(text)
        self._rules = ""
        if self._size >= _CHUNK:
            self.end()

    def end(self) -> None:
        """Write what waits."""
        if self._waiting:
            write_text("\n".join(self._waiting) + "\n")
        self._waiting.clear()
        self._size = 0


class RawBodies:
    """Writes bodies to standard output, and other records to standard error. ``trouble``: a body is not complete, or could not be read."""

    def __init__(self) -> None:
        self.trouble = False
        self._partial = 0

    def frame(self, frame: Frame) -> None:
        """Write a body if the log has all of it."""
        if is_whole(frame):
            write_bytes(frame.kept)
        else:
            self._partial += 1

    def rules(self, line: str) -> None:
        """Rules are not shown."""

    def connection(self, line: str) -> None:
        """Ends of connections are not shown."""

    def note(self, line: str) -> None:
        """Write any other record to standard error."""
        print_note(line.removeprefix("-- "))

    def end(self) -> None:
        """Say how many bodies were left out."""
        if self._partial:
            self.trouble = True
            print_note(f"{counted(self._partial, 'frame')} not written: their bodies are not complete in the log")
