import errno
import os
from pathlib import Path
from typing import Any

import pytest

from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.tap import settlement as module
from framegate.control.tap.reserve import Reserve
from framegate.control.tap.settlement import Case, Settlement
from framegate.proxy.tap import sums
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import BlockRef, LogError, segments, walk_segment
from framegate.proxy.tap.record import REASON_PROCESSOR_DIED
from tests.fakes.fleet import MemoryLog
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import read_gaps

REQUEST, RESPONSE = ("main", "request"), ("main", "response")
END = START_NS + 5_000_000_000


def life(requests: int, *, reserved: int | None = None, orderly: bool = False, **dropped: int) -> ProcessorTotals:
    none = dict.fromkeys(("closed", "disk_error", "disk_full"), 0)
    return ProcessorTotals({}, orderly, requests, {REQUEST: requests, RESPONSE: 0}, {REQUEST: reserved or requests, RESPONSE: 0}, {**none, **dropped})


def case(known: ProcessorTotals | None, stream: str = "edge.0.b0") -> Case:
    return Case(stream, START_NS, END, [REQUEST, RESPONSE], known)


class Bench:
    """A directory, its ledger, and what settles it."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.log = MemoryLog()
        self.ledger = LedgerWriter(self.directory)
        self.reserve = Reserve(self.directory)
        self.settlement = Settlement(self.directory, self.ledger, self.reserve, self.log)

    def carry_first(self, stream: str) -> None:
        """Retention deletes the first segment."""
        first = segments(self.directory, stream)[0]
        for ref in walk_segment(first, first.base):
            self.settlement.carry(stream).add(ref)
        os.unlink(first.path)

    def work(self, of: Case, **facts: Any) -> str:
        self.settlement.open(of)
        return self.settlement.work(of, END, **facts)

    def gaps(self) -> list[tuple[str, str | None, str, int, str, str]]:
        return [(gap.stream, gap.listener, gap.direction, gap.frames, gap.reason, gap.certainty) for gap in read_gaps(self.directory)]


def written(directory: Path, count: int) -> FakeProcessor:
    """A processor that wrote as many blocks, each in a segment of its own."""
    processor = FakeProcessor(directory, segment_size=1000)
    for _ in range(count):
        processor.block([bytes(600)])
    return processor


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_bound_of_one_that_died_is_what_it_had_reserved_and_of_an_orderly_end_what_it_saw() -> None:
    assert case(life(5, reserved=64)).bounds == {REQUEST: 64, RESPONSE: 0}
    assert case(life(5, reserved=64, orderly=True)).bounds == {REQUEST: 5, RESPONSE: 0}
    assert case(None).bounds == {REQUEST: None, RESPONSE: None}
    bound = case(life(5)).bound(5)
    assert (bound.exact, bound.reason, bound.from_ns, bound.until_ns) == (False, REASON_PROCESSOR_DIED, START_NS, END)
    assert case(life(5, orderly=True)).bound(5).exact


def test_what_was_never_born_in_the_ledger_is_when_it_is_settled(bench: Bench) -> None:
    assert bench.work(case(life(0))) == ""
    stream_record = bench.ledger.ledger.streams["edge.0.b0"]
    assert (stream_record.tapped, stream_record.end, stream_record.settled) == ([REQUEST, RESPONSE], 0, True)
    assert bench.settlement.cases == {}


def test_what_retention_took_before_counts(bench: Bench, tmp_path: Path) -> None:
    processor = written(tmp_path, 4)
    processor.close()
    bench.carry_first(processor.stream)
    bench.work(case(life(6)))
    assert bench.gaps() == [("edge.recovery.b0", "main", "request", 2, "processor_died", "at_most")]


def test_what_cannot_be_read_is_not_there_and_told(bench: Bench, tmp_path: Path) -> None:
    processor = written(tmp_path, 3)
    processor.close()
    os.unlink(segments(bench.directory, processor.stream)[1].path)
    assert "is gone" in bench.work(case(life(3)))
    assert bench.ledger.ledger.streams["edge.0.b0"].settled
    (found,) = list(bench.log.events("tap_gap"))
    assert (found["frames"], found["certainty"]) == ({"request": 1, "response": 0}, "exact"), "totals know of it"


def test_a_last_segment_that_is_damaged_ends_where_its_file_does(bench: Bench, tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"x"])
    processor.close()
    (segment,) = segments(bench.directory, processor.stream)
    with open(segment.path, "r+b") as file:
        file.seek(4096 + 100)
        file.write(b"\xff\xff\xff\xff")
    assert bench.settlement.end(processor.stream) == segment.limit


def refuse(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[int]:
    """The disk refuses settlements so many times; sizes of the reserve then."""
    real, sizes = module.write_settlement, list[int]()

    def write(directory: str, *arguments: Any) -> int:
        if len(sizes) < times:
            sizes.append(os.path.getsize(os.path.join(directory, "_reserve")))
            raise OSError(code, os.strerror(code))
        return real(directory, *arguments)

    monkeypatch.setattr(module, "write_settlement", write)
    return sizes


def test_the_reserve_makes_room_piece_by_piece(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.reserve.take()
    sizes = refuse(monkeypatch, errno.ENOSPC, 3)
    bench.work(case(life(4)))
    assert sizes == [16 << 16, 15 << 16, 14 << 16]
    assert [gap[3] for gap in bench.gaps()] == [4]


def test_the_reserve_is_no_help_against_a_disk_that_is_broken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.reserve.take()
    refuse(monkeypatch, errno.EIO, 1)
    bench.ledger.born("edge.0.b0", [REQUEST], START_NS)
    of = case(life(4))
    with pytest.raises(OSError, match="Input/output"):
        bench.work(of)
    assert bench.reserve.size == 1 << 20
    assert not read_ledger(bench.directory).streams["edge.0.b0"].settled
    assert read_ledger(bench.directory).streams["edge.0.b0"].end == 0
    assert list(bench.settlement.cases.values()) == [of]
    assert bench.settlement.work(of, END) == ""
    assert [gap[3] for gap in bench.gaps()] == [4]


def test_what_is_given_up_is_told_with_what_is_known_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: Any) -> None:
        raise LogError("edge.0.b0", "nothing can be read")

    refuse(monkeypatch, errno.EIO, 9)
    bench.reserve.take()
    counted, uncounted, unknown = case(life(4)), case(life(5), "edge.1.b1"), case(None, "edge.2.b2")
    with pytest.raises(OSError, match="Input/output"):
        bench.work(counted)
    monkeypatch.setattr(module, "sum_stream", gone)
    for of in (uncounted, unknown):
        with pytest.raises(LogError):
            bench.work(of)
    bench.settlement.give_up("the disk is broken")
    rows = {row["stream"]: row for row in bench.log.events("tap_incomplete")}
    assert {stream: (row["counted"], row["frames"]) for stream, row in rows.items()} == {
        "edge.0.b0": (True, {"main": {"request": 4}}),
        "edge.1.b1": (False, {"main": {"request": 5, "response": 0}}),
        "edge.2.b2": (False, {"main": {"request": None, "response": None}}),
    }
    assert {row["error"] for row in rows.values()} == {"the disk is broken"}


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the blocks whose tables are read from here on."""
    real, read = sums._tables, list[int]()

    def tables(ref: BlockRef) -> memoryview:
        read.append(ref.header.offset)
        return real(ref)

    monkeypatch.setattr(sums, "_tables", tables)
    return read


def test_of_a_stream_that_ended_in_order_no_block_is_read_while_the_seals_have_what_the_cells_have(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = FakeProcessor(tmp_path, segment_size=1000)
    for _ in range(6):
        processor.block([bytes(300)] * 2)
    processor.close()
    read = count_reads(monkeypatch)
    bench.carry_first(processor.stream)
    read.clear()
    assert bench.work(case(life(12, orderly=True))) == ""
    assert (read, bench.gaps(), bench.ledger.ledger.streams[processor.stream].settled) == ([], [], True)


@pytest.mark.parametrize("fault", ["fewer", "a hole", "not final"])
def test_of_one_whose_seals_do_not_have_all_every_block_is_read(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    processor = written(tmp_path, 3)
    if fault == "not final":
        processor.writer.thread.seal(False)
    else:
        processor.close()
    if fault == "a hole":
        os.unlink(segments(bench.directory, processor.stream)[1].path)
    read = count_reads(monkeypatch)
    bench.work(case(life(4 if fault == "fewer" else 3, orderly=True)))
    assert len(read) >= 2
    assert [row["frames"]["request"] for row in bench.log.events("tap_gap")] == {"fewer": [1], "a hole": [1], "not final": []}[fault]
