"""``framegate tap``: read the tap's log on this machine.

No command needs a running framegate. ``consumers remove`` and ``verify --accept`` write, the others only read. The modules::

    tap          ls, verify, consumers
    tap_cat      cat, follow
    tap_records  the records, and the filter that selects them
    tap_cursor   reads streams in order of time, and skips damaged blocks
    tap_lines    formats a record as a line
    tap_follow   reads what is appended
    tap_listing  lists streams, segments and consumers
    tap_verdict  prints the result of verify
"""

import sys
from typing import Any

import click

from framegate.control.cli.options import example, output_option
from framegate.control.cli.tap_cat import DIRECTORY, EXIT_INCOMPLETE, EXIT_UNWRITABLE, cat, follow, reading

__all__ = ["tap"]

_EXIT_USAGE = 2
_EXIT_NOT_FOUND = 3
_EXIT_CONFLICT = 4


class _Log(click.Group):
    """Commands whose exit code 1 is about the log; output that cannot be written has another code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; exits with ``EXIT_UNWRITABLE`` when standard output cannot be written."""
        from framegate.control.cli.output import UnwritableError

        try:
            return super().invoke(ctx)
        except UnwritableError:
            sys.exit(EXIT_UNWRITABLE)


@click.group(cls=_Log, epilog=example("framegate tap ls var/tap", "framegate tap verify var/tap", "framegate tap follow var/tap"))
def tap() -> None:
    """Read and verify the tap's log on this machine. No running framegate is needed.

    Exit code 1 is about the log. Exit code 2 means wrong usage, or that standard output cannot be written.
    """


@tap.command(
    short_help="List the streams of the log.", epilog=example("framegate tap ls var/tap", "framegate tap ls var/tap --segments --output json")
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--segments", "each", is_flag=True, help="List segments instead of streams.")
@output_option
def ls(directory: str, each: bool, output: str) -> None:
    """List the streams of a tap's log: size, time, frames stored and lost, and how many bytes each consumer is behind.

    A stream is the part of the log that one run of one processor wrote. Its states are open (being written, or its processor died), sealed, final
    (ended, and every frame is accounted for) and damaged. Counts come from block headers; `tap verify` reads everything.

    Exit codes: 0 success; 1 a segment is damaged or cannot be read; 2 standard output cannot be written.
    """
    from framegate.control.cli.output import print_note
    from framegate.control.cli.tap_listing import consumer_states, list_segments, print_segments, print_streams, stream_ends

    with reading(directory):
        states = list_segments(directory)
        consumers = [] if each else consumer_states(directory, stream_ends(directory))
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
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--summary/--all", default=None, help="Show only windows that are not complete, or all.  [default: --summary on a terminal when there are many]"
)
@click.option("--accept", "reason", metavar="REASON", help="Accept all present findings, for this reason.")
@output_option
def verify(directory: str, summary: bool | None, reason: str | None, output: str) -> None:
    """Check from the log alone that each frame that framegate saw is in the log, or in a row that says why it is not.

    Reads every block and checks its CRC. Shows for each stream, listener, direction and minute how many frames were seen, stored, withheld, sampled
    and lost, and which counts are not exact. Faults, for example damaged blocks, come first.

    --accept notes the present findings in the log's directory, with time, user and reason. They are still shown, but no longer change the exit code
    unless they become worse.

    Exit codes: 0 complete, or all findings are accepted; 6 frames are lost, and the log says exactly how many; 1 frames are missing, counts are
    unknown, or the log is empty; 2 the log cannot be read, or standard output cannot be written.
    """
    from framegate.control.cli.tap_verdict import accepted_of, check, exit_code, print_verdict

    if reason is not None and not reason.strip():
        raise click.BadParameter("give a reason", param_hint="--accept")
    verdict = check(directory)
    accepted = None if verdict is None else accepted_of(directory, verdict, reason)
    if verdict is None or accepted is None:
        sys.exit(_EXIT_USAGE)
    print_verdict(verdict, summary, output, accepted)
    sys.exit(exit_code(verdict, accepted))


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
    import time

    from framegate.control.cli.output import print_note
    from framegate.control.cli.tap_listing import consumer_states, print_consumers, stream_ends

    with reading(directory):
        states = consumer_states(directory, stream_ends(directory))
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
    from framegate.control.cli.output import print_note, size_text
    from framegate.control.cli.tap_listing import consumer_states, stream_ends
    from framegate.proxy.tap.consumer import ConsumerInUseError, remove_consumer

    with reading(directory):
        known = {state.name: state for state in consumer_states(directory, stream_ends(directory))}
    if name not in known:
        print_note(f"{directory} has no consumer {name}; consumers: {', '.join(known) or 'none'}")
        sys.exit(_EXIT_NOT_FOUND)
    behind = size_text(sum(known[name].behind.values()))
    print_note(f"{name} has not read {behind} of the log; retention will no longer keep this data for it")
    if not yes:
        click.confirm(f"Remove the consumer {name}?", abort=True, err=True)
    try:
        remove_consumer(directory, name)
    except ConsumerInUseError as error:
        print_note(f"{error}; nothing was changed")
        sys.exit(_EXIT_CONFLICT)
    except OSError as error:
        print_note(f"{name} cannot be removed: {error}")
        sys.exit(EXIT_INCOMPLETE)
    print_note(f"{name} was removed")


tap.add_command(cat)
tap.add_command(follow)
