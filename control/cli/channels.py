"""``framegate channels``: list, describe, mute, unmute, close."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, EXIT_NOT_FOUND, PAGE_SIZE, calling, metadata, pages
from framegate.control.cli.kinds import CHANNEL, LISTENER
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import as_dict, counted, print_fields, print_json, print_note, print_table, size_text, time_text, word

if TYPE_CHECKING:
    from framegate.control.v1.channel_service_pb2 import Cause

__all__ = ["channels"]

F = TypeVar("F", bound=Callable[..., object])


@click.group(epilog=example("framegate channels list --listener kafka"))
def channels() -> None:
    """Client connections: list, describe, mute and close them."""


@channels.command("list", epilog=example("framegate channels list --listener kafka", "framegate channels list --closed --cause frame_too_large"))
@click.option("--listener", type=LISTENER, help="Only channels of this listener.")
@click.option("--closed", is_flag=True, help="List recently closed channels and their causes, instead of open ones.")
@click.option("--cause", help="With --closed: only channels closed with this cause, for example peer_reset.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of channels to list.")
@admin_options
def list_(listener: str | None, closed: bool, cause: str | None, limit: int, address: str, output: str) -> None:
    """List open or recently closed channels.

    A muted or throttled channel is not read. If its client closes the connection meanwhile, the channel is listed until framegate has read the data
    that the client sent before.

    MUTED BY says why framegate does not read from the client, and after "upstream:" why it does not read from the upstream. "upstream: peer" means
    that the client reads too slowly.
    """
    from framegate.control.v1 import channel_service_pb2 as pb2
    from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    if cause is not None and not closed:
        raise click.UsageError("--cause needs --closed")
    size = min(limit + 1, PAGE_SIZE)
    with calling(address) as channel:
        stub = ChannelServiceStub(channel)
        answers: Iterator[Any]
        if closed:
            answers = pages(stub.ListClosedChannels, pb2.ListClosedChannelsRequest(page_size=size, listener=listener or "", cause=_cause(cause)))
        else:
            answers = pages(stub.ListChannels, pb2.ListChannelsRequest(page_size=size, listener=listener or ""))
        found = (item for answer in answers for item in answer.channels)
        rows = [as_dict(item) for item in itertools.islice(found, limit + 1)]
    cut = len(rows) > limit
    rows = rows[:limit]
    if output == "json":
        print_json(rows)
    elif closed:
        print_table(_CLOSED_COLUMNS, map(_closed_cells, rows))
    else:
        print_table(_OPEN_COLUMNS, map(_open_cells, rows))
    if cut:
        print_note(f"more channels exist than --limit {limit}")
    elif not rows and output == "table":
        print_note(("no closed channels" if closed else "no open channels") + (" match" if listener or cause else ""))


def _cause(cause: str | None) -> "Cause.ValueType":
    from framegate.control.v1.channel_service_pb2 import CAUSE_UNSPECIFIED, Cause

    if cause is None:
        return CAUSE_UNSPECIFIED
    known = {name.removeprefix("CAUSE_").lower(): number for name, number in Cause.items() if number}
    if cause not in known:
        raise click.BadParameter(f"unknown cause {cause!r}; the causes are {', '.join(known)}", param_hint="--cause")
    return known[cause]


_OPEN_COLUMNS = ("ID", "LISTENER", "PEER", "UPSTREAM", "STATE", "MUTED BY", "REQUESTS", "ANSWERS", "BYTES IN", "BYTES OUT", "CERTIFICATE", "OPENED")
_CLOSED_COLUMNS = ("ID", "LISTENER", "PEER", "CAUSE", "SIDE", "REQUESTS", "ANSWERS", "LOST", "CLOSED", "DETAIL")


def _mutes(row: dict[str, Any]) -> str:
    causes = ",".join(word(name, "MUTE_CAUSE_") for name in row["mute_causes"])
    return f"{causes} (muting)" if row["muting"] else causes


def _upstream_mutes(row: dict[str, Any]) -> str:
    return ",".join(word(name, "MUTE_CAUSE_") for name in row["upstream_mute_causes"])


def _both_mutes(row: dict[str, Any]) -> str:
    """``admin; upstream: peer``: the client is not read for the one cause, the upstream for the other."""
    upstream = _upstream_mutes(row)
    return "; ".join(filter(None, (_mutes(row), f"upstream: {upstream}" if upstream else ""))) or "-"


def _open_cells(row: dict[str, Any]) -> Sequence[Any]:
    return (
        row["id"], row["listener"], row["peer_address"], row["upstream"], word(row["state"], "STATE_"), _both_mutes(row),
        row["request"]["frame_count"], row["response"]["frame_count"],
        size_text(row["request"]["total_bytes"]), size_text(row["response"]["total_bytes"]),
        (row.get("tls") or {}).get("certificate_fingerprint") or "-", time_text(row.get("open_time")),
    )  # fmt: skip


def _frames(row: dict[str, Any], direction: str) -> Any:
    """``?`` when the processor ended and the count is not known."""
    return row[direction]["frame_count"] if direction in row else "?"


def _lost(close: dict[str, Any]) -> str:
    return size_text(close["lost_bytes"]) if "lost_bytes" in close else "?"


def _closed_cells(row: dict[str, Any]) -> Sequence[Any]:
    close = row["close"]
    return (
        row["id"], row["listener"], row["peer_address"], word(close["cause"], "CAUSE_"), word(close["side"], "SIDE_"),
        _frames(row, "request"), _frames(row, "response"), _lost(close), time_text(close.get("close_time")),
        close["detail"] or "-",
    )  # fmt: skip


@channels.command(epilog=example("framegate channels describe 0-1-42"))
@click.argument("channel_id", metavar="ID", type=CHANNEL)
@admin_options
def describe(channel_id: str, address: str, output: str) -> None:
    """Show one open or recently closed channel."""
    from framegate.control.v1.channel_service_pb2 import GetChannelRequest
    from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    with calling(address) as channel:
        answer = ChannelServiceStub(channel).GetChannel(GetChannelRequest(id=channel_id), timeout=CALL_TIMEOUT_S)
    row = as_dict(answer.channel)
    if output == "json":
        print_json(row)
    else:
        print_fields(_fields(row))


def _fields(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    tls = row.get("tls")
    yield from (
        ("id", row["id"]), ("listener", row["listener"]), ("peer", row["peer_address"]), ("principal", row["principal"] or "-"),
        ("mechanism", row["sasl_mechanism"] or "-"),
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
            ("last active", time_text(row.get("last_active_time"))), ("muted by", _mutes(row) or "-"), ("mute reason", row["mute_reason"] or "-"),
            ("upstream muted by", _upstream_mutes(row) or "-"), ("requests in flight", row["in_flight_count"]),
            ("pending send", size_text(row["pending_send_bytes"])), ("leased", size_text(row["leased_bytes"])),
        )  # fmt: skip
        return
    yield from (
        ("closed", time_text(close.get("close_time"))), ("cause", word(close["cause"], "CAUSE_")), ("side", word(close["side"], "SIDE_")),
        ("last state", word(close["state"], "STATE_")), ("detail", close["detail"] or "-"), ("lost", _lost(close)),
    )  # fmt: skip
    for mute in close["mutes"]:
        yield f"muted by {word(mute['cause'], 'MUTE_CAUSE_')}", f"{counted(mute['count'], 'time')}, {mute['duration']}"


def _channel_arguments(function: F) -> F:
    """``ID…``, ``--listener`` or ``--principal``."""
    listener = click.option("--listener", type=LISTENER, help="All open channels of this listener.")
    principal = click.option("--principal", metavar="NAME", help="All open channels of this principal, on every listener.")
    return click.argument("channel_ids", metavar="[ID]...", nargs=-1, type=CHANNEL)(listener(principal(function)))


def _change(done: str, channel_ids: tuple[str, ...], listener: str | None, principal: str | None, reason: str, address: str, output: str) -> None:
    """Mute, unmute or close the selected channels and print the result; exits with 3 when some channels were not open.

    Args:
        done: ``muted``, ``unmuted`` or ``closed``.
        channel_ids, listener, principal: exactly one of them selects the channels.
        reason: for the audit log.
    """
    import grpc

    from framegate.control.v1 import channel_service_pb2 as pb2
    from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    if bool(channel_ids) + (listener is not None) + (principal is not None) != 1:
        raise click.UsageError("give one of: channel ids, --listener, --principal")
    chosen: dict[str, Any] = {"listener": listener, "principal": principal, "channels": pb2.ChannelIds(ids=channel_ids) if channel_ids else None}
    selector = pb2.ChannelSelector(**chosen)
    with calling(address, change=True) as channel:
        stub = ChannelServiceStub(channel)
        calls: dict[str, tuple[Callable[..., Any], type[Any]]] = {
            "muted": (stub.MuteChannels, pb2.MuteChannelsRequest),
            "unmuted": (stub.UnmuteChannels, pb2.UnmuteChannelsRequest),
            "closed": (stub.CloseChannels, pb2.CloseChannelsRequest),
        }
        method, request = calls[done]
        try:
            answer = method(request(selector=selector, reason=reason), timeout=CALL_TIMEOUT_S, metadata=metadata())
            affected, missing = list(answer.affected_channel_ids), list(answer.missing_channel_ids)
        except grpc.RpcError as error:
            if not channel_ids or error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            affected, missing = [], list(dict.fromkeys(channel_ids))  # none of the named channels is open
    if output == "json":
        print_json({"affected": affected, "missing": missing})
    else:
        print_table(("ID", "RESULT"), [*((item, done) for item in affected), *((item, "not open") for item in missing)])
    if not channel_ids and not affected:
        print_note(f"no open channels {f'of {principal}' if listener is None else f'on listener {listener}'}; none was {done}")
    elif output == "table" or missing:
        print_note(f"{counted(len(affected), 'channel')} {done}" + (f", {len(missing):,} not open: {', '.join(missing)}" if missing else ""))
    if missing:
        sys.exit(EXIT_NOT_FOUND)


@channels.command(
    short_help="Stop reading from clients.",
    epilog=example('framegate channels mute 0-1-42 --reason "incident 7"', 'framegate channels mute --listener kafka --reason "incident 7"'),
)
@_channel_arguments
@click.option("--reason", required=True, help="The reason, for the audit log and `channels describe`.")
@admin_options
def mute(channel_ids: tuple[str, ...], listener: str | None, principal: str | None, reason: str, address: str, output: str) -> None:
    """Stop reading from clients. A frame whose first bytes have arrived is received completely first.

    Returns when the channels are muted. If some of the named channels are not open, the others are muted and the exit code is 3.
    """
    _change("muted", channel_ids, listener, principal, reason, address, output)


@channels.command(
    short_help="Undo `channels mute`.",
    epilog=example("framegate channels unmute 0-1-42", "framegate channels unmute --listener kafka"),
)
@_channel_arguments
@click.option("--reason", default="", help="The reason, for the audit log.")
@admin_options
def unmute(channel_ids: tuple[str, ...], listener: str | None, principal: str | None, reason: str, address: str, output: str) -> None:
    """Undo `channels mute`. A channel that is also muted for another cause stays muted; `channels list` shows the causes.

    If some of the named channels are not open, the others are unmuted and the exit code is 3.
    """
    _change("unmuted", channel_ids, listener, principal, reason, address, output)


@channels.command(
    short_help="Close channels with the cause admin.",
    epilog=example('framegate channels close 0-1-42 --reason "stuck client"', "framegate channels close --principal alice"),
)
@_channel_arguments
@click.option("--reason", default="", help="The reason, for the audit log and the detail of the closed channel.")
@admin_options
def close(channel_ids: tuple[str, ...], listener: str | None, principal: str | None, reason: str, address: str, output: str) -> None:
    """Close channels with the cause admin. Complete frames that were received are delivered first.

    If some of the named channels are not open, the others are closed and the exit code is 3.
    """
    _change("closed", channel_ids, listener, principal, reason, address, output)
