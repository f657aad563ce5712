"""The columns of ``framegate channels list``, also over many pods and in ``framegate top``: from a channel as JSON has it."""

import datetime
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from framegate.control.cli.output import age_text, size_text, time_text, word

_WIDE: Final = 180  # Columns of a terminal from which on the list is wide


def column_names(columns: str | None, output: str, *, closed: bool) -> Sequence[str]:
    """The names of the columns to show; without ``--columns`` as many as fit a terminal."""
    usual, wide = (_CLOSED_COLUMNS, _WIDE_CLOSED_COLUMNS) if closed else (_COLUMNS, WIDE_COLUMNS)
    if columns is None:
        fits = output == "table" and sys.stdout is not None and sys.stdout.isatty() and shutil.get_terminal_size().columns >= _WIDE
        return wide if fits else usual
    if columns == "wide":
        return wide
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in CELLS:
            raise click.BadParameter(f"there is no column {name!r}; the columns are {', '.join(CELLS)}", param_hint="--columns")
    return names


def heads(names: Sequence[str]) -> list[str]:
    """The heads of columns with these names."""
    return [name.upper().replace("_", " ") for name in names]


def mutes(row: dict[str, Any]) -> str:
    """Why the client is not read; empty if it is."""
    causes = ",".join(word(name, "MUTE_CAUSE_") for name in row["mute_causes"])
    return f"{causes} (muting)" if row["muting"] else causes


def upstream_mutes(row: dict[str, Any]) -> str:
    """Why the upstream is not read; empty if it is."""
    return ",".join(word(name, "MUTE_CAUSE_") for name in row["upstream_mute_causes"])


def _both_mutes(row: dict[str, Any]) -> str:
    """``admin; upstream: peer``: the client is not read for the one cause, the upstream for the other."""
    upstream = upstream_mutes(row)
    return "; ".join(filter(None, (mutes(row), f"upstream: {upstream}" if upstream else ""))) or "-"


def _seconds(text: str | None, now: float) -> float:
    """Since a time of protobuf's JSON."""
    return now - datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _traffic(row: dict[str, Any], way: str, key: str) -> Any:
    """``?`` when its processor died and it is not known."""
    return "?" if way not in row else size_text(row[way][key]) if key.endswith("bytes") else row[way][key]


def lost_text(close: dict[str, Any] | None) -> str:
    """The bytes that were lost; ``?`` if it is not known, ``-`` for an open channel."""
    return "-" if close is None else size_text(close["lost_bytes"]) if "lost_bytes" in close else "?"


def _at(row: dict[str, Any], now: float) -> float:
    return datetime.datetime.fromisoformat(row["close"]["close_time"]).timestamp() if "close" in row else now


def _age(text: str | None, now: float) -> str:
    return age_text(_seconds(text, now)) if text else "-"


def _waits(row: dict[str, Any], now: float) -> str:
    """``admin; upstream: peer 12s``: the client is not read for the one cause, the upstream for the other, the older one for 12 s."""
    since = max(_seconds(row.get("mute_time"), now), _seconds(row.get("upstream_mute_time"), now))
    text = _both_mutes(row)
    return text if text == "-" else f"{text} {age_text(since)}"


def _rate(row: dict[str, Any], unit: str, *ways: str) -> str:
    rates = [row.get(way, {}).get(f"{unit}_per_second") for way in ways]
    if any(rate is None for rate in rates):
        return "-"
    total = round(sum(rates))
    return f"{size_text(total)}/s" if unit == "bytes" else f"{total:,}/s"


def throttle_text(row: dict[str, Any]) -> str:
    """The rates of a throttle for requests and for responses."""
    rates = row.get("throttle")
    if rates is None:
        return "-"
    return " / ".join(f"{size_text(rate)}/s" if rate else "-" for rate in (rates["request_bytes_per_second"], rates["response_bytes_per_second"]))


_BOTH: Final = ("request", "response")
_CLOSE_CELLS: Final[dict[str, Callable[[dict[str, Any], float], Any]]] = {
    "cause": lambda row, now: word(row["close"]["cause"], "CAUSE_") if "close" in row else "-",
    "side": lambda row, now: word(row["close"]["side"], "SIDE_") if "close" in row else "-",
    "lost": lambda row, now: lost_text(row.get("close")),
    "closed": lambda row, now: time_text(row.get("close", {}).get("close_time")),
    "detail": lambda row, now: row.get("close", {}).get("detail") or "-",
}
CELLS: Final = {
    "id": lambda row, now: row["id"],
    "listener": lambda row, now: row["listener"],
    "address": lambda row, now: row["peer_address"],
    "principal": lambda row, now: row["principal"] or "-",
    "client_id": lambda row, now: row["client_id"] or "-",
    "software": lambda row, now: f"{row['client_software_name']} {row['client_software_version']}".strip() or "-",
    "upstream": lambda row, now: row["upstream"],
    "endpoint": lambda row, now: row["upstream_endpoint"] or "-",
    "state": lambda row, now: word(row["state"], "STATE_"),
    "waiting": _waits,
    "age": lambda row, now: _age(row.get("open_time"), _at(row, now)),
    "idle": lambda row, now: _age(row.get("last_active_time"), now),
    "in_flight": lambda row, now: row["in_flight_count"] or ("-" if row.get("oldest_request_time") else 0),
    "oldest": lambda row, now: _age(row.get("oldest_request_time"), now),
    "held": lambda row, now: size_text(row["leased_bytes"]),
    "unsent": lambda row, now: size_text(sum(row[way]["unsent_bytes"] for way in _BOTH if way in row)),
    "request_bytes": lambda row, now: _traffic(row, "request", "total_bytes"),
    "response_bytes": lambda row, now: _traffic(row, "response", "total_bytes"),
    "request_frames": lambda row, now: _traffic(row, "request", "frame_count"),
    "response_frames": lambda row, now: _traffic(row, "response", "frame_count"),
    "bytes_rate": lambda row, now: _rate(row, "bytes", *_BOTH),
    "request_bytes_rate": lambda row, now: _rate(row, "bytes", "request"),
    "response_bytes_rate": lambda row, now: _rate(row, "bytes", "response"),
    "frames_rate": lambda row, now: _rate(row, "frames", *_BOTH),
    "request_frames_rate": lambda row, now: _rate(row, "frames", "request"),
    "response_frames_rate": lambda row, now: _rate(row, "frames", "response"),
    "throttle": lambda row, now: throttle_text(row),
    "limit_rule": lambda row, now: row["limit_rule"] or "-",
    "certificate": lambda row, now: (row.get("tls") or {}).get("certificate_fingerprint") or "-",
    "opened": lambda row, now: time_text(row.get("open_time")),
    **_CLOSE_CELLS,
}  # the columns by name; ``now`` is in seconds since 1970
_COLUMNS: Final = (
    "id", "listener", "address", "client_id", "upstream", "state", "waiting", "in_flight", "oldest", "held", "request_frames", "response_frames",
    "request_bytes", "response_bytes", "age",
)  # fmt: skip
WIDE_COLUMNS: Final = (
    "id", "listener", "address", "principal", "client_id", "software", "endpoint", "state", "age", "request_bytes_rate", "response_bytes_rate",
    "request_frames_rate", "response_frames_rate", "in_flight", "oldest", "held", "waiting",
)  # fmt: skip
_CLOSED_COLUMNS: Final = ("id", "listener", "address", "cause", "side", "request_frames", "response_frames", "lost", "closed", "detail")
_WIDE_CLOSED_COLUMNS: Final = (
    "id", "listener", "address", "principal", "client_id", "software", "endpoint", "cause", "side", "request_frames", "response_frames",
    "request_bytes", "response_bytes", "lost", "age", "closed", "detail",
)  # fmt: skip


def channel_cells(row: dict[str, Any], names: Sequence[str], now: float) -> Sequence[Any]:
    """The cells of a channel, in columns of these names. ``now``: seconds since 1970."""
    return [CELLS[name](row, now) for name in names]
