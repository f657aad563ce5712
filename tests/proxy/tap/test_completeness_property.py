"""Whatever is sent, at whatever times, whatever the disk does and however the processor ends: the verdict fits what the test itself has counted.

The real writer, the real rules and the real settlement of control, in this thread, on a disk that fails. The wall clock is the test's.
"""

import collections
import contextlib
import dataclasses
import errno
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.tap.reserve import Reserve as Ballast
from framegate.control.tap.settlement import Case, Settlement
from framegate.proxy.cells import TAP_DROP_REASONS
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.tap.completeness import WindowRow, verify
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_block import GapRecord
from framegate.proxy.tap.log_reader import segments, streams
from framegate.proxy.tap.record import DIRECTIONS, WINDOW_NS
from framegate.proxy.tap.recovery import seal_dead
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.settlement import recovery_stream
from framegate.proxy.tap.sums import segment_times
from framegate.proxy.tap.tallies import Reserve, Tally
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.disk import FakeDisk
from tests.fakes.fleet import MemoryLog
from tests.fakes.runs import pieces_of, run_of
from tests.fakes.tap_log import ints
from tests.fakes.tap_read import read_frames, read_gaps

MS: Final = 1_000_000
SECOND: Final = 1000 * MS
YEAR: Final = 365 * 86400 * SECOND
START: Final = 1_700_000_000 * SECOND
MAX_SIZE: Final = 80
RULES: Final = (
    TapRule(name="full", listeners=("a",)),
    TapRule(name="lengths", listeners=("b",), capture="lengths", sample_connections=0.5),
    TapRule(name="hash", listeners=("c",), directions=("request",), capture="hash", sample_frames=0.6, max_size=MAX_SIZE),
)
LISTENERS: Final = ("a", "a", "b", "b", "c", "c")
"""Of the connections 1 to 6."""
STEPS: Final = (0, 0, MS, 500 * MS, 20 * SECOND, 61 * SECOND, 3600 * SECOND, YEAR, -MS, -999 * MS, -2 * SECOND, -61 * SECOND, -3600 * SECOND, -YEAR)
"""By how much the wall clock goes on, or back."""
Pair = tuple[str, str]
Frame = tuple[str, int, str, int]
"""Stream, connection, direction, number."""


@dataclasses.dataclass(frozen=True)
class Op:
    """One thing that happens. Which of the fields mean something depends on ``kind``."""

    kind: str
    connection: int = 1
    direction: int = 0
    sizes: tuple[int, ...] = (10,)
    step: int = 0
    flag: bool = False
    disk: str = ""


def ops() -> st.SearchStrategy[Op]:
    connections, directions, flags = st.integers(1, 6), st.integers(0, 1), st.booleans()
    sizes = st.lists(st.integers(0, 120), min_size=1, max_size=4).map(tuple)
    steps = st.sampled_from(STEPS)
    return st.one_of(
        st.builds(Op, st.just("send"), connections, directions, sizes, steps, flags),
        st.builds(Op, st.just("send"), connections, directions, sizes, steps, flags),
        st.builds(Op, st.just("part"), st.integers(1, 4), directions, st.tuples(st.integers(200, 700)), steps, flags),
        st.builds(Op, st.just("drop"), st.integers(1, 4), directions, sizes, steps),
        st.builds(Op, st.just("tick"), step=st.sampled_from((MS, 25 * MS, 150 * MS, 70 * SECOND))),
        st.builds(Op, st.just("disk"), disk=st.sampled_from(("full", "little", "broken", "truncate", "create", "rename", "fine", "fine"))),
        st.builds(Op, st.just("publish")),
    )


ENDS: Final = ("close", "die", "vanish")
LIVES: Final = st.lists(st.tuples(st.lists(ops(), max_size=14), st.sampled_from(ENDS), st.booleans()), min_size=1, max_size=3)


class World:
    """A tap directory, as control keeps it, a wall clock, and the count of everything.

    Attributes:
        seen: every frame that a rule matched: in which window.
        listener_of: of each of them.
        set_back: streams during whose lives the clock was set back.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.clock = START
        self.ledger = LedgerWriter(self.root)
        self.settlement = Settlement(self.root, self.ledger, Ballast(self.root), MemoryLog())
        self.seen: dict[Frame, int] = {}
        self.listener_of: dict[Frame, str] = {}
        self.set_back: set[str] = set()


class Processor(Reserve):
    """One life, from birth to settlement."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.disk = FakeDisk()
        config = TapConfig(directory=world.root, flush_size=600, queue_size=2500, segment_size=2000)
        self.writer = TapWriter(config, "edge", "0", f"b{number}", self.disk, reserve=self)
        self.stream = self.writer.stream
        self.rules = TapRules(RULES, self.writer)
        self.pairs: list[Pair] = [(listener, direction) for listener in "ab" for direction in DIRECTIONS] + [("c", "request")]
        self.born_ns = world.clock
        self.now = 1
        self.last_ns = 0
        self.published = dict.fromkeys(self.pairs, 0)
        self.reserved = dict.fromkeys(self.pairs, 0)
        self.numbers: collections.Counter[tuple[int, int]] = collections.Counter()
        self.taps: dict[tuple[int, int], FrameTap | None] = {}
        world.ledger.born(self.stream, self.pairs, world.clock)

    def reserve(self, tally: Tally) -> None:
        """The cells, which outlive a processor."""
        self.reserved[tally.listener, DIRECTIONS[tally.direction]] = int(tally.reserved)

    def tap(self, op: Op) -> FrameTap | None:
        key = (op.connection, op.direction)
        if key not in self.taps:
            listener = LISTENERS[op.connection - 1]
            self.taps[key] = self.rules.match(listener, "framed", op.direction, None, f"10.0.0.1:{op.connection}", op.connection)
        return self.taps[key]

    def time(self, step: int) -> int:
        """Now, by the wall clock."""
        if step < 0:
            self.world.set_back.add(self.stream)
        self.world.clock = max(YEAR, self.world.clock + step)
        return self.world.clock

    def match(self, op: Op, numbers: list[int], at_ns: int) -> None:
        """A rule sees these frames: in the window of that time, but time goes back only by more than a second."""
        if not numbers:
            return
        if at_ns > self.last_ns or at_ns < self.last_ns - SECOND:
            self.last_ns = at_ns
        for number in numbers:
            frame = (self.stream, op.connection, DIRECTIONS[op.direction], number)
            self.world.seen[frame] = self.last_ns // WINDOW_NS
            self.world.listener_of[frame] = LISTENERS[op.connection - 1]

    def do(self, op: Op) -> None:
        getattr(self, f"do_{op.kind}")(op)

    def do_send(self, op: Op) -> None:
        at_ns, tap, key = self.time(op.step), self.tap(op), (op.connection, op.direction)
        first = self.numbers[key]
        self.numbers[key] += len(op.sizes)
        if tap is not None:
            limit = MAX_SIZE if LISTENERS[op.connection - 1] == "c" else 1 << 30
            self.match(op, [first + index for index, size in enumerate(op.sizes) if size <= limit], at_ns)
            sensitive = ints([0]) if op.flag and op.connection == 1 else None
            tap.append(run_of([bytes([first % 251]) * size for size in op.sizes]), first, at_ns, sensitive)

    def do_part(self, op: Op) -> None:
        tap, key = self.tap(op), (op.connection, op.direction)
        assert tap is not None
        before_ns = max(self.last_ns, self.world.clock)
        at_ns, number, size = self.time(op.step), self.numbers[key], op.sizes[0]
        pieces = pieces_of(bytes([number % 251]) * size, [size // 3, size // 3])
        for piece in pieces[:-1]:
            tap.append_part(piece, number, before_ns, False, None, None)
            self.last_ns = max(self.last_ns, int(self.writer.builder.last_ns))
            if op.flag:
                self.tick(25 * MS)
        if size % 7 == 0:
            tap.cut_short(at_ns)
            return
        self.numbers[key] += 1
        self.match(op, [number], at_ns)
        tap.append_part(pieces[-1], number, at_ns, False, None, None)

    def do_drop(self, op: Op) -> None:
        at_ns, tap, key = self.time(op.step), self.tap(op), (op.connection, op.direction)
        assert tap is not None
        first, count = self.numbers[key], len(op.sizes)
        self.numbers[key] += count
        self.match(op, list(range(first, first + count)), at_ns)
        tap.drop(count, sum(op.sizes) + 4 * count, first, at_ns)

    def do_tick(self, op: Op) -> None:
        self.tick(op.step)

    def tick(self, ns: int) -> None:
        self.now += ns
        self.writer.poll_due(self.now)
        self.writer.write_queued()

    def do_disk(self, op: Op) -> None:
        self.disk.room = {"full": 0, "little": 700}.get(op.disk)
        self.disk.broken = errno.EIO if op.disk == "broken" else 0
        self.disk.failing = {op.disk} & {"truncate", "create", "rename"}
        if op.disk in ("truncate", "rename"):
            self.disk.room = 300

    def do_publish(self, op: Op) -> None:
        """What the loop does once a millisecond."""
        self.writer.tallies.update_reserves(self.now)
        for tally in self.writer.tallies.all:
            pair = (tally.listener, DIRECTIONS[tally.direction])
            self.published[pair], self.reserved[pair] = int(tally.frames), int(tally.reserved)

    def end(self, how: str, torn: bool) -> None:
        """The processor ends, and control does what it does then (``TapKeeper``)."""
        life: ProcessorTotals | None = None
        if how == "close":
            self.writer.flush_and_close(1000)
            seen = {(tally.listener, DIRECTIONS[tally.direction]): int(tally.frames) for tally in self.writer.tallies.all}
            dropped = {reason: int(getattr(self.writer, f"dropped_{reason}")) for reason in TAP_DROP_REASONS}
            life = ProcessorTotals({}, True, sum(seen.values()), {**dict.fromkeys(self.pairs, 0), **seen}, dict(self.reserved), dropped)
        elif how == "die":
            life = ProcessorTotals({}, False, sum(self.published.values()), self.published, self.reserved, dict.fromkeys(TAP_DROP_REASONS, 0))
        if torn and how != "close":
            for path in Path(self.world.root, self.stream).glob("*.open"):
                with path.open("ab") as file:
                    file.write(b"FGB1" + bytes(60))
        seal_dead(self.world.root, set(), self.world.clock)
        case = Case(self.stream, self.born_ns, self.world.clock, self.pairs, life)
        self.world.settlement.open(case)
        assert self.world.settlement.work(case, self.world.clock) == ""


class Judgement:
    """What the log says, beside what was counted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.verdict = verify(world.root)
        self.rows = {(row.stream, row.listener, row.direction, row.window_ns // WINDOW_NS): row for row in self.verdict.rows}
        self.stored: set[Frame] = set()
        for found in read_frames(world.root):
            frame = (found.stream, found.connection, found.direction, found.number)
            assert world.listener_of[frame] == found.listener
            assert frame not in self.stored, "a frame is in the log twice"
            assert world.seen[frame] == found.capture_ns // WINDOW_NS
            withheld = found.connection == 1 and not found.body
            if found.listener != "a" or len(found.body) == found.size or withheld:
                self.stored.add(frame)
        self.gaps: dict[tuple[str, str | None, str], list[GapRecord]] = collections.defaultdict(list)
        for gap in read_gaps(world.root):
            self.gaps[gap.stream.replace("recovery", "0"), gap.listener, gap.direction].append(gap)

    def check_what_is_cut(self) -> None:
        """Retention was there: a minute of which anything is gone is not called complete, by any row that speaks of it, and one does."""
        assert self.verdict.faults == []
        assert "missing" not in {row.state for row in self.verdict.rows}, self.verdict.rows
        gone = collections.Counter(
            (stream, self.world.listener_of[stream, connection, direction, number], direction, window)
            for (stream, connection, direction, number), window in self.world.seen.items()
            if (stream, connection, direction, number) not in self.stored
        )
        for (stream, listener, direction, window), count in gone.items():
            if stream in self.world.set_back and recovery_stream(stream) in self.world.ledger.ledger.streams:
                continue  # as ``_is_astray``; its gaps may be gone
            at_ns = window * WINDOW_NS
            rows = [
                row
                for row in self.verdict.rows
                if (row.stream, row.listener, row.direction) == (stream, listener, direction) and row.window_ns <= at_ns <= row.last_window_ns
            ]
            assert len(rows) == 1 or self._is_spanned(stream, listener, direction, window), f"{count} frames in {window}: {rows}"
            assert all(row.cut or row.state != "complete" or count <= row.sampled for row in rows), f"{count} frames in {window}: {rows}"

    def check(self) -> None:
        assert self.verdict.faults == []
        assert "missing" not in {row.state for row in self.verdict.rows}, self.verdict.rows
        truth: collections.Counter[Any] = collections.Counter()
        gone: collections.Counter[Any] = collections.Counter()
        for frame, window in self.world.seen.items():
            key = (frame[0], self.world.listener_of[frame], frame[2], window)
            truth[key] += 1
            gone[key] += frame not in self.stored
        for key, count in truth.items():
            if self._is_astray(*key[:3]):
                continue
            if key in self.rows:
                self._check_window(self.rows[key], count, gone[key])
            else:
                assert gone[key] == count, "stored, and in no window"
                assert self._is_spanned(*key), f"{count} frames of {key} are gone without a word"
        for key, row in self.rows.items():
            if key not in truth and not self._is_astray(*key[:3]):
                self._check_window(row, 0, 0)
        for stream, listener, direction in {key[:3] for key in truth}:
            self._check_pair(stream, listener, direction, sum(count for key, count in gone.items() if key[:3] == (stream, listener, direction)))
        if self.verdict.complete:
            assert sum(gone.values()) == sum(row.sampled for row in self.verdict.rows), "complete, and frames are missing"

    @staticmethod
    def _check_window(row: WindowRow, truth: int, gone: int) -> None:
        assert row.unknown or gone <= row.lost + row.sampled + row.shared + row.at_most, f"{gone} are gone: {row}"
        if row.state == "complete":
            assert (row.seen, row.sampled, row.stored + row.withheld) == (truth, gone, truth - gone), row
        if row.state == "lost" and not row.shared:
            assert (row.seen, row.sampled + row.lost, row.stored + row.withheld) == (truth, gone, truth - gone), row

    def _is_astray(self, stream: str, listener: str | None, direction: str) -> bool:
        """Control wrote what is missing, and nobody but the processor knew where the clock had been: it is counted, the window is a guess."""
        return stream in self.world.set_back and any(".recovery." in gap.stream for gap in self.gaps[stream, listener, direction])

    def _is_spanned(self, stream: str, listener: str, direction: str, window: int) -> bool:
        """A gap of very many windows is not listed in each of them."""
        return any(gap.from_ns // WINDOW_NS <= window <= gap.until_ns // WINDOW_NS for gap in self.gaps[stream, listener, direction])

    def _check_pair(self, stream: str, listener: str, direction: str, gone: int) -> None:
        """Over all windows a bound holds, too, and what is exact is."""
        gaps = self.gaps[stream, listener, direction]
        rows = [row for row in self.verdict.rows if (row.stream, row.listener, row.direction) == (stream, listener, direction)]
        pieces_lost = sum(row.lost for row in rows) - sum(
            gap.frames
            for gap in gaps
            if gap.certainty == "exact" and gap.reason != "sampled" and gap.from_ns // WINDOW_NS == gap.until_ns // WINDOW_NS
        )
        exact = pieces_lost + sum(gap.frames for gap in gaps if gap.certainty == "exact")
        at_most = sum(gap.frames for gap in gaps if gap.certainty == "at_most")
        if any(gap.certainty == "unknown" for gap in gaps):
            return
        assert exact <= gone <= exact + at_most, (stream, listener, direction, exact, gone, at_most)


def live(world: World, lives: list[tuple[list[Op], str, bool]]) -> None:
    """One after the other."""
    for number, (operations, end, torn) in enumerate(lives):
        processor = Processor(world, number)
        for op in operations:
            processor.do(op)
        processor.end(end, torn)


def take(world: World, counts: list[int]) -> None:
    """Retention: of each stream so many segments."""
    for stream, count in zip(streams(world.root), counts, strict=False):
        for segment in segments(world.root, stream)[:count]:
            world.ledger.deleted(stream, segment.limit, world.clock, *segment_times(segment))
            os.unlink(segment.path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(world.root, stream))  # only if nothing is left


@pytest.mark.slow  # 4 s on an idle machine: each example is a whole log
@pytest.mark.timeout(180)
@settings(max_examples=60, deadline=None)
@given(LIVES)
def test_the_verdict_fits_what_was_counted(lives: list[tuple[list[Op], str, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        live(world, lives)
        Judgement(world).check()
        world.ledger.close()


@pytest.mark.slow  # as the one above
@pytest.mark.timeout(180)
@settings(max_examples=60, deadline=None)
@example(lives=[([Op("drop", step=-61 * SECOND), Op("send", step=61 * SECOND)], "close", False)], counts=[1])  # lost before its block began
@given(LIVES, st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_what_retention_took_is_never_complete(lives: list[tuple[list[Op], str, bool]], counts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        live(world, lives)
        take(world, counts)
        Judgement(world).check_what_is_cut()
        world.ledger.close()
