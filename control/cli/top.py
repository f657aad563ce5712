"""``framegate top``: processors, connections, and the clients that use most, live on a terminal."""

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.channel_columns import WIDE_COLUMNS, channel_cells, heads
from framegate.control.cli.channels import CHANNELS, TEXTS
from framegate.control.cli.client import PAGE_SIZE, calling
from framegate.control.cli.kinds import DURATION
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import as_dict, counted, print_json, size_text, table_text, word, write_text
from framegate.control.cli.pools import POOLS

if TYPE_CHECKING:
    import grpc

_KEYS: Final = {
    "b": "bytes_rate", "f": "frames_rate", "h": "held", "u": "unsent", "w": "waiting_time", "o": "oldest", "i": "in_flight", "a": "age"
}  # fmt: skip
_QUIT, _CLIENTS = "q", "c"
_MEASURES: Final = {"BYTES": "BYTES/S", "FRAMES": "FRAMES/S", "HELD": "HELD", "REFUSALS": "REFUSED/S", "LOGINS": "FAILED LOGINS/S"}
_LONGEST_WINDOW_MS: Final = 500
_ENTER, _LEAVE, _HOME, _LINE_END, _REST = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l", "\033[H", "\033[K\r\n", "\033[J"
"""Sequences of terminals: the other screen without a cursor, and back; the first line; clear the rest of a line, of the screen."""


@click.command(
    short_help="Show processors, connections and clients, live.", epilog=example("framegate top", "framegate top --sort held --filter listener=kafka")
)
@click.option("--sort", default="bytes_rate", show_default=True, help="The field to sort by first, as in `channels list`.")
@click.option("--filter", "chosen", default="", help="Only channels for which all comparisons hold, as in `channels list`.")
@click.option("--every", type=DURATION, default=2_000, show_default="2s", help="The time between two looks.")
@admin_options
def top(sort: str, chosen: str, every: int, address: str, output: str) -> None:
    """Show the processors, and the channels with the largest values, again and again.

    Keys: b, f sort by bytes and frames per second, h by memory held, u by unsent bytes, w by the time that framegate does not read, o by the oldest
    request, i by requests in flight, a by age; c shows, in place of channels, the ten clients with most bytes, frames, memory, refusals and failed
    logins in the last minute; q quits. If standard output or input is no terminal, or with --output json, all are shown once.
    """
    with calling(address) as channel:
        if output == "json" or not (sys.stdin.isatty() and sys.stdout.isatty()):
            found = _look(channel, sort, chosen, PAGE_SIZE, every)
            if output == "json":
                print_json(found)
            else:
                write_text(_text(found, sort, "both"))
            return
        view = "channels"
        with _screen():
            while True:
                columns, lines = shutil.get_terminal_size()
                shown = _text(_look(channel, sort, chosen, lines, every), sort, view).splitlines()[: lines - 1]
                write_text(_HOME + "".join(f"{line[:columns]}{_LINE_END}" for line in shown) + _REST)
                key = _key(every / 1000)
                if key == _QUIT:
                    return
                view = "clients" if key == _CLIENTS and view == "channels" else "channels" if key == _CLIENTS or key in _KEYS else view
                sort = _KEYS.get(key, sort)


def _look(channel: "grpc.Channel", sort: str, chosen: str, limit: int, every: int) -> dict[str, Any]:
    """The memory pool, the processors, the first channels in an order, and the rankings of clients, as JSON has them."""
    window = {"nanos": min(_LONGEST_WINDOW_MS, every) * 1_000_000}
    order = sort if sort in TEXTS else f"{sort} desc"
    listed = CHANNELS.ask(channel, "ListChannels", page_size=limit, filter=chosen, order_by=order, rate_window=window)
    return {
        "memory_pool": as_dict(POOLS.ask(channel, "GetMemoryPool").memory_pool),
        "processors": [as_dict(item) for item in POOLS.ask(channel, "GetProcessorPool").processor_pool.processors],
        "channels": [as_dict(item) for item in listed.channels],
        "total_count": listed.total_count,
        "rankings": as_dict(CHANNELS.ask(channel, "ListTopClients"))["rankings"],
    }


def _text(found: dict[str, Any], sort: str, view: str) -> str:
    pool = found["memory_pool"]
    shares = {item["processor_slot"]: item for item in pool["shares"]}
    processors = [
        (
            item["slot"], item["pid"] or "-", word(item["state"], "STATE_"), size_text(share["usage_bytes"]), size_text(share["size_bytes"]),
            share["waiting_count"], item["restart_count"],
        )
        for item in found["processors"]
        if (share := shares.get(item["slot"], {"usage_bytes": 0, "size_bytes": 0, "waiting_count": 0}))
    ]  # fmt: skip
    shown, total = len(found["channels"]), found["total_count"]
    count = f"{f'the first {shown:,} of ' if shown < total else ''}{counted(total, 'channel')} by {sort}"
    head = f"memory pool {size_text(pool['usage_bytes'])} of {size_text(pool['size_bytes'])}, {count}\n\n"
    now = time.time()
    channels = table_text(heads(WIDE_COLUMNS), [channel_cells(row, WIDE_COLUMNS, now) for row in found["channels"]])
    tables = [table_text(("PROCESSOR", "PID", "STATE", "IN USE", "SHARE", "WAITING", "RESTARTS"), processors)]
    tables += [channels] * (view != "clients") + list(map(_ranking, found["rankings"])) * (view != "channels")
    return head + "\n".join(filter(None, tables))


def _ranking(ranking: dict[str, Any]) -> str:
    """The table of the clients with most of one measure; empty: there are none."""
    measure = ranking["measure"].removeprefix("CLIENT_MEASURE_")
    rows = [
        (
            size_text(round(item["value"])) if measure in ("BYTES", "HELD") else f"{item['value']:.3g}", f"{item['share']:.0%}",
            *(item[name] or "-" for name in ("listener", "principal", "client_id", "address")),
        )
        for item in ranking["clients"]
    ]  # fmt: skip
    return table_text((_MEASURES[measure], "SHARE", "LISTENER", "PRINCIPAL", "CLIENT ID", "ADDRESS"), rows)


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """The terminal's other screen, with keys that are read as they are pressed; afterwards the terminal is as it was."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        write_text(_ENTER)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        write_text(_LEAVE)


def _key(timeout_s: float) -> str:
    """The key that is pressed within a time; empty: none. ``q`` if standard input has ended."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    if not ready:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or _QUIT
