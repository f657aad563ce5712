import errno
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.block import JOIN_BELOW, Block
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.record import REASON_DISK_ERROR, REASON_DISK_FULL
from framegate.proxy.tap.segment import MAX_PIECES, SegmentLog, reason_of, remainder
from tests.fakes.cases import each_of
from tests.fakes.disk import FakeDisk
from tests.fakes.tap_read import read_blocks, segment_facts

S = 1_000_000_000
FACTS: dict[str, str | int] = {"node": "edge", "slot": "0", "stream": "s", "boot_id": "b"}


def block(*payloads: bytes) -> Block:
    builder = BlockBuilder()
    for payload in payloads:
        offset = builder.data_len
        builder.add_piece(payload)
        builder.add_frames_row(1, 1, 0, len(payload), 0, offset, 1, 0, -1, -1, builder.string("main"), -1, -1, -1, 0)
        builder.starts.write(b"\0\0\0\0")
        builder.starts_count += 1
    return builder.finish()


def log_of(root: Path, disk: FakeDisk | None = None, *, size: int = 1 << 20, age_s: int = 300) -> SegmentLog:
    return SegmentLog(str(root / "s"), FACTS, size, age_s * S, disk)


def payloads(root: Path) -> list[bytes]:
    return [bytes(found.chunk_data(row)) for found in read_blocks(str(root), "s") for row in found.rows]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "s").iterdir())


def test_a_block_is_visible_at_once_and_the_file_keeps_its_open_name(tmp_path: Path, no_umask: None) -> None:
    log = log_of(tmp_path)
    log.seal()
    assert (log.due_ns(), list(tmp_path.iterdir())) == (-1, []), "nothing is created before the first block"
    log.append(block(b"one"), 0)
    assert payloads(tmp_path) == [b"one"]
    assert names(tmp_path) == ["00000000000000000000.open"]
    assert segment_facts(segments(str(tmp_path), "s")[0].path).items() >= {**FACTS, "base": 0, "version": 4}.items()
    with pytest.raises(FileExistsError):  # a second writer never shares the file
        log_of(tmp_path).append(block(b"two"), 0)
    log.seal()
    assert names(tmp_path) == ["00000000000000000000.seg"]
    assert payloads(tmp_path) == [b"one"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s", *(tmp_path / "s").iterdir())] == [0o750, 0o640]


@each_of(
    ("size", "written", "bases"),
    [(5000, [bytes([number]) * 2000 for number in range(6)], [0, 2, 4]), (1000, [b"a" * 900, bytes(9000), b"b" * 900], [0, 1, 2])],
    fresh={"folder": tempfile.TemporaryDirectory},
)
def test_a_segment_is_sealed_before_a_block_would_make_it_too_long_and_a_longer_block_has_its_own(
    folder: str, size: int, written: list[bytes], bases: list[int]
) -> None:
    log = log_of(Path(folder), size=size)
    offsets = []
    for payload in written:
        offsets.append(int(log.offset))
        log.append(block(payload), 0)
    log.seal()
    assert [segment.base for segment in segments(folder, "s")] == [offsets[index] for index in bases]
    assert payloads(Path(folder)) == written


def test_a_segment_is_sealed_at_its_age(tmp_path: Path) -> None:
    log = log_of(tmp_path, age_s=300)
    log.append(block(b"a"), 100 * S)
    assert log.due_ns() == 400 * S
    log.append(block(b"b"), 400 * S - 1)
    assert len(segments(str(tmp_path), "s")) == 1
    log.append(block(b"c"), 400 * S)
    assert [segment.sealed for segment in segments(str(tmp_path), "s")] == [True, False]
    assert log.due_ns() == 700 * S


def test_short_writes_are_carried_on(tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.piecemeal = 333
    log = log_of(tmp_path, disk)
    log.append(block(b"one", bytes(5000)), 0)
    assert payloads(tmp_path) == [b"one", bytes(5000)]


class CountingDisk(FakeDisk):
    """Takes everything and writes nothing; remembers how many parts each call gave."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []

    def write(self, fd: int, parts: list[Buffer], position: int) -> int:
        self.parts.append(len(parts))
        return sum(len(part) for part in parts)


def test_more_pieces_than_one_gathering_write_takes(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = log_of(tmp_path, disk)
    large = bytes(JOIN_BELOW)
    log.append(block(*([large] * (MAX_PIECES + 3))), 0)
    assert disk.parts[0] == 1
    assert disk.parts[1] == MAX_PIECES
    assert max(disk.parts) == MAX_PIECES
    assert log.bytes_written > JOIN_BELOW * (MAX_PIECES + 3)


def test_a_tail_that_cannot_be_cut_is_left_behind_and_offsets_go_on(tmp_path: Path) -> None:
    disk = FakeDisk()
    log = log_of(tmp_path, disk)
    log.append(block(b"one"), 0)
    disk.room = 200
    disk.failing = {"truncate"}
    with pytest.raises(OSError, match="No space"):
        log.append(block(bytes(1000)), 0)
    disk.room = None
    log.append(block(b"two"), 0)
    first, second = segments(str(tmp_path), "s")
    assert first.sealed
    assert first.limit > second.base == 256
    assert payloads(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize("stuck", [False, True])
def test_a_disk_without_room_for_a_header_leaves_no_file(tmp_path: Path, stuck: bool) -> None:
    disk = FakeDisk(room=100)
    disk.failing = {"truncate"} if stuck else set()
    log = log_of(tmp_path, disk)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            log.append(block(b"one"), 0)
        assert names(tmp_path) == []
    disk.room = 4096 + 50
    with pytest.raises(OSError, match="No space"):
        log.append(block(b"one"), 0)
    disk.room = None
    log.append(block(b"one"), 0)
    assert payloads(tmp_path) == [b"one"]


FAULTS = st.sampled_from(["room", "EIO", "EFBIG", "truncate", "close", "rename", "remove", "create", "repair"])
STEPS = st.lists(
    st.one_of(st.tuples(st.just("append"), st.integers(1, 6000)), st.tuples(FAULTS, st.integers(0, 9000)), st.tuples(st.just("age"), st.just(0)))
)


def act(disk: FakeDisk, fault: str, room: int) -> None:
    if fault == "repair":
        disk.failing.clear()
        disk.broken = 0
        disk.room = None
    elif fault == "room":
        disk.room = room
    elif fault in ("EIO", "EFBIG"):
        disk.broken = getattr(errno, fault)
    else:
        disk.failing.add(fault)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_whatever_fails_a_block_is_read_at_once_or_its_writer_is_told(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """And once the disk works again, the log goes on: nothing is hidden by an older file, nothing is in the way of the next one."""
    root = tmp_path_factory.mktemp("log")
    disk = FakeDisk()
    log = log_of(root, disk, size=10_000)
    kept: list[bytes] = []
    now = 0
    for number, (action, value) in enumerate([*steps, ("repair", 0), ("append", 1), ("append", 6000)]):
        if action == "append":
            payload = bytes([number % 256]) * value
            try:
                log.append(block(payload), now)
                kept.append(payload)
            except OSError:
                assert number < len(steps), "the disk works again"
        elif action == "age":
            now += 300 * S
        else:
            act(disk, action, value)
        if not disk.failing and not disk.broken:
            assert payloads(root) == kept
    log.seal()
    assert payloads(root) == kept
    bases = [segment.base for segment in segments(str(root), "s")]
    assert len(names(root)) == len(bases) == len(set(bases))


@each_of("call", ["remove", "close"], fresh={"folder": tempfile.TemporaryDirectory})
def test_a_file_that_could_not_be_removed_is_not_in_the_way_for_ever(folder: str, call: str) -> None:
    disk = FakeDisk(room=4100)
    disk.failing = {"truncate", call}
    log = log_of(Path(folder), disk)
    for _ in range(3):
        with pytest.raises(OSError, match=r"No space|Input/output"):
            log.append(block(b"lost"), 0)
    disk.room = None
    disk.failing.clear()
    log.append(block(b"one"), 0)
    assert payloads(Path(folder)) == [b"one"]


def test_two_names_of_one_place_are_read_as_the_one_with_more_in_it(tmp_path: Path) -> None:
    """As an earlier version left them: a sealed segment without a block, and its successor."""
    log = log_of(tmp_path)
    log.append(block(b"one"), 0)
    path = tmp_path / "s" / names(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[8] = 1
    path.write_bytes(data)
    path.with_suffix(".seg").write_bytes(data[:4096])
    for _ in range(2):
        assert payloads(tmp_path) == [b"one"]
        path.rename(path.with_suffix(".x"))  # listings follow the order of the folder: the other way round, too
        path.with_suffix(".seg").rename(path)
        path.with_suffix(".x").rename(path.with_suffix(".seg"))


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_file_that_was_deleted_while_it_is_written_costs_what_was_in_it_and_the_next_block_goes_into_a_new_one(tmp_path: Path, blocks: int) -> None:
    log = log_of(tmp_path)
    for _ in range(blocks):
        log.append(block(b"gone"), 0)
    end = log.offset
    (tmp_path / "s" / names(tmp_path)[0]).unlink()
    log.append(block(b"kept"), 0)
    log.append(block(b"too"), 0)
    (segment,) = segments(str(tmp_path), "s")
    assert (segment.base, [bytes(found.chunk_data(found.rows[0])) for found in read_blocks(str(tmp_path), "s", end)]) == (end, [b"kept", b"too"])
    assert (log.deleted, log.deleted_path) == (1, segment.path.replace(f"{end:020d}", "0" * 20))
    log.seal()
    assert log.deleted == 1


def test_a_file_that_was_deleted_before_it_is_sealed_or_before_its_first_block_is_noticed(tmp_path: Path) -> None:
    disk = FakeDisk()
    log = log_of(tmp_path, disk)
    disk.room = 5000
    with pytest.raises(OSError, match="No space"):
        log.append(block(bytes(3000)), 0)
    disk.room = None
    log.append(block(b"one"), 0)
    (tmp_path / "s" / names(tmp_path)[0]).unlink()
    log.seal()
    assert (log.deleted, names(tmp_path)) == (1, [])
    log.append(block(b"two"), 0)
    log.seal(final=True)
    assert (log.deleted, len(names(tmp_path))) == (1, 1)


@each_of("wrote", range(8))
def test_remainder_of_a_gathering_write(wrote: int) -> None:
    assert b"".join(remainder([b"ab", b"", b"cde", b"fg"], wrote)) == b"abcdefg"[wrote:]


def test_errors_have_reasons() -> None:
    assert reason_of(OSError(errno.ENOSPC, "")) == reason_of(OSError(errno.EDQUOT, "")) == REASON_DISK_FULL
    assert reason_of(OSError(errno.EIO, "")) == REASON_DISK_ERROR
