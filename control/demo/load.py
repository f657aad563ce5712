"""What the demo sends: frames that tell where they belong and whether they arrived whole.

A frame is a big-endian int32 size and a body::

    0        4            12       16
    +--------+------------+--------+---------...
    | number |  sequence  | crc32  | payload
    +--------+------------+--------+---------...

number: the connection's, int32. sequence: of the frame on its connection, int64, from 0. crc32: of the payload, uint32. All big endian.
The upstream answers every frame with the same body, so one check serves both directions. Payloads come from one table, by number and
sequence, so a receiver knows what must come without keeping what was sent.
"""

import random
import struct
import zlib
from typing import Final

__all__ = ["BODY_HEADER_SIZE", "FRAME_HEADER", "SIZE_HEADER_SIZE", "Latency", "Payloads", "frame"]

FRAME_HEADER: Final = struct.Struct(">iiqI")
SIZE_HEADER_SIZE: Final = 4
BODY_HEADER_SIZE: Final = FRAME_HEADER.size - SIZE_HEADER_SIZE
# Body sizes and how many of 1024 frames have them: mostly small, some large; 290 bytes on average.
_MIX: Final = ((100, 860), (512, 140), (4096, 23), (65536, 1))
_TABLE_SIZE: Final = sum(count for _, count in _MIX)
_ALPHABET: Final = b"0123456789abcdef"


def frame(number: int, sequence: int, payload: bytes) -> bytes:
    """A whole frame, size header included."""
    return FRAME_HEADER.pack(BODY_HEADER_SIZE + len(payload), number, sequence, zlib.crc32(payload)) + payload


class Payloads:
    """The table of payloads; the same in every process with the same seed."""

    def __init__(self, seed: int = 20_000) -> None:
        source = random.Random(seed)
        sizes = [size - BODY_HEADER_SIZE for size, count in _MIX for _ in range(count)]
        source.shuffle(sizes)
        self._table = [bytes(source.choices(_ALPHABET, k=size)) for size in sizes]
        self._checksums = [zlib.crc32(payload) for payload in self._table]

    def of(self, number: int, sequence: int) -> bytes:
        """The payload of a frame."""
        return self._table[(number * 37 + sequence) % _TABLE_SIZE]

    def frames(self, number: int, first: int, count: int) -> list[bytes]:
        """The pieces of `count` frames from sequence `first` on: header, payload, header, payload and so on."""
        pieces: list[bytes] = []
        pack, table, checksums = FRAME_HEADER.pack, self._table, self._checksums
        for sequence in range(first, first + count):
            index = (number * 37 + sequence) % _TABLE_SIZE
            payload = table[index]
            pieces.append(pack(BODY_HEADER_SIZE + len(payload), number, sequence, checksums[index]))
            pieces.append(payload)
        return pieces


class Latency:
    """A histogram of times, exact to 1/16 of a value: sixteen buckets for each power of two of microseconds."""

    _STEPS: Final = 16

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, elapsed_ns: int, count: int) -> None:
        bucket = self._bucket(elapsed_ns // 1000)
        self.counts[bucket] = self.counts.get(bucket, 0) + count

    def total(self) -> int:
        return sum(self.counts.values())

    def quantile_us(self, share: float) -> int:
        """The upper end of the bucket that holds this share of the values, in microseconds; 0 when there are none."""
        wanted = share * self.total()
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return self._upper_us(bucket)
        return 0

    def _bucket(self, value_us: int) -> int:
        shift = max(0, value_us.bit_length() - 5)
        return shift * self._STEPS + (value_us >> shift)

    def _upper_us(self, bucket: int) -> int:
        shift = max(0, bucket // self._STEPS - 1)
        return ((bucket - shift * self._STEPS + 1) << shift) - 1
