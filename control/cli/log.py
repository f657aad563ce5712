"""``framegate log``: show and change what is logged."""

from typing import TYPE_CHECKING

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, calling, send
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, counted, print_json, print_line, word

if TYPE_CHECKING:
    from framegate.control.v1 import log_service_pb2 as pb2

__all__ = ["log"]


class EventSwitch(click.ParamType[tuple[str, bool]]):
    """``closed=off``, ``closed=on``."""

    name = "event=on|off"

    def convert(self, value: "str | tuple[str, bool]", param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, bool]:
        """Name of the event, and whether its rows are written."""
        if isinstance(value, tuple):
            return value
        event, _, switch = value.partition("=")
        if not event or switch not in ("on", "off"):
            self.fail(f"{value!r} is not EVENT=on or EVENT=off: write for example closed=off", param, ctx)
        return event, switch == "on"


@click.group(epilog=example("framegate log get", "framegate log set --level warning"))
def log() -> None:
    """The log on standard output: show and change its level and silenced events. deploy/log.md lists all events."""


@log.command(epilog=example("framegate log get --output json"))
@admin_options
def get(address: str, output: str) -> None:
    """Show the level, the silenced events, and the number of dropped rows."""
    from framegate.control.v1 import log_service_pb2 as pb2
    from framegate.control.v1 import log_service_pb2_grpc as pb2_grpc

    with calling(address) as channel:
        found = pb2_grpc.LogServiceStub(channel).GetLog(pb2.GetLogRequest(), timeout=CALL_TIMEOUT_S).log
    _print(found, output)


@log.command(
    "set",
    short_help="Change the level, or silence events.",
    epilog=example(
        "framegate log set --level warning", "framegate log set --event closed=off --event access=off", "framegate log set --event closed=on"
    ),
)
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), help="Write only rows of this level and above.")
@click.option(
    "--event", "events", type=EventSwitch(), multiple=True, help="Silence an event (EVENT=off), or log it again (EVENT=on). May be repeated."
)
@change_options()
@admin_options
def set_(level: str | None, events: tuple[tuple[str, bool], ...], change: Change, address: str, output: str) -> None:
    """Change what is logged, until the next restart. Audit rows are always written."""
    from framegate.control.v1 import log_service_pb2 as pb2
    from framegate.control.v1 import log_service_pb2_grpc as pb2_grpc

    if level is None and not events:
        raise click.UsageError("give --level, --event or both")
    wanted, written = pb2.Log(), dict(events)
    request = pb2.UpdateLogRequest()
    if level is not None:
        wanted.level = pb2.Log.Level.Value(f"LEVEL_{level.upper()}")
        request.update_mask.paths.append("level")
    with calling(address, change=not change.dry_run) as channel:
        stub = pb2_grpc.LogServiceStub(channel)
        if written:
            now = stub.GetLog(pb2.GetLogRequest(), timeout=CALL_TIMEOUT_S).log
            kept = (name for name in now.silenced_events if name not in written)
            wanted.silenced_events.extend([*kept, *(name for name in written if not written[name])])
            wanted.etag = now.etag
            request.update_mask.paths.append("silenced_events")
        request.log.CopyFrom(wanted)
        found = send(stub.UpdateLog, request, change).log
    _print(found, output)


def _print(found: "pb2.Log", output: str) -> None:
    if output == "json":
        print_json(as_dict(found))
        return
    level, form = word(type(found).Level.Name(found.level), "LEVEL_"), word(type(found).Format.Name(found.format), "FORMAT_")
    print_line(f"level {level}, format {form}; {counted(found.dropped_row_count, 'row')} dropped since the start")
    if found.silenced_events:
        print_line(f"silenced: {', '.join(found.silenced_events)}")
