"""Options and errors that the commands of ``framegate tap`` share."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click

from framegate.control.cli.kinds import API, CHANNEL, LISTENER, MOMENT, SIZE
from framegate.control.cli.output import print_note

F = TypeVar("F", bound=Callable[..., object])


class _TapDirectory(click.Path):
    """A directory of a tap, or an empty one. Any other directory is refused, so that a mistyped path is not taken for an empty log."""

    def __init__(self, *, url: bool = False) -> None:
        super().__init__(exists=True, file_okay=False)
        self._url = url

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or the URL."""
        if "://" in str(value):
            if not self._url:
                self.fail(f"{value} is a URL; this command reads a directory of this machine only", param, ctx)
            return URL.convert(value, param, ctx)
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


class _Url(click.ParamType[str]):
    """A URL of an object store."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The URL; obstore is installed."""
        from framegate.proxy.tap.store import package_fault, url_fault

        fault = url_fault(str(value)) or package_fault()
        if fault:
            self.fail(f"{value} {fault}", param, ctx)
        return str(value).rstrip("/")


DIRECTORY: Final = _TapDirectory()
LOG: Final = _TapDirectory(url=True)
URL: Final = _Url()
EXIT_INCOMPLETE: Final = 1  # a part of the log is missing or cannot be read
EXIT_UNWRITABLE: Final = 2
EXIT_USAGE: Final = 2


def roots_of(log: str) -> list[str]:
    """The logs to read: the directory, or the nodes below a URL. Exits with 1 when the store cannot be read."""
    if "://" not in log:
        return [log]
    from framegate.proxy.tap.fleet import nodes_of

    with reading(log):
        roots = nodes_of(log)
    if not roots:
        print_note(f"{log} has no nodes")
        sys.exit(EXIT_INCOMPLETE)
    return roots


@contextlib.contextmanager
def reading(directory: str) -> Iterator[None]:
    """Turn an OSError into a message and exit code 1."""
    try:
        yield
    except OSError as error:
        print_note(f"{directory} cannot be read: {error}")
        sys.exit(EXIT_INCOMPLETE)


SINCE: Final = click.option(
    "--since", type=MOMENT, help="Only frames captured at this time or later: 2027-01-15T08:00:00Z, or 10m for ten minutes ago."
)
UNTIL: Final = click.option("--until", type=MOMENT, help="Only frames captured before this time.")
SELECTION: Final = (
    click.option("--connection", "connections", multiple=True, type=CHANNEL, help="Only this connection, for example 0-1-42. May be repeated."),
    click.option("--listener", "listeners", type=LISTENER, multiple=True, help="Only this listener. May be repeated."),
    click.option("--api", "apis", multiple=True, type=API, help="Only this Kafka API, by name or key. May be repeated."),
    click.option("--client", metavar="PATTERN", help="Only Kafka requests whose client.id matches, for example 'rdkafka*'."),
    click.option("--min-size", type=SIZE, default=0, help="Only frames whose body has at least this size."),
    click.option("--max-size", type=SIZE, help="Only frames whose body has at most this size."),
    click.option("--stream", "streams", multiple=True, metavar="PATTERN", help="Only matching streams, for example 'edge.0.*'. May be repeated."),
)
SHOWN: Final = (
    click.option("--direction", type=click.Choice(["request", "response"]), help="Only requests, or only responses."),
    click.option("--limit", type=click.IntRange(1), help="Stop after this number of frames."),
    click.option("--payload", type=click.IntRange(0), default=16, show_default=True, help="Number of body bytes to show."),
    click.option("--totals", is_flag=True, help="Also show the counts of frames seen, by listener, direction and minute."),
)


def options(*given: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options, in the order of the help text."""

    def decorate(function: F) -> F:
        for option in reversed(given):
            function = option(function)
        return function

    return decorate
