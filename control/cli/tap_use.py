"""``framegate tap replay`` and ``tap export``: commands that use captured connections."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.kinds import DURATION, Kind
from framegate.control.cli.options import TLS_FILES, example, output_option
from framegate.control.cli.output import print_note
from framegate.control.cli.tap_options import EXIT_INCOMPLETE, EXIT_UNWRITABLE, LOG, SELECTION, SINCE, UNTIL, options, reading, roots_of
from framegate.proxy.tap.record import FILE_MODE, FRAMINGS

if TYPE_CHECKING:
    from framegate.control.cli.tap_connections import Capture, Connection
    from framegate.control.cli.tap_records import Frame, Wanted
_EXIT_UNREACHED: Final = 5  # the upstream
_EXIT_DIFFERENT: Final = 6  # answers differ, or are missing
_FRAMINGS: Final = [name for name in FRAMINGS if name != "header"]


def _speed(text: str) -> float:
    """A factor of the captured speed; 0 for ``max``."""
    try:
        speed = 0.0 if text == "max" else float(text)
    except ValueError:
        speed = -1.0
    if not (text == "max" or 0.001 <= speed <= 1000):
        raise ValueError("is not a speed: write max, or a factor from 0.001 to 1000, for example 1 or 10")
    return speed


def _target(text: str) -> str:
    from framegate.proxy.config.address import parse_address

    parse_address(text, unix=False)
    return text


@contextlib.contextmanager
def _captured(log: str, since: int | None, until: int | None, streams: tuple[str, ...], given: dict[str, Any]) -> "Iterator[tuple[Capture, Wanted]]":
    """The selected connections of a log, and the conditions on single frames. Exits with 1 at the end when a part could not be read."""
    from framegate.control.cli.tap_cat import filter_of
    from framegate.control.cli.tap_connections import Capture

    wanted = filter_of(since, until, {**given, "direction": None, "totals": False})
    with reading(log):
        capture = Capture(roots_of(log), streams, wanted)
    for trouble in capture.troubles:
        print_note(trouble)
    yield capture, wanted
    if capture.troubles:
        sys.exit(EXIT_INCOMPLETE)


@click.command(
    short_help="Send captured requests to an upstream again.",
    epilog=example(
        "framegate tap replay var/tap --to test-broker:9092 --listener kafka --since 10m",
        "framegate tap replay s3://bucket/taps/edge-1 --to 127.0.0.1:7000 --speed max --output json",
    ),
)
@click.argument("directory", metavar="DIR|URL", type=LOG)
@click.option("--to", required=True, metavar="HOST:PORT", type=Kind("host:port", _target), help="The upstream to test.")
@click.option(
    "--speed", type=Kind("factor", _speed), default="1", show_default=True, help="Factor of the captured speed, or max: as fast as answers come."
)
@options(SINCE, UNTIL, *SELECTION)
@click.option("--framing", type=click.Choice(_FRAMINGS), help="The upstream's framing.  [default: that of the captured answers]")
@click.option(
    "--tls",
    type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
    help=f"Use TLS, with a folder that has {TLS_FILES[2]}, and {TLS_FILES[0]} and {TLS_FILES[1]} if the upstream asks for a certificate.",
)
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="Time without an answer after which a connection is given up.")
@output_option
def replay(
    directory: str,
    to: str,
    speed: float,
    since: int | None,
    until: int | None,
    streams: tuple[str, ...],
    framing: str | None,
    tls: pathlib.Path | None,
    timeout: int,
    output: str,
    **given: Any,
) -> None:
    """Send the captured requests of a log to a test upstream, with their timing, and compare its answers with the captured ones.

    For each captured connection one connection is opened. Requests are sent unchanged, with Kafka's correlation ids. A request whose body is not in
    the log as it passed (cut, hashed, redacted, withheld, sampled, lost) is never sent; the report counts them. Requests may change the upstream's
    data: do not use a server in production.

    Exit codes: 0 requests were sent, and no answer differs; 6 answers differ or are missing, or a connection failed; 1 there is nothing to send, or a
    part of the log cannot be read; 2 wrong usage, or standard output cannot be written; 3 there is no such stream; 5 the upstream cannot be reached;
    130 after Ctrl-C, with a report of what was done.
    """
    import asyncio

    from framegate.control.cli.tap_connections import framing_of
    from framegate.control.cli.tap_replay import Replay, Target, tls_context

    host, _, port = to.rpartition(":")
    context = None if tls is None else tls_context(tls)
    target = Target(host.strip("[]"), int(port), context, framing_of(framing or ""), speed, timeout / 1000)
    with _captured(directory, since, until, streams, given) as (capture, wanted):
        replaying = Replay(capture, wanted, target)
        report = replaying.report
        try:
            asyncio.run(replaying.run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            report.print(output)
        if replaying.trouble is not None:
            print_note(f"{directory} cannot be read: {replaying.trouble}")
            sys.exit(EXIT_INCOMPLETE)
        if not report.connections and report.failures:
            sys.exit(_EXIT_UNREACHED)
        if not report.requests:
            sys.exit(EXIT_INCOMPLETE)
    if not report.equal:
        sys.exit(_EXIT_DIFFERENT)


@click.command(
    short_help="Write captured frames as packets, for Wireshark.",
    epilog=example("framegate tap export var/tap --pcapng kafka.pcapng --listener kafka --since 10m"),
)
@click.argument("directory", metavar="DIR|URL", type=LOG)
@click.option("--pcapng", "path", required=True, type=click.Path(dir_okay=False, writable=True), help="The file to write; it is replaced.")
@options(SINCE, UNTIL, *SELECTION)
def export(directory: str, path: str, since: int | None, until: int | None, streams: tuple[str, ...], **given: Any) -> None:
    """Write the frames of a log as TCP packets in a pcapng file, which Wireshark and tshark read.

    Each frame is one segment, or several. Frames that are not in the log are missing segments, with a comment. What TCP adds (handshake,
    acknowledgements, end) is made up, and so are the addresses of listeners. Kafka is at port 9092.

    Exit codes: 0 success, also with missing frames; 1 a part of the log cannot be read; 2 wrong usage, or the file cannot be written; 3 there is no
    such stream.
    """
    from framegate.control.cli.tap_pcapng import PcapNg

    with _captured(directory, since, until, streams, given) as (capture, wanted):
        try:
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
                written = PcapNg(file, capture.connections.values())
                for connection, frame in _frames(directory, capture):
                    if frame is None:
                        written.end(connection)
                    else:
                        written.frame(connection, frame, chosen=wanted.frame(frame.size, frame.request))
        except OSError as error:
            print_note(f"{path} cannot be written: {error.strerror or error}")
            sys.exit(EXIT_UNWRITABLE)
        print_note(f"{written.summary()} written to {path}")


def _frames(log: str, capture: "Capture") -> "Iterator[tuple[Connection, Frame | None]]":
    with reading(log):
        yield from capture.frames()
