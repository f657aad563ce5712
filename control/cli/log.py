"""``framegate log``: show and change what is logged; and ``framegate events``: the rows of the log, as framegate keeps or writes them."""

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, Service, calling
from framegate.control.cli.kinds import Kind
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, counted, field_word, print_json, print_line, print_note, write_text

if TYPE_CHECKING:
    from framegate.control.v1 import log_service_pb2 as pb2
    from framegate.control.v1.event_service_pb2 import Event

_SERVICE: Final = Service("log")


def _switch(text: str) -> tuple[str, bool]:
    """``closed=off``: the name of an event, and whether its rows are written."""
    event, _, switch = text.partition("=")
    if not event or switch not in ("on", "off"):
        raise ValueError("is not EVENT=on or EVENT=off: write for example closed=off")
    return event, switch == "on"


@click.group(epilog=example("framegate log get", "framegate log set --level warning"))
def log() -> None:
    """The log on standard output: show and change its level and silenced events. deploy/log.md lists all events."""


@log.command(epilog=example("framegate log get --output json"))
@admin_options
def get(address: str, output: str) -> None:
    """Show the level, the silenced events, and the number of dropped rows."""
    with calling(address) as channel:
        _print(_SERVICE.ask(channel, "GetLog").log, output)


@log.command(
    "set",
    short_help="Change the level, or silence events.",
    epilog=example(
        "framegate log set --level warning", "framegate log set --event closed=off --event access=off", "framegate log set --event closed=on"
    ),
)
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), help="Write only rows of this level and above.")
@click.option(
    "--event", "events", type=Kind("event=on|off", _switch), multiple=True,
    help="Silence an event (EVENT=off), or log it again (EVENT=on). May be repeated.",
)  # fmt: skip
@change_options()
@admin_options
def set_(level: str | None, events: tuple[tuple[str, bool], ...], change: Change, address: str, output: str) -> None:
    """Change what is logged, until the next restart. Audit rows are always written."""
    if level is None and not events:
        raise click.UsageError("give --level, --event or both")
    wanted: dict[str, Any] = {} if level is None else {"level": f"LEVEL_{level.upper()}"}
    paths, written = [*wanted], dict(events)
    with calling(address, change=not change.dry_run) as channel:
        if written:
            now = _SERVICE.ask(channel, "GetLog").log
            kept = (name for name in now.silenced_events if name not in written)
            wanted |= {"silenced_events": [*kept, *(name for name in written if not written[name])], "etag": now.etag}
            paths.append("silenced_events")
        _print(_SERVICE.change(channel, "UpdateLog", change, log=wanted, update_mask={"paths": paths}).log, output)


def _print(found: "pb2.Log", output: str) -> None:
    if output == "json":
        print_json(as_dict(found))
        return
    dropped = counted(found.dropped_row_count, "row")
    print_line(f"level {field_word(found, 'level')}, format {field_word(found, 'format')}; {dropped} dropped since the start")
    if found.silenced_events:
        print_line(f"silenced: {', '.join(found.silenced_events)}")


@click.command(
    short_help="Show the rows of the log, or follow them.",
    epilog=example(
        "framegate events --filter 'event=closed cause=frame_too_large address=10.0.0.0/8'", "framegate events --follow --filter level!=info"
    ),
)
@click.option("--follow", "-f", is_flag=True, help="Show rows as they are written, until Ctrl-C.")
@click.option("--filter", "chosen", default="", help="Only rows for which all comparisons hold: NAME=VALUE or NAME!=VALUE, * for any text.")
@click.option("--after", "token", default="", metavar="TOKEN", help="Continue after the rows of an earlier run, which printed this token.")
@admin_options
def events(follow: bool, chosen: str, token: str, address: str, output: str) -> None:
    """Show the rows of the log that framegate keeps in memory: the last 1,024, also when its standard output is not read. deploy/log.md lists all
    events.

    The names in a filter are event, level, listener, address (a network, too), principal, client_id, upstream, endpoint, cause, side, processor, who,
    method and result. With --output json each row is one line, as in the log.

    Rows that are written faster than this command takes them are lost for it, and a note says how many.
    """
    line = _lines(output)
    last = ""
    try:
        with calling(address) as channel:
            timeout_s = None if follow else CALL_TIMEOUT_S
            for answer in Service("event").ask(channel, "WatchEvents", timeout_s, filter=chosen, resume_token=token, once=not follow):
                if answer.restarted:
                    print_note("framegate was restarted since; these are the rows of the new process")
                if answer.lost_count:
                    print_note(f"{counted(answer.lost_count, 'row')} before these are not kept any more")
                write_text("".join(f"{line(item)}\n" for item in answer.events))
                last = answer.resume_token
        if follow:
            print_note("framegate has ended")
    finally:
        if follow and last:
            print_note(f"to continue: --after {last}")


def _lines(output: str) -> "Callable[[Event], str]":
    from framegate.control.cli.output import word
    from framegate.control.logs.forms import form_of
    from framegate.control.v1.log_service_pb2 import Log

    form = form_of("json" if output == "json" else "text", 1, os.environ)

    def line(event: "Event") -> str:
        moment = f"{event.time.ToDatetime().isoformat(timespec='milliseconds')}Z"
        return form.row(moment, word(Log.Level.Name(event.level), "LEVEL_"), event.name, json.loads(event.fields_json))

    return line
