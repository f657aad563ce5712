"""What the control process counts itself: the metrics of ``proxy.cells.METRICS`` whose source is control.

Each meter has one writer: the acceptor's thread or the event loop. Reading takes a copy and needs no lock.
"""

from collections.abc import Callable, Mapping
from typing import Final

from control.plane import Attributes
from proxy.cells import LISTENER, METRICS, REASON

__all__ = ["Meters"]

_KEYS: Final = {metric.name.removeprefix("framegate."): metric.keys for metric in METRICS if metric.source == "control"}


class Meters:
    """Counters and gauges by name (without the prefix) and attribute values."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._many: dict[str, Callable[[], Mapping[tuple[str, ...], float]]] = {}

    def add(self, name: str, *values: str, amount: float = 1) -> None:
        """Count; ``values`` in the order of the metric's attributes, empty for an absent one."""
        assert len(values) == len(_KEYS[name]), f"{name} has the attributes {_KEYS[name]}"
        key = (name, values)
        self._values[key] = self._values.get(key, 0) + amount

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Ask ``read`` for the value whenever somebody looks; any thread."""
        assert not _KEYS[name], f"{name} has attributes"
        self._gauges[name] = read

    def gauges(self, name: str, read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Likewise, of one with attributes: the values by those of the attributes, in their order. What is not among them is gone."""
        assert _KEYS[name], f"{name} has no attributes"
        self._many[name] = read

    def value(self, name: str, *values: str) -> float:
        """One counter now."""
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
            result[f"framegate.{name}", ()] = read()
        return result

    def prepare(self, listeners: list[str]) -> None:
        """Let the counters of accept start at 0, so that a rate can be seen from the first one on."""
        for listener in listeners:
            self._values.setdefault(("accept.blocked.time", (listener,)), 0)
            for name in ("connection.rejected", "accept.limited.time"):
                for reason in _reasons(name):
                    self._values.setdefault((name, (listener, reason)), 0)


def _attributes(name: str, values: tuple[str, ...]) -> Attributes:
    return tuple((key, item) for key, item in zip(_KEYS[name], values, strict=True) if item)


def _reasons(name: str) -> tuple[str, ...]:
    metric = next(metric for metric in METRICS if metric.name == f"framegate.{name}")
    assert metric.keys == (LISTENER, REASON), "what happens at accept is counted by listener and reason"
    return metric.attributes[1][1]
