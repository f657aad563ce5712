import shutil
from pathlib import Path

import pytest

from proxy.pipeline import planner as module
from proxy.pipeline.planner import DataLossError, Planner
from proxy.tap.consumer import read_consumers
from tests.fakes.tap_log import FakeProcessor

A, B, C = "edge.0.a", "edge.0.b", "edge.0.c"


def stream(directory: Path, name: str, blocks: int = 0, size: int = 1000, segment_size: int = 1 << 20) -> FakeProcessor:
    processor = FakeProcessor(directory, boot_id=name.rpartition(".")[2], segment_size=segment_size)
    for _ in range(blocks):
        processor.block([bytes(size)])
    return processor


def new(directory: Path, *, strict: bool = True, parallelism: int = 2) -> Planner:
    return Planner(directory, parallelism=parallelism, fail_on_data_loss=strict)


def files(directory: Path, name: str) -> list[Path]:
    return sorted((directory / name).iterdir())


def test_ends_follow_the_log_block_by_block(tmp_path: Path) -> None:
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


def test_a_missing_directory_has_no_streams(tmp_path: Path) -> None:
    assert new(tmp_path / "later").ends() == {}


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
    assert planner.advance({}) == planner.ends()
    assert list(planner.advance({})) == [A, B]


def test_a_block_larger_than_the_budget_does_not_stop_its_stream(tmp_path: Path) -> None:
    stream(tmp_path, A, 3)
    stream(tmp_path, B, 2)
    planner = new(tmp_path)
    at: dict[str, int] = {}
    steps = []
    while at != planner.ends():
        at = planner.advance(at, 1)
        steps.append(at)
    assert len(steps) == 3
    assert steps[0][A] == steps[0][B] > 0


def test_a_busy_stream_gets_what_quiet_ones_leave(tmp_path: Path) -> None:
    stream(tmp_path, A, 100)
    stream(tmp_path, B, 1)
    planner = new(tmp_path)
    ends = planner.ends()
    taken = planner.advance({}, ends[A] // 2)
    assert taken[B] == ends[B]
    assert ends[A] // 2 - ends[B] <= taken[A] <= ends[A] // 2 + ends[B]


def test_a_budget_is_shared_among_streams_that_lag(tmp_path: Path) -> None:
    for name in (A, B):
        stream(tmp_path, name, 40)
    planner = new(tmp_path)
    taken = planner.advance({}, planner.ends()[A])
    assert taken[A] == taken[B]
    assert abs(taken[A] - planner.ends()[A] // 2) < 1500


def test_a_target_holds_back_what_was_written_later(tmp_path: Path) -> None:
    first = stream(tmp_path, A, 2)
    planner = new(tmp_path)
    target = planner.ends()
    first.block([b"later"])
    stream(tmp_path, B, 1)
    assert planner.advance({}, None, target) == target
    assert planner.advance(target, None, target) == target
    assert planner.advance(target, 1, target) == target


def test_a_restart_never_goes_back_behind_a_known_stream_without_a_target(tmp_path: Path) -> None:
    stream(tmp_path, A, 2)
    planner = new(tmp_path)
    start = planner.advance({}, 1)
    assert planner.advance(start, None, {}) == start


def test_a_stream_that_was_read_and_removed_leaves_the_offsets(tmp_path: Path) -> None:
    stream(tmp_path, A, 1)
    stream(tmp_path, B, 1)
    planner = new(tmp_path)
    start = planner.advance({})
    shutil.rmtree(tmp_path / A)
    assert planner.advance(start, 1000) == {B: start[B]}


def test_a_stream_removed_with_unread_blocks_is_a_loss(tmp_path: Path) -> None:
    stream(tmp_path, A, 2)
    stream(tmp_path, B, 1)
    strict, loose = new(tmp_path), new(tmp_path, strict=False)
    start = strict.advance({}, 1)
    loose.ends()
    shutil.rmtree(tmp_path / A)
    with pytest.raises(DataLossError, match=r"edge\.0\.a is gone"):
        strict.advance(start)
    assert loose.advance(start) == {B: start[B]}


def test_a_vanished_range_is_a_loss_unless_it_was_read(tmp_path: Path) -> None:
    stream(tmp_path, A, 6, segment_size=3000).close()
    start = new(tmp_path).advance({}, 1)
    end = new(tmp_path).ends()
    oldest, second = files(tmp_path, A)[:2]
    oldest.unlink()
    with pytest.raises(DataLossError, match=r"offsets .* are gone .*failOnDataLoss=false"):
        new(tmp_path).advance(start)
    with pytest.raises(DataLossError, match=r"offsets .* are gone .*failOnDataLoss=false"):
        new(tmp_path).partitions(start, end)
    base = int(second.name.partition(".")[0])
    assert new(tmp_path, strict=False).partitions(start, end)[0][0].start == base
    assert new(tmp_path).advance({A: base}) == end


def test_a_hole_between_segments_is_a_loss(tmp_path: Path) -> None:
    stream(tmp_path, A, 8, segment_size=3000).close()
    end = new(tmp_path).ends()
    middle = files(tmp_path, A)[1]
    middle.unlink()
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        new(tmp_path).partitions({}, end)
    left = [part for parts in new(tmp_path, strict=False).partitions({}, end) for part in parts]
    assert {part.base for part in left} == {int(file.name.partition(".")[0]) for file in files(tmp_path, A)}


def test_small_streams_share_a_partition(tmp_path: Path) -> None:
    for name in (A, B, C):
        stream(tmp_path, name, 2)
    planner = new(tmp_path)
    (only,) = planner.partitions({}, planner.ends())
    assert [part.stream for part in only] == [A, B, C]


def test_an_empty_range_has_no_partitions(tmp_path: Path) -> None:
    stream(tmp_path, A, 2)
    planner = new(tmp_path)
    assert planner.partitions(planner.ends(), planner.ends()) == []
    assert planner.partitions({}, {}) == []


def test_a_large_range_is_cut_at_blocks_into_equal_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_PARTITION_BYTES", 4000)
    stream(tmp_path, A, 40, segment_size=9000)
    planner = new(tmp_path, parallelism=4)
    end = planner.ends()
    packed = planner.partitions({}, end)
    sizes = [sum(part.end - part.start for part in parts) for parts in packed]
    assert len(packed) == 4
    assert max(sizes) - min(sizes) <= 4 * 1300
    flat = [part for parts in packed for part in parts]
    assert [part.start for part in flat[1:]] == [part.end for part in flat[:-1]]
    assert (flat[0].start, flat[-1].end) == (0, end[A])


def test_a_consumer_is_registered_where_retention_looks(tmp_path: Path) -> None:
    new(tmp_path).register("job", {A: 7})
    assert read_consumers(str(tmp_path)).offsets == {"job": {A: 7}}
    assert new(tmp_path).ends() == {}
