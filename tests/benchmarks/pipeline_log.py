"""Logs for the pipeline's bench: sets of frames of one size, written as a processor writes them, and frames that keep coming.

Run as a program it is the feeder: it appends frames at a steady rate, a block every 20 ms, and says on standard output what it appended when.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from framegate.proxy.tap import headers, record

__all__ = ["SHAPES", "LogWriter", "Set", "Shape", "write_set"]

SEGMENT_SIZE = 128 << 20
BLOCK_SIZE = 256 << 10
FLUSH_S = 0.02
CONNECTIONS = 50
BODIES = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Frames of one size.

    Attributes:
        name: on the command line.
        size: bytes of a body.
        frames: in a chunk, which is what one read of the proxy gave.
        rows_per_batch: of Parquet's vectorized reader, so that a batch of the largest frames fits a heap.
    """

    name: str
    size: int
    frames: int
    rows_per_batch: int = 4096


SHAPES = (Shape("100b", 100, 64), Shape("1k", 1000, 16), Shape("64k", 65536, 1, 64))


@dataclass(frozen=True, slots=True)
class Set:
    """A log that is complete.

    Attributes:
        directory: the tap's.
        frames: in it.
        size: bytes of its bodies.
    """

    directory: Path
    frames: int
    size: int


class LogWriter:
    """One stream, block after block; sealed segments as a processor seals them."""

    def __init__(self, directory: Path, boot_id: str = "b0") -> None:
        self.stream = record.stream_name("bench", "0", boot_id)
        self._facts: dict[str, str | int] = {"node": "bench", "slot": "0", "stream": self.stream, "boot_id": boot_id}
        self._folder = directory / self.stream
        self._folder.mkdir(record.FOLDER_MODE, parents=True)
        self._offset = self._base = self._blocks = self._sequence = 0
        self._frames = [0, 0]
        self._fd = -1

    def append(self, body: Body, now_ns: int) -> None:
        """Write one block, captured now."""
        if self._fd >= 0 and self._offset - self._base + body.length > SEGMENT_SIZE:
            self.seal()
        if self._fd < 0:
            self._open()
        parts = body.at(now_ns, self._offset, self._sequence)
        os.pwritev(self._fd, parts, record.SEGMENT_HEADER_BYTES + self._offset - self._base)
        self._offset += body.length
        self._sequence += 1
        self._blocks += 1
        for direction in (0, 1):
            self._frames[direction] += body.frames[direction]

    def _open(self) -> None:
        self._base, self._blocks, self._frames = self._offset, 0, [0, 0]
        self._fd = os.open(self._path(sealed=False), os.O_CREAT | os.O_WRONLY | os.O_EXCL, record.FILE_MODE)
        os.pwrite(self._fd, headers.encode_segment_header({**self._facts, "created_ns": time.time_ns(), "base": self._base}), 0)

    def seal(self, *, final: bool = False) -> None:
        """End the segment."""
        flags = record.SEAL_FINAL if final else 0
        seal = headers.Seal(self._offset, self._blocks, self._frames[0], self._frames[1], 0, time.time_ns(), flags)
        os.pwrite(self._fd, headers.encode_seal(seal), record.SEAL_AT)
        os.close(self._fd)
        self._fd = -1
        os.rename(self._path(sealed=False), self._path(sealed=True))

    def _path(self, *, sealed: bool) -> Path:
        return self._folder / record.segment_file(self._base, sealed=sealed)


class Body:
    """A block without its place: chunks of random frames, requests and answers in turns.

    Attributes:
        length: of the block, its header included.
        frames: in it, by direction.
    """

    def __init__(self, shape: Shape, chunks: int, payload: bytes) -> None:
        """``payload``: at least as long as the bodies of the block together."""
        frame = shape.size + record.FRAME_HEADER_BYTES
        data, starts = bytearray(), []
        self._rows: list[record.ChunkRow] = []
        self.frames = [0, 0]
        for number in range(chunks):
            offset = len(data)
            for index in range(shape.frames):
                begin = (number * shape.frames + index) * shape.size
                data += struct.pack(">i", shape.size) + payload[begin : begin + shape.size]
            starts += [frame * index for index in range(shape.frames)]
            self._rows.append(_row(number, offset, shape.frames * frame, shape.frames))
            self.frames[number % 2] += shape.frames
        strings = json.dumps(["main", "CN=bench", *(f"127.0.0.1:{40000 + number}" for number in range(CONNECTIONS)), "all"]).encode()
        self._starts_count = len(starts)
        self._strings_len = len(strings)
        self._strings = strings + bytes(record.padding(len(strings), record.SECTION_ALIGNMENT))
        packed = struct.pack(f"<{len(starts)}i", *starts)
        self._starts = packed + bytes(record.padding(len(packed), record.SECTION_ALIGNMENT))
        self._chunks_at = record.BLOCK_HEADER_BYTES + len(self._strings)
        self._starts_at = self._chunks_at + chunks * record.CHUNK_ROW_BYTES
        self._data_at = self._starts_at + len(self._starts)
        end = self._data_at + len(data)
        self.length = end + record.padding(end, record.BLOCK_ALIGNMENT)
        self._data_len = len(data)
        self._data = bytes(data) + bytes(self.length - end)

    def at(self, now_ns: int, offset: int, sequence: int) -> list[bytes]:
        """The block's bytes, captured now, at its place."""
        rows = b"".join(record.CHUNK_ROW.pack(*row._replace(capture_ns=now_ns)) for row in self._rows)
        parts = [self._strings, rows, self._starts, self._data]
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        header = headers.BlockHeader(
            header_len=record.BLOCK_HEADER_BYTES,
            flags=0,
            chunk_count=len(self._rows),
            block_len=self.length,
            offset=offset,
            sequence=sequence,
            first_ns=now_ns,
            last_ns=now_ns,
            request_frames=self.frames[0],
            response_frames=self.frames[1],
            lost_frames=0,
            strings_len=self._strings_len,
            chunks_at=self._chunks_at,
            starts_at=self._starts_at,
            sizes_at=self._data_at,
            answers_at=self._data_at,
            data_at=self._data_at,
            data_len=self._data_len,
            starts_count=self._starts_count,
            sizes_count=0,
            answers_count=0,
            body_crc=crc,
        )
        return [headers.encode_block_header(header), *parts]


def _row(number: int, offset: int, length: int, frames: int) -> record.ChunkRow:
    connection = number % CONNECTIONS
    return record.ChunkRow(
        capture_ns=0,
        connection=connection,
        first_frame=0,
        original_bytes=length,
        lost_frames=0,
        lost_bytes=0,
        lost_from_ns=0,
        data_offset=offset,
        data_length=length,
        frame_count=frames,
        starts_index=number * frames,
        sizes_index=-1,
        answers_index=-1,
        listener=0,
        principal=1,
        peer=2 + connection,
        rule=2 + CONNECTIONS,
        direction=number % 2,
        kind=record.KIND_FRAMES,
        capture=0,
        reason=0,
        framing=0,
        protocol=0,
        flags=0,
    )


def write_set(directory: Path, shape: Shape, size: int) -> Set:
    """A log with frames of a shape.

    Args:
        directory: of the log; must not exist.
        shape: of its frames.
        size: bytes of bodies at least.
    """
    chunks = max(1, BLOCK_SIZE // (shape.frames * (shape.size + record.FRAME_HEADER_BYTES)))
    per_block = chunks * shape.frames
    bodies = [Body(shape, chunks, os.urandom(per_block * shape.size)) for _ in range(BODIES)]
    log = LogWriter(directory)
    blocks = -(-size // (per_block * shape.size))
    for number in range(blocks):
        log.append(bodies[number % BODIES], time.time_ns())
    log.seal(final=True)
    return Set(directory, blocks * per_block, blocks * per_block * shape.size)


def feed(directory: Path, rate: float, seconds: float) -> None:
    """Append frames of 100 B; a line for each block: when it was in the log (wall clock, ns) and how many frames were, with it."""
    count = max(1, round(rate * FLUSH_S))
    body = Body(Shape("fed", 100, 1), count, os.urandom(count * 100))
    log = LogWriter(directory, f"b{os.getpid()}")
    begun = time.monotonic()
    for number in range(round(seconds / FLUSH_S)):
        time.sleep(max(0.0, begun + number * FLUSH_S - time.monotonic()))
        log.append(body, time.time_ns())
        print(time.time_ns(), (number + 1) * count, flush=True)
    log.seal(final=True)


def main(arguments: Sequence[str]) -> int:
    """``pipeline_log.py DIRECTORY RATE SECONDS``."""
    feed(Path(arguments[0]), float(arguments[1]), float(arguments[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
