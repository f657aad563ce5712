"""Where each metric's cells lie: what both ends of the mapping know before they read or write one."""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Protocol

from proxy.cells.metrics import INTERNAL, LISTENER, METRICS, UPSTREAM, Metric

__all__ = ["CELL_SIZE", "HEADER_SIZE", "Attributes", "CellLayout", "Row"]

Attributes = tuple[tuple[str, str], ...]

HEADER_SIZE: Final = 64
CELL_SIZE: Final = 8


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Names(Protocol):
    """What a layout needs of ``ProxyConfig``, which lives above this module."""

    @property
    def listeners(self) -> Sequence[_Named]: ...
    @property
    def upstreams(self) -> Sequence[_Named]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One metric with one set of attribute values: ``count`` cells from ``index`` (a histogram: its buckets, then the sum)."""

    metric: Metric
    values: tuple[str, ...]
    index: int
    count: int

    @property
    def attributes(self) -> Attributes:
        """Keys and values, absent ones left out."""
        return tuple((key, value) for key, value in zip(self.metric.keys, self.values, strict=True) if value)


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Where every cell lies. Equal names give equal layouts; ``hash`` tells others apart."""

    rows: tuple[Row, ...]
    count: int
    hash: int
    _indexes: dict[tuple[str, tuple[str, ...]], int] = field(repr=False, compare=False)

    @classmethod
    def of(cls, config: _Names) -> "CellLayout":
        """The layout for the listeners and upstreams of a configuration."""
        names = {
            LISTENER: tuple(listener.name for listener in config.listeners),
            UPSTREAM: tuple(upstream.name for upstream in config.upstreams),
        }
        rows = tuple(_rows(names))
        last = rows[-1]
        text = json.dumps([(row.metric.name, row.values, row.count) for row in rows]).encode()
        signature = len(text) << 32 | zlib.crc32(text)
        indexes = {(row.metric.name, row.values): row.index for row in rows}
        return cls(rows, last.index + last.count, signature, indexes)

    @property
    def size(self) -> int:
        """Bytes of the mapping."""
        return HEADER_SIZE + self.count * CELL_SIZE

    def index(self, name: str, *values: str) -> int:
        """The first cell of a metric; ``values`` in the order of its attributes. An unknown one raises KeyError."""
        return self._indexes[name, values]


def _rows(names: dict[str, tuple[str, ...]]) -> Iterator[Row]:
    index = 0
    for metric in METRICS + INTERNAL:
        if metric.source != "processor":
            continue
        count = len(metric.bounds) + 2 if metric.kind == "histogram" else 1
        for values in product(*(listed or names[key] for key, listed in metric.attributes)):
            yield Row(metric, values, index, count)
            index += count
