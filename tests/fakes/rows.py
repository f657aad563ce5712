"""Rows as a processor sends them. A test says what it changes; what could not come over the link is refused here."""

import json
from typing import Any, Final, TypeVar, cast

from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.server.link import decode_row, split_line
from framegate.proxy.server.rows import (
    AccessRow,
    ChannelRow,
    ClosedRow,
    LostRow,
    MuteRow,
    OpenedRow,
    OpenRow,
    RefusedFrameRow,
    RequestSpanRow,
    TlsRow,
    TrafficRow,
)
from framegate.proxy.server.schema import schema_of

Row = TypeVar("Row")
OPENED_NS = 1_800_000_000_500_000_000
CHANNEL = ChannelRow(
    id=(1 << 29) + 1,
    listener="kafka",
    peer="10.0.0.9:51000",
    upstream="brokers",
    endpoint="10.1.0.1:9092",
    principal="CN=client",
    mechanism=None,
    tls=TlsRow(version="TLSv1.3", cipher="TLS_AES_256_GCM_SHA384", certificate="0123456789abcdef"),
    frames=TrafficRow(request=3, response=2),
    bytes=TrafficRow(request=300, response=200),
    opened_ns=OPENED_NS,
)
_BEGAN_NS: Final = OPENED_NS + 2_000_000
_ATTEMPT: Final = {"attempt_started_ns": _BEGAN_NS, "tcp_ns": 100_000, "tls_ns": 200_000, "login_ns": 0}
OPENING: Final = {"handshake_ns": 2_000_000, "connect_ns": 300_000, "connect_started_ns": _BEGAN_NS, "attempts": 1, **_ATTEMPT}


def open_row(**changes: Any) -> OpenRow:
    row = cast(Any, OpenRow)(
        **CHANNEL,
        state="open",
        client_id="billing-7",
        software="apache-kafka-java",
        software_version="3.7.0",
        muted=[],
        muted_upstream=["peer"],
        muted_ns=0,
        muted_upstream_ns=OPENED_NS + 5 * 10**8,
        muting=False,
        mute_reason="",
        in_flight=1,
        oldest_ns=OPENED_NS + 9 * 10**8,
        pending_send=7,
        leased=11,
        unsent=TrafficRow(request=0, response=7),
        limit_rule="",
        last_active_ns=OPENED_NS + 10**9,
    )
    return _judged(OpenRow, {**row, **changes})


def refused_frame_row(**changes: Any) -> RefusedFrameRow:
    row = RefusedFrameRow(
        id=CHANNEL["id"],
        listener="kafka",
        side="downstream",
        peer="10.0.0.9:51000",
        principal="CN=client",
        client_id="billing-7",
        cause="frame_too_large",
        size=2_000_000,
        limit=1_000_000,
        rule="",
        report_only=False,
        head="001e8480000000030000000700046164",
        time_ns=OPENED_NS,
    )
    return _judged(RefusedFrameRow, {**row, **changes})


def request_span_row(**changes: Any) -> RequestSpanRow:
    row = RequestSpanRow(
        id=CHANNEL["id"],
        listener="kafka",
        upstream="brokers",
        endpoint="10.1.0.1:9092",
        peer="10.0.0.9:51000",
        principal="CN=client",
        client_id="billing-7",
        key=0,
        version=9,
        correlation_id=77,
        size=300,
        answer_size=40,
        began_ns=OPENED_NS,
        ended_ns=OPENED_NS + 5_000_000,
        code=0,
        failure="",
        topic="orders",
        partition=2,
        records=3,
        parents=[],
    )
    return _judged(RequestSpanRow, {**row, **changes})


def opened_row(**changes: Any) -> OpenedRow:
    return _judged(OpenedRow, {**CHANNEL, **OPENING, **changes})


def access_row(**changes: Any) -> AccessRow:
    row = {
        **CHANNEL,
        **OPENING,
        "state": "open",
        "muted": ["peer"],
        "muted_upstream": [],
        "in_flight": 1,
        "last_active_ns": OPENED_NS + 10**9,
        "lost": LostRow(bytes=0, request=0, response=0),
        "mutes": {"peer": MuteRow(count=2, ns=1_500_000)},
    }
    return _judged(AccessRow, {**row, **changes})


def closed_row(**changes: Any) -> ClosedRow:
    row = cast(Any, ClosedRow)(
        **CHANNEL,
        **OPENING,
        cause="peer_closed",
        detail="said the peer",
        side="downstream",
        state="open",
        closed_ns=OPENED_NS + 2 * 10**9,
        duration_ms=2_000,
        lost=LostRow(bytes=5, request=5, response=0),
        mutes={"peer": MuteRow(count=2, ns=1_500_000)},
    )
    return _judged(ClosedRow, {**row, **changes})


def line_of(row: OpenedRow | AccessRow | ClosedRow, accepted_ns: int) -> str:
    """A row as a processor sends it."""
    text = json.dumps({**row, "id": format_connection_id(row["id"])}, ensure_ascii=False, separators=(",", ":"))
    return f"{accepted_ns} {row['id']} {text}"


def decode_line(line: str, event: str = "closed") -> Any:
    """The row of a line that a processor sent."""
    _, number, text = split_line(event, line)
    return decode_row(event, number, text)


def _judged(declared: type[Row], row: Any) -> Row:
    fault = schema_of(cast(Any, declared)).fault(row)
    assert fault == "", f"{declared.__name__}{fault}"
    return cast(Row, row)
