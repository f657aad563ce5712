"""The dashboards' panels: read from their files, their queries asked of Prometheus, and what they said."""

import dataclasses
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["FINE", "SLUGS", "Dashboard", "Panel", "Prometheus", "QueryError", "Seen", "Window", "problems", "read"]

SLUGS: Final = ("healthy", "traffic", "hurts", "identity", "tap", "control")
FINE: Final = "Everything is fine"
"""What the first panel of the first dashboard says when nothing is wrong."""
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([a-zA-Z_]\w*)")  # $1 is PromQL's own
_POINTS: Final = 120
_TIMEOUT_S: Final = 10.0


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class Prometheus:
    """Questions to a running server over its HTTP API.

    Args:
        address: ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def ready(self) -> bool:
        """Whether it answers queries yet."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=_TIMEOUT_S) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def instant(self, query: str, at: float) -> dict[str, Any]:
        """What a query is at a time, in seconds since 1970: ``resultType`` and ``result``.

        Raises:
            QueryError: the query is wrong, or there was no answer.
        """
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
            raise QueryError(_reason(error.read(), str(error))) from error
        except OSError as error:
            raise QueryError(f"{self.address}: {error}") from error
        return data


def _reason(body: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError):
        return otherwise


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time that is looked at, in seconds since 1970; ``variables``: of queries."""

    start: float
    end: float
    variables: Mapping[str, str]

    @property
    def step_s(self) -> float:
        """Between two points of a panel that shows a course."""
        return max(1.0, round((self.end - self.start) / _POINTS))


@dataclasses.dataclass(slots=True)
class Seen:
    """What one panel showed. Attributes: ``answers`` for each query, in order; ``fault``: why a query failed."""

    answers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    fault: str | None = None

    @property
    def empty(self) -> bool:
        """Whether no query gave a value."""
        return not any(answer["data"]["result"] for answer in self.answers)

    @property
    def last(self) -> list[tuple[Mapping[str, str], float]]:
        """The labels and the last value of each series."""
        series = [series for answer in self.answers for series in answer["data"]["result"]]
        return [(one["metric"], float((one.get("value") or one["values"][-1])[1])) for one in series]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. Attributes: ``nothing``: what it says itself where there is no data, or None where data is due; ``folded``: in a closed row."""

    id: int
    title: str
    targets: tuple[Mapping[str, Any], ...]
    nothing: str | None
    folded: bool

    def ask(self, prometheus: Prometheus, window: Window) -> Seen:
        """Ask all of its queries; a query that fails is a fault of what was seen."""
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard: its document, as the file has it, and its panels, those in closed rows as well."""

    slug: str
    document: Mapping[str, Any]
    panels: tuple[Panel, ...]


def read(folder: Path) -> list[Dashboard]:
    """All six, the first one first.

    Raises:
        OSError: a file is not there.
    """
    found = []
    for slug in SLUGS:
        document = json.loads((folder / f"{slug}.json").read_text())
        found.append(Dashboard(slug=slug, document=document, panels=tuple(_panels(document["panels"], folded=False))))
    return found


def substituted(query: str, variables: Mapping[str, str]) -> str:
    """A query with values in place of variables.

    Raises:
        QueryError: a variable has no value here.
    """
    try:
        return _VARIABLE.sub(lambda found: variables[found[1] or found[2]], query)
    except KeyError as error:
        raise QueryError(f"the variable ${error.args[0]} has no value in {query}") from error


def problems(first: Dashboard, prometheus: Prometheus, window: Window) -> list[str]:
    """What the first panel of the first dashboard says now, in words, the worst first.

    Raises:
        QueryError: it could not be asked.
    """
    answer = prometheus.instant(substituted(first.panels[0].targets[0]["expr"], window.variables), window.end)
    rows = sorted(answer["result"], key=lambda row: (-float(row["value"][1]), row["metric"]["problem"]))
    return [row["metric"]["problem"] for row in rows]


def _panels(rows: Sequence[Mapping[str, Any]], *, folded: bool) -> Iterator[Panel]:
    for row in rows:
        if row["type"] == "row":
            yield from _panels(row.get("panels", []), folded=bool(row.get("collapsed")))
        elif row.get("targets"):
            nothing = row.get("fieldConfig", {}).get("defaults", {}).get("noValue")
            targets = tuple(target for target in row["targets"] if not target.get("hide"))
            yield Panel(id=row["id"], title=row["title"], targets=targets, nothing=nothing, folded=folded)
