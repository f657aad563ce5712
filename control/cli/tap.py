"""``framegate tap``: look at the tap's log on this machine.

No command needs a running framegate; all but ``consumers remove`` only read. The modules beside this one::

    tap          ls, verify, consumers
    tap_cat      cat, follow
    tap_records  what is shown, and what is wanted
    tap_cursor   reads streams in order of time, past what is damaged
    tap_lines    a line for each record
    tap_follow   what is appended, live
    tap_listing  streams, segments and consumers
    tap_verdict  what completeness says
"""

import sys
from typing import Any

import click

from control.cli.options import example, output_option
from control.cli.tap_cat import DIRECTORY, EXIT_INCOMPLETE, EXIT_UNWRITABLE, cat, follow, reading

__all__ = ["tap"]

_EXIT_USAGE = 2
_EXIT_NOT_FOUND = 3
_EXIT_CONFLICT = 4


class _Log(click.Group):
    """Commands whose exit code 1 says something of the log, and is not to be had by a full disk of somebody else."""

    def invoke(self, ctx: click.Context) -> Any:
        """Output that cannot be written is another code."""
        from control.cli.output import UnwritableError

        try:
            return super().invoke(ctx)
        except UnwritableError:
            sys.exit(EXIT_UNWRITABLE)


@click.group(cls=_Log, epilog=example("framegate tap ls var/tap", "framegate tap verify var/tap", "framegate tap follow var/tap"))
def tap() -> None:
    """The tap's log on this machine: what is in it, what is missing, who reads it. Needs no running framegate.

    Exit code 2 is also that of output that cannot be written: 1 is about the log.
    """


@tap.command(
    short_help="List the streams of the log.", epilog=example("framegate tap ls var/tap", "framegate tap ls var/tap --segments --output json")
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--segments", "each", is_flag=True, help="A row for each segment, in place of one for each stream.")
@output_option
def ls(directory: str, each: bool, output: str) -> None:
    """List the streams of a tap's log: size, time, frames stored and lost, and how many bytes each consumer is behind.

    A stream is what one run of one processor wrote. Its state is open (being written, or left by one that died), sealed, final (it ends here, and
    all is accounted for) or damaged. Frames are counted by the blocks' headers; `tap verify` reads everything.

    Exit codes: 0 good; 1 a segment is damaged, or cannot be read; 2 the output cannot be written.
    """
    from control.cli.output import print_note
    from control.cli.tap_listing import consumer_states, list_segments, print_segments, print_streams, stream_ends

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
    short_help="Prove that the log is complete.",
    epilog=example(
        "framegate tap verify var/tap", "framegate tap verify var/tap --output json", "framegate tap verify var/tap --accept 'disk was full, OPS-12'"
    ),
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--summary/--all", default=None, help="Only windows that are not complete, or all.  [default: --summary on a terminal when there are many]"
)
@click.option("--accept", "reason", metavar="REASON", help="Note that what is not complete now is known, and why that is accepted.")
@output_option
def verify(directory: str, summary: bool | None, reason: str | None, output: str) -> None:
    """Prove from the log alone whether it has every frame that was seen, or says of each that it is missing.

    Reads every block with its CRC, and says for each stream, listener, direction and minute how many frames were seen, stored, withheld, sampled and
    lost, and what of that is not known exactly. Faults, what makes the log itself not to be believed, come first.

    With --accept, what is not complete now is noted in the log's directory, with the time, the user and the reason, and is no failure from then on,
    unless it becomes worse. It stays in the output.

    Exit codes: 0 complete, or all that is not was accepted; 6 frames are lost, and the log says exactly how many; 1 something is missing or not
    known, or there is nothing to prove it by; 2 it cannot be read, or the output cannot be written.
    """
    from control.cli.tap_verdict import accepted_of, check, exit_code, print_verdict

    if reason is not None and not reason.strip():
        raise click.BadParameter("say why", param_hint="--accept")
    verdict = check(directory)
    accepted = None if verdict is None else accepted_of(directory, verdict, reason)
    if verdict is None or accepted is None:
        sys.exit(_EXIT_USAGE)
    print_verdict(verdict, summary, output, accepted)
    sys.exit(exit_code(verdict, accepted))


@tap.group(
    short_help="Who reads the log, and how far each has come.",
    epilog=example("framegate tap consumers list var/tap", "framegate tap consumers remove var/tap tables"),
)
def consumers() -> None:
    """Who reads the log, and how far each has come: retention keeps what they need as long as the budget allows."""


@consumers.command("list", epilog=example("framegate tap consumers list var/tap"))
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@output_option
def list_(directory: str, output: str) -> None:
    """List the registered consumers, and how many bytes each has not read."""
    import time

    from control.cli.output import print_note
    from control.cli.tap_listing import consumer_states, print_consumers, stream_ends

    with reading(directory):
        states = consumer_states(directory, stream_ends(directory))
    print_consumers(states, output, time.time_ns())
    if not states and output == "table":
        print_note(f"{directory} has no consumers")


@consumers.command(short_help="Forget a consumer that will not come back.", epilog=example("framegate tap consumers remove var/tap tables"))
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(directory: str, name: str, yes: bool) -> None:
    """Forget a consumer that will not come back; one that is at work is not removed.

    Retention then no longer keeps for it what it has not read. A consumer that comes back registers itself again, and reads on from where it was, as
    far as that is still there.

    Exit codes: 0 removed; 1 not, because of the answer or the disk; 3 there is none of this name; 4 it is at work.
    """
    from control.cli.output import print_note, size_text
    from control.cli.tap_listing import consumer_states, stream_ends
    from proxy.tap.consumer import ConsumerInUseError, remove_consumer

    with reading(directory):
        known = {state.name: state for state in consumer_states(directory, stream_ends(directory))}
    if name not in known:
        print_note(f"{directory} has no consumer {name}; it has {', '.join(known) or 'none'}")
        sys.exit(_EXIT_NOT_FOUND)
    behind = size_text(sum(known[name].behind.values()))
    print_note(f"{name} has not read {behind} of the log; retention will no longer keep that for it, and delete it when budget or age ask")
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
    print_note(f"{name} is removed")


tap.add_command(cat)
tap.add_command(follow)
