"""``framegate log``: show and change what is logged."""

from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.kinds import Kind
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, counted, field_word, print_json, print_line

if TYPE_CHECKING:
    from framegate.control.v1 import log_service_pb2 as pb2

__all__ = ["log"]

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
