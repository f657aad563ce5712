"""Counters and gauges of the control process: the metrics of ``framegate.proxy.cells.METRICS`` with the source control.

Each meter has one writer: the acceptor's thread or the event loop. Reading takes a copy and needs no lock.
"""

from collections.abc import Callable, Mapping
from typing import Final

from framegate.control.status import Attributes
from framegate.proxy.cells import LISTENER, METRICS

_KEYS: Final = {metric.name.removeprefix("framegate."): metric.keys for metric in METRICS if metric.source == "control"}
_COUNTERS: Final = {
    metric.name.removeprefix("framegate."): len(metric.attributes)
    for metric in METRICS
    if metric.source == "control"
    and metric.kind == "counter"
    and metric.name.startswith("framegate.")
    and not metric.name.startswith(("framegate.telemetry.", "framegate.scrape.", "framegate.container."))
    and set(metric.keys) <= {LISTENER}
}
"""Counters that begin with 0, by name, with 1 for those of a listener. Telemetry itself counts exports, scrapes and what the container has; a counter
of one of many possible events begins with the first.
"""


class Meters:
    """Counters and gauges by name (without the prefix) and attribute values."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._gauges: dict[str, Callable[[], float | None]] = {}
        self._many: dict[str, Callable[[], Mapping[tuple[str, ...], float]]] = {}

    def add(self, name: str, *values: str, amount: float = 1) -> None:
        """Count; ``values`` in the order of the metric's attributes, empty for an absent one."""
        assert len(values) == len(_KEYS[name]), f"{name} has the attributes {_KEYS[name]}"
        key = (name, values)
        self._values[key] = self._values.get(key, 0) + amount

    def gauge(self, name: str, read: Callable[[], float | None]) -> None:
        """Set a gauge, whose value ``read`` returns on demand, None: it has none; any thread."""
        assert not _KEYS[name], f"{name} has attributes"
        self._gauges[name] = read

    def gauges(self, name: str, read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Set a gauge, or a counter that is counted elsewhere, with attributes: ``read`` returns all values by those of the attributes, in order."""
        assert _KEYS[name], f"{name} has no attributes"
        self._many[name] = read

    def forget(self, listener: str) -> None:
        """Drop the counters of a listener that is gone."""
        for name, values in list(self._values):
            if LISTENER in _KEYS[name] and values[_KEYS[name].index(LISTENER)] == listener:
                del self._values[name, values]

    def value(self, name: str, *values: str) -> float:
        return self._values.get((name, values), 0)

    def snapshot(self) -> dict[tuple[str, Attributes], float]:
        """Everything, under the full names."""
        result: dict[tuple[str, Attributes], float] = {}
        for (name, values), value in list(self._values.items()):
            result[f"framegate.{name}", _attributes(name, values)] = value
        for name, read_many in self._many.items():
            for values, value in read_many().items():
                result[f"framegate.{name}", _attributes(name, values)] = value
        for name, read in self._gauges.items():
            if (found := read()) is not None:
                result[f"framegate.{name}", ()] = found
        return result

    def prepare(self, listeners: list[str]) -> None:
        """Let counters begin with 0, so that a rate shows the first event: a series that begins with 1 has not grown."""
        for name, of_listener in _COUNTERS.items():
            for values in ((listener,) for listener in listeners) if of_listener else ((),):
                self._values.setdefault((name, values), 0)


def _attributes(name: str, values: tuple[str, ...]) -> Attributes:
    return tuple((key, item) for key, item in zip(_KEYS[name], values, strict=True) if item)
