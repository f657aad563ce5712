import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.pipeline import planner as module
from framegate.proxy.pipeline.loss import DataLossError, Loss
from framegate.proxy.pipeline.planner import Part, Planner, Slice
from framegate.proxy.pipeline.position import Position
from framegate.proxy.pipeline.slices import read_slice
from framegate.proxy.tap import record
from framegate.proxy.tap.consumer import consumer_owner, read_consumers
from framegate.proxy.tap.log_reader import walk
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor

A, B, C = "edge.0.a", "edge.0.b", "edge.0.c"


def stream(directory: Path, name: str, blocks: int = 0, segment_size: int = 1 << 20) -> FakeProcessor:
    processor = FakeProcessor(directory, boot_id=name.rpartition(".")[2], segment_size=segment_size)
    for _ in range(blocks):
        processor.block([bytes(1000)])
    return processor


def new(directory: Path, *, strict: bool = True, parallelism: int = 2) -> Planner:
    return Planner(directory, parallelism=parallelism, fail_on_data_loss=strict)


def at(offsets: Mapping[str, int] | None = None, **more: Any) -> Position:
    return Position(offsets or {}, **more)


def everything(planner: Planner) -> Position:
    return Position(planner.ends())


def slices(planned: list[list[Part]]) -> list[Slice]:
    return [part for parts in planned for part in parts if isinstance(part, Slice)]


def losses(planned: list[list[Part]]) -> list[Loss]:
    return [part for parts in planned for part in parts if isinstance(part, Loss)]


def files(directory: Path, name: str) -> list[Path]:
    return sorted((directory / name).iterdir())


def test_ends_follow_the_log_block_by_block_and_a_missing_directory_has_no_streams(tmp_path: Path) -> None:
    assert new(tmp_path / "later").ends() == {}
    processor = stream(tmp_path, A)
    planner = new(tmp_path)
    assert planner.ends() == {}
    seen = []
    for _ in range(3):
        processor.block([b"x"])
        seen.append(planner.ends()[A])
    assert seen == sorted(set(seen))
    assert seen[0] > 0
    assert planner.starts() == {A: 0}


def test_a_torn_tail_is_not_there_wherever_it_is_torn(tmp_path: Path) -> None:
    processor = stream(tmp_path, A, 2)
    whole = new(tmp_path).ends()[A]
    processor.block([bytes(100)])
    (file,) = files(tmp_path, A)
    data = file.read_bytes()
    for length in range(4096 + whole, len(data), 17):
        file.write_bytes(data[:length])
        assert new(tmp_path).ends() == {A: whole}
    file.write_bytes(data[: 4096 + whole + 200] + bytes(len(data) - 4096 - whole - 200))
    assert new(tmp_path).ends() == {A: whole}


def test_segments_that_roll_and_seal_change_no_offset(tmp_path: Path) -> None:
    processor = stream(tmp_path, A, segment_size=3000)
    planner = new(tmp_path)
    for _ in range(7):
        processor.block([bytes(1000)])
        assert planner.ends() == new(tmp_path).ends()
    before = planner.ends()
    processor.close()
    assert len(files(tmp_path, A)) > 2
    assert planner.ends() == new(tmp_path).ends()
    assert planner.ends()[A] > before[A], "closing states totals"


def test_without_a_budget_a_batch_takes_everything(tmp_path: Path) -> None:
    stream(tmp_path, A, 3)
    stream(tmp_path, B, 1)
    planner = new(tmp_path)
    assert planner.advance(at()) == everything(planner)
    assert list(planner.advance(at()).streams) == [A, B]


def test_a_block_larger_than_the_budget_does_not_stop_its_stream(tmp_path: Path) -> None:
    stream(tmp_path, A, 3)
    stream(tmp_path, B, 2)
    planner = new(tmp_path)
    position = at()
    steps = []
    while position != everything(planner):
        position = planner.advance(position, 1)
        steps.append(position.streams)
    assert len(steps) == 3
    assert steps[0][A] == steps[0][B] > 0


def test_a_busy_stream_gets_what_quiet_ones_leave(tmp_path: Path) -> None:
    stream(tmp_path, A, 100)
    stream(tmp_path, B, 1)
    planner = new(tmp_path)
    ends = planner.ends()
    taken = planner.advance(at(), ends[A] // 2).streams
    assert taken[B] == ends[B]
    assert ends[A] // 2 - ends[B] <= taken[A] <= ends[A] // 2 + ends[B]


def test_a_budget_is_shared_among_streams_that_lag(tmp_path: Path) -> None:
    for name in (A, B):
        stream(tmp_path, name, 40)
    planner = new(tmp_path)
    taken = planner.advance(at(), planner.ends()[A]).streams
    assert taken[A] == taken[B]
    assert abs(taken[A] - planner.ends()[A] // 2) < 1500


def test_a_target_holds_back_what_was_written_later(tmp_path: Path) -> None:
    first = stream(tmp_path, A, 2)
    planner = new(tmp_path)
    target = planner.target()
    first.block([b"later"])
    stream(tmp_path, B, 1)
    there = at(target.streams)
    assert planner.advance(at(), None, target) == there
    assert planner.advance(there, None, target) == there
    assert planner.advance(there, 1, target) == there


def test_a_restart_never_goes_back_behind_a_known_stream_without_a_target(tmp_path: Path) -> None:
    stream(tmp_path, A, 2)
    planner = new(tmp_path)
    start = planner.advance(at(), 1)
    assert planner.advance(start, None, Position({}, 0)) == start


def test_a_stream_that_was_read_and_removed_leaves_the_offsets(tmp_path: Path) -> None:
    stream(tmp_path, A, 1).close()
    stream(tmp_path, B, 1)
    planner = new(tmp_path)
    start = planner.advance(at())
    shutil.rmtree(tmp_path / A)
    assert planner.advance(start, 1000) == at({B: start.streams[B]})


def test_a_stream_removed_with_unread_blocks_is_a_loss(tmp_path: Path) -> None:
    stream(tmp_path, A, 2).close()
    stream(tmp_path, B, 1)
    strict, loose = new(tmp_path), new(tmp_path, strict=False)
    start = strict.advance(at(), 1)
    end = loose.ends()[A]
    shutil.rmtree(tmp_path / A)
    with pytest.raises(DataLossError, match=rf"edge\.0\.a is gone, it was read up to {start.streams[A]}, its end is {end}\."):
        strict.advance(start)
    position = loose.advance(start)
    assert (dict(position.streams), position.lost[A][:2]) == ({B: start.streams[B]}, (start.streams[A], end))


def test_a_vanished_range_is_a_loss_unless_it_was_read(tmp_path: Path) -> None:
    stream(tmp_path, A, 6, segment_size=3000).close()
    start = new(tmp_path).advance(at(), 1)
    end = everything(new(tmp_path))
    oldest, second = files(tmp_path, A)[:2]
    oldest.unlink()
    for call in (lambda: new(tmp_path).advance(start, 1), lambda: new(tmp_path).partitions(start, end)):
        with pytest.raises(DataLossError, match=r"offset .* is gone: the log begins again at .*failOnDataLoss=false"):
            call()
    base = int(second.name.partition(".")[0])
    lost, first = new(tmp_path, strict=False).partitions(start, end)[0][:2]
    assert lost == Loss(A, start.streams[A], base, record.REASON_VANISHED, 0, START_NS, ((None, "request"), (None, "response")))
    assert isinstance(first, Slice)
    assert first.start == base
    assert new(tmp_path).advance(at({A: base})) == end


def test_a_hole_between_segments_is_a_loss(tmp_path: Path) -> None:
    stream(tmp_path, A, 8, segment_size=3000).close()
    end = everything(new(tmp_path))
    middle = files(tmp_path, A)[1]
    middle.unlink()
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        new(tmp_path).partitions(at(), end)
    planned = new(tmp_path, strict=False).partitions(at(), end)
    assert {part.base for part in slices(planned)} == {int(file.name.partition(".")[0]) for file in files(tmp_path, A)}
    (lost,) = losses(planned)
    assert (lost.offset, lost.end) == (int(middle.name.partition(".")[0]), slices(planned)[1].base)
    assert (lost.from_ns, lost.until_ns, lost.reason) == (START_NS, START_NS, record.REASON_VANISHED)


def test_small_streams_share_a_partition(tmp_path: Path) -> None:
    for name in (A, B, C):
        stream(tmp_path, name, 2)
    planner = new(tmp_path)
    (only,) = planner.partitions(at(), everything(planner))
    assert [part.stream for part in only] == [A, B, C]


def test_an_empty_range_has_no_partitions(tmp_path: Path) -> None:
    stream(tmp_path, A, 2)
    planner = new(tmp_path)
    assert planner.partitions(everything(planner), everything(planner)) == []
    assert planner.partitions(at(), at()) == []
    assert planner.partitions(at({A: planner.ends()[A]}), at({A: planner.ends()[A]}, ledger=3)) == []


def test_a_large_range_is_cut_at_blocks_into_equal_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_PARTITION_BYTES", 4000)
    stream(tmp_path, A, 40, segment_size=9000)
    planner = new(tmp_path, parallelism=4)
    end = planner.ends()
    packed = planner.partitions(at(), at(end))
    sizes = [sum(part.end - part.start for part in slices([parts])) for parts in packed]
    assert len(packed) == 4
    assert max(sizes) - min(sizes) <= 4 * 1300
    flat = slices(packed)
    assert [part.start for part in flat[1:]] == [part.end for part in flat[:-1]]
    assert (flat[0].start, flat[-1].end) == (0, end[A])


def test_a_partition_is_no_larger_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_PARTITION_BYTES", 1)
    stream(tmp_path, A, 40)
    planner = Planner(tmp_path, parallelism=1, max_partition_bytes=5000)
    packed = planner.partitions(at(), everything(planner))
    assert len(packed) >= 9
    assert max(sum(part.end - part.start for part in slices([parts])) for parts in packed) < 5000 + 1300


def test_a_time_is_where_something_of_then_or_later_begins(tmp_path: Path) -> None:
    processor = stream(tmp_path, A, segment_size=3000)
    for minute in range(5):
        processor.block([bytes(1000)], at_ns=START_NS + minute * MINUTE_NS)
    stream(tmp_path, B, 1)
    planner = new(tmp_path)
    blocks = [block.header.offset for block in walk(str(tmp_path), A)]
    assert planner.first(since_ns=START_NS).streams == {A: 0, B: 0}
    assert planner.first(since_ns=START_NS + 2 * MINUTE_NS).streams == {A: blocks[2], B: planner.ends()[B]}
    assert planner.first(since_ns=START_NS + 2 * MINUTE_NS + 1).streams[A] == blocks[3]
    assert planner.first(since_ns=START_NS + 9 * MINUTE_NS).streams == planner.ends()


def test_a_loss_right_before_a_time_may_have_something_of_it(tmp_path: Path) -> None:
    processor = stream(tmp_path, A, segment_size=1)
    for minute in range(4):
        processor.block([bytes(1000)], at_ns=START_NS + minute * MINUTE_NS)
    lost = files(tmp_path, A)[2]
    lost.unlink()
    planner = new(tmp_path)
    since = planner.first(since_ns=START_NS + 3 * MINUTE_NS)
    assert since.streams == {A: int(lost.name.partition(".")[0])}
    with pytest.raises(DataLossError):
        planner.partitions(since, planner.advance(since))


# What damage does to a sealed segment: each is found however late, and none reads as the end


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-64])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def headless(file: Path) -> None:
    file.write_bytes(b"\0" * 4096 + file.read_bytes()[4096:])


def of_tomorrow(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:8] + (99).to_bytes(4, "little") + data[12:])


def zeroed_block(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:4096].ljust(file.stat().st_size, b"\0"))


@pytest.mark.parametrize("harm", [cut, emptied, headless, of_tomorrow, zeroed_block])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_segment_is_an_error_or_a_gap_and_never_the_end(tmp_path: Path, harm: Callable[[Path], None], which: int) -> None:
    stream(tmp_path, A, 3, segment_size=1).close()
    harm(files(tmp_path, A)[which])
    strict, loose = new(tmp_path), new(tmp_path, strict=False)
    for budget in (None, 1, 1 << 30):
        with pytest.raises(DataLossError):
            read_all(strict, budget)
        position, read = read_all(loose, budget)
        base = int(files(tmp_path, A)[which].name.partition(".")[0])
        assert [loss.offset for loss in losses(read)] == [base], (budget, position)
        assert position == loose.advance(position, budget)
        assert [part.base for part in slices(read)] == [int(file.name[:20]) for file in files(tmp_path, A) if int(file.name[:20]) != base]


def read_all(planner: Planner, budget: int | None) -> tuple[Position, list[list[Part]]]:
    """Batches until nothing is new; where that is, and what they had, as their tasks find it."""
    start, read = at(), []
    while (end := planner.advance(start, budget)) != start:
        read += [[found for part in parts for found in in_task(part, strict=planner._strict)] for parts in planner.partitions(start, end)]
        start = end
    return start, read


def in_task(part: Part, *, strict: bool) -> list[Part]:
    if isinstance(part, Loss):
        return [part]
    found = list(read_slice(part, fail_on_data_loss=strict))
    lost = [loss for loss in found if isinstance(loss, Loss)]
    return lost if lost else [part]


def test_a_consumer_is_registered_where_retention_looks(tmp_path: Path) -> None:
    Planner(tmp_path, parallelism=1, consumer="job", owner="/out").register(at({A: 7}, ledger=9))
    assert read_consumers(str(tmp_path)).offsets == {"job": {A: 7}}
    assert consumer_owner(str(tmp_path), "job") == "/out"
    assert new(tmp_path).ends() == {}
