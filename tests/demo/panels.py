"""The dashboards' panels, read from their files and asked of Prometheus; and series that came over OTLP, compared with those of scrapes."""

import dataclasses
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

SLUGS: Final = ("healthy", "traffic", "hurts", "identity", "tap", "control")
FINE: Final = "Everything is fine"  # what the first panel of the first dashboard says when nothing is wrong
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([a-zA-Z_]\w*)")  # $1 is PromQL's own
_POINTS: Final = 45
_TIMEOUT_S: Final = 30.0


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class Prometheus:
    """A running server, asked over its HTTP API; ``address`` is ``host:port``."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=_TIMEOUT_S) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def instant(self, query: str, at: float) -> dict[str, Any]:
        """``resultType`` and ``result`` of a query at a time in seconds since 1970. Raises QueryError: the query is wrong, or there was no answer."""
        return self._ask("query", {"query": query, "time": f"{at:.3f}"})

    def range(self, query: str, start: float, end: float, step_s: float) -> dict[str, Any]:
        """The same from ``start`` to ``end``, every ``step_s`` seconds."""
        return self._ask("query_range", {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"})

    def _ask(self, what: str, fields: Mapping[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(f"http://{self.address}/api/v1/{what}", data=urllib.parse.urlencode(fields).encode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                data: dict[str, Any] = json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            try:
                reason = json.load(error)["error"]
            except (ValueError, KeyError):
                reason = str(error)
            raise QueryError(reason) from error
        except OSError as error:
            raise QueryError(f"{self.address}: {error}") from error
        return data


class Window(NamedTuple):
    """A period in seconds since 1970, and the values of the queries' variables."""

    start: float
    end: float
    variables: Mapping[str, str]

    @property
    def step_s(self) -> float:
        """Seconds between two points of a range query."""
        return max(1.0, round((self.end - self.start) / _POINTS))


@dataclasses.dataclass(slots=True)
class Seen:
    """What one panel showed: ``answers`` of its queries, in order; ``fault``: why a query failed."""

    answers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    fault: str | None = None

    @property
    def empty(self) -> bool:
        """Whether no query gave a value."""
        return not any(answer["data"]["result"] for answer in self.answers)


class Panel(NamedTuple):
    """One panel. ``nothing``: the text that it shows where there is no data; None where it must have data. ``folded``: it is in a closed row."""

    id: int
    title: str
    targets: tuple[Mapping[str, Any], ...]
    nothing: str | None
    folded: bool

    def ask(self, prometheus: Prometheus, window: Window) -> Seen:
        """Ask all of its queries. A query that fails is noted in ``fault``."""
        seen = Seen()
        for target in self.targets:
            try:
                query = substituted(target["expr"], window.variables)
                if target.get("instant"):
                    data = prometheus.instant(query, window.end)
                else:
                    data = prometheus.range(query, window.start, window.end, window.step_s)
            except QueryError as error:
                seen.fault = f"{target.get('refId', 'A')}: {error}"
                continue
            seen.answers.append({**{key: target.get(key, "") for key in ("refId", "legendFormat", "format")}, "data": data})
        return seen


class Dashboard(NamedTuple):
    """One dashboard: its document, as the file has it, and its panels, with those in closed rows."""

    slug: str
    document: Mapping[str, Any]
    panels: tuple[Panel, ...]


def read(folder: Path) -> list[Dashboard]:
    """All six in the order of ``SLUGS``. Raises OSError: a file is missing."""
    documents = {slug: json.loads((folder / f"{slug}.json").read_text()) for slug in SLUGS}
    return [Dashboard(slug, document, tuple(_panels(document["panels"], folded=False))) for slug, document in documents.items()]


def _panels(rows: Sequence[Mapping[str, Any]], *, folded: bool) -> Iterator[Panel]:
    for row in rows:
        if row["type"] == "row":
            yield from _panels(row.get("panels", []), folded=bool(row.get("collapsed")))
        elif row.get("targets"):
            nothing = row.get("fieldConfig", {}).get("defaults", {}).get("noValue")
            targets = tuple(target for target in row["targets"] if not target.get("hide"))
            yield Panel(id=row["id"], title=row["title"], targets=targets, nothing=nothing, folded=folded)


def substituted(query: str, variables: Mapping[str, str]) -> str:
    """A query with values in place of variables. Raises QueryError: a variable has no value."""
    try:
        return _VARIABLE.sub(lambda found: variables[found[1] or found[2]], query)
    except KeyError as error:
        raise QueryError(f"the variable ${error.args[0]} has no value in {query}") from error


class Row(NamedTuple):
    """A line of the first dashboard's table: a problem, and where it is."""

    problem: str
    place: str

    def __str__(self) -> str:
        return f"{self.problem} ({self.place})" if self.place else self.problem


def problems(first: Dashboard, prometheus: Prometheus, window: Window) -> list[Row]:
    """What the first dashboard says now: the problems of its first panel, the worst first, each with the places of its table. Raises QueryError."""
    words, _, table = (
        prometheus.instant(substituted(panel.targets[0]["expr"], window.variables), window.end)["result"] for panel in first.panels[:3]
    )
    places: dict[str, list[str]] = {}
    for line in (line["metric"] for line in table):
        places.setdefault(line["problem"], []).append(" ".join(line.get("where", "").split()))  # labels may be empty
    ranked = sorted(words, key=lambda row: (-float(row["value"][1]), row["metric"]["problem"]))
    return [Row(problem, place) for problem in (row["metric"]["problem"] for row in ranked) for place in sorted(places.get(problem, [""]))]


_RESOURCE: Final = {"os_type", "process_pid", "process_runtime_name", "process_runtime_version", "service_name", "service_version"}
_SDK: Final = {"service_instance_id", "telemetry_sdk_language", "telemetry_sdk_name", "telemetry_sdk_version"}
_SCOPE: Final = {"otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}
OTHER_BY_NATURE: Final = frozenset({"job", "instance", "host_name"} | _RESOURCE | _SDK | _SCOPE)
"""Labels that are not compared. ``job`` and ``instance`` come from the resource, or from Prometheus' configuration. The collector makes labels of the
resource's other attributes, a scrape has them in target_info. Those of the scope are the collector's.
"""
_NOT_COMPARED: Final = ("otelcol_", "target_info", "framegate_pipeline_", "scrape_", "up", "python_", "ALERTS")
"""Beginnings of names that one way adds: the collector, the Spark job (which is not scraped), Prometheus' own of a scrape."""


class Comparison(NamedTuple):
    """How many series came by both ways, and which by one only, as ``node: name{labels}``."""

    both: int
    only_otlp: tuple[str, ...]
    only_scrape: tuple[str, ...]


def compare(otlp: Iterable[Mapping[str, str]], scraped: Iterable[Mapping[str, str]]) -> Comparison:
    """Compare the label sets of series that came through the collector with those of scrapes."""
    left, right = ({_text(labels) for labels in series if not labels["__name__"].startswith(_NOT_COMPARED)} for series in (otlp, scraped))
    return Comparison(len(left & right), tuple(sorted(left - right)), tuple(sorted(right - left)))


def _text(labels: Mapping[str, str]) -> str:
    kept = {key: value for key, value in sorted(labels.items()) if key != "__name__" and key not in OTHER_BY_NATURE}
    if "le" in kept:
        kept["le"] = f"{float(kept['le']):g}"  # 1 and 1.0 are the same bound
    rest = ", ".join(f'{key}="{value}"' for key, value in kept.items())
    return f"{labels.get('instance', '')}: {labels['__name__']}{{{rest}}}"
