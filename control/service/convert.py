"""Rows and statuses of the plane become messages of the API, ids become text and back.

A row that came over the link was judged there (``framegate.proxy.server.rows``), so its keys are read without asking.
"""

from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from framegate.control.status import HandlerProcessStatus, Holder, ListenerStatus, Origin, PoolStatus, ProcessorStatus, UpstreamStatus
from framegate.control.v1 import channel_service_pb2 as channel_pb2
from framegate.control.v1 import handler_service_pb2 as handler_pb2
from framegate.control.v1 import listener_service_pb2 as listener_pb2
from framegate.control.v1 import pool_service_pb2 as pool_pb2
from framegate.control.v1 import upstream_service_pb2 as upstream_pb2
from framegate.proxy.network.connection_id import format_connection_id, parse_connection_id, slot_of
from framegate.proxy.server.rows import ChannelRow, ClosedRow, OpenRow

__all__ = [
    "cause_name",
    "channel_message",
    "channel_number",
    "channel_texts",
    "duration",
    "fill_channel",
    "handler_process_message",
    "holder_message",
    "listener_message",
    "memory_pool_message",
    "origin_value",
    "processor_message",
    "timestamp",
    "upstream_message",
]

_CAUSE_PREFIX: Final = "CAUSE_"
_STATES: Final = {name.removeprefix("STATE_").lower(): value for name, value in channel_pb2.Channel.State.items()} | {
    "": channel_pb2.Channel.STATE_UNSPECIFIED
}
_MUTE_CAUSES: Final = {name.removeprefix("MUTE_CAUSE_").lower(): value for name, value in channel_pb2.MuteCause.items()}


def channel_number(text: str, field: str, complain: Callable[[str, str], None]) -> int | None:
    """The number of a channel; None, after a complaint about ``field``, when the text is not an id."""
    try:
        return int(parse_connection_id(text))
    except ValueError:
        complain(field, f"must be slot-generation-counter, as in 0-1-42, not {text[:64]!r}")
        return None


def channel_texts(numbers: Iterable[int]) -> list[str]:
    """Ids as text."""
    return [format_connection_id(number) for number in numbers]


def timestamp(realtime_ns: int) -> Timestamp:
    """A moment of CLOCK_REALTIME."""
    return Timestamp(seconds=realtime_ns // 10**9, nanos=realtime_ns % 10**9)


def duration(length_ns: int) -> Duration:
    """A length of time, not below zero."""
    return Duration(seconds=length_ns // 10**9, nanos=length_ns % 10**9)


def cause_name(cause: channel_pb2.Cause.ValueType) -> str | None:
    """The word of the log and the metrics for a cause; None for CAUSE_UNSPECIFIED."""
    return None if cause == channel_pb2.CAUSE_UNSPECIFIED else channel_pb2.Cause.Name(cause).removeprefix(_CAUSE_PREFIX).lower()


def _set_time(moment: Timestamp, realtime_ns: int) -> None:
    moment.seconds, moment.nanos = divmod(realtime_ns, 10**9)


def channel_message(row: OpenRow | ClosedRow) -> channel_pb2.Channel:
    """An open channel, or a closed one when the row is a closed notice."""
    message = channel_pb2.Channel()
    fill_channel(message, row)
    return message


def fill_channel(message: channel_pb2.Channel, row: OpenRow | ClosedRow) -> None:
    """Make an empty message that of a row; see ``channel_message``. In place, field by field: a third of the time that constructing and copying
    messages takes, and a list has ten thousand of them.
    """
    _fill_common(message, row)
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
    message.in_flight_count = row["in_flight"]
    message.pending_send_bytes = row["pending_send"]
    message.leased_bytes = row["leased"]
    _set_time(message.last_active_time, row["last_active_ns"])


def _fill_common(message: channel_pb2.Channel, row: ChannelRow) -> None:
    """What open and closed rows both have; in one that control wrote for a dead processor None is what went with it, and stays absent."""
    number = row["id"]
    message.id = format_connection_id(number)
    message.processor_slot = slot_of(number)
    message.listener = row["listener"]
    message.peer_address = row["peer"]
    message.upstream = row["upstream"]
    message.upstream_endpoint = row["endpoint"] or ""
    message.principal = row["principal"] or ""
    message.sasl_mechanism = row["mechanism"] or ""
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


def handler_process_message(status: HandlerProcessStatus) -> handler_pb2.HandlerProcess:
    """A handler process."""
    return handler_pb2.HandlerProcess(
        slot=status.slot,
        pid=status.pid,
        generation=status.generation,
        state=handler_pb2.HandlerProcess.State.Value(f"STATE_{status.state.upper()}"),
        restart_count=status.restarts,
        start_time=timestamp(status.started_ns) if status.started_ns else None,
        last_end_reason=status.last_reason,
        last_end_time=timestamp(status.last_ended_ns) if status.last_ended_ns else None,
        handled_count=status.handled,
        failed_count=status.failed,
        in_handler_count=status.in_handler,
        queued_count=status.queued,
        oldest_age=duration(status.oldest_ms * 10**6) if status.in_handler else None,
        busy_share=status.busy,
        resident_bytes=status.resident,
        handlers=[
            handler_pb2.Handler(
                listener=item.listener,
                name=item.handler,
                requests="request" in item.directions,
                responses="response" in item.directions,
                description=item.description,
            )
            for item in status.handlers
        ],
    )


def listener_message(status: ListenerStatus) -> listener_pb2.Listener:
    """A listener."""
    return listener_pb2.Listener(
        name=status.name,
        address=status.address,
        protocol=listener_pb2.Protocol.Value(f"PROTOCOL_{status.protocol.upper()}"),
        tls_enabled=status.tls,
        upstream=status.upstream,
        handler=status.handler,
        max_receive_size_bytes=status.max_receive_size,
        max_connection_count=status.max_connections,
        open_connection_count=status.connections,
        accepting=status.accepting,
        request_forwarding=listener_pb2.Forwarding.Value(f"FORWARDING_{status.forwarding.requests.upper()}"),
        response_forwarding=listener_pb2.Forwarding.Value(f"FORWARDING_{status.forwarding.responses.upper()}"),
    )


def upstream_message(status: UpstreamStatus) -> upstream_pb2.Upstream:
    """An upstream."""
    down = [
        upstream_pb2.DownEndpoint(address=item.address, reason=item.reason, detail=item.detail, processor_count=item.processors)
        for item in status.down
    ]
    return upstream_pb2.Upstream(
        name=status.name,
        endpoints=status.endpoints,
        addresses=status.addresses,
        tls_enabled=status.tls,
        max_receive_size_bytes=status.max_receive_size,
        resolution_error=status.error,
        down_endpoints=down,
    )


def memory_pool_message(status: PoolStatus) -> pool_pb2.MemoryPool:
    """The memory pool."""
    shares = [
        pool_pb2.MemoryShare(
            processor_slot=item.slot,
            size_bytes=item.share,
            usage_bytes=item.usage,
            begun_bytes=item.begun,
            pending_bytes=item.pending,
            tls_bytes=item.tls,
            tap_bytes=item.tap,
            waiting_count=item.waiting,
        )
        for item in status.shares
    ]
    return pool_pb2.MemoryPool(
        kind=pool_pb2.MemoryPool.Kind.Value(f"KIND_{status.kind.upper()}"),
        size_bytes=status.size,
        usage_bytes=status.usage,
        shares=shares,
        begun_bytes=sum(item.begun for item in status.shares),
        pending_bytes=sum(item.pending for item in status.shares),
        tls_bytes=sum(item.tls for item in status.shares),
        tap_bytes=sum(item.tap for item in status.shares),
        tap_limit_bytes=status.tap_limit,
        waiting_count=sum(item.waiting for item in status.shares),
        guaranteed_percents=status.guaranteed,
        size_origin=origin_value(status.size_origin),
    )


def origin_value(origin: Origin) -> pool_pb2.Origin.ValueType:
    """Who decides a size."""
    return pool_pb2.Origin.Value(f"ORIGIN_{origin.upper()}")


def holder_message(holder: Holder) -> pool_pb2.MemoryHolder:
    """Who holds some of the memory pool."""
    return pool_pb2.MemoryHolder(
        channel_id=format_connection_id(holder.channel),
        listener=holder.listener,
        side=pool_pb2.MemoryHolder.Side.Value(f"SIDE_{holder.side.upper()}"),
        peer_address=holder.peer,
        kind=pool_pb2.MemoryHolder.Kind.Value(f"KIND_{holder.kind.upper()}"),
        held_bytes=holder.bytes,
        mute_causes=holder.muted,
        mute_time=timestamp(holder.muted_ns) if holder.muted_ns else None,
        last_active_time=timestamp(holder.last_active_ns),
    )


def processor_message(status: ProcessorStatus) -> pool_pb2.Processor:
    """A processor."""
    return pool_pb2.Processor(
        slot=status.slot,
        pid=status.pid,
        generation=status.generation,
        state=pool_pb2.Processor.State.Value(f"STATE_{status.state.upper()}"),
        restart_count=status.restarts,
        heartbeat_age=None if status.heartbeat_age_ms < 0 else duration(status.heartbeat_age_ms * 10**6),
    )
