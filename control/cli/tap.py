"""``framegate tap``: read the tap's log on this machine.

No command needs a running framegate. ``consumers remove`` and ``verify --accept`` write, the others only read. The modules::

    tap          the commands, except replay and export
    tap_use      the commands replay and export
    tap_options  options that they share
    tap_cat      prints records
    tap_records  the records, the filter that selects them, and the line of each
    tap_cursor   reads streams in order of time, and skips damaged blocks
    tap_follow   reads what is appended
    tap_listing  lists streams, segments and consumers
    tap_verdict  prints the result of verify
    tap_fleet    ships to an object store, and reads a fleet from there
    tap_connections  the captured connections, for replay and export
    tap_replay       sends captured requests to an upstream again
    tap_comparison   compares the answers, and prints the result
    tap_pcapng       writes packets
"""

import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click

from framegate.control.cli.kinds import MOMENT, SIZE
from framegate.control.cli.options import EXIT_CONFLICT, EXIT_NOT_FOUND, example, output_option
from framegate.control.cli.output import UnwritableError, print_note, size_text
from framegate.control.cli.tap_options import (
    DIRECTORY,
    EXIT_INCOMPLETE,
    EXIT_UNWRITABLE,
    EXIT_USAGE,
    LOG,
    SELECTION,
    SHOWN,
    SINCE,
    UNTIL,
    URL,
    options,
    reading,
    roots_of,
)
from framegate.control.cli.tap_use import export, replay

if TYPE_CHECKING:
    from framegate.proxy.tap.ledger import Span


class _Log(click.Group):
    """Commands whose exit code 1 is about the log; output that cannot be written has another code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; exits with ``EXIT_UNWRITABLE`` when standard output cannot be written."""
        try:
            return super().invoke(ctx)
        except UnwritableError:
            sys.exit(EXIT_UNWRITABLE)


@click.group(cls=_Log, epilog=example("framegate tap ls var/tap", "framegate tap verify var/tap", "framegate tap follow var/tap"))
def tap() -> None:
    """Read and verify the tap's log on this machine, or a fleet's logs in an object store. No running framegate is needed.

    Exit code 1 is about the log. Exit code 2 means wrong usage, or that standard output cannot be written.
    """


@tap.command(
    short_help="List the streams of the log.", epilog=example("framegate tap ls var/tap", "framegate tap ls var/tap --segments --output json")
)
@click.argument("directory", metavar="DIR|URL", type=LOG)
@click.option("--segments", "each", is_flag=True, help="List segments instead of streams.")
@output_option
def ls(directory: str, each: bool, output: str) -> None:
    """List the streams of a tap's log: size, time, frames stored and lost, and how many bytes each consumer is behind.

    A stream is the part of the log that one run of one processor wrote. Its states are open (being written, or its processor died), sealed, final
    (ended, and every frame is accounted for) and damaged. Counts come from block headers; `tap verify` reads everything.

    With the URL of a fleet it lists the nodes: when each was heard, and until when its frames are complete. A node is running, stopped (in order) or
    silent (not heard for three of its intervals). With the URL of a node it lists the node's streams; that reads every segment.

    Exit codes: 0 success; 1 a segment is damaged or cannot be read; 2 standard output cannot be written.
    """
    from framegate.control.cli.tap_listing import consumer_states, list_segments, print_segments, print_streams

    if roots_of(directory) != [directory]:
        from framegate.control.cli.tap_fleet import list_nodes, print_nodes

        with reading(directory):
            nodes = list_nodes(directory)
        print_nodes(nodes, output)
        return
    with reading(directory):
        states = list_segments(directory)
        consumers = [] if each else consumer_states(directory)
    if each:
        print_segments(states, output)
    else:
        print_streams(states, consumers, output)
    for state in states:
        if state.fault:
            print_note(f"{state.stream}: segment {state.base}: {state.fault}")
    if not states and output == "table":
        print_note(f"{directory} has no streams")
    if any(state.fault for state in states):
        sys.exit(EXIT_INCOMPLETE)


@tap.command(
    short_help="Check that the log is complete.",
    epilog=example(
        "framegate tap verify var/tap", "framegate tap verify var/tap --output json", "framegate tap verify var/tap --accept 'disk was full, OPS-12'"
    ),
)
@click.argument("directory", metavar="DIR|URL", type=LOG)
@click.option(
    "--summary/--all", default=None, help="Show only windows that are not complete, or all.  [default: --summary on a terminal when there are many]"
)
@click.option("--accept", "reason", metavar="REASON", help="Accept all present findings, for this reason.")
@click.option("--gone", multiple=True, metavar="NODE", help="This node of a fleet no longer exists; do not wait for it. May be repeated.")
@options(SINCE, UNTIL)
@output_option
def verify(
    directory: str, summary: bool | None, reason: str | None, gone: tuple[str, ...], since: int | None, until: int | None, output: str
) -> None:
    """Check from the log alone that each frame that framegate saw is in the log, or in a row that says why it is not.

    Reads every block and checks its CRC. Shows for each stream, listener, direction and minute how many frames were seen, stored, withheld, sampled
    and lost, and which counts are not exact. Faults, for example damaged blocks, come first.

    With --since or --until it judges only the minutes that touch that time, and the faults that may be of them. With --since it does not read
    segments that were written earlier than an hour before.

    --accept notes the present findings in the log's directory, with time, user and reason. They are still shown, but no longer change the exit code
    unless they become worse.

    With the URL of a fleet, or of a node, it also judges each minute: complete; lost, with the number and the reasons; or open, because a node was
    not heard since. A node that fell silent, and data that was deleted before it was shipped, count as missing frames. --gone names a node that will
    not be heard again: what it had not shipped is lost.

    Exit codes: 0 complete, or all findings are accepted; 6 frames are lost, and the log says exactly how many; 1 frames are missing, counts are
    unknown, or the log is empty; 2 the log cannot be read, or standard output cannot be written.
    """
    from framegate.control.cli.tap_verdict import accepted_of, check, exit_code, print_verdict
    from framegate.proxy.tap.completeness import EVERYTHING

    if reason is not None and not reason.strip():
        raise click.BadParameter("give a reason", param_hint="--accept")
    within = (since or 0, until or EVERYTHING)
    if "://" in directory:
        if reason is not None:
            raise click.BadParameter("findings are accepted in a directory, not in a store", param_hint="--accept")
        _verify_fleet(directory, summary, gone, within, output)
    verdict = check(directory, within)
    accepted = None if verdict is None else accepted_of(directory, verdict, reason)
    if verdict is None or accepted is None:
        sys.exit(EXIT_USAGE)
    print_verdict(verdict, summary, output, accepted)
    sys.exit(exit_code(verdict, accepted))


def _verify_fleet(url: str, summary: bool | None, gone: tuple[str, ...], within: "Span", output: str) -> NoReturn:
    from framegate.control.cli.tap_fleet import fleet_exit_code, print_fleet, verify_fleet

    roots_of(url)
    try:
        fleet = verify_fleet(url, gone, within)
    except OSError as error:
        print_note(f"{url} cannot be read: {error}")
        sys.exit(EXIT_USAGE)
    for name in sorted({*gone} - {node.name for node in fleet.nodes}):
        print_note(f"--gone {name}: {url} has no such node")
    print_fleet(fleet, summary, output)
    sys.exit(fleet_exit_code(fleet))


@tap.command(
    short_help="Send a log to an object store.",
    epilog=example("framegate tap ship var/tap s3://bucket/taps", "framegate tap ship var/tap file:///mnt/taps --node edge-1"),
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("url", metavar="URL", type=URL)
@click.option("--node", help="Name of the folder below the URL.  [default: the node whose streams are in the directory]")
@click.option("--bandwidth", type=SIZE, default=0, help="Bytes sent per second at most.  [default: unlimited]")
def ship(directory: str, url: str, node: str | None, bandwidth: int) -> None:
    """Send the sealed segments and the ledger of a log to an object store, once, and check each object by reading it back.

    What is there is not sent again; the command may be stopped and repeated at any time. A running framegate ships its log itself with tap.ship; of
    its streams this command sends what is sealed, and cannot say until when they are complete.

    Exit codes: 0 everything that is sealed is in the store; 1 the log or the store cannot be read, or the store cannot be written; 2 wrong usage;
    4 another process ships the directory.
    """
    from framegate.control.cli import tap_fleet

    names = [node] if node else tap_fleet.node_names(directory)
    if len(names) != 1:
        raise click.UsageError(f"--node is needed: {directory} has streams of {', '.join(names) or 'no node'}")
    with reading(url):
        if not tap_fleet.ship(directory, f"{url}/{names[0]}", bandwidth):
            sys.exit(EXIT_CONFLICT)


@tap.group(
    short_help="List or remove consumers of the log.",
    epilog=example("framegate tap consumers list var/tap", "framegate tap consumers remove var/tap tables"),
)
def consumers() -> None:
    """Consumers: registered readers of the log. Retention keeps what they have not read, as far as tap.budget allows."""


@consumers.command("list", epilog=example("framegate tap consumers list var/tap"))
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@output_option
def list_(directory: str, output: str) -> None:
    """List the consumers, and how many bytes each has not read."""
    from framegate.control.cli.tap_listing import consumer_states, print_consumers

    with reading(directory):
        states = consumer_states(directory)
    print_consumers(states, output, time.time_ns())
    if not states and output == "table":
        print_note(f"{directory} has no consumers")


@consumers.command(short_help="Remove a consumer that is no longer needed.", epilog=example("framegate tap consumers remove var/tap tables"))
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(directory: str, name: str, yes: bool) -> None:
    """Remove a consumer that is no longer needed. A running consumer is not removed.

    Retention then no longer keeps data for it. If the consumer starts again, it registers itself and continues from its last offset, unless that data
    was deleted.

    Exit codes: 0 removed; 1 not confirmed, or the disk cannot be written; 3 there is no such consumer; 4 the consumer is running.
    """
    from framegate.control.cli.tap_listing import consumer_states
    from framegate.proxy.tap.consumer import ConsumerInUseError, remove_consumer

    with reading(directory):
        known = {state.name: state for state in consumer_states(directory)}
    if name not in known:
        print_note(f"{directory} has no consumer {name}; consumers: {', '.join(known) or 'none'}")
        sys.exit(EXIT_NOT_FOUND)
    behind = size_text(sum(known[name].behind.values()))
    print_note(f"{name} has not read {behind} of the log; retention will no longer keep this data for it")
    if not yes:
        click.confirm(f"Remove the consumer {name}?", abort=True, err=True)
    try:
        remove_consumer(directory, name)
    except ConsumerInUseError as error:
        print_note(f"{error}; nothing was changed")
        sys.exit(EXIT_CONFLICT)
    except OSError as error:
        print_note(f"{name} cannot be removed: {error}")
        sys.exit(EXIT_INCOMPLETE)
    print_note(f"{name} was removed")


@tap.command(
    short_help="Show the frames of the log.",
    epilog=example(
        "framegate tap cat var/tap --since 10m --listener kafka --api Produce",
        "framegate tap cat var/tap --connection 0-1-42 --direction request --raw > bodies",
    ),
)
@click.argument("directory", metavar="DIR|URL", type=LOG)
@options(SINCE, UNTIL, *SELECTION, *SHOWN)
@click.option("--raw", is_flag=True, help="Write only the bodies, without separators. Frames whose body is not complete in the log are left out.")
def cat(
    directory: str, since: int | None, until: int | None, streams: tuple[str, ...], limit: int | None, payload: int, raw: bool, **given: Any
) -> None:
    """Show the frames of a tap's log, or of a fleet's logs in a store, one per line, in order of time. No running framegate is needed.

    A line has the time, the connection, the direction, the listener, the size of the body in bytes, Kafka's API, version, correlation id and client,
    the latency from request to response, the tap rule, and the first bytes of the body. Lines that begin with -- are about missing frames: gaps, and
    blocks that are damaged or deleted.

    Exit codes: 0 success, also with gaps or after retention deleted data; 1 a part of the log cannot be read; 2 standard output cannot be written;
    3 there is no such stream.
    """
    from framegate.control.cli.tap_cat import Lines, RawBodies, cursors_of, filter_of, show
    from framegate.control.cli.tap_cursor import merged

    writer = RawBodies() if raw else Lines(payload)
    wanted = filter_of(since, until, given)
    with reading(directory):
        cursors = cursors_of(roots_of(directory), streams, since)
        cut = show(merged(cursors, wanted), wanted, limit, writer)
    writer.end()
    if cut:
        print_note(f"more frames exist than --limit {limit}")
    for cursor in cursors:
        if cursor.tail and not cut:
            print_note(f"{cursor.stream}: {cursor.tail:,} bytes at its end are not a complete block: it is being written, or its processor died")
    if writer.trouble:
        sys.exit(EXIT_INCOMPLETE)


@tap.command(
    short_help="Show frames as they are captured.",
    epilog=example("framegate tap follow var/tap --listener kafka", "framegate tap follow var/tap --since 1m --api Fetch --payload 64"),
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--since", type=MOMENT, help="Begin with frames captured at this time or later.  [default: with new frames]")
@options(*SELECTION, *SHOWN)
def follow(directory: str, since: int | None, streams: tuple[str, ...], limit: int | None, payload: int, **given: Any) -> None:
    """Show frames as they are captured, until Ctrl-C. New streams are included. The lines are those of `tap cat`.

    If the terminal is more than 4 MiB of the log behind, frames are left out and a line says how many; `tap cat` shows them.

    Exit codes: 0 --limit is reached, or the reader of the output has closed it; 1 the log cannot be read; 2 standard output cannot be written;
    130 after Ctrl-C.
    """
    from framegate.control.cli.tap_cat import filter_of
    from framegate.control.cli.tap_follow import Follower

    if sys.stdout is None:
        return  # standard output was closed before the start
    with reading(directory):
        Follower(directory, filter_of(since, None, given), streams, since, payload, limit, sys.stdout.fileno(), sys.stdout.encoding).run()


tap.add_command(replay)
tap.add_command(export)
