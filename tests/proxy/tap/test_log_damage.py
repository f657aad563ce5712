"""Whatever happens to the files of a log that was complete: who reads it is told, or reads all of it. Never fewer frames, and nobody says so.

Each damage is done to a whole log, one at a time, and taken back. Positions are a sample, seeds are fixed. Files and
streams that are gone, or others: ``tests/proxy/pipeline/test_damage.py``.
"""

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.headers import SEAL, SEAL_CRC
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import LogError, end_offset, streams, walk
from framegate.proxy.tap.record import SEAL_AT, SEGMENT_HEADER_BYTES, WINDOW_NS
from tests.fakes.tap_files import chop, flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import Frame, read_frames

TAPPED = [("main", "request"), ("main", "response")]


@dataclasses.dataclass(frozen=True)
class Log:
    """A complete log, all of whose streams ended.

    Attributes:
        root: its directory.
        frames: all that it holds.
        files: of its segments.
    """

    root: Path
    frames: list[Frame]
    files: list[Path]

    def read(self) -> list[Frame] | None:
        """Every frame; None: the reader raises."""
        try:
            return list(read_frames(str(self.root)))
        except LogError:
            return None

    def tell(self) -> tuple[bool, bool, bool]:
        """Whether the reader raises, whether it reads all that was there, whether the verdict is complete."""
        frames = self.read()
        return frames is None, frames == self.frames, verify(str(self.root)).complete

    def never_silently_fewer(self) -> bool:
        """Whether the damage was found; else it changed nothing, and the verdict is complete with reason."""
        raises, whole, complete = self.tell()
        if complete:
            assert whole, "the verdict is complete, and the reader gives other frames, or none"
        assert raises or whole or not complete
        return not complete


def build(root: Path, seed: int) -> Log:
    """Streams of several segments, with frames of both directions, large ones that were cut through, over two windows."""
    rng = random.Random(seed)
    ledger = LedgerWriter(str(root))
    for slot in range(2, -1, -1):
        processor = FakeProcessor(root, slot=slot, boot_id=f"b{seed}", segment_size=1800)
        ledger.born(processor.stream, TAPPED, START_NS)
        for number in range(9):
            at = START_NS + number * WINDOW_NS // 8
            bodies = [rng.randbytes(rng.choice((0, 1, 17, 200))) for _ in range(rng.randint(1, 4))]
            processor.send(bodies, connection=rng.randint(1, 3), at_ns=at, keys=None)
            processor.send(bodies, connection=2, direction="response", at_ns=at, keys=[3 << 16] * len(bodies), latencies=[9] * len(bodies))
            processor.flush()
            if slot and number % 5 == 2:
                processor.parts(rng.randbytes(1500), [400, 600], flush=True, connection=7, at_ns=at)
                processor.flush()
        processor.close()
        ledger.ended(processor.stream, end_offset(str(root), processor.stream), START_NS, settled=True)
    ledger.close()
    return Log(root, list(read_frames(str(root))), segment_files(root))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """Complete before and after all tests."""
    built = build(tmp_path_factory.mktemp("tap"), 1)
    verdict = verify(str(built.root))
    assert (verdict.faults, {row.state for row in verdict.rows}, verdict.complete) == ([], {"complete"}, True)
    assert sum(row.seen for row in verdict.rows) == len(built.frames)
    assert (len(streams(str(built.root))), len(built.files) > 9) == (3, True)
    assert sum(frame.transfer_us is not None for frame in built.frames) == 4, "frames that were cut through"
    yield built
    assert built.tell() == (False, True, True)


def each_undone(log: Log, path: Path, positions: Iterable[int], damage: Callable[[Path, int], object]) -> list[int]:
    """Do damage to a file at one position after the other; at which of them it was found."""
    good = path.read_bytes()
    found = []
    for position in positions:
        damage(path, position)
        try:
            if log.never_silently_fewer():
                found.append(position)
        finally:
            path.write_bytes(good)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 0x80, 0xFF])
def test_a_byte_that_changes_anywhere_is_found(log: Log, bits: int) -> None:
    rng = random.Random(bits)
    for path in log.files:
        positions = rng.sample(range(SEGMENT_HEADER_BYTES, path.stat().st_size), 3)
        assert each_undone(log, path, positions, lambda path, at: flip(path, at, bits)) == positions


@pytest.mark.slow
def test_a_byte_of_the_header_is_found_when_it_says_anything(log: Log) -> None:
    path = log.files[1]
    told = [*range(0, 120, 7), *range(SEAL_AT, SEAL_AT + SEAL.size + SEAL_CRC.size, 3)]
    assert each_undone(log, path, told, flip) == told
    assert each_undone(log, path, range(SEAL_AT - 3, SEAL_AT), flip) == [], "zeros between say nothing"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".seg", ".open"])
def test_a_file_that_is_cut_anywhere_is_found(log: Log, suffix: str) -> None:
    """As ``.open`` as well: a segment that lost its end and its final name looks like one that was never finished."""
    rng = random.Random(4)
    for path in log.files:
        size = path.stat().st_size
        ends = [ref.position for ref in walk(str(log.root), path.parent.name) if ref.path == str(path)]
        cuts = [0, SEGMENT_HEADER_BYTES, *ends[-1:], size - 1, *rng.sample(range(1, size - 1), 2)]
        renamed = path.with_suffix(suffix)
        path.rename(renamed)
        try:
            assert each_undone(log, renamed, cuts, chop) == cuts
        finally:
            renamed.rename(path)


def zeros(path: Path, start: int) -> None:
    """A sector of nothing, as a disk that lost power leaves it."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(min(512, path.stat().st_size - start)))


@pytest.mark.slow
def test_bytes_that_were_never_written_are_found(log: Log) -> None:
    for path in log.files:
        starts = [SEGMENT_HEADER_BYTES, path.stat().st_size // 512 * 512 - 512]
        assert each_undone(log, path, starts, zeros) == starts


@pytest.mark.parametrize("more", [b"\0", bytes(100), b"x" * 5000])
def test_a_sealed_segment_that_is_longer_than_its_seal_says_is_a_fault(log: Log, more: bytes) -> None:
    path = next(path for name in streams(str(log.root)) for path in sorted((log.root / name).glob("*.seg")))
    before = path.read_bytes()
    path.write_bytes(before + more)
    try:
        assert any("is longer than its seal says" in fault for fault in verify(str(log.root)).faults)
    finally:
        path.write_bytes(before)
    assert verify(str(log.root)).faults == []


@pytest.mark.slow
def test_damage_to_the_ledger_hides_nothing(log: Log) -> None:
    path = log.root / "_ledger.jsonl"
    positions = random.Random(6).sample(range(path.stat().st_size), 25)
    assert each_undone(log, path, positions, flip), "some of it is found, none of it says that a log is complete which is not"
    each_undone(log, path, positions, chop)
    assert each_undone(log, path, [0], lambda path, _: path.unlink()) == [0]
