"""The layout of the cells, which both ends of the mapping know.

The cells form blocks: one for the processor, one for each listener and each side of it, one for each upstream and each endpoint of it. The place of
a metric within its block follows from the table of metrics alone (``Block.at``), so it is a constant at import. Where the blocks begin follows from a
list of places (``CellLayout``), which control makes from the names in the configuration and the brokers of clusters, and sends to the processors.
When the names change, a new list is made: names that stay keep their place, new ones get free places or places at the end.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Protocol

from framegate.proxy.cells.metric import Metric
from framegate.proxy.cells.metrics import BROKER, INTERNAL, LISTENER, METRICS, SERVER_ADDRESS, SERVER_PORT, SIDE, SIDES, UPSTREAM

Attributes = tuple[tuple[str, str], ...]
Place = tuple[str, ...]
"""An owner of blocks: its kind and its name, ``(ENDPOINT, upstream, address, port, broker)`` for an endpoint; an empty name: the place is free."""
ENDPOINT: Final = "endpoint"
FREE: Final = ""
MOST_BROKERS: Final = 100  # of a cluster; all others share a place
OTHERS: Final = "others"
UNIX: Final = "unix:"

HEADER_SIZE: Final = 64
CELL_SIZE: Final = 8
_TABLE: Final = tuple(metric for metric in METRICS + INTERNAL if metric.source == "processor")


_ENDPOINT_KEYS: Final = (UPSTREAM, SERVER_ADDRESS, SERVER_PORT, BROKER)


def endpoint_place(upstream: str, endpoint: str) -> Place:
    """The place of an endpoint, or a bootstrap server, as the configuration writes it."""
    host, _, port = ("", "", "") if endpoint.startswith(UNIX) else endpoint.rpartition(":")
    return ENDPOINT, upstream, host.strip("[]") or endpoint.removeprefix(UNIX), port, ""


def broker_place(upstream: str, broker: str) -> Place:
    """The place of a broker of a cluster."""
    return ENDPOINT, upstream, "", "", broker


def _block_keys(metric: Metric) -> tuple[str, ...]:
    """The attributes that choose the block of a metric. A side alone chooses none, nor does one that may be ``internal``."""
    if LISTENER in metric.keys:
        return (LISTENER, SIDE) if (SIDE, SIDES) in metric.attributes else (LISTENER,)
    if SERVER_ADDRESS in metric.keys:
        return _ENDPOINT_KEYS
    return (UPSTREAM,) if UPSTREAM in metric.keys else ()


def _cell_count(metric: Metric) -> int:
    """The number of cells for one set of attribute values; a histogram has its buckets and the sum."""
    return len(metric.bounds) + 2 if metric.kind == "histogram" else 1


class Block:
    """The cells of the processor, or of one listener, one side of it, one upstream, or one endpoint."""

    def __init__(self, *keys: str, table: Sequence[Metric] = _TABLE) -> None:
        self.keys: Final = keys
        self.size = 0  # the number of cells
        self.count = 0  # how many of them are before the histograms, which are last
        self._metrics: Final = {metric.name: metric for metric in table if _block_keys(metric) == keys}
        self._offsets: Final[dict[tuple[str, ...], int]] = {}
        for metric in sorted(self._metrics.values(), key=lambda metric: metric.kind == "histogram"):
            for values in product(*self._lists(metric)):
                self._offsets[metric.name, *values] = self.size
                self.size += _cell_count(metric)
            if metric.kind != "histogram":
                self.count = self.size
        self.gauges: Final = tuple(at for (name, *_), at in self._offsets.items() if self._metrics[name].kind == "gauge")  # which of these are gauges

    def _lists(self, metric: Metric) -> list[tuple[str, ...]]:
        return [listed for key, listed in metric.attributes if key not in self.keys]

    def metric(self, name: str) -> Metric:
        """A metric with cells in this block; an unknown one raises KeyError."""
        return self._metrics[name]

    def values(self, name: str) -> tuple[str, ...]:
        """The values of a metric's last attribute, in the order of their cells."""
        return self._lists(self._metrics[name])[-1]

    def at(self, name: str, *values: str) -> int:
        """The index of a metric's first cell within the block. ``values``: of its attributes, in their order, without those that identify the block.
        The last may be left out: the cells of its values follow each other in the order of ``values``. Raises KeyError: there is no such metric, or
        value.
        """
        lists = self._lists(self._metrics[name])
        rest = lists[len(values) :]
        return self._offsets[name, *values, *(listed[0] for listed in rest[:1])]


PROCESSOR_BLOCK: Final = Block()
LISTENER_BLOCK: Final = Block(LISTENER)
SIDE_BLOCK: Final = Block(LISTENER, SIDE)
UPSTREAM_BLOCK: Final = Block(UPSTREAM)
ENDPOINT_BLOCK: Final = Block(*_ENDPOINT_KEYS)
_EXTENTS: Final[dict[str, tuple[tuple[Block, tuple[str, ...]], ...]]] = {
    LISTENER: ((LISTENER_BLOCK, ()), *((SIDE_BLOCK, (side,)) for side in SIDES)),
    UPSTREAM: ((UPSTREAM_BLOCK, ()),),
    ENDPOINT: ((ENDPOINT_BLOCK, ()),),
}  # the blocks of a place, in their order
_METRICS: Final = {metric.name: metric for metric in _TABLE}
_BLOCKS: Final = {block.keys: block for block in (PROCESSOR_BLOCK, LISTENER_BLOCK, SIDE_BLOCK, UPSTREAM_BLOCK, ENDPOINT_BLOCK)}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Upstream(_Named, Protocol):
    @property
    def addresses(self) -> Sequence[str]: ...


class _Names(Protocol):
    """The part of ``ProxyConfig`` that a layout needs; this module cannot import it."""

    @property
    def listeners(self) -> Sequence[_Named]: ...
    @property
    def upstreams(self) -> Sequence[_Upstream]: ...


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """``buckets``: counts that are not cumulative, one more than bounds; ``sum`` in the metric's unit."""

    buckets: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric with one set of attribute values: ``count`` cells from ``index`` (a histogram: its buckets, then the sum)."""

    metric: Metric
    values: tuple[str, ...]
    index: int
    count: int

    @property
    def attributes(self) -> Attributes:
        """Keys and values, without absent ones."""
        return tuple((key, value) for key, value in zip(self.metric.keys, self.values, strict=True) if value)

    def value(self, cells: Sequence[int], first: int = 0) -> float | HistogramValue:
        """Its value in its unit; ``cells``: those of the layout from ``first`` on."""
        scale, begin = self.metric.scale, self.index - first
        if self.metric.kind == "histogram":
            end = begin + self.count - 1
            return HistogramValue(tuple(cells[begin:end]), cells[end] * scale)
        return cells[begin] if scale == 1.0 else cells[begin] * scale


class CellLayout:
    """The place of every cell; immutable."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places: Final = tuple(places)
        self._starts: Final[dict[tuple[str, ...], int]] = {(): 0}
        self._found: Final[dict[tuple[str, ...], int]] = {}  # those that were asked for: all of them take 0.1 s with 100 listeners
        self.count = PROCESSOR_BLOCK.size  # of cells
        for kind, *name in self.places:
            for block, owner in _EXTENTS[kind]:
                if name != [FREE]:
                    self._starts[*block.keys, *name, *owner] = self.count
                self.count += block.size

    @classmethod
    def of(cls, config: _Names, brokers: Mapping[str, Iterable[int]] | None = None) -> "CellLayout":
        """The layout for the listeners and upstreams of a configuration, and the brokers of its clusters."""
        return cls([*_wanted(config), *_brokers(config, brokers or {})])

    def after(self, config: _Names, kept: Collection[Place] = (), brokers: Mapping[str, Iterable[int]] | None = None) -> "CellLayout":
        """The layout for another configuration. A place that is given up here is free, and is not used before the layout after this one, so that no
        value of its former owner is ever read as one of the next. ``kept``: listeners and upstreams that keep their places, those of endpoints
        included, though they are not in the configuration. ``brokers``: node ids by cluster; a cluster without them has none.
        """
        wanted = [*_wanted(config), *_brokers(config, brokers or {})]
        staying = {item.name for item in config.upstreams}
        of_kept = [place for place in self.places if place[0] == ENDPOINT and (UPSTREAM, place[1]) in kept and place[1] not in staying]
        return self._following(wanted, {*kept, *of_kept})

    def with_brokers(self, upstream: str, brokers: Iterable[int]) -> "CellLayout":
        others = [place for place in self.places if place[1] != FREE and (place[:2] != (ENDPOINT, upstream) or not place[-1])]
        return self._following([*others, *_broker_places(upstream, brokers)], ())

    def _following(self, wanted: Collection[Place], kept: Collection[Place]) -> "CellLayout":
        fresh = [place for place in wanted if place not in self.places]
        places = [place if place in wanted or place in kept else (place[0], FREE) for place in self.places]
        for index, place in enumerate(self.places):
            if place[1] == FREE and (new := next((each for each in fresh if each[0] == place[0]), None)) is not None:
                places[index] = new
                fresh.remove(new)
        places += fresh
        return self if tuple(places) == self.places else CellLayout(places)

    @property
    def wire(self) -> list[list[str]]:
        """The places as JSON values, for the link."""
        return [list(place) for place in self.places]

    def names(self, kind: str) -> list[str]:
        return [place[1] for place in self.owners(kind)]

    def owners(self, kind: str) -> list[Place]:
        return [place for place in self.places if place[0] == kind and place[1] != FREE]

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """All cells, in the order of the table of metrics."""
        return tuple(_rows(self._starts))

    @property
    def gauges(self) -> list[int]:
        return [start + at for owner, start in self._starts.items() for at in _BLOCKS[owner[: len(owner) // 2]].gauges]

    def moved(self, before: "CellLayout") -> list[tuple[int, int]]:
        """The cells that had another owner in a layout from which this one was made, or none: their first and their end."""
        found, end = [], PROCESSOR_BLOCK.size
        for index, place in enumerate(self.places):
            start, end = end, end + sum(block.size for block, _ in _EXTENTS[place[0]])
            if index >= len(before.places) or before.places[index] != place:
                found.append((start, end))
        return found

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.count * CELL_SIZE

    def index(self, name: str, *values: str) -> int:
        """The first cell of a metric; ``values`` in the order of its attributes. An unknown one raises KeyError."""
        found = self._found.get((name, *values))
        if found is None:
            metric = _METRICS[name]
            if len(values) != len(metric.keys):
                raise KeyError(name, *values)
            block = _BLOCKS[_block_keys(metric)]
            given = dict(zip(metric.keys, values, strict=True))
            start = self._starts[*block.keys, *(given[key] for key in block.keys)]
            found = start + block.at(name, *(value for key, value in given.items() if key not in block.keys))
            self._found[name, *values] = found
        return found

    def start(self, block: Block, *owner: str) -> int:
        """The first cell of a block; ``owner``: the values of its keys. An unknown one raises KeyError."""
        return self._starts[*block.keys, *owner]


def _wanted(config: _Names) -> list[Place]:
    listeners: list[Place] = [(LISTENER, item.name) for item in config.listeners]
    upstreams: list[Place] = [(UPSTREAM, item.name) for item in config.upstreams]
    return [*listeners, *upstreams, *dict.fromkeys(endpoint_place(item.name, each) for item in config.upstreams for each in item.addresses)]


def _brokers(config: _Names, brokers: Mapping[str, Iterable[int]]) -> list[Place]:
    return [place for item in config.upstreams for place in _broker_places(item.name, brokers.get(item.name, ()))]


def _broker_places(upstream: str, brokers: Iterable[int]) -> list[Place]:
    nodes = sorted(brokers)
    return [broker_place(upstream, each) for each in (*map(str, nodes[:MOST_BROKERS]), *([OTHERS] if nodes[MOST_BROKERS:] else ()))]


def _rows(starts: Mapping[tuple[str, ...], int]) -> Iterator[Row]:
    owners: dict[tuple[str, ...], list[tuple[dict[str, str], int]]] = {keys: [] for keys in _BLOCKS}
    for owner, start in starts.items():
        keys = owner[: len(owner) // 2]
        owners[keys].append((dict(zip(keys, owner[len(keys) :], strict=True)), start))
    for metric in _TABLE:
        block = _BLOCKS[_block_keys(metric)]
        for given, start in owners[block.keys]:
            for values in product(*((given[key],) if key in given else listed for key, listed in metric.attributes)):
                own = [value for key, value in zip(metric.keys, values, strict=True) if key not in given]
                yield Row(metric, values, start + block.at(metric.name, *own), _cell_count(metric))
