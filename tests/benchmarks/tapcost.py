"""The least cost of recording: one process that writes the same bytes, with the same CRC, in blocks of 256 KiB.

Floor and tap keep the same budget in segments of the same size in the same place, and are measured when it is full, so both write memory again that
the log gave back. The floor deletes a segment when it begins one; framegate deletes once a second. On a virtual machine whose host takes back free
memory, pages that were free for so long cost more to write.
"""

import json
import os
import subprocess
import sys
import time
import zlib
from collections import deque
from pathlib import Path

BUDGET = 512 << 20
"""Bytes of a tap's log that are kept, by framegate and by the floor."""
SEGMENT_SIZE = 64 << 20
"""Bytes of one of its files."""
BLOCK_SIZE = 256 * 1024
FILL_BYTES = BUDGET + (BUDGET >> 2)
"""After so many bytes a log has begun to delete."""


def floor_ns_per_byte(core: int, folder: Path, seconds: float) -> float:
    """Processor nanoseconds for each byte recorded, measured on the candidates' core."""
    command = ["taskset", "-c", str(core), sys.executable, str(Path(__file__).resolve()), str(folder), str(seconds)]
    row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return float(row["cpu_ns"]) / float(row["bytes"])


class Log:
    """Segments in a folder; beyond the budget the oldest is deleted for each new one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._names: deque[Path] = deque()
        self._file = -1
        self._room = 0

    def write(self, block: bytes) -> int:
        """Append a block and its CRC; returns the bytes written."""
        if self._room < BLOCK_SIZE:
            self._roll()
        crc = zlib.crc32(block).to_bytes(4, "little")
        self._room -= BLOCK_SIZE
        return os.writev(self._file, [crc, block])

    def _roll(self) -> None:
        self._close()
        if len(self._names) * SEGMENT_SIZE >= BUDGET:
            self._names.popleft().unlink()
        self._names.append(self._folder / f"floor-{time.monotonic_ns()}.bin")
        self._file = os.open(self._names[-1], os.O_CREAT | os.O_WRONLY | os.O_EXCL)
        self._room = SEGMENT_SIZE

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def remove(self) -> None:
        """Delete all of it."""
        self._close()
        for name in self._names:
            name.unlink()


def main(folder: Path, seconds: float) -> None:
    """Fill the budget, then write until the time is over."""
    blocks = [os.urandom(BLOCK_SIZE) for _ in range(16)]
    log = Log(folder)
    for number in range(BUDGET // BLOCK_SIZE):
        log.write(blocks[number % len(blocks)])
    total, number, deadline = 0, 0, time.monotonic() + seconds
    before = time.process_time_ns()
    while time.monotonic() < deadline:
        total += log.write(blocks[number % len(blocks)])
        number += 1
    cpu_ns = time.process_time_ns() - before
    log.remove()
    print(json.dumps({"bytes": total, "cpu_ns": cpu_ns}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
