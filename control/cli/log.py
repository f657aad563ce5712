"""``framegate log``: which rows are written."""

from typing import TYPE_CHECKING

import click

from control.cli.options import admin_options, example

if TYPE_CHECKING:
    from control.gen.framegate.control.v1 import log_service_pb2 as pb2

__all__ = ["log"]


class EventSwitch(click.ParamType[tuple[str, bool]]):
    """``closed=off``, ``closed=on``."""

    name = "event=on|off"

    def convert(self, value: "str | tuple[str, bool]", param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, bool]:
        """Name, and whether its rows are written; what is converted stays."""
        if isinstance(value, tuple):
            return value
        event, _, switch = value.partition("=")
        if not event or switch not in ("on", "off"):
            self.fail(f"{value!r} is not the name of an event and a switch: write closed=off, or closed=on", param, ctx)
        return event, switch == "on"


@click.group(epilog=example("framegate log get", "framegate log set --level warning"))
def log() -> None:
    """Which rows are written to stdout; deploy/log.md lists their events."""


@log.command(epilog=example("framegate log get --output json"))
@admin_options
def get(address: str, output: str) -> None:
    """Show the level, the events that are silenced, and how many rows were dropped."""
    from control.cli.client import CALL_TIMEOUT_S, calling
    from control.gen.framegate.control.v1 import log_service_pb2 as pb2
    from control.gen.framegate.control.v1.log_service_pb2_grpc import LogServiceStub

    with calling(address) as channel:
        found = LogServiceStub(channel).GetLog(pb2.GetLogRequest(), timeout=CALL_TIMEOUT_S).log
    _print(found, output)


@log.command(
    "set",
    short_help="Change the level, or silence events.",
    epilog=example(
        "framegate log set --level warning", "framegate log set --event closed=off --event access=off", "framegate log set --event closed=on"
    ),
)
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), help="Rows below it are not written.")
@click.option("--event", "events", type=EventSwitch(), multiple=True, help="Rows of that event are not written, or are again; may be given again.")
@admin_options
def set_(level: str | None, events: tuple[tuple[str, bool], ...], address: str, output: str) -> None:
    """Change which rows are written, until the next start. Rows about changes (audit) always are."""
    from control.cli.client import CALL_TIMEOUT_S, calling, metadata
    from control.gen.framegate.control.v1 import log_service_pb2 as pb2
    from control.gen.framegate.control.v1.log_service_pb2_grpc import LogServiceStub

    if level is None and not events:
        raise click.UsageError("give --level, --event or both")
    request = pb2.UpdateLogRequest(events=dict(events))
    if level is not None:
        request.level = pb2.Log.Level.Value(f"LEVEL_{level.upper()}")
    with calling(address, change=True) as channel:
        found = LogServiceStub(channel).UpdateLog(request, timeout=CALL_TIMEOUT_S, metadata=metadata()).log
    _print(found, output)


def _print(found: "pb2.Log", output: str) -> None:
    from control.cli.output import as_dict, counted, print_json, print_line, word

    if output == "json":
        print_json(as_dict(found))
        return
    level, form = word(type(found).Level.Name(found.level), "LEVEL_"), word(type(found).Format.Name(found.format), "FORMAT_")
    print_line(f"rows from {level} on, as {form}; {counted(found.dropped_row_count, 'row')} dropped since the start")
    if found.silenced_events:
        print_line(f"silenced: {', '.join(found.silenced_events)}")
