"""``framegate tap cat`` and ``framegate tap follow``: print records of the log as lines."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from framegate.control.cli.kinds import CHANNEL, LISTENER, MOMENT, SIZE
from framegate.control.cli.options import example

if TYPE_CHECKING:
    from framegate.control.cli.tap_cursor import Cursor
    from framegate.control.cli.tap_records import Entry, Frame, Trouble, Wanted

__all__ = ["DIRECTORY", "EXIT_INCOMPLETE", "EXIT_UNWRITABLE", "cat", "follow", "reading"]


class _TapDirectory(click.Path):
    """A directory of a tap, or an empty one. Any other directory is refused, so that a mistyped path is not taken for an empty log."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        directory = str(super().convert(value, param, ctx))
        from framegate.proxy.tap.ledger import LEDGER_NAME
        from framegate.proxy.tap.log_reader import segments, streams
        from framegate.proxy.tap.record import CONSUMERS_FOLDER, LOCK_NAME

        with contextlib.suppress(OSError):  # the reader reports what cannot be read
            names = set(os.listdir(directory))
            ours = names & {LEDGER_NAME, LOCK_NAME, CONSUMERS_FOLDER}
            if names and not ours and not any(segments(directory, stream) for stream in streams(directory)):
                self.fail(f"{directory} is not a tap's directory: it has no ledger and no streams", param, ctx)
        return directory


DIRECTORY: Final = _TapDirectory()
EXIT_INCOMPLETE: Final = 1
"""A part of the log is missing or cannot be read."""
EXIT_UNWRITABLE: Final = 2
_CHUNK: Final = 1 << 16

F = TypeVar("F", bound=Callable[..., object])


@contextlib.contextmanager
def reading(directory: str) -> Iterator[None]:
    """Turn an OSError into a message and exit code 1."""
    from framegate.control.cli.output import print_note

    try:
        yield
    except OSError as error:
        print_note(f"{directory} cannot be read: {error}")
        sys.exit(EXIT_INCOMPLETE)


class _Api(click.ParamType[int]):
    """A Kafka API: its name or its key."""

    name = "api"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The key."""
        if isinstance(value, int):
            return value
        from framegate.proxy.config.selection import api_key

        try:
            return api_key(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


def _filters(function: F) -> F:
    """The options that select records."""
    options = (
        click.option("--connection", "connections", multiple=True, type=CHANNEL, help="Only this connection, for example 0-1-42. May be repeated."),
        click.option("--listener", "listeners", type=LISTENER, multiple=True, help="Only this listener. May be repeated."),
        click.option("--direction", type=click.Choice(["request", "response"]), help="Only requests, or only responses."),
        click.option("--api", "apis", multiple=True, type=_Api(), help="Only this Kafka API, by name or key. May be repeated."),
        click.option("--client", metavar="PATTERN", help="Only Kafka requests whose client.id matches, for example 'rdkafka*'."),
        click.option("--min-size", type=SIZE, default=0, help="Only frames whose body has at least this size."),
        click.option("--max-size", type=SIZE, help="Only frames whose body has at most this size."),
        click.option("--stream", "streams", multiple=True, metavar="PATTERN", help="Only matching streams, for example 'edge.0.*'. May be repeated."),
        click.option("--limit", type=click.IntRange(1), help="Stop after this number of frames."),
        click.option("--payload", type=click.IntRange(0), default=16, show_default=True, help="Number of body bytes to show."),
        click.option("--totals", is_flag=True, help="Also show the counts of frames seen, by listener, direction and minute."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _wanted(since: int | None, until: int | None, given: dict[str, Any]) -> "Wanted":
    from framegate.control.cli.tap_records import Wanted
    from framegate.proxy.network.connection_id import parse_connection_id

    return Wanted(
        since_ns=since,
        until_ns=until,
        connections=frozenset(parse_connection_id(text) for text in given["connections"]),
        listeners=frozenset(given["listeners"]),
        direction=given["direction"],
        apis=frozenset(given["apis"]),
        client=given["client"],
        min_size=given["min_size"],
        max_size=given["max_size"],
        totals=given["totals"],
    )


def _cursors(directory: str, patterns: tuple[str, ...], since: int | None) -> "list[Cursor]":
    """A cursor for each stream; exits with 3 when a pattern matches none."""
    import fnmatch

    from framegate.control.cli.output import print_note
    from framegate.control.cli.tap_cursor import Cursor, start_offset
    from framegate.proxy.tap.log_reader import streams

    there = streams(directory)
    for pattern in patterns:
        if not fnmatch.filter(there, pattern):
            print_note(f"{directory} has no stream {pattern}; `framegate tap ls {directory}` lists the streams")
            sys.exit(_EXIT_NOT_FOUND)
    wanted = [name for name in there if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    return [Cursor(directory, name, start_offset(directory, name, since)) for name in wanted]


_EXIT_NOT_FOUND: Final = 3


@click.command(
    short_help="Show the frames of the log.",
    epilog=example(
        "framegate tap cat var/tap --since 10m --listener kafka --api Produce",
        "framegate tap cat var/tap --connection 0-1-42 --direction request --raw > bodies",
    ),
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--since", type=MOMENT, help="Only frames captured at this time or later: 2027-01-15T08:00:00Z, or 10m for ten minutes ago.")
@click.option("--until", type=MOMENT, help="Only frames captured before this time.")
@_filters
@click.option("--raw", is_flag=True, help="Write only the bodies, without separators. Frames whose body is not complete in the log are left out.")
def cat(
    directory: str, since: int | None, until: int | None, streams: tuple[str, ...], limit: int | None, payload: int, raw: bool, **given: Any
) -> None:
    """Show the frames of a tap's log, one per line, in order of time. No running framegate is needed.

    A line has the time, the connection, the direction, the listener, the size of the body in bytes, Kafka's API, version, correlation id and client,
    the latency from request to response, the tap rule, and the first bytes of the body. Lines that begin with -- are about missing frames: gaps, and
    blocks that are damaged or deleted.

    Exit codes: 0 success, also with gaps or after retention deleted data; 1 a part of the log cannot be read; 2 standard output cannot be written;
    3 there is no such stream.
    """
    from framegate.control.cli.output import print_note
    from framegate.control.cli.tap_cursor import merged

    writer = _Raw() if raw else _Lines(payload)
    wanted = _wanted(since, until, given)
    with reading(directory):
        cursors = _cursors(directory, streams, since)
        cut = _show(merged(cursors, wanted), wanted, limit, writer)
    writer.end()
    if cut:
        print_note(f"more frames exist than --limit {limit}")
    for cursor in cursors:
        if cursor.tail and not cut:
            print_note(f"{cursor.stream}: {cursor.tail:,} bytes at its end are not a complete block: it is being written, or its processor died")
    if writer.trouble:
        sys.exit(EXIT_INCOMPLETE)


def _show(items: "Iterable[Entry | Trouble]", wanted: "Wanted", limit: int | None, writer: "_Lines | _Raw") -> bool:
    """Write records. Returns True when more frames exist than the limit."""
    from framegate.control.cli.tap_records import Trouble, frames_of
    from framegate.proxy.tap.record import KIND_FRAMES

    left = limit
    for item in items:
        if isinstance(item, Trouble):
            writer.cannot(item)
        elif item.row.kind != KIND_FRAMES:
            writer.entry(item)
        else:
            for frame in frames_of(item.block, item.row, wanted):
                if left is not None:
                    if not left:
                        return True
                    left -= 1
                writer.frame(frame)
    return False


class _Lines:
    """Writes lines to standard output. ``trouble``: a part of the log could not be read."""

    def __init__(self, payload: int) -> None:
        self.trouble = False
        self._payload = payload
        self._waiting: list[str] = []
        self._size = 0
        self._rules = ""  # written before the next record

    def frame(self, frame: "Frame") -> None:
        from framegate.control.cli.tap_lines import frame_line

        self._add(frame_line(frame, self._payload))

    def entry(self, entry: "Entry") -> None:
        from framegate.control.cli.tap_lines import entry_line
        from framegate.proxy.tap.record import KIND_RULES

        if entry.row.kind == KIND_RULES:
            self._rules = entry_line(entry)
        else:
            self._add(entry_line(entry))

    def cannot(self, trouble: "Trouble") -> None:
        from framegate.control.cli.tap_lines import trouble_line

        self.trouble |= not trouble.taken
        self._add(trouble_line(trouble))

    def _add(self, line: str) -> None:
        lines = [self._rules, line] if self._rules else [line]
        self._rules = ""
        self._waiting += lines
        self._size += sum(map(len, lines))
        if self._size >= _CHUNK:
            self.end()

    def end(self) -> None:
        from framegate.control.cli.output import write_text

        if self._waiting:
            write_text("\n".join(self._waiting) + "\n")
        self._waiting.clear()
        self._size = 0


class _Raw:
    """Writes bodies to standard output, and other records to standard error. ``trouble``: a body is not complete, or could not be read."""

    def __init__(self) -> None:
        self.trouble = False
        self._partial = 0

    def frame(self, frame: "Frame") -> None:
        from framegate.control.cli.output import write_bytes
        from framegate.control.cli.tap_lines import is_whole

        if is_whole(frame):
            write_bytes(frame.kept)
        else:
            self._partial += 1

    def entry(self, entry: "Entry") -> None:
        from framegate.control.cli.output import print_note
        from framegate.control.cli.tap_lines import entry_line
        from framegate.proxy.tap.record import KIND_RULES

        if entry.row.kind != KIND_RULES:
            print_note(entry_line(entry).removeprefix("-- "))

    def cannot(self, trouble: "Trouble") -> None:
        from framegate.control.cli.output import print_note
        from framegate.control.cli.tap_lines import trouble_line

        self.trouble |= not trouble.taken
        print_note(trouble_line(trouble).removeprefix("-- "))

    def end(self) -> None:
        from framegate.control.cli.output import counted, print_note

        if self._partial:
            self.trouble = True
            print_note(f"{counted(self._partial, 'frame')} not written: their bodies are not complete in the log")


@click.command(
    short_help="Show frames as they are captured.",
    epilog=example("framegate tap follow var/tap --listener kafka", "framegate tap follow var/tap --since 1m --api Fetch --payload 64"),
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--since", type=MOMENT, help="Begin with frames captured at this time or later.  [default: with new frames]")
@_filters
def follow(directory: str, since: int | None, streams: tuple[str, ...], limit: int | None, payload: int, **given: Any) -> None:
    """Show frames as they are captured, until Ctrl-C. New streams are included. The lines are those of `tap cat`.

    If the terminal is too slow, frames are left out and a line says how many; `tap cat` shows them.

    Exit codes: 0 --limit is reached, or the reader of the output has closed it; 1 the log cannot be read; 2 standard output cannot be written;
    130 after Ctrl-C.
    """
    from framegate.control.cli.output import print_note
    from framegate.control.cli.tap_follow import Follower, Sink

    if sys.stdout is None:
        return  # standard output was closed before the start
    descriptor = sys.stdout.fileno()
    sink = Sink(descriptor, sys.stdout.encoding)
    with reading(directory):
        Follower(directory, _wanted(since, None, given), streams, since, payload, limit, sink, descriptor).run()
    sink.close()
    if sink.trouble:
        print_note(f"standard output cannot be written: {sink.trouble}")
        sys.exit(EXIT_UNWRITABLE)
