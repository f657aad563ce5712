"""The demo's frames, and the upstream that sends them back.

A frame is a big-endian int32 size and a body::

    0        4            12       16
    +--------+------------+--------+---------...
    | number |  sequence  | crc32  | payload
    +--------+------------+--------+---------...

number: of the connection, int32. sequence: of the frame on its connection, int64, from 0. crc32: of the payload, uint32. All big endian.
The upstream answers every frame with the same body, so one check serves both directions. A payload is chosen from a table by number and sequence,
so a receiver knows what must come without a copy of what was sent.
"""

import json
import random
import struct
import zlib
from collections import Counter
from typing import Final

from framegate.proxy.handler import Context

__all__ = ["BODY_HEADER_SIZE", "FRAME_HEADER", "SIZE_HEADER_SIZE", "Latency", "Payloads", "Upstream", "frame"]

FRAME_HEADER: Final = struct.Struct(">iiqI")
SIZE_HEADER_SIZE: Final = 4
BODY_HEADER_SIZE: Final = FRAME_HEADER.size - SIZE_HEADER_SIZE
# Body sizes and how many of 1024 frames have them: mostly small, some large; 290 bytes on average.
_MIX: Final = ((100, 860), (512, 140), (4096, 23), (65536, 1))
_TABLE_SIZE: Final = sum(count for _, count in _MIX)
_ALPHABET: Final = b"0123456789abcdef"


def frame(number: int, sequence: int, payload: bytes) -> bytes:
    """A whole frame with its size header."""
    return FRAME_HEADER.pack(BODY_HEADER_SIZE + len(payload), number, sequence, zlib.crc32(payload)) + payload


class Payloads:
    """The table of payloads; it is the same in every process with the same seed."""

    def __init__(self, seed: int = 20_000) -> None:
        source = random.Random(seed)
        sizes = [size - BODY_HEADER_SIZE for size, count in _MIX for _ in range(count)]
        source.shuffle(sizes)
        self._table = [bytes(source.choices(_ALPHABET, k=size)) for size in sizes]
        self._checksums = [zlib.crc32(payload) for payload in self._table]

    def of(self, number: int, sequence: int) -> bytes:
        """The payload of a frame."""
        return self._table[(number * 37 + sequence) % _TABLE_SIZE]

    def frames(self, number: int, first: int, count: int) -> bytes:
        """``count`` frames from the sequence number ``first`` on."""
        pieces: list[bytes] = []
        pack, table, checksums = FRAME_HEADER.pack, self._table, self._checksums
        for sequence in range(first, first + count):
            index = (number * 37 + sequence) % _TABLE_SIZE
            payload = table[index]
            pieces += pack(BODY_HEADER_SIZE + len(payload), number, sequence, checksums[index]), payload
        return b"".join(pieces)


class Latency:
    """A histogram of times in microseconds, to two significant digits."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, elapsed_ns: int, count: int) -> None:
        self._counts[int(float(f"{elapsed_ns / 1000:.1e}"))] += count

    def figures(self) -> dict[str, int]:
        """The number of ``frames``, ``p50_us`` and ``p99_us``; 0 when there are none."""
        return {"frames": self._counts.total(), "p50_us": self._quantile_us(0.5), "p99_us": self._quantile_us(0.99)}

    def _quantile_us(self, share: float) -> int:
        seen = 0
        for value_us, count in sorted(self._counts.items()):
            seen += count
            if seen >= share * self._counts.total():
                return value_us
        return 0


class Upstream:
    """Answers every frame with itself; at its end it prints what it counted, in one JSON line."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.body_bytes = 0

    def handle(self, frame: bytes, context: Context) -> bytes:
        self.frame_count += 1
        self.body_bytes += len(frame)
        return frame

    def stop(self) -> None:
        """Print the counts; ``bytes`` are those of frames with their size headers."""
        print(json.dumps({"frames": self.frame_count, "bytes": self.body_bytes + 4 * self.frame_count}), flush=True)
