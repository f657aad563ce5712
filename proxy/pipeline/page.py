"""The page of ``framegate pipeline report``: one HTML file of tables and plots (SVG), without scripts and without anything from elsewhere."""

import datetime
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

Ask = Callable[[str], pa.Table]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 200, 70, 22
_COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
_STEPS: Final = 60  # Points of a line
_STYLE: Final = (
    "body{font:14px sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}h2{margin-top:2em}table{border-collapse:collapse}"
    "td,th{padding:2px 12px 2px 0;text-align:left;border-bottom:1px solid #ddd}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "svg{width:100%;height:auto}svg text{font:11px sans-serif;fill:#444}.key{margin-right:1em;white-space:nowrap}p.none{color:#666}"
)
_WHO: Final = "coalesce(principal, '(nobody)')"


def page(ask: Ask, source: str, since: datetime.datetime, until: datetime.datetime) -> str:
    """The page of what the tables have between two times. ``ask``: runs a query (``sql.open_tables``). Raises QueryError: as ``ask``."""
    return _Page(ask, since, until).text(source)


class _Page:
    def __init__(self, ask: Ask, since: datetime.datetime, until: datetime.datetime) -> None:
        self._ask = ask
        self._since, self._until = since, until
        self._step_s = {"capture_time": max((until - since).total_seconds() / _STEPS, 1.0)}
        self._step_s["minute"] = max(60.0, self._step_s["capture_time"])

    def text(self, source: str) -> str:
        title = f"framegate: {source}"
        when = f"{self._since:%Y-%m-%d %H:%M} to {self._until:%Y-%m-%d %H:%M} UTC"
        parts = (self._completeness, self._traffic, self._connections, self._topics, self._latency, self._sizes, self._refusals, self._slow)
        body = "".join(f"<section>{part()}</section>" for part in parts)
        head = f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
        return f"{head}<h1>{html.escape(title)}</h1><p>{when}</p>{body}</html>\n"

    def _rows(self, query: str, time: str = "capture_time") -> list[dict[str, Any]]:
        """The rows of a query, in which PERIOD is the condition on the time, and STEP its number of the step."""
        first, last = (f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}" for moment in (self._since, self._until))
        days = f"date >= DATE '{self._since:%Y-%m-%d}' AND date <= DATE '{self._until:%Y-%m-%d}' AND " if time == "capture_time" else ""
        period = f"{days}{time} >= TIMESTAMP '{first}' AND {time} < TIMESTAMP '{last}'"
        step = f"floor((date_part('epoch', {time}) - {self._since.timestamp()!r}) / {self._step_s[time]!r})"
        rows: list[dict[str, Any]] = self._ask(query.replace("PERIOD", period).replace("STEP", step)).to_pylist()
        return rows

    def _completeness(self) -> str:
        query = """SELECT listener, direction, state, count(*) AS minutes, sum(seen) AS seen, sum(stored) AS stored, sum(lost) AS lost
                   FROM completeness WHERE PERIOD GROUP BY listener, direction, state ORDER BY listener, direction, state"""
        gaps = """SELECT listener, direction, reason, certainty, count(*) AS gaps, sum(lost_frames) AS frames FROM gaps WHERE PERIOD
                  GROUP BY listener, direction, reason, certainty ORDER BY frames DESC LIMIT 20"""
        return f"<h2>Is anything missing?</h2>{_table(self._rows(query, 'minute'))}<h3>Gaps</h3>{_table(self._rows(gaps))}"

    def _traffic(self) -> str:
        rows = self._rows(f"SELECT {_WHO} AS who, STEP AS step, sum(bytes) AS value FROM traffic_by_minute WHERE PERIOD GROUP BY 1, 2", "minute")
        scaled = [{**row, "value": row["value"] / self._step_s["minute"] / 1e6} for row in rows]
        return f"<h2>Traffic by principal, MB/s</h2>{self._lines(scaled, 'who', 'minute')}"

    def _connections(self) -> str:
        query = f"""SELECT {_WHO} AS principal, count(*) AS connections, count(CASE WHEN level <> 'info' THEN 1 END) AS failed,
                           approx_percentile_cont(duration_ms, 0.5) / 1000.0 AS p50_s, sum(request_bytes) AS request_bytes,
                           sum(response_bytes) AS response_bytes FROM connections WHERE PERIOD GROUP BY 1 ORDER BY connections DESC LIMIT 20"""
        return f"<h2>Connections that ended, by principal</h2>{_table(self._rows(query))}"

    def _topics(self) -> str:
        query = f"""SELECT topic, api, {_WHO} AS principal, sum(records) AS records, sum(record_bytes) AS bytes, count(*) AS requests,
                           count(CASE WHEN records IS NULL THEN 1 END) AS not_known, count(CASE WHEN error_code <> 0 THEN 1 END) AS errors
                    FROM kafka_partitions WHERE PERIOD GROUP BY 1, 2, 3 HAVING sum(records) > 0 OR count(error_code) > 0
                    ORDER BY bytes DESC NULLS LAST LIMIT 30"""
        rows = self._rows(query)
        sums: dict[str, float] = {}
        for row in rows:
            name = f"{row['topic']} {row['api']}"
            sums[name] = sums.get(name, 0) + (row["bytes"] or 0) / 1e6
        return f"<h2>Records by topic</h2>{_bars(sums, 'MB')}{_table(rows)}"

    def _latency(self) -> str:
        busiest = self._rows("SELECT api, count(*) AS n FROM requests WHERE latency_us IS NOT NULL AND PERIOD GROUP BY api ORDER BY n DESC LIMIT 4")
        plots = []
        for api in (row["api"] for row in busiest if row["api"]):
            shares = ", ".join(f"approx_percentile_cont(latency_us, {share}) / 1000.0 AS p{round(share * 100)}" for share in (0.5, 0.95, 0.99))
            rows = self._rows(f"SELECT STEP AS step, {shares} FROM requests WHERE api = '{api}' AND latency_us IS NOT NULL AND PERIOD GROUP BY 1")
            series = [{"share": name, "step": row["step"], "value": row[name]} for row in rows for name in ("p50", "p95", "p99")]
            plots.append(f"<h3>{html.escape(api)}</h3>{self._lines(series, 'share', 'capture_time')}")
        return f"<h2>Latency by API, ms</h2>{''.join(plots) or _NONE}"

    def _sizes(self) -> str:
        plots = []
        for column, title in (("request_size", "Requests"), ("answer_size", "Answers")):
            power = f"ceil(log2(greatest({column}, 1)))"
            query = f"SELECT {power} AS power, count(*) AS n FROM requests WHERE {column} IS NOT NULL AND PERIOD GROUP BY 1 ORDER BY 1"
            counts = {f"up to {_size(2 ** int(row['power']))}": row["n"] for row in self._rows(query)}
            plots.append(f"<h3>{title}</h3>{_bars(counts, '')}")
        return f"<h2>Sizes of requests and answers</h2>{''.join(plots)}"

    def _refusals(self) -> str:
        query = f"""SELECT api, error_code, outcome, {_WHO} AS principal, client_id, count(*) AS requests, max(capture_time) AS last FROM requests
                    WHERE (error_code <> 0 OR outcome IN ('unanswered', 'unknown') OR fault IS NOT NULL) AND PERIOD
                    GROUP BY 1, 2, 3, 4, 5 ORDER BY requests DESC LIMIT 30"""
        return f"<h2>Errors, and requests without an answer</h2>{_table(self._rows(query))}"

    def _slow(self) -> str:
        query = f"""SELECT {_WHO} AS principal, client_id, api, count(*) AS requests, approx_percentile_cont(latency_us, 0.5) / 1000.0 AS p50_ms,
                           approx_percentile_cont(latency_us, 0.99) / 1000.0 AS p99_ms, max(latency_us) / 1000.0 AS max_ms
                    FROM requests WHERE latency_us IS NOT NULL AND PERIOD GROUP BY 1, 2, 3 ORDER BY p99_ms DESC LIMIT 20"""
        return f"<h2>Who is slow?</h2>{_table(self._rows(query))}"

    def _lines(self, rows: Iterable[Mapping[str, Any]], name: str, time: str) -> str:
        """A line for each value of ``name``: of sums by minute the largest first, 0 where there is no row; of others as they come, with dots."""
        zero = time == "minute"
        series: dict[str, dict[int, float]] = {}
        for row in rows:
            series.setdefault(row[name], {})[int(row["step"])] = row["value"]
        if not series:
            return _NONE
        names = sorted(series, key=lambda each: -sum(series[each].values()) if zero else 0)[: len(_COLOURS)]
        last = int((self._until - self._since).total_seconds() / self._step_s[time])
        top = _round_up(max(max(series[each].values()) for each in names))
        drawn, keys = [], []
        for each, colour in zip(names, _COLOURS, strict=False):
            steps = range(last + 1) if zero else sorted(series[each])
            points = [(_LEFT + (_WIDTH - _LEFT - 10) * step / max(last, 1), _y(series[each].get(step, 0) / top)) for step in steps]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in points if not zero)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>{marks}')
            keys.append(f'<span class="key"><span style="color:{colour}">■</span> {html.escape(each)}</span>')
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{self._axes(top)}{"".join(drawn)}</svg><p>{"".join(keys)}</p>'

    def _axes(self, top: float) -> str:
        parts = []
        for share in (0, 0.5, 1):
            y = _y(share)
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{_number(top * share)}</text>')
        for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
            at = self._since + (self._until - self._since) * share
            x = _LEFT + (_WIDTH - _LEFT - 10) * share
            parts.append(f'<text x="{x}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{at:%m-%d %H:%M}</text>')
        return "".join(parts)


_NONE: Final = '<p class="none">nothing</p>'


def _y(share: float) -> float:
    return 10 + (_HEIGHT - _BOTTOM - 10) * (1 - share)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * 0.999999)


def _bars(values: Mapping[str, float], unit: str) -> str:
    if not values:
        return _NONE
    top = max(values.values()) or 1.0
    parts = []
    for index, (name, value) in enumerate(values.items()):
        y = 18 * index
        parts.append(f'<text x="240" y="{y + 13}" text-anchor="end">{html.escape(name[-40:])}</text>')
        parts.append(f'<rect x="250" y="{y + 3}" width="{max(540 * value / top, 1):.1f}" height="12" fill="{_COLOURS[0]}"/>')
        parts.append(f'<text x="{256 + 540 * value / top:.1f}" y="{y + 13}">{_number(value)} {unit}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {18 * len(values) + 4}" role="img">{"".join(parts)}</svg>'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return _NONE
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    lines = ("".join(_cell(value) for value in row.values()) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{_number(value)}</td>'
    text = "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime.datetime) else str(value)
    return f"<td>{html.escape(text)}</td>"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _size(value: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value // scale} {unit}"
    return f"{value} B"
