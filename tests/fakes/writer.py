"""A tap writer whose thread is the test, with one point for each connection."""

from pathlib import Path

from framegate.proxy.config.model import OnFull, TapConfig, TapRule
from framegate.proxy.network.run import PART_FIRST, PART_LAST
from framegate.proxy.tap.log_block import GapRecord
from framegate.proxy.tap.point import TapPoint
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.disk import FakeDisk
from tests.fakes.runs import framed, piece_of, run_of
from tests.fakes.tap_read import read_frames, read_gaps

MS = 1_000_000


class Log:
    """A writer whose thread is the test, unless it is started."""

    def __init__(self, root: Path, disk: FakeDisk | None = None, *, on_full: OnFull = "drop", wakeup_fd: int = -1, **sizes: int) -> None:
        self.root = str(root)
        self.writer = TapWriter(TapConfig(directory=str(root), **sizes), "edge", "0", "b0", disk, wakeup_fd)  # type: ignore[arg-type]
        self.rules = TapRules((TapRule(name="all", on_full=on_full),), self.writer)
        self.points: dict[int, TapPoint] = {}
        self.sent: dict[int, int] = {}
        self.now = 1

    def point(self, connection: int) -> TapPoint:
        if connection not in self.points:
            point = self.rules.match("main", "framed", connection % 2, None, None, connection)
            assert point is not None
            self.points[connection] = point
        return self.points[connection]

    def send(self, body: bytes, connection: int = 1, frames: int = 1) -> bool:
        first = self.sent.get(connection, 0)
        self.sent[connection] = first + frames
        return self.point(connection).append(run_of([body] * frames), first, 1000)

    def part(self, body: bytes, start: int, end: int, connection: int = 1) -> bool:
        """Send these bytes of a frame, its header counted, as a piece."""
        raw = framed([body])
        bits = (PART_FIRST if start == 0 else 0) | (PART_LAST if end == len(raw) else 0)
        number = self.sent.get(connection, 0)
        self.sent[connection] = number + bool(bits & PART_LAST)
        return self.point(connection).append_part(piece_of(raw[start:end], bits), number, 1000, False, None, None)

    def tick(self, ns: int = 20 * MS) -> int:
        self.now += ns
        return int(self.writer.poll_due(self.now))

    def flush(self) -> None:
        self.tick(0)
        self.tick()
        self.writer.write_queued()

    def numbers(self, connection: int = 1) -> list[int]:
        return [frame.number for frame in read_frames(self.root) if frame.connection == connection]

    def gaps(self) -> list[GapRecord]:
        return list(read_gaps(self.root))

    @property
    def matched(self) -> int:
        return int(self.writer.frames_matched_request + self.writer.frames_matched_response)

    @property
    def flushed(self) -> int:
        return int(self.writer.thread.frames_flushed_request + self.writer.thread.frames_flushed_response)

    def assert_settled(self) -> None:
        """Every matched frame is in the log: itself, or as a gap."""
        found = list(read_frames(self.root))
        missing = sum(gap.frames for gap in self.gaps())
        assert self.matched == self.flushed + self.writer.frames_dropped
        assert self.flushed == len(found)
        assert self.writer.thread.frames_gapped == self.writer.frames_dropped == missing
