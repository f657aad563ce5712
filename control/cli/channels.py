"""``framegate channels``: list and describe; mute, unmute, close and throttle; the actions that are kept."""

import datetime
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click

from framegate.control.cli.channel_columns import CELLS, channel_cells, column_names, heads, lost_text, mutes, throttle_text, upstream_mutes
from framegate.control.cli.client import EXIT_NOT_FOUND, PAGE_SIZE, Service, calling
from framegate.control.cli.kinds import CHANNEL, DURATION, SIZE
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, counted, print_fields, print_json, print_note, print_table, size_text, time_text, word
from framegate.control.cli.pods import Table, over_pods

F = TypeVar("F", bound=Callable[..., object])
_EXAMPLE: Final = "listener=kafka client_id=billing-* held>1MiB waiting=memory"
TEXTS: Final = (
    *("listener", "address", "principal", "client_id", "software", "upstream", "endpoint", "limit_rule", "state", "waiting"),
    *("cause", "side", "detail"),
)
_WINDOW_MS: Final = 500
CHANNELS: Final = Service("channel")


@click.group(epilog=example("framegate channels list --filter 'client_id=billing-* held>1MiB' --sort held"))
def channels() -> None:
    """Client connections: list, describe, mute, close and throttle them."""


@channels.command(
    "list",
    epilog=example(
        "framegate channels list --filter 'listener=kafka waiting=memory' --sort held",
        "framegate channels list --sort bytes_rate --columns id,address,client_id,bytes_rate --watch 2s",
        "framegate channels list --closed --filter cause=frame_too_large",
    ),
)
@click.option("--filter", "chosen", default="", help=f"Only channels for which all comparisons hold, for example '{_EXAMPLE}'.")
@click.option("--sort", help="First the channels with the largest value of a field (of a text: the first in the alphabet), for example bytes_rate.")
@click.option("--columns", help="The columns, separated by commas, or `wide`. Without it as many as fit a terminal.")
@click.option("--watch", type=DURATION, is_flag=False, flag_value=2_000, help="List again after this time, for example 5s, until Ctrl-C.")
@click.option("--closed", is_flag=True, help="List the last 1,024 closed channels and their causes, instead of open ones.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of channels to list.")
@admin_options
@over_pods(lambda **given: _pod_table(**given))
def list_(chosen: str, sort: str | None, columns: str | None, watch: int | None, closed: bool, limit: int, address: str, output: str) -> None:
    """List open or recently closed channels.

    A filter has comparisons with =, != and, except for text, >, >=, < and <=. Its fields, which also sort: listener, address, principal, client_id,
    software, upstream, endpoint, limit_rule, state, waiting, waiting_time, age, idle, in_flight, oldest, held, unsent, request_bytes, response_bytes,
    request_frames, response_frames, bytes_rate, request_bytes_rate, response_bytes_rate, frames_rate, request_frames_rate, response_frames_rate.

    Those of closed channels: listener, address, principal, client_id, software, upstream, endpoint, state (the last one), cause, side, detail, age
    (at the end), closed (the time since), lost, request_bytes, response_bytes, request_frames, response_frames.

    WAITING says why framegate does not read from the client, and after "upstream:" why it does not read from the upstream; and for how long.
    "upstream: peer" means that the client reads too slowly. A channel whose client has gone is listed until its data has been read.
    """
    names = column_names(columns, output, closed=closed)
    order = "" if not sort else sort if sort in TEXTS else f"{sort} desc"
    asked: dict[str, Any] = {"page_size": min(limit + 1, PAGE_SIZE), "filter": chosen, "order_by": order}
    if not closed and (output == "json" or any(name.endswith("_rate") for name in names)):
        asked["rate_window"] = datetime.timedelta(milliseconds=min(_WINDOW_MS, watch or _WINDOW_MS))
    with calling(address) as channel:
        while True:
            rows, total = _listed(CHANNELS.pages(channel, "ListClosedChannels" if closed else "ListChannels", **asked), limit + 1)
            if watch and output == "table":
                click.clear()
            if output == "json":
                print_json(rows[:limit])
            else:
                now = time.time()
                print_table(heads(names), [channel_cells(row, names, now) for row in rows[:limit]])
            _say_rest(min(limit, len(rows)), total, len(rows), output, "closed channels" if closed else "open channels", matched=bool(chosen))
            if not watch:
                return
            time.sleep(watch / 1000)


def _pod_table(*, columns: str | None, watch: int | None, closed: bool, **given: Any) -> Table:
    del given
    if watch:
        raise click.UsageError("--watch is not possible with --kube")
    names, now = column_names(columns, "table", closed=closed), time.time()
    absent = as_dict(CHANNELS.messages.Channel())  # what an older framegate does not say
    return Table(heads(names), lambda document: [channel_cells({**absent, **row}, names, now) for row in document])


def _listed(answers: Iterable[Any], limit: int) -> tuple[list[dict[str, Any]], int]:
    """The first channels, and how many there are (``total_count``); 0: the answer does not say it."""
    rows: list[dict[str, Any]] = []
    total = 0
    for answer in answers:
        total = answer.total_count
        rows += [as_dict(item) for item in itertools.islice(answer.channels, limit - len(rows))]
        if len(rows) >= limit:
            break
    return rows, total


def _say_rest(shown: int, total: int, found: int, output: str, what: str, *, matched: bool) -> None:
    """``total``: how many there are; 0: not known, and ``found`` are known."""
    if shown < max(total, found):
        print_note(f"the first {shown:,} of {total:,} {what}" if total else f"more {what} exist than --limit {shown}")
    elif not found and output == "table":
        print_note(f"no {what}" + (" match" if matched else ""))


@channels.command(epilog=example("framegate channels describe 0-1-42"))
@click.argument("channel_id", metavar="ID", type=CHANNEL)
@admin_options
def describe(channel_id: str, address: str, output: str) -> None:
    """Show one open or recently closed channel."""
    with calling(address) as channel:
        row = as_dict(CHANNELS.ask(channel, "GetChannel", id=channel_id).channel)
    if output == "json":
        print_json(row)
    else:
        print_fields(_fields(row))


def _fields(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    tls = row.get("tls")
    yield from (
        ("id", row["id"]), ("listener", row["listener"]), ("peer", row["peer_address"]), ("principal", row["principal"] or "-"),
        ("mechanism", row["sasl_mechanism"] or "-"), ("client id", row["client_id"] or "-"), ("software", CELLS["software"](row, 0)),
        ("tls", f"{tls['version']} {tls['cipher']}" if tls else "-"),
        ("server certificate", tls["certificate_fingerprint"] or "-" if tls else "-"),
        ("upstream", f"{row['upstream']} {row['upstream_endpoint']}".strip()), ("state", word(row["state"], "STATE_")),
        ("opened", time_text(row.get("open_time"))),
    )  # fmt: skip
    for name, traffic in (("requests", row.get("request")), ("answers", row.get("response"))):
        yield name, f"{counted(traffic['frame_count'], 'frame')}, {size_text(traffic['total_bytes'])}" if traffic else "unknown"
    close = row.get("close")
    if close is None:
        yield from (
            ("last active", time_text(row.get("last_active_time"))), ("muted by", mutes(row) or "-"), ("mute reason", row["mute_reason"] or "-"),
            ("upstream muted by", upstream_mutes(row) or "-"), ("requests in flight", row["in_flight_count"]),
            ("oldest request", time_text(row.get("oldest_request_time"))), ("unsent", CELLS["unsent"](row, 0)), ("throttle", throttle_text(row)),
            ("limit rule", row["limit_rule"] or "-"),
            ("pending send", size_text(row["pending_send_bytes"])), ("leased", size_text(row["leased_bytes"])),
        )  # fmt: skip
        return
    yield from (
        ("closed", time_text(close.get("close_time"))), ("cause", word(close["cause"], "CAUSE_")), ("side", word(close["side"], "SIDE_")),
        ("last state", word(close["state"], "STATE_")), ("detail", close["detail"] or "-"), ("lost", lost_text(close)),
    )  # fmt: skip
    for mute in close["mutes"]:
        yield f"muted by {word(mute['cause'], 'MUTE_CAUSE_')}", f"{counted(mute['count'], 'time')}, {mute['duration']}"


def _selecting(*, kept: bool = True) -> Callable[[F], F]:
    """The options of all verbs that change channels; ``kept``: with those of actions that can be kept."""

    def decorate(function: F) -> F:
        options: list[Callable[[Any], Any]] = [
            click.argument("channel_ids", metavar="[ID]...", nargs=-1, type=CHANNEL),
            click.option("--filter", "chosen", help="All open channels that match; see `channels list`. To name all channels: 'listener=*'."),
            click.option("--max-affected", type=click.IntRange(1), default=100, show_default=True, help="Change nothing if more channels match."),
            *([_TTL, _STANDING] if kept else []),
            change_options("reason", "dry_run"),
            admin_options,
        ]
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_TTL = click.option("--ttl", type=DURATION, default=0, help="Undo it after this time, for example 10m.")
_STANDING = click.option(
    "--standing", is_flag=True, help="New connections that match, too. The filter may have listener, address, principal, client_id."
)


def _change(
    method: str,
    done: str,
    channel_ids: tuple[str, ...],
    chosen: str | None,
    change: Change,
    address: str,
    output: str,
    *,
    max_affected: int,
    ttl: int = 0,
    **given: Any,
) -> None:
    """Change the selected channels and print the result; exits with 3 when some channels were not open. ``channel_ids``, ``chosen``: exactly one of
    them selects the channels.
    """
    import grpc

    if bool(channel_ids) + (chosen is not None) != 1:
        raise click.UsageError("give channel ids or --filter")
    selector = {"channels": {"ids": channel_ids}} if channel_ids else {"filter": chosen or ""}
    if ttl:
        given["ttl"] = datetime.timedelta(milliseconds=ttl)
    answer = getattr(CHANNELS.messages, f"{method}Response")(missing_channel_ids=dict.fromkeys(channel_ids))
    with calling(address, change=True) as channel:
        try:
            answer = CHANNELS.change(channel, method, change, selector=selector, max_affected_count=max_affected, **given)
        except grpc.RpcError as error:
            if not channel_ids or error.code() is not grpc.StatusCode.NOT_FOUND:
                raise  # else none of the named channels is open
    _say_change(answer, f"would be {done}" if change.dry_run else done, output, chosen=chosen is not None)


def _say_change(answer: Any, done: str, output: str, *, chosen: bool) -> None:
    affected, missing, count = list(answer.affected_channel_ids), list(answer.missing_channel_ids), answer.affected_count
    hint = getattr(answer, "hint", "")
    action = answer.action if hasattr(answer, "action") and answer.HasField("action") else None
    if output == "json":
        print_json({"affected": affected, "missing": missing, **({} if action is None else {"action": as_dict(action)})})
    else:
        print_table(("ID", "RESULT"), [*((item, done) for item in affected), *((item, "not open") for item in missing)])
    if chosen and not count:
        print_note(f"no open channels match; none was {done}")
    elif output == "table" or missing:
        print_note(f"{counted(count, 'channel')} {done}" + (f", {len(missing):,} not open: {', '.join(missing)}" if missing else ""))
    if action is not None and output == "table":
        print_note(f"action {action.id} is kept: `framegate channels actions` lists it, `framegate channels undo {action.id}` ends it")
    if hint and output == "table":
        print_note(hint)
    if missing:
        sys.exit(EXIT_NOT_FOUND)


@channels.command(
    short_help="Stop reading from clients.",
    epilog=example(
        'framegate channels mute 0-1-42 --reason "incident 7"',
        "framegate channels mute --filter 'principal=alice' --standing --ttl 1h --reason \"incident 7\"",
    ),
)
@_selecting()
def mute(**given: Any) -> None:
    """Stop reading from clients. A frame whose first bytes have arrived is received completely first. Needs --reason.

    Returns when the channels are muted. If some of the named channels are not open, the others are muted and the exit code is 3.
    """
    if not given["change"].reason:
        raise click.UsageError("--reason is required")
    _change("MuteChannels", "muted", **given)


@channels.command(
    short_help="Undo `channels mute`.", epilog=example("framegate channels unmute 0-1-42", "framegate channels unmute --filter listener=kafka")
)
@_selecting(kept=False)
def unmute(**given: Any) -> None:
    """Undo `channels mute`. A channel that is also muted for another cause stays muted; `channels list` shows the causes.

    If some of the named channels are not open, the others are unmuted and the exit code is 3.
    """
    _change("UnmuteChannels", "unmuted", **given)


@channels.command(
    short_help="Close channels with the cause admin.",
    epilog=example('framegate channels close 0-1-42 --reason "stuck client"', "framegate channels close --filter principal=alice --standing"),
)
@_selecting()
def close(**given: Any) -> None:
    """Close channels with the cause admin. Complete frames that were received are delivered first.

    If some of the named channels are not open, the others are closed and the exit code is 3.
    """
    _change("CloseChannels", "closed", **given)


@channels.command(
    short_help="Limit the bytes per second of each channel.",
    epilog=example(
        "framegate channels throttle --filter 'client_id=billing-*' --request-rate 1MiB --standing --reason \"incident 7\"",
        "framegate channels throttle 0-1-42 --request-rate 0 --response-rate 0",
    ),
)
@click.option("--request-rate", type=SIZE, help="Bytes per second from the client of each channel, for example 1MiB. 0: no limit.")
@click.option("--response-rate", type=SIZE, help="Bytes per second to the client of each channel, for example 1MiB. 0: no limit.")
@_selecting()
def throttle(request_rate: int | None, response_rate: int | None, **given: Any) -> None:
    """Give each channel rates of its own, in place of those that it had from an earlier `channels throttle`. Quotas stay in force.

    A rate that is not given is no limit; with both 0, channels are not throttled any more.
    """
    if request_rate is None and response_rate is None:
        raise click.UsageError("give --request-rate, --response-rate or both")
    _change("ThrottleChannels", "throttled", request_bytes_per_second=request_rate or 0, response_bytes_per_second=response_rate or 0, **given)


@channels.command(epilog=example("framegate channels actions"))
@admin_options
def actions(address: str, output: str) -> None:
    """List the actions that are kept: those for new connections (--standing), and those that will be undone (--ttl)."""
    with calling(address) as channel:
        rows = [as_dict(action) for action in CHANNELS.listed(channel, "ListChannelActions")]
    if output == "json":
        print_json(rows)
    else:
        print_table(("ID", "VERB", "FILTER", "STANDING", "RATES", "CREATED", "EXPIRES", "REASON"), map(_action_cells, rows))
    if not rows and output == "table":
        print_note("no actions are kept")


def _action_cells(row: dict[str, Any]) -> Sequence[Any]:
    rates = throttle_text({"throttle": row}) if row["verb"] == "VERB_THROTTLE" else "-"
    times = time_text(row.get("create_time")), time_text(row.get("expire_time"))
    return row["id"], word(row["verb"], "VERB_"), row["filter"] or "-", "yes" if row["standing"] else "no", rates, *times, row["reason"] or "-"


@channels.command(epilog=example("framegate channels undo 3"))
@click.argument("action_id", metavar="ACTION")
@change_options("reason")
@admin_options
def undo(action_id: str, change: Change, address: str, output: str) -> None:
    """End an action that is kept: for the channels that are open, and for new connections."""
    with calling(address, change=True) as channel:
        answer = CHANNELS.change(channel, "DeleteChannelAction", change, id=action_id)
    if output == "json":
        print_json(as_dict(answer.action))
    else:
        print_note(f"action {answer.action.id} is undone")
