"""``framegate events``: the rows of the log, as framegate keeps or writes them."""

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, calling, metadata
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import counted, print_note, write_text

if TYPE_CHECKING:
    from framegate.control.v1.event_service_pb2 import Event

__all__ = ["events"]


@click.command(
    short_help="Show the rows of the log, or follow them.",
    epilog=example(
        "framegate events --filter 'event=closed cause=frame_too_large address=10.0.0.0/8'",
        "framegate events --follow --filter level!=info",
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
    from framegate.control.v1 import event_service_pb2 as pb2
    from framegate.control.v1.event_service_pb2_grpc import EventServiceStub

    line = _lines(output)
    request = pb2.WatchEventsRequest(filter=chosen, resume_token=token, once=not follow)
    last = ""
    try:
        with calling(address) as channel:
            for answer in EventServiceStub(channel).WatchEvents(request, timeout=None if follow else CALL_TIMEOUT_S, metadata=metadata()):
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
    """Makes the line of a row."""
    from framegate.control.cli.output import word
    from framegate.control.logs.forms import form_of
    from framegate.control.v1.log_service_pb2 import Log

    form = form_of("json" if output == "json" else "text", 1, os.environ)

    def line(event: "Event") -> str:
        moment = f"{event.time.ToDatetime().isoformat(timespec='milliseconds')}Z"
        return form.row(moment, word(Log.Level.Name(event.level), "LEVEL_"), event.name, json.loads(event.fields_json))

    return line
