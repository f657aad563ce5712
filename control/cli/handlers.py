"""``framegate handlers``."""

from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import age_text, as_dict, field_word, print_messages, size_text, time_text

if TYPE_CHECKING:
    from framegate.control.v1.handler_service_pb2 import Handler, HandlerProcess

HANDLERS: Final = Service("handler")
_HEADINGS: Final = (
    "SLOT", "PID", "STATE", "RESTARTS", "LAST END", "HANDLED", "FAILED", "IN HANDLER", "QUEUED", "OLDEST", "BUSY", "MEMORY", "HANDLERS",
)  # fmt: skip


@click.group(epilog=example("framegate handlers list"))
def handlers() -> None:
    """The handler processes: processes that run your Python handlers."""


@handlers.command("list", epilog=example("framegate handlers list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the handler processes, their load, and the handlers that they run.

    HANDLED and FAILED count frames since the process started. IN HANDLER counts frames for which a handler is running, QUEUED frames that wait for
    one. OLDEST is the running time of the longest-running handler call. BUSY is the share of the last seconds in which a handler was running.
    """
    with calling(address) as channel:
        found = HANDLERS.listed(channel, "ListHandlers")
    print_messages(found, output, _HEADINGS, _row)


def _row(item: "HandlerProcess") -> tuple[object, ...]:
    ended = f"{field_word(item, 'last_end_reason')} {time_text(as_dict(item).get('last_end_time'))}" if item.last_end_reason else "-"
    return (
        item.slot, item.pid or "-", field_word(item, "state"), item.restart_count, ended, item.handled_count,
        item.failed_count, item.in_handler_count, item.queued_count,
        age_text(item.oldest_age.ToMilliseconds() / 1000) if item.HasField("oldest_age") else "-",
        f"{item.busy_share:.0%}", size_text(item.resident_bytes), ", ".join(map(_handler_text, item.handlers)) or "-",
    )  # fmt: skip


def _handler_text(handler: "Handler") -> str:
    directions = [word for word, is_so in (("requests", handler.requests), ("responses", handler.responses)) if is_so]
    return f"{handler.listener}: {handler.name} ({', '.join(directions)})"
