"""Plans batches over the logs of a fleet in an object store. It reads no segment: what a node's ledger promises must be there, and the tasks read and
check whole segments.

A call costs a conditional request for each node whose ledger may have changed, a list of the nodes every ``NODES_S``, and a list of each stream that
has grown, from the position on. A node replaces its ledger once in its interval, so it is asked four times in that. Clocks are not compared.

What is gone, or is not what was there, is an error (``DataLossError``) that names it or, for a reader that goes on, a ``Loss``. A store that does not
answer is neither: ``StoreError`` ends the call.
"""

import concurrent.futures
import dataclasses
import itertools
import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from framegate.proxy.pipeline.loss import LEDGER_STREAM, UNKNOWN_END, DataLossError, Loss, pairs_of
from framegate.proxy.pipeline.planner import MAX_PARTITION_BYTES, MIN_PARTITION_BYTES, Part, Slice
from framegate.proxy.pipeline.position import FleetPosition, Lost, NodePosition
from framegate.proxy.pipeline.wanted import EVERYTHING, Wanted
from framegate.proxy.tap.expected import expected_end, ledger_faults
from framegate.proxy.tap.fleet import nodes_of, place_fault, until_of
from framegate.proxy.tap.headers import decode_block_header
from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, StreamRecord, ledger_of
from framegate.proxy.tap.log_reader import Segment
from framegate.proxy.tap.log_segments import CLOCKS_NS, stored_segments
from framegate.proxy.tap.record import BLOCK_HEADER_BYTES, REASON_VANISHED, SEGMENT_HEADER_BYTES, WINDOW_NS, FormatError
from framegate.proxy.tap.store import AbsentError, place_of, store_at

NODES_S: Final = 10.0
LOOKS: Final = 4  # a ledger is asked for so often in its node's interval
_AT_ONCE: Final = 32
_NOTHING: Final = NodePosition()
Item = TypeVar("Item")
Result = TypeVar("Result")
Span = tuple[int, int]


class Heard(NamedTuple):
    """A node was heard at a time, and all of it before ``until_ns`` is in the batches up to this one. Wall clock of the node."""

    node: str
    heard_ns: int
    until_ns: int


class _Node:
    """A node's stored ledger, as it was read last."""

    def __init__(self, name: str, root: str) -> None:
        self.name = name
        self.root = root
        self.ledger: Ledger | None = None  # None: there is none
        self.ends: dict[str, int] = {}  # up to where each stream was shipped, or deleted before that, in the order in which they came
        self.due_s = -1e9  # when it may have changed, monotonic
        self._store = store_at(root)
        self._version: Mapping[str, object] | None = None
        self._pause_s = 0.0

    def read(self, now_s: float) -> None:
        """Read the ledger, if it has changed. ``now_s``: monotonic."""
        try:
            found = self._store.read_newer(LEDGER_NAME, self._version)
        except AbsentError:
            self._version, self.ledger, self.ends = None, None, {}
            return
        if found is not None:
            content, self._version = found
            self.ledger = ledger_of(content)
            shipped = self.ledger.shipped
            known, streams = self.ledger.streams, shipped.streams if shipped else {}
            self.ends = {stream: max(end, known[stream].deleted_to if stream in known else 0) for stream, (end, _) in streams.items()}
            if shipped and place_fault(self.root, shipped):
                self.ends = {}  # they are read where they belong
            self._pause_s = shipped.interval_ms / 1000 / LOOKS if shipped else 0.0
        self.due_s = now_s + self._pause_s

    def record(self, stream: str) -> StreamRecord | None:
        return self.ledger.streams.get(stream) if self.ledger else None

    def is_finished(self, stream: str, offset: int) -> bool:
        """Whether a stream has ended, at ``offset`` or before."""
        end = expected_end(self.record(stream))
        return end is not None and offset >= end

    def knows(self, position: NodePosition) -> bool:
        """Whether the ledger still begins with the streams that a query knows."""
        return _known(itertools.islice(self.ends, position.known[0])) == position.known

    def fault(self, position: NodePosition | None) -> str:
        """What is wrong with the ledger, in words; "": nothing. ``position``: of a query that has read the node before."""
        if self.ledger is None:
            return f"{self.root} has no ledger any more" if position is not None and position.known[0] else ""
        if self.ledger.shipped is None:
            return f"the ledger of {self.root} does not say what was shipped"
        moved = place_fault(self.root, self.ledger.shipped)
        faults = [f"{self.root}: {fault}" for fault in [*ledger_faults(self.ledger, ()), *([moved] if moved else [])]]
        position = position or _NOTHING
        if moved:
            return "; ".join(faults)
        if not self.knows(position):
            return "; ".join([*faults, f"the ledger of {self.root} was replaced: it lacks streams that were there"])
        for stream, offset in sorted(position.streams.items()):
            if self.ends.get(stream, 0) < offset:
                faults.append(f"the ledger of {self.root} is an earlier one: {stream} was read up to {offset}, it says {self.ends.get(stream, 0)}")
        return "; ".join(faults)

    def unfinished(self, position: NodePosition, target: NodePosition | None, wanted: Wanted) -> dict[str, Span]:
        """Where each stream is that is not finished at a position, and up to where it may be read. If the ledger was replaced, it is not known
        which of the others were read: those that have ended count as read.
        """
        found: dict[str, Span] = {}
        replaced = not self.knows(position)
        for number, (stream, end) in enumerate(self.ends.items()):
            bound = end if target is None else target.streams.get(stream, 0)
            offset = position.streams.get(stream)
            if offset is not None:
                if not self.is_finished(stream, offset):
                    found[stream] = (offset, max(offset, bound))
            elif target is None or stream in target.streams:
                is_new = not self.is_finished(stream, end) if replaced else number >= position.known[0]
                if is_new and wanted.takes_stream(self.record(stream)):
                    found[stream] = (0, bound)
        return found


class FleetPlanner:
    """The driver's side of a reader of a store, as ``Planner`` is of a directory. What it remembers saves requests only."""

    def __init__(
        self,
        url: str,
        *,
        parallelism: int,
        fail_on_data_loss: bool = True,
        max_partition_bytes: int = MAX_PARTITION_BYTES,
        wanted: Wanted = EVERYTHING,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make no request yet. ``url``: of a fleet, or of a node; the other arguments are the options of ``source``."""
        self._url = url
        self._parallelism = parallelism
        self._strict = fail_on_data_loss
        self._max_partition_bytes = max_partition_bytes
        self._wanted = wanted
        self._monotonic_s = monotonic_s
        self._nodes: dict[str, _Node] = {}
        self._nodes_due_s = -1e9
        self._listed: dict[tuple[str, str], tuple[int, list[Segment]]] = {}
        self._last = FleetPosition()

    def first(self, *, from_latest: bool = False, since_ns: int = 0) -> FleetPosition:
        """Where a query without a checkpoint begins: before everything; behind it; or, in each stream, at the first segment that was written at a
        time or later, less what clocks may differ.
        """
        found: dict[str, NodePosition] = {}
        for node in self._look() if from_latest or since_ns else ():
            offsets = dict(node.ends)
            if since_ns:
                late = Wanted(since_ns=since_ns)
                for _, stream, listed in self._segments([(node, stream, 0) for stream in offsets]):
                    offsets[stream] = next((segment.base for segment in listed if late.takes_segment(segment)), offsets[stream])
            streams = {stream: offset for stream, offset in offsets.items() if not node.is_finished(stream, offset)}
            found[node.name] = NodePosition(streams, _known(node.ends))
        return FleetPosition(found)

    def target(self) -> FleetPosition:
        """The end of all that exists now."""
        return FleetPosition({node.name: NodePosition(node.ends, _known(node.ends)) for node in self._look()})

    def stream_ends(self) -> dict[str, dict[str, int | None]]:
        """By node, where each stream ends; None: it is being written. Costs what ``latest`` does."""
        ledgers = {node.name: node.ledger for node in self._look() if node.ledger is not None}
        return {name: {stream: found.end for stream, found in ledger.streams.items()} for name, ledger in ledgers.items()}

    def latest(self) -> FleetPosition:
        """The same, of the streams that were not finished when ``advance`` was called last."""
        found = {}
        for node in self._look():
            spans = node.unfinished(self._last.nodes.get(node.name, _NOTHING), None, self._wanted)
            found[node.name] = NodePosition({stream: end for stream, (_, end) in spans.items()})
        return FleetPosition(found)

    def advance(self, start: FleetPosition, budget: int | None = None, target: FleetPosition | None = None) -> FleetPosition:
        """Where a batch that begins at ``start`` should end; arguments and errors as of ``Planner.advance``. The budget is divided among the streams
        that lag, in an order by lot, a segment at least each time, until it is used up.
        """
        self._listed.clear()
        nodes = self._look()
        found = dict(start.nodes)
        for name in sorted(start.nodes.keys() - {node.name for node in nodes}):
            if self._wanted.takes_node(name):
                found |= self._lose(name, f"{self._url} has no node {name} any more", start.nodes[name], start.nodes[name])
        bounds = {node.name: None if target is None else target.nodes.get(node.name, _NOTHING) for node in nodes}
        faults = {node.name: node.fault(start.nodes.get(node.name)) for node in nodes}
        spans = {node.name: node.unfinished(start.nodes.get(node.name, _NOTHING), bounds[node.name], self._wanted) for node in nodes}
        at = self._take(nodes, spans, budget)
        for node in nodes:
            before, bound = start.nodes.get(node.name, _NOTHING), bounds[node.name]
            known = _known(node.ends) if bound is None else max(bound.known, before.known)
            now = NodePosition({stream: at.get((node.name, stream), span[0]) for stream, span in spans[node.name].items()}, known, before.heard)
            if faults[node.name] and faults[node.name] != before.damage:
                found |= self._lose(node.name, faults[node.name], before, now if node.ends else before)
            else:
                found |= _moved(node, before, dataclasses.replace(now, damage=faults[node.name]))
        if found != start.nodes:  # what was finished before leaves the position
            for node in nodes:
                position = found.get(node.name)
                if position is not None and position is start.nodes.get(node.name):
                    streams = {stream: offset for stream, offset in position.streams.items() if stream in spans[node.name]}
                    found[node.name] = dataclasses.replace(position, streams=streams, lost={})
        self._last = FleetPosition(found)
        return self._last

    def partitions(self, start: FleetPosition, end: FleetPosition) -> "list[list[Part | Heard]]":
        """The segments between two positions, packed into partitions; a segment is not divided. Raises DataLossError."""
        stated: list[Part | Heard] = []
        ranges: list[tuple[_Node, str, int]] = []
        nodes = {node.name: node for node in self._look()}
        for name, position in sorted(end.nodes.items()):
            before, node = start.nodes.get(name, _NOTHING), nodes.get(name)
            if position == before:
                continue
            ledger = ledger_of(None) if node is None or node.ledger is None else node.ledger
            for stream, lost in sorted(position.lost.items()):
                stated.append(Loss(stream, *lost[:2], REASON_VANISHED, *lost[2:], pairs_of(ledger, stream), name))
            if position.heard != before.heard:
                stated.append(Heard(name, *position.heard))
            lag = {stream: before.streams.get(stream, 0) for stream in sorted(position.streams)}
            lag = {stream: first for stream, first in lag.items() if first < position.streams[stream]}
            if node is not None:
                ranges += [(node, stream, first) for stream, first in lag.items()]
            elif lag and self._strict:
                raise DataLossError(f"{self._url} has no node {name} any more")
        total = sum(end.nodes[node.name].streams[stream] - first for node, stream, first in ranges)
        room = min(max(-(-total // self._parallelism), MIN_PARTITION_BYTES), self._max_partition_bytes)
        packed: list[list[Part | Heard]] = [stated] if stated else []
        size = room
        for (node, stream, listed), (_, _, first) in zip(self._segments(ranges), ranges, strict=True):
            for part in self._parts(node, stream, first, end.nodes[node.name].streams[stream], listed):
                if size >= room:
                    packed.append([])
                    size = 0
                packed[-1].append(part)
                size += part.end - part.offset if isinstance(part, Loss) else part.end - part.start
        return packed

    # --- the store ---------------------------------------------------------------------------------------------------------------

    def _look(self) -> list[_Node]:
        """The nodes that are wanted, with their ledgers as of now or a moment ago."""
        now_s = self._monotonic_s()
        if now_s >= self._nodes_due_s:
            roots = {root.rsplit("/", 1)[-1]: root for root in nodes_of(self._url)}
            self._nodes = {name: self._nodes.get(name) or _Node(name, root) for name, root in roots.items() if self._wanted.takes_node(name)}
            self._nodes_due_s = now_s + NODES_S
        nodes = list(self._nodes.values())
        _at_once(lambda node: node.read(now_s), [node for node in nodes if node.due_s <= now_s])
        return nodes

    def _segments(self, streams: Sequence[tuple[_Node, str, int]]) -> list[tuple[_Node, str, list[Segment]]]:
        """The segments of streams, from an offset on. What was listed since the last ``advance`` is not listed again."""

        def one(item: tuple[_Node, str, int]) -> tuple[_Node, str, list[Segment]]:
            node, stream, offset = item
            known = self._listed.get((node.name, stream))
            if known is None or known[0] != offset:
                known = self._listed[node.name, stream] = (offset, stored_segments(node.root, stream, offset))
            return node, stream, known[1]

        return _at_once(one, streams)

    # --- a batch -----------------------------------------------------------------------------------------------------------------

    def _take(self, nodes: Sequence[_Node], spans: Mapping[str, Mapping[str, Span]], budget: int | None) -> dict[tuple[str, str], int]:
        """The offsets that are reached with the budget, of the streams that lag."""
        lag = [(node, stream, *span) for node in nodes for stream, span in spans[node.name].items() if span[0] < span[1]]
        if budget is None:
            return {(node.name, stream): end for node, stream, _, end in lag}
        at: dict[tuple[str, str], int] = {}
        random.shuffle(lag)
        while lag and budget > 0:
            share = budget // len(lag)
            for begin in range(0, len(lag), _AT_ONCE):
                group = lag[begin : begin + _AT_ONCE] if budget > 0 else []
                listed = self._segments([(node, stream, first) for node, stream, first, _ in group])
                for (node, stream, first, end), (_, _, segments) in zip(group, listed, strict=True):
                    before = at.get((node.name, stream), first)
                    if budget > 0:
                        wanted = before + max(1, min(share, budget))
                        reached = min(end, next((segment.limit for segment in segments if segment.limit >= wanted), end))
                        at[node.name, stream] = reached
                        budget -= reached - before
            lag = [item for item in lag if at.get((item[0].name, item[1]), item[2]) < item[3]]
        return at

    def _lose(self, name: str, fault: str, before: NodePosition, now: NodePosition) -> dict[str, NodePosition]:
        """A node's position with a fault that was not reported before. Raises DataLossError."""
        if fault == before.damage:
            return {}
        if self._strict:
            raise DataLossError(fault)
        lost: dict[str, Lost] = {LEDGER_STREAM: (0, UNKNOWN_END, 0, time.time_ns())}
        return {name: dataclasses.replace(now, lost=lost, damage=fault)}

    def _parts(self, node: _Node, stream: str, start: int, end: int, listed: Sequence[Segment]) -> Iterator[Part]:
        """The segments between two offsets, with a loss where some are gone; if strict, DataLossError, unless the node may have deleted them before
        anything was shipped.
        """
        at = start
        before: Segment | None = None
        ahead = [segment for segment in listed if segment.base < end]
        for segment, following in itertools.zip_longest(ahead, ahead[1:]):
            if segment.base > at:
                yield self._loss(node, stream, at, segment.base, before, segment)
                at = segment.base
            stop = min(segment.limit, following.base if following else end)
            if stop > at:
                if self._wanted.takes_segment(segment):
                    yield Slice(stream, segment.path, segment.base, at, stop, node.name, segment.modified_ns)
                at = stop
            before = segment
        if at < end:
            yield self._loss(node, stream, at, end, before, None)

    def _loss(self, node: _Node, stream: str, offset: int, end: int, before: Segment | None, behind: Segment | None) -> Loss:
        """A loss between two segments. What is missing was captured between their beginnings, or when the ledger says."""
        ledger, record = node.ledger or ledger_of(None), node.record(stream)
        deleted = record is not None and end <= record.deleted_to
        if self._strict and (offset or not deleted):
            what = "were shipped, or deleted before," if deleted else "were shipped,"
            raise DataLossError(f"{node.root}/{stream}: offsets {offset} to {end} {what} and are not there")
        from_ns = (before and _first_ns(before)) or (record.cut_from_ns if deleted and record else 0) or (record.born_ns if record else 0)
        until_ns = (
            (behind and _first_ns(behind)) or (record.cut_until_ns if deleted and record else 0) or (ledger.shipped.heard_ns if ledger.shipped else 0)
        )
        return Loss(stream, offset, end, REASON_VANISHED, from_ns, until_ns, pairs_of(ledger, stream), node.name)


def _moved(node: _Node, before: NodePosition, now: NodePosition) -> dict[str, NodePosition]:
    """A node's new position; nothing when there is nothing new. Without new frames it is heard once a minute; before its first ledger nothing is
    complete.
    """
    if node.ledger is None or node.ledger.shipped is None:
        return {} if before.heard != (0, 0) else {node.name: dataclasses.replace(before, heard=(time.time_ns(), 0))}
    grown = now.known != before.known or any(offset > before.streams.get(stream, 0) for stream, offset in now.streams.items())
    if not now.damage and all(offset >= node.ends[stream] for stream, offset in now.streams.items()):
        heard, now_ns = (node.ledger.shipped.heard_ns, until_of(node.ledger)), time.time_ns()
        if heard[0] - now_ns > CLOCKS_NS:  # a clock is wrong
            heard = before.heard if before.heard != (0, 0) else (now_ns, 0)
        if grown or heard[1] // WINDOW_NS != before.heard[1] // WINDOW_NS:
            return {node.name: dataclasses.replace(now, heard=heard)}
    return {node.name: now} if grown else {}


def _first_ns(segment: Segment) -> int:
    """When a segment's first block begins; 0: that cannot be read. One request."""
    if segment.size < SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES:
        return 0
    root, name = place_of(segment.path)
    try:
        data, _ = store_at(root).part(name, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES)
        return decode_block_header(data).first_ns
    except (AbsentError, FormatError):
        return 0


def _known(streams: Iterable[str]) -> tuple[int, int]:
    """The number of some streams, and the CRC of their names."""
    names = list(streams)
    return len(names), zlib.crc32("\n".join(names).encode())


def _at_once(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of a function that waits for the store, some calls at the same time."""
    if len(items) < 2:
        return [function(item) for item in items]
    with concurrent.futures.ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
        return list(pool.map(function, items))
