"""Logs for the pipeline's bench, by the tap's own writer: sets of frames of one size, and frames that keep coming.

Run as a program it is the feeder: it appends frames at a steady rate, a block every 20 ms, and prints what it appended and when.
"""

import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network.run import Run
from framegate.proxy.tap.record import FRAME_HEADER_BYTES
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter

SEGMENT_SIZE = 128 << 20
BLOCK_SIZE = 256 << 10
FLUSH_S = 0.02
CONNECTIONS = 50
RUNS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Frames of one size.

    Attributes:
        name: for tables.
        size: bytes of a body.
        frames: in a chunk, which is one read of the proxy.
        rows_per_batch: of Parquet's vectorized reader, so that a batch of the largest frames fits a heap.
    """

    name: str
    size: int
    frames: int
    rows_per_batch: int = 4096


SHAPES = (Shape("100b", 100, 64), Shape("1k", 1000, 16), Shape("64k", 65536, 1, 64))


@dataclass(frozen=True, slots=True)
class Set:
    """A log that is complete: the tap's directory, the number of frames, and the bytes of their bodies."""

    directory: Path
    frames: int
    size: int


class LogWriter:
    """One stream of random frames of a shape: chunks of fifty connections in turn, of which every other one is of answers."""

    def __init__(self, directory: Path, shape: Shape, boot_id: str = "b0") -> None:
        config = TapConfig(directory=str(directory), segment_size=SEGMENT_SIZE)
        self._flush_ns = config.flush_ms * 1_000_000
        self._writer = TapWriter(config, "bench", "0", boot_id)
        rules = TapRules((TapRule(name="all"),), self._writer)
        self._points = [rules.match("main", "framed", number % 2, "CN=bench", f"127.0.0.1:{40000 + number}", number) for number in range(CONNECTIONS)]
        header = struct.pack(">i", shape.size)
        self._runs = [b"".join(header + os.urandom(shape.size) for _ in range(shape.frames)) for _ in range(RUNS)]
        self._shape = shape
        self._chunks = 0

    def block(self, chunks: int) -> None:
        """Write a block of so many chunks."""
        for _ in range(chunks):
            turn, number = divmod(self._chunks, CONNECTIONS)
            data, point = self._runs[self._chunks % RUNS], self._points[number]
            assert point is not None, "the rule matches everything"
            point.append(Run(None, 0, data, 0, len(data), self._shape.frames, 0), turn * self._shape.frames, time.time_ns(), None, None, None)
            self._chunks += 1
        self._writer.poll_due(1)
        self._writer.poll_due(1 + self._flush_ns)
        self._writer.write_queued()

    def close(self) -> None:
        """Seal the stream."""
        assert self._writer.flush_and_close(1000)


def write_set(directory: Path, shape: Shape, size: int) -> Set:
    """Write a log with frames of a shape.

    Args:
        directory: of the log.
        shape: of its frames.
        size: bytes of bodies at least.
    """
    chunks = max(1, BLOCK_SIZE // (shape.frames * (shape.size + FRAME_HEADER_BYTES)))
    per_block = chunks * shape.frames
    log = LogWriter(directory, shape)
    blocks = -(-size // (per_block * shape.size))
    for _ in range(blocks):
        log.block(chunks)
    log.close()
    return Set(directory, blocks * per_block, blocks * per_block * shape.size)


def feed(directory: Path, rate: float, seconds: float) -> None:
    """Append frames of 100 B; a line for each block: when it was in the log (wall clock, ns), and the number of frames with it."""
    count = max(1, round(rate * FLUSH_S))
    log = LogWriter(directory, Shape("fed", 100, 1), f"b{os.getpid()}")
    begun = time.monotonic()
    for number in range(round(seconds / FLUSH_S)):
        time.sleep(max(0.0, begun + number * FLUSH_S - time.monotonic()))
        log.block(count)
        print(time.time_ns(), (number + 1) * count, flush=True)
    log.close()


if __name__ == "__main__":
    feed(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
