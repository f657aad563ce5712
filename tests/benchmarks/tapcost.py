"""What recording costs at least: one process that writes the same bytes, with the same CRC, in blocks of 256 KiB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

__all__ = ["floor_ns_per_byte"]

BLOCK_SIZE = 256 * 1024
KEEP_BYTES = 1 << 30


def floor_ns_per_byte(core: int, folder: Path, seconds: float) -> float:
    """Processor nanoseconds for each byte recorded, measured on the candidates' core."""
    command = ["taskset", "-c", str(core), sys.executable, str(Path(__file__).resolve()), str(folder), str(seconds)]
    row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return float(row["cpu_ns"]) / float(row["bytes"])


def main(folder: Path, seconds: float) -> None:
    """Write until the time is over; starts the file again when it is large, as a budget would."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "floor.bin"
    blocks = [os.urandom(BLOCK_SIZE) for _ in range(16)]
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    total, deadline = 0, time.monotonic() + seconds
    before = time.process_time_ns()
    while time.monotonic() < deadline:
        block = blocks[total // BLOCK_SIZE % len(blocks)]
        crc = zlib.crc32(block).to_bytes(4, "little")
        total += os.writev(file, [crc, block])
        if total % KEEP_BYTES < BLOCK_SIZE:
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
    cpu_ns = time.process_time_ns() - before
    os.close(file)
    path.unlink()
    print(json.dumps({"bytes": total, "cpu_ns": cpu_ns}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
