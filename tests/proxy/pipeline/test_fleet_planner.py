"""Plans over a store, a folder here: what a batch takes, and what it costs in requests. Damage of objects: ``test_store_damage``."""

import collections
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.pipeline import fleet_planner as module
from framegate.proxy.pipeline.fleet_planner import FleetPlanner, Heard
from framegate.proxy.pipeline.loss import DataLossError, Loss
from framegate.proxy.pipeline.planner import Part, Slice
from framegate.proxy.pipeline.position import FleetPosition
from framegate.proxy.pipeline.slices import read_slice
from framegate.proxy.pipeline.wanted import Wanted
from framegate.proxy.tap.fleet import FOREVER_NS
from framegate.proxy.tap.log_segments import CLOCKS_NS
from framegate.proxy.tap.store import Store, StoreError
from tests.fakes.kept_tap import START, in_segments
from tests.fakes.shipped import MINUTE_NS, ShippedTap

Tap = Callable[[str], ShippedTap]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Tap]:
    """Makes nodes of a fleet in the folder ``store``."""
    made: list[ShippedTap] = []

    def make(name: str) -> ShippedTap:
        made.append(ShippedTap(tmp_path / name, name, f"file://{tmp_path}/store"))
        return made[-1]

    yield make
    for tap in made:
        tap.leave()


class Requests:
    """Counts what is asked of stores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: collections.Counter[str] = collections.Counter()
        for name in ("folders", "items", "read_newer", "part", "chunks"):
            monkeypatch.setattr(Store, name, self._counting(name, getattr(Store, name)))

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.asked[name] += 1
            return function(*arguments)

        return counted

    def take(self) -> dict[str, int]:
        found = dict(self.asked)
        self.asked.clear()
        return found


def new(tap: ShippedTap, clock: Callable[[], float] | None = None, **options: Any) -> FleetPlanner:
    """A planner that reads every ledger each time, unless there is a clock."""
    ticks = iter(range(0, 10**9, 1000))
    return FleetPlanner(tap.url, parallelism=2, monotonic_s=clock or (lambda: float(next(ticks))), **options)


def read(planner: FleetPlanner, start: FleetPosition, end: FleetPosition, *, strict: bool = True) -> list[Any]:
    """What the tasks of a batch find, in order of streams: offsets, losses, nodes that were heard."""
    found: list[Any] = []
    for parts in planner.partitions(start, end):
        for part in parts:
            blocks = read_slice(part, fail_on_data_loss=strict) if isinstance(part, Slice) else [part]
            found += [one if isinstance(one, (Loss, Heard)) else (part.stream, one.header.offset) for one in blocks]  # type: ignore[union-attr]
    return found


def frames(found: list[Any]) -> list[tuple[str, int]]:
    return [one for one in found if not isinstance(one, (Loss, Heard))]


def all_of(planner: FleetPlanner, start: FleetPosition | None = None, *, strict: bool = True) -> tuple[FleetPosition, list[Any]]:
    """Batches until nothing is new. Each position goes through a checkpoint."""
    at, found = start or planner.first(), []
    while True:
        end = FleetPosition.decode(planner.advance(at).encode())
        if end == at:
            return at, found
        found += read(planner, at, end, strict=strict)
        at = end


def test_a_fleet_is_read_once_whole_segments_at_a_time_and_what_comes_later_in_later_batches(node: Tap) -> None:
    one, two = node("a"), node("b")
    first, second = in_segments(one.tap, 3, node="a"), in_segments(two.tap, 2, node="b")
    one.tap.end(first)
    two.tap.end(second)
    one.look()
    two.look()
    planner = new(one)
    at, found = all_of(planner)
    assert collections.Counter(stream for stream, _ in frames(found)) == {first.stream: 4, second.stream: 3}, "and a block of totals each"
    assert len(set(frames(found))) == 7
    assert [part.node for part in found if isinstance(part, Heard)] == ["a", "b"]
    third = in_segments(one.tap, 2, node="a", boot_id="b1")
    one.tap.end(third)
    one.look()
    again, more = all_of(new(one), at)
    assert {stream for stream, _ in frames(more)} == {third.stream}
    assert dict(again.nodes["a"].streams) == {third.stream: again.nodes["a"].streams[third.stream]}, "finished streams leave the position"
    assert dict(again.nodes["b"].streams) == {}, "of other nodes, too"
    assert all_of(new(one), again) == (again, [])


def test_a_call_costs_a_request_for_each_node_that_may_have_changed_and_a_list_for_each_stream_that_has_grown(
    node: Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    taps = [node(name) for name in "abc"]
    processors = [in_segments(tap.tap, 3, node=name) for tap, name in zip(taps, "abc", strict=True)]
    for tap in taps:
        tap.look({})
    now = [0.0]
    requests = Requests(monkeypatch)
    planner = new(taps[0], lambda: now[0])
    at = planner.advance(planner.first())
    assert requests.take() == {"folders": 1, "read_newer": 4}, "of the fleet, and of each node"
    planner.partitions(FleetPosition(), at)
    assert requests.take() == {"items": 3}
    assert planner.advance(at) == at
    assert requests.take() == {}, "the ledgers are replaced once a second"
    processors[1].block([bytes(600)], at_ns=START + 4 * MINUTE_NS)
    processors[1].block([bytes(600)], at_ns=START + 5 * MINUTE_NS)
    taps[1].look({})
    requests.take()
    now[0] = 0.25
    end = planner.advance(at)
    assert requests.take() == {"read_newer": 3}
    planner.partitions(at, end)
    assert requests.take() == {"items": 1}
    now[0] = module.NODES_S
    planner.advance(end)
    assert requests.take() == {"folders": 1, "read_newer": 4}


@pytest.mark.parametrize("budget", [1, 700, 1500, 4000, 1 << 30])
def test_with_a_budget_a_batch_takes_a_segment_at_least_and_at_most_one_beyond_it(node: Tap, budget: int) -> None:
    taps = [node(name) for name in "ab"]
    for tap, name in zip(taps, "ab", strict=True):
        tap.tap.end(in_segments(tap.tap, 5, node=name))
        tap.look()
    whole = all_of(new(taps[0]))[1]
    planner = new(taps[0])
    at, found = planner.first(), []
    while (end := planner.advance(at, budget)) != at:
        moved = sum(offset - at.nodes[name].streams.get(stream, 0) if name in at.nodes else offset for name, node_at in end.nodes.items()
                    for stream, offset in node_at.streams.items())  # fmt: skip
        assert 0 <= moved < budget + 1500
        found += frames(read(planner, at, end))
        at = end
    assert sorted(found) == sorted(frames(whole))


def test_what_is_shipped_behind_a_target_waits(node: Tap) -> None:
    tap = node("a")
    processor = in_segments(tap.tap, 3, node="a")
    tap.look({})
    planner = new(tap)
    target = planner.target()
    there = planner.advance(planner.first(), None, target)
    tap.tap.end(processor)
    other = in_segments(tap.tap, 1, node="a", boot_id="later")
    tap.tap.end(other)
    tap.look({})
    assert planner.advance(there, None, target).nodes["a"].streams == there.nodes["a"].streams
    _, found = all_of(planner, there)
    assert {stream for stream, _ in frames(found)} == {processor.stream, other.stream}


def test_latest_is_behind_everything_and_a_time_at_the_first_segment_that_came_then(node: Tap) -> None:
    tap = node("a")
    tap.tap.end(in_segments(tap.tap, 3, node="a"))
    tap.look()
    assert all_of(new(tap), new(tap).first(from_latest=True))[1][1:] == []
    written_ns = max(path.stat().st_mtime_ns for path in tap.objects())
    assert len(frames(all_of(new(tap), new(tap).first(since_ns=written_ns))[1])) == 4, "clocks differ"
    assert frames(all_of(new(tap), new(tap).first(since_ns=written_ns + CLOCKS_NS + 1))[1]) == []
    assert planned(new(tap, wanted=Wanted(since_ns=written_ns + CLOCKS_NS + 1))) == []
    assert planned(new(tap, wanted=Wanted(node=frozenset({"b"})))) == []
    assert planned(new(tap, wanted=Wanted(listener=frozenset({"other"})))) == []
    assert len(planned(new(tap, wanted=Wanted(listener=frozenset({"main"}))))) == 4


def planned(planner: FleetPlanner) -> list[Slice]:
    parts: list[Part | Heard] = [part for parts in planner.partitions(FleetPosition(), planner.advance(planner.first())) for part in parts]
    return [part for part in parts if isinstance(part, Slice)]


def test_a_node_is_heard_when_all_that_it_had_shipped_is_read_and_once_a_minute(node: Tap) -> None:
    tap = node("a")
    processor = in_segments(tap.tap, 4, node="a")
    told = {processor.stream: (tap.now_ns - 1, 0)}
    tap.look(told)
    planner = new(tap)
    at = planner.first()
    step = planner.advance(at, 1)
    assert step.nodes["a"].heard == (0, 0)
    at, found = all_of(planner, step)
    until_ns = at.nodes["a"].heard[1]
    assert [one for one in found if isinstance(one, Heard)] == [Heard("a", tap.now_ns, until_ns)]
    tap.later(10)
    tap.look({processor.stream: (tap.now_ns - 1, 0)})
    assert all_of(planner, at) == (at, []), "not yet"
    tap.now_ns = time.time_ns() + 2 * CLOCKS_NS
    tap.look({processor.stream: (tap.now_ns - 1, 0)})
    assert all_of(planner, at) == (at, []), "a clock is wrong"
    tap.now_ns = time.time_ns()
    tap.tap.end(processor)
    tap.leave()
    tap.look()
    assert [one.until_ns for one in all_of(planner, at)[1] if isinstance(one, Heard)] == [FOREVER_NS]


def test_streams_end_where_the_ledger_of_their_node_says_though_others_have_the_same_names(node: Tap) -> None:
    one, two = node("a"), node("b")
    ended, written = in_segments(one.tap, 2), in_segments(two.tap, 3)
    assert ended.stream == written.stream
    one.tap.end(ended)
    one.look()
    two.look({written.stream: (two.now_ns - 1, 0)})
    planner = new(one)
    assert planner.stream_ends() == {"a": {ended.stream: planner.target().nodes["a"].streams[ended.stream]}, "b": {written.stream: None}}


# --- damage --------------------------------------------------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_an_error_and_no_loss(node: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = node("a")
    tap.tap.end(in_segments(tap.tap, 2, node="a"))
    tap.look()
    parts = planned(new(tap))

    def refuse(*_: object) -> object:
        raise StoreError("503 Slow Down")

    for name in ("read_newer", "items", "part"):
        with monkeypatch.context() as patched:
            patched.setattr(Store, name, refuse)
            with pytest.raises(StoreError, match="503"):
                all_of(new(tap, fail_on_data_loss=False), strict=False)
            if name == "part":
                with pytest.raises(StoreError, match="503"):
                    list(read_slice(parts[0], fail_on_data_loss=False))


def test_what_retention_took_before_it_was_shipped_is_a_gap_at_the_beginning_and_an_error_or_a_gap_behind_it(node: Tap) -> None:
    tap = node("a")
    processor = in_segments(tap.tap, 6, node="a")
    tap.tap.keep(25_000)
    tap.look({})
    at, found = all_of(new(tap))
    first = frames(found)[0][1]
    (lost,) = [one for one in found if isinstance(one, Loss)]
    assert (lost.node, lost.offset, lost.end) == ("a", 0, first)
    assert START <= lost.from_ns <= lost.until_ns <= START + 6 * MINUTE_NS
    for number in range(6, 12):
        processor.block([bytes(600)], at_ns=START + number * MINUTE_NS)
    tap.tap.end(processor)
    tap.tap.keep(12_000)
    tap.look({})
    with pytest.raises(DataLossError, match=rf"a/{processor.stream}: offsets \d+ to \d+ were shipped, or deleted before, and are not there"):
        all_of(new(tap), at)
    _, found = all_of(new(tap, fail_on_data_loss=False), at)
    (lost,) = [one for one in found if isinstance(one, Loss)]
    assert (lost.offset, lost.end) == (at.nodes["a"].streams[processor.stream], frames(found)[0][1])
    shutil.rmtree(tap.folder / processor.stream)
    other = in_segments(tap.tap, 2, node="a", boot_id="b1")
    tap.tap.end(other)
    tap.tap.take(other.stream)
    tap.look({})
    _, found = all_of(new(tap, wanted=Wanted(node=frozenset("a")), fail_on_data_loss=False), _)
    assert [(one.stream, one.offset) for one in found if isinstance(one, Loss)] == [(other.stream, 0)], "a stream of which nothing was shipped"


def test_a_node_that_is_gone_or_whose_ledger_is_another_is_an_error_and_one_gap(node: Tap) -> None:
    one, two = node("a"), node("b")
    two.look()
    ledger = next(path for path in two.objects() if path.suffix == ".jsonl")
    before = ledger.read_bytes()
    for tap, name in ((one, "a"), (two, "b")):
        tap.tap.end(in_segments(tap.tap, 2, node=name))
        tap.look()
    at, _ = all_of(new(one))
    whole = ledger.read_bytes()
    other = next(path for path in one.objects() if path.suffix == ".jsonl").read_bytes()

    def gone() -> None:
        for path in two.objects():
            path.unlink()
        ledger.parent.rename(ledger.parent.with_name("moved"))
        ledger.parent.with_name("moved").rename(two.folder / "moved")

    for harm, message in (
        (lambda: ledger.write_bytes(other), "its ledger was written for the node a"),
        (lambda: ledger.write_bytes(before), "was replaced: it lacks streams that were there"),
        (lambda: ledger.write_bytes(whole[:-5]), "does not say what was shipped"),
        (ledger.unlink, "has no ledger any more"),
        (gone, "has no node b any more"),
    ):
        harm()
        with pytest.raises(DataLossError, match=message):
            new(one).advance(at)
        after, found = all_of(new(one, fail_on_data_loss=False), at)
        assert [(lost.node, lost.stream, lost.end) for lost in found if isinstance(lost, Loss)] == [("b", "_ledger", -1)]
        assert frames(found) == []
        assert all_of(new(one, fail_on_data_loss=False), after)[1] == [], "it is said once"
        if ledger.parent.exists():
            ledger.write_bytes(whole)
