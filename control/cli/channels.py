"""``framegate channels``: list, describe, mute, unmute, close."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from control.cli.kinds import CHANNEL
from control.cli.options import admin_options, example

if TYPE_CHECKING:
    from control.gen.framegate.control.v1.channel_service_pb2 import Cause
    from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

__all__ = ["channels"]

_PAGE = 1000


@click.group(epilog=example("framegate channels list --listener kafka"))
def channels() -> None:
    """Connections: show them, mute them, close them."""


@channels.command("list", epilog=example("framegate channels list --listener kafka", "framegate channels list --closed --cause frame_too_large"))
@click.option("--listener", help="Only channels of this listener.")
@click.option("--closed", is_flag=True, help="Those that closed last, with their causes, instead of open ones.")
@click.option("--cause", help="With --closed: only channels that ended so, as peer_reset.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="The most channels to list.")
@admin_options
def list_(listener: str | None, closed: bool, cause: str | None, limit: int, address: str, output: str) -> None:
    """List open channels, or those that closed last."""
    from control.cli.client import calling
    from control.cli.output import as_dict, print_json, print_table
    from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    if cause is not None and not closed:
        raise click.UsageError("--cause needs --closed")
    with calling(address) as channel:
        rows = [as_dict(item) for item in _listed(ChannelServiceStub(channel), listener or "", closed, _cause(cause), limit)]
    if output == "json":
        print_json(rows)
    elif closed:
        print_table(_CLOSED_COLUMNS, map(_closed_cells, rows))
    else:
        print_table(_OPEN_COLUMNS, map(_open_cells, rows))


def _cause(cause: str | None) -> "Cause.ValueType":
    from control.gen.framegate.control.v1.channel_service_pb2 import CAUSE_UNSPECIFIED, Cause

    if cause is None:
        return CAUSE_UNSPECIFIED
    known = {name.removeprefix("CAUSE_").lower(): number for name, number in Cause.items() if number}
    if cause not in known:
        raise click.BadParameter(f"there is no cause {cause!r}; there are {', '.join(known)}", param_hint="--cause")
    return known[cause]


def _listed(stub: "ChannelServiceStub", listener: str, closed: bool, cause: "Cause.ValueType", limit: int) -> Iterator[Any]:
    from control.cli.client import CALL_TIMEOUT_S
    from control.gen.framegate.control.v1 import channel_service_pb2 as pb2

    token, left = "", limit
    while left > 0:
        size = min(left, _PAGE)
        if closed:
            closed_request = pb2.ListClosedChannelsRequest(page_size=size, page_token=token, listener=listener, cause=cause)
            closed_page = stub.ListClosedChannels(closed_request, timeout=CALL_TIMEOUT_S)
            found, token = closed_page.channels, closed_page.next_page_token
        else:
            page = stub.ListChannels(pb2.ListChannelsRequest(page_size=size, page_token=token, listener=listener), timeout=CALL_TIMEOUT_S)
            found, token = page.channels, page.next_page_token
        yield from found
        left -= len(found)
        if not token:
            return


_OPEN_COLUMNS = ("ID", "LISTENER", "PEER", "UPSTREAM", "STATE", "MUTED BY", "REQUESTS", "ANSWERS", "BYTES IN", "BYTES OUT", "OPENED")
_CLOSED_COLUMNS = ("ID", "LISTENER", "PEER", "CAUSE", "SIDE", "REQUESTS", "ANSWERS", "LOST", "CLOSED", "DETAIL")


def _mutes(row: dict[str, Any]) -> str:
    from control.cli.output import word

    causes = ",".join(word(name, "MUTE_CAUSE_") for name in row["mute_causes"])
    return f"{causes} (muting)" if row["muting"] else causes or "-"


def _open_cells(row: dict[str, Any]) -> Sequence[Any]:
    from control.cli.output import size_text, time_text, word

    return (
        row["id"], row["listener"], row["peer_address"], row["upstream"], word(row["state"], "STATE_"), _mutes(row),
        row["request"]["frame_count"], row["response"]["frame_count"],
        size_text(row["request"]["total_bytes"]), size_text(row["response"]["total_bytes"]), time_text(row.get("open_time")),
    )  # fmt: skip


def _frames(row: dict[str, Any], direction: str) -> Any:
    """``?`` when that went with the processor."""
    return row[direction]["frame_count"] if direction in row else "?"


def _lost(close: dict[str, Any]) -> str:
    from control.cli.output import size_text

    return size_text(close["lost_bytes"]) if "lost_bytes" in close else "?"


def _closed_cells(row: dict[str, Any]) -> Sequence[Any]:
    from control.cli.output import time_text, word

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
    """Show one channel, open or closed a short time ago."""
    from control.cli.client import CALL_TIMEOUT_S, calling
    from control.cli.output import as_dict, print_fields, print_json
    from control.gen.framegate.control.v1.channel_service_pb2 import GetChannelRequest
    from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    with calling(address) as channel:
        answer = ChannelServiceStub(channel).GetChannel(GetChannelRequest(id=channel_id), timeout=CALL_TIMEOUT_S)
    row = as_dict(answer.channel)
    if output == "json":
        print_json(row)
    else:
        print_fields(_fields(row))


def _fields(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    from control.cli.output import size_text, time_text, word

    tls = row.get("tls")
    yield from (
        ("id", row["id"]), ("listener", row["listener"]), ("peer", row["peer_address"]), ("principal", row["principal"] or "-"),
        ("tls", f"{tls['version']} {tls['cipher']}" if tls else "-"),
        ("upstream", f"{row['upstream']} {row['upstream_endpoint']}".strip()), ("state", word(row["state"], "STATE_")),
        ("opened", time_text(row.get("open_time"))),
    )  # fmt: skip
    for name, traffic in (("requests", row.get("request")), ("answers", row.get("response"))):
        yield name, f"{traffic['frame_count']} frames, {size_text(traffic['total_bytes'])}" if traffic else "not known"
    close = row.get("close")
    if close is None:
        upstream_mutes = ",".join(word(name, "MUTE_CAUSE_") for name in row["upstream_mute_causes"])
        yield from (
            ("last active", time_text(row.get("last_active_time"))), ("muted by", _mutes(row)), ("mute reason", row["mute_reason"] or "-"),
            ("upstream muted by", upstream_mutes or "-"), ("requests open", row["in_flight_count"]),
            ("pending send", size_text(row["pending_send_bytes"])), ("leased", size_text(row["leased_bytes"])),
        )  # fmt: skip
        return
    yield from (
        ("closed", time_text(close.get("close_time"))), ("cause", word(close["cause"], "CAUSE_")), ("side", word(close["side"], "SIDE_")),
        ("was", word(close["state"], "STATE_")), ("detail", close["detail"] or "-"), ("lost", _lost(close)),
    )  # fmt: skip
    for mute in close["mutes"]:
        yield f"muted by {word(mute['cause'], 'MUTE_CAUSE_')}", f"{mute['count']} times, {mute['duration']}"


def _selected(channel_ids: tuple[str, ...], listener: str | None) -> None:
    if bool(channel_ids) == (listener is not None):
        raise click.UsageError("name channels by their ids, or all of a listener with --listener; not both")


def _print_outcome(affected: Sequence[str], missing: Sequence[str], output: str) -> None:
    from control.cli.client import tell_missing
    from control.cli.output import print_json, print_table

    if output == "json":
        print_json({"affected": list(affected), "missing": list(missing)})
    elif affected:
        print_table(("ID",), ((channel_id,) for channel_id in affected))
    else:
        click.echo("no channel is open there", err=True)
    tell_missing(missing)


@channels.command(epilog=example('framegate channels mute 0-1-42 --reason "replays at 3 GB/s"'))
@click.argument("channel_ids", metavar="[ID]...", nargs=-1, type=CHANNEL)
@click.option("--listener", help="All open channels of this listener, instead of ids.")
@click.option("--reason", required=True, help="Why; for the audit record and those who look at the channel.")
@admin_options
def mute(channel_ids: tuple[str, ...], listener: str | None, reason: str, address: str, output: str) -> None:
    """Read no further frame from clients; a frame begun is finished first. Returns when that is in force."""
    from control.cli.client import CALL_TIMEOUT_S, calling, metadata, select
    from control.gen.framegate.control.v1.channel_service_pb2 import MuteChannelsRequest
    from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    _selected(channel_ids, listener)
    with calling(address) as channel:
        request = MuteChannelsRequest(selector=select(channel_ids, listener), reason=reason)
        answer = ChannelServiceStub(channel).MuteChannels(request, timeout=CALL_TIMEOUT_S, metadata=metadata())
    _print_outcome(answer.affected_channel_ids, answer.missing_channel_ids, output)


@channels.command(epilog=example("framegate channels unmute 0-1-42"))
@click.argument("channel_ids", metavar="[ID]...", nargs=-1, type=CHANNEL)
@click.option("--listener", help="All open channels of this listener, instead of ids.")
@click.option("--reason", default="", help="Why; for the audit record.")
@admin_options
def unmute(channel_ids: tuple[str, ...], listener: str | None, reason: str, address: str, output: str) -> None:
    """Take an operator's mute back; what mutes a channel otherwise still holds."""
    from control.cli.client import CALL_TIMEOUT_S, calling, metadata, select
    from control.gen.framegate.control.v1.channel_service_pb2 import UnmuteChannelsRequest
    from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    _selected(channel_ids, listener)
    with calling(address) as channel:
        request = UnmuteChannelsRequest(selector=select(channel_ids, listener), reason=reason)
        answer = ChannelServiceStub(channel).UnmuteChannels(request, timeout=CALL_TIMEOUT_S, metadata=metadata())
    _print_outcome(answer.affected_channel_ids, answer.missing_channel_ids, output)


@channels.command(epilog=example('framegate channels close 0-1-42 --reason "stuck client"'))
@click.argument("channel_ids", metavar="[ID]...", nargs=-1, type=CHANNEL)
@click.option("--listener", help="All open channels of this listener, instead of ids.")
@click.option("--reason", default="", help="Why; for the audit record and the detail of the close.")
@admin_options
def close(channel_ids: tuple[str, ...], listener: str | None, reason: str, address: str, output: str) -> None:
    """Close channels with the cause admin; whole frames already received are delivered first."""
    from control.cli.client import CALL_TIMEOUT_S, calling, metadata, select
    from control.gen.framegate.control.v1.channel_service_pb2 import CloseChannelsRequest
    from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub

    _selected(channel_ids, listener)
    with calling(address) as channel:
        request = CloseChannelsRequest(selector=select(channel_ids, listener), reason=reason)
        answer = ChannelServiceStub(channel).CloseChannels(request, timeout=CALL_TIMEOUT_S, metadata=metadata())
    _print_outcome(answer.affected_channel_ids, answer.missing_channel_ids, output)
