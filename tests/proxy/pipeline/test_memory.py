import itertools
from pathlib import Path

import pytest

from framegate.proxy.pipeline.memory import COPIES, HeapError, budget, heap_bytes, large_frames, slots
from framegate.proxy.pipeline.planner import Planner
from tests.fakes.cases import each_of
from tests.fakes.runs import pieces_of
from tests.fakes.tap_log import FakeProcessor

MIB, GIB = 1 << 20, 1 << 30


@each_of(("text", "size"), [("512m", 512 * MIB), ("1g", GIB), ("2048M", 2 * GIB), ("1000", 1000)])
def test_a_heap_is_read_as_java_writes_it(text: str, size: int) -> None:
    assert heap_bytes(text) == size


@each_of("text", ["", "much", "1gb", "-1g"])
def test_what_is_no_heap_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="like 512m or 1g"):
        heap_bytes(text)


def test_slots_are_as_many_as_the_heap_has_room_for() -> None:
    assert [slots(heap, 64) for heap in (512 * MIB, GIB, 4 * GIB, 1024 * GIB)] == [2, 4, 16, 64]
    assert slots(GIB, 1) == slots(MIB, 8) == 1


@each_of(("heap", "cores"), list(itertools.product([512 * MIB, GIB, 4 * GIB, 64 * GIB], [1, 2, 4, 8])))
def test_what_is_shared_out_is_never_more_than_there_is(heap: int, cores: int) -> None:
    try:
        plan = budget(heap, cores)
    except HeapError:
        assert heap // cores < 256 * MIB
        return
    assert cores * COPIES * plan.frame < heap
    assert plan.partition <= plan.batch <= 128 * MIB
    assert plan.frame >= MIB


def test_more_heap_and_fewer_cores_have_room_for_larger_frames() -> None:
    assert budget(GIB, 2).frame < budget(GIB, 1).frame < budget(4 * GIB, 1).frame
    assert budget(8 * GIB, 2).frame > 100_000_000


def test_what_was_asked_for_is_taken_or_refused_with_the_sum() -> None:
    plan = budget(GIB, 2, batch=5 * MIB, keep=100)
    assert (plan.batch, plan.frame) == (5 * MIB, 100)
    assert budget(GIB, 2, keep=0).frame == 0
    with pytest.raises(HeapError, match=r"--memory: 2 tasks at once, each with .* of a frame of 200 MiB, .* the heap has 1024 MiB: more --memory"):
        budget(GIB, 2, keep=200 * MIB)
    with pytest.raises(HeapError, match="128 tasks at once"):
        budget(GIB, 128)
    with pytest.raises(HeapError, match="--max-bytes-per-trigger"):
        budget(GIB, 1, batch=5 * GIB)


def test_large_frames_are_found_whole_and_in_pieces(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([bytes(10), bytes(5000), bytes(20)])
    processor.block([bytes(900)] * 3)
    for run in pieces_of(bytes(9000), [100] * 5):
        processor.part(run, 9000, connection=2)
        processor.flush()
    processor.close()
    planner = Planner(tmp_path, parallelism=1)
    ends = planner.ends()
    assert [sorted(large_frames(planner, {}, ends, limit)) for limit in (1000, 5000, 9000)] == [[5000, 9000], [9000], []]
    assert large_frames(planner, ends, ends, 0) == []
