"""Whatever is done to an object of a fleet in a store: who reads it is told of which node, or reads all of it; no minute is complete that lacks a
frame, and no row is there twice.
"""

import collections
import datetime
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from framegate.proxy.pipeline import chunk_rows, completeness, derived
from framegate.proxy.pipeline.fleet_planner import FleetPlanner
from framegate.proxy.pipeline.loss import DataLossError
from framegate.proxy.pipeline.position import FleetPosition
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.settings import SourceOptions
from framegate.proxy.pipeline.source import SlicePartition, read_chunks
from framegate.proxy.tap.fleet import minutes, verify_node
from framegate.proxy.tap.ledger import LEDGER_NAME
from framegate.proxy.tap.record import SEGMENT_HEADER_BYTES, segment_file
from tests.fakes.kept_tap import START, TAPPED, in_segments
from tests.fakes.shipped import MINUTE_NS, ShippedTap
from tests.fakes.tap_log import FakeProcessor

NODES = ("edge", "other")
MINUTES = 6
HARMLESS = {*(f"{at} segment doubled as an open segment" for at in ("first", "middle", "last")), "ledger with 1 bytes more"}  # nobody reads these
Frames = collections.Counter[tuple[Any, ...]]


class Damage(NamedTuple):
    """What is done to the fleet's folder."""

    name: str
    harm: Callable[[Path], object]


class Reading(NamedTuple):
    """What a reader of the source has got."""

    end: FleetPosition
    frames: Frames  # node, stream, minute, offset, and the body's first byte
    gaps: int  # rows of kind gap whose counts are not known
    complete: dict[int, int]  # by minute of which nothing says that frames are missing, the number of frames


class Fleet:
    """Two nodes. A stream of each has a segment a minute; edge has a second one of two, and has shipped twice. ``ended``: they stopped in order."""

    def __init__(self, folder: Path, *, ended: bool) -> None:
        self.root = folder / "store"
        self.former = folder / "former"  # as it was in the middle
        self.now_ns = START + 600 * MINUTE_NS
        taps = [ShippedTap(folder / node, node, f"file://{self.root}") for node in NODES]
        for number, tap in enumerate(taps):
            tap.now_ns = START + 3 * MINUTE_NS
            processor = in_segments(tap.tap, 3, node=tap.folder.name)
            tap.look({processor.stream: (tap.now_ns, 0)})
            if number == 0:
                self.half = self.read().end
                shutil.copytree(self.root, self.former)
            tap.now_ns = self.now_ns
            tap.restart()
            second = FakeProcessor(tap.folder, node=tap.folder.name, slot=1, boot_id="b1", segment_size=1000)
            tap.tap.ledger.born(second.stream, TAPPED, START + 3 * MINUTE_NS)
            for minute in range(3, MINUTES):
                for each in (processor, second):
                    each.block([bytes([number]) * 600], at_ns=START + minute * MINUTE_NS)
            if ended:
                tap.tap.end(processor)
                tap.tap.end(second)
                tap.leave()
            else:
                for each in (processor, second):
                    each.writer.thread.seal(False)
            tap.look({stream.stream: (tap.now_ns, 0) for stream in (processor, second)})
            tap.leave()

    def read(self, start: FleetPosition | None = None, *, strict: bool = True) -> Reading:
        """All that the source gives from a position on, a task for each partition."""
        url = f"file://{self.root}"
        planner = FleetPlanner(url, parallelism=2, fail_on_data_loss=strict)
        options = SourceOptions(path=url, fail_on_data_loss=strict)
        at, found = start or planner.first(), list[pa.RecordBatch]()
        while (end := FleetPosition.decode(planner.advance(at).encode())) != at:
            for parts in planner.partitions(at, end):
                found += read_chunks(SlicePartition(parts), chunk_rows.in_place(CHUNK_SCHEMA), options)
            at = end
        return _reading(at, found)

    def judged(self) -> tuple[dict[int, int], list[str], bool]:
        """What ``tap verify`` says: the frames of each complete minute, the faults, and whether all is complete."""
        found = [verify_node(f"file://{self.root}/{node.name}", self.now_ns, sleep=lambda seconds: None) for node in sorted(self.root.iterdir())]
        judged = minutes(found)
        faults = [f"{node.name} {fault}" for node, verdict in found for fault in verdict.faults]
        told = {(minute.window_ns - START) // MINUTE_NS: minute.seen for minute in judged if minute.state == "complete"}
        return told, faults, all(verdict.complete for _, verdict in found)


def _reading(end: FleetPosition, batches: list[pa.RecordBatch]) -> Reading:
    """The frames, and what the tables say of the minutes: the sums of each stream, and when nodes were heard."""
    frames: Frames = collections.Counter()
    batch = next(iter(pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else ()), None)
    if batch is None:
        return Reading(end, frames, 0, {})
    rows, others = chunk_rows.frames(batch), chunk_rows.gaps_and_totals(batch)
    for row in rows.select(["node", "stream", "capture_time", "offset", "frame_index", "payload"]).to_pylist():
        frames[row["node"], row["stream"], _minute(row["capture_time"]), row["offset"], row["frame_index"], row["payload"][:1]] += 1
    gaps = pc.sum(pc.and_(pc.equal(others["kind"], "gap"), pc.equal(others["certainty"], "unknown"))).as_py() or 0
    sums = [completeness.of_frames(rows.drop_columns("payload")), completeness.of_gaps_and_totals(others)]
    heard: dict[str, int] = {}
    for row in derived.nodes(others).to_pylist():
        heard[row["node"]] = MINUTES if row["complete_until"] is None else _minute(row["complete_until"])
    told: dict[int, set[str]] = {}
    counts: collections.Counter[int] = collections.Counter()
    for row in completeness.merge(pa.concat_tables(sums)).to_pylist():
        for minute in range(max(_minute(row["minute"]), 0), min(_minute(row["until"]), MINUTES) + 1):
            told.setdefault(minute, set()).add(row["state"])
            counts[minute] += row["stored"]
    until = min((heard.get(node, 0) for node in NODES), default=0)
    sure = [minute for minute in range(min(until, MINUTES)) if told.get(minute, {"complete"}) == {"complete"}]
    return Reading(end, frames, gaps, {minute: counts[minute] for minute in sure})


def _minute(at: datetime.datetime) -> int:
    return int((at.timestamp() * 1e9 - START) // MINUTE_NS)


def damages(fleet: Fleet) -> Iterator[Damage]:
    """The kinds of objects of the node edge, and what is done to each."""
    edge, other = (fleet.root / node for node in NODES)
    stream = "edge.0.b0"
    paths = sorted((edge / stream).iterdir())
    for at, number in (("first segment", 0), ("middle segment", 2), ("last segment", len(paths) - 1)):
        path, sibling = paths[number], paths[number - 1 if number else 1]
        foreign = sorted((other / "other.0.b0").iterdir())[number]
        twin = sorted((edge / "edge.1.b1").iterdir())[min(number, 1)]
        base = int(path.stem)
        yield from of_object(at, path, [foreign, twin, sibling])
        for name, target in (
            ("a later base", path.with_name(segment_file(base + 1, sealed=True))),
            ("a base behind all", path.with_name(segment_file(base + (1 << 20), sealed=True))),
            ("another segment", sibling),
            ("another stream", edge / "edge.1.b1" / path.name),
            ("another node", other / "other.0.b0" / path.name),
            ("a new stream", edge / "edge.2.b2" / path.name),
            ("an open segment", path.with_suffix(".open")),
        ):
            for what, put in (("renamed to", Path.rename), ("doubled as", shutil.copyfile)):
                yield Damage(f"{at} {what} {name}", functools.partial(moved, path, target, put))
    ledger = edge / LEDGER_NAME
    yield from of_object("ledger", ledger, [other / LEDGER_NAME, fleet.former / "edge" / LEDGER_NAME])
    whole = ledger.read_bytes().splitlines(keepends=True)
    for number in range(len(whole)):
        yield Damage(f"ledger without line {number}", lambda root, number=number: ledger.write_bytes(b"".join(whole[:number] + whole[number + 1 :])))
    yield Damage("ledger twice", lambda root: ledger.write_bytes(b"".join(whole + whole)))
    yield Damage("the node in the middle", lambda root: [shutil.rmtree(edge), shutil.copytree(fleet.former / "edge", edge)])
    yield Damage("the node is the other one", lambda root: [shutil.rmtree(edge), shutil.copytree(other, edge)])
    yield Damage("a stream is gone", lambda root: shutil.rmtree(edge / stream))
    yield Damage("a stream is another one", lambda root: [shutil.rmtree(edge / stream), shutil.copytree(edge / "edge.1.b1", edge / stream)])


def moved(path: Path, target: Path, put: Callable[[Path, Path], object], root: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    put(path, target)


def of_object(name: str, path: Path, others: list[Path]) -> Iterator[Damage]:
    whole = path.read_bytes()
    size = len(whole)
    yield Damage(f"{name} deleted", lambda root: path.unlink())
    for number, other in enumerate(others):
        yield Damage(f"{name} replaced by {number}", lambda root, other=other: shutil.copyfile(other, path))
    for length in (0, 1, SEGMENT_HEADER_BYTES, size // 2, size - 1):
        if length < size:
            yield Damage(f"{name} cut to {length}", lambda root, length=length: path.write_bytes(whole[:length]))
    inside = SEGMENT_HEADER_BYTES + 8 if size > SEGMENT_HEADER_BYTES else size // 2
    for place in (0, 20, inside, inside + 100, size - 100, size - 1):
        content = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        yield Damage(f"{name} differs at {place}", lambda root, content=content: path.write_bytes(content))
    for more in (b"x", b"\n", whole):
        yield Damage(f"{name} with {len(more)} bytes more", lambda root, more=more: path.write_bytes(whole + more))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False])
def test_each_damage_is_an_error_that_names_the_node_or_a_gap_or_does_not_matter(tmp_path: Path, ended: bool) -> None:
    fleet = Fleet(tmp_path, ended=ended)
    good = fleet.read()
    half = good.frames - fleet.read(fleet.half).frames
    told, faults, sound = fleet.judged()
    assert (len(good.frames), len(half), faults, sound) == (2 * (3 + MINUTES), 2, [], True)
    assert list(told) == ([*range(MINUTES)] if ended else [*range(MINUTES - 1)])  # a minute's totals may be in the next block
    kept, silent, unnoticed, tried = tmp_path / "kept", list[str](), list[str](), 0
    shutil.copytree(fleet.root, kept)
    for name, harm in list(damages(fleet)):
        harm(fleet.root)
        tried += 1
        noticed = 0
        for reader, start, strict in (("strict", None, True), ("strict from the middle on", fleet.half, True), ("go on", None, False)):
            try:
                found = fleet.read(start, strict=strict)
            except DataLossError as error:
                noticed += 1
                if not strict or "edge" not in str(error):
                    silent.append(f"{name}: {reader}: {error}")
                continue
            frames = found.frames + half if start else found.frames
            noticed += frames != good.frames or bool(found.gaps)
            if frames - good.frames:
                silent.append(f"{name}: {reader}: doubled or new {frames - good.frames}")
            until = {node: (position.heard[1] - START) // MINUTE_NS for node, position in found.end.nodes.items()}
            lost = [key for key in good.frames - frames if key[2] < until.get(key[0], 0)]
            if lost and not (found.gaps and not strict):
                silent.append(f"{name}: {reader}: lost {lost}")
            if start is None and found.complete != {minute: told[minute] for minute in found.complete}:
                silent.append(f"{name}: {reader}: complete {found.complete}")
        minutes_now, faults, sound = fleet.judged()
        noticed += not sound or minutes_now != told
        if minutes_now != {minute: told[minute] for minute in minutes_now} or not (sound or any("edge" in fault for fault in faults)):
            silent.append(f"{name}: verify: {minutes_now} {faults}")
        if not noticed:
            unnoticed.append(name)
        shutil.rmtree(fleet.root)
        shutil.copytree(kept, fleet.root)
    assert tried > 98
    assert silent == []
    assert set(unnoticed) == HARMLESS
