"""Rows of channels as messages of the API; ids of channels as text and back; times.

Rows that came over the link were checked there (``framegate.proxy.server.rows``), so all their keys exist.
"""

from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from framegate.control.status import ChannelAction
from framegate.control.steering.filter import Look
from framegate.control.v1 import channel_service_pb2 as channel_pb2
from framegate.proxy.network.connection_id import format_connection_id, parse_connection_id, slot_of
from framegate.proxy.server.rows import ChannelRow, ClosedRow, OpenRow

_CAUSE_PREFIX: Final = "CAUSE_"
_STATES: Final = {name.removeprefix("STATE_").lower(): value for name, value in channel_pb2.Channel.State.items()} | {
    "": channel_pb2.Channel.STATE_UNSPECIFIED
}
_MUTE_CAUSES: Final = {name.removeprefix("MUTE_CAUSE_").lower(): value for name, value in channel_pb2.MuteCause.items()}


def channel_number(text: str, field: str, complain: Callable[[str, str], None]) -> int | None:
    """The number of a channel; None, after ``complain`` was called with ``field``, if the text is not an id."""
    try:
        return int(parse_connection_id(text))
    except ValueError:
        complain(field, f"must be slot-generation-counter, as in 0-1-42, not {text[:64]!r}")
        return None


def channel_texts(numbers: Iterable[int]) -> list[str]:
    """Ids as text."""
    return [format_connection_id(number) for number in numbers]


def timestamp(realtime_ns: int) -> Timestamp:
    """A time of CLOCK_REALTIME."""
    return Timestamp(seconds=realtime_ns // 10**9, nanos=realtime_ns % 10**9)


def duration(length_ns: int) -> Duration:
    """A duration, not negative."""
    return Duration(seconds=length_ns // 10**9, nanos=length_ns % 10**9)


def _set_time(moment: Timestamp, realtime_ns: int) -> None:
    moment.seconds, moment.nanos = divmod(realtime_ns, 10**9)


def channel_message(row: OpenRow | ClosedRow) -> channel_pb2.Channel:
    """An open channel, or a closed one when the row is a closed notice."""
    message = channel_pb2.Channel()
    fill_channel(message, row)
    return message


def fill_channel(message: channel_pb2.Channel, row: OpenRow | ClosedRow) -> None:
    """Fill an empty message; see ``channel_message``. Setting the fields in place takes a third of the time of constructing and copying messages,
    and a list may have ten thousand.
    """
    _fill_common(message, row)
    message.client_id = row.get("client_id", "")
    message.client_software_name = row.get("software", "")
    message.client_software_version = row.get("software_version", "")
    if "cause" in row:
        message.state = channel_pb2.Channel.STATE_CLOSED
        message.close.CopyFrom(_close(row))
        return
    message.state = _STATES[row["state"]]
    for word in row["muted"]:
        message.mute_causes.append(_MUTE_CAUSES[word])
    for word in row["muted_upstream"]:
        message.upstream_mute_causes.append(_MUTE_CAUSES[word])
    message.muting = row["muting"]
    message.mute_reason = row["mute_reason"]
    message.limit_rule = row["limit_rule"]
    message.in_flight_count = row["in_flight"]
    message.pending_send_bytes = row["pending_send"]
    message.leased_bytes = row["leased"]
    message.request.unsent_bytes = row["unsent"]["request"] or 0
    message.response.unsent_bytes = row["unsent"]["response"] or 0
    _set_time(message.last_active_time, row["last_active_ns"])
    for moment, moment_ns in (
        ("oldest_request_time", row["oldest_ns"]),
        ("mute_time", row["muted_ns"]),
        ("upstream_mute_time", row["muted_upstream_ns"]),
    ):
        if moment_ns:
            _set_time(getattr(message, moment), moment_ns)
    throttle = row.get("throttle")
    if throttle is not None:
        message.throttle.request_bytes_per_second = throttle["request_rate"]
        message.throttle.response_bytes_per_second = throttle["response_rate"]
        message.throttle.reason = throttle["reason"]


def fill_look(message: channel_pb2.Channel, look: Look) -> None:
    """Fill an empty message with an open channel and its rates."""
    fill_channel(message, look.row)
    if look.rates is not None:
        for traffic, frames, size in (
            (message.request, look.rates.request_frames, look.rates.request_bytes),
            (message.response, look.rates.response_frames, look.rates.response_bytes),
        ):
            traffic.frames_per_second, traffic.bytes_per_second = frames, size


def action_message(action: ChannelAction) -> channel_pb2.ChannelAction:
    """An action that is kept."""
    message = channel_pb2.ChannelAction(
        id=str(action.number),
        verb=channel_pb2.ChannelAction.Verb.Value(f"VERB_{action.verb.upper()}"),
        filter=action.filter,
        reason=action.reason,
        request_bytes_per_second=action.request_rate,
        response_bytes_per_second=action.response_rate,
        standing=action.standing,
        create_time=timestamp(action.created_ns),
    )
    if action.expires_ns:
        message.expire_time.CopyFrom(timestamp(action.expires_ns))
    return message


def _fill_common(message: channel_pb2.Channel, row: ChannelRow) -> None:
    """Fill what open and closed rows both have. In a row that control wrote for a dead processor, None is unknown and stays absent."""
    number = row["id"]
    message.id = format_connection_id(number)
    message.processor_slot = slot_of(number)
    message.listener = row["listener"]
    message.peer_address = row["peer"]
    message.upstream = row["upstream"]
    message.upstream_endpoint = row["endpoint"] or ""
    message.principal = row["principal"] or ""
    message.sasl_mechanism = row["mechanism"] or ""
    broker = row.get("broker", -1)
    if broker >= 0:
        message.broker_node_id = broker
    tls = row["tls"]
    if tls is not None:
        message.tls.version = tls["version"]
        message.tls.cipher = tls["cipher"]
        message.tls.certificate_fingerprint = tls["certificate"]
    frames, sizes = row["frames"], row["bytes"]
    if frames["request"] is not None:
        traffic = message.request
        traffic.frame_count, traffic.total_bytes = frames["request"], sizes["request"] or 0
        traffic = message.response
        traffic.frame_count, traffic.total_bytes = frames["response"] or 0, sizes["response"] or 0
    _set_time(message.open_time, row["opened_ns"])


def _close(row: ClosedRow) -> channel_pb2.Close:
    mutes = [
        channel_pb2.MuteSummary(cause=_MUTE_CAUSES[word], count=mute["count"], duration=duration(mute["ns"])) for word, mute in row["mutes"].items()
    ]
    return channel_pb2.Close(
        cause=channel_pb2.Cause.Value(f"{_CAUSE_PREFIX}{row['cause'].upper()}"),
        detail=row["detail"],
        side=channel_pb2.Side.Value(f"SIDE_{row['side'].upper()}"),
        close_time=timestamp(row["closed_ns"]),
        lost_bytes=row["lost"]["bytes"],
        mutes=mutes,
        state=_STATES[row["state"]],
    )
