"""Files of the tap's log, changed as disks, people and older versions change them."""

import collections
import json
import os
import struct
import zlib
from pathlib import Path

from framegate.proxy.tap.headers import SEGMENT_HEADER, SEGMENT_MAGIC
from framegate.proxy.tap.record import DIRECTIONS, SEGMENT_HEADER_BYTES
from tests.fakes.tap_read import read_frames, read_gaps


def stored(root: Path, stream: str | None = None) -> dict[str, int]:
    """Frames in the log by direction, of a stream or of all."""
    found = collections.Counter(frame.direction for frame in read_frames(str(root), stream))
    return {direction: found[direction] for direction in DIRECTIONS}


def missing(root: Path, stream: str | None = None) -> dict[str, int]:
    """Frames that gaps miss, likewise."""
    gaps = list(read_gaps(str(root), stream))
    return {direction: sum(gap.frames for gap in gaps if gap.direction == direction) for direction in DIRECTIONS}


def segment_files(root: Path, stream: str = "*") -> list[Path]:
    return sorted(path for path in root.glob(f"{stream}/*") if path.suffix in (".seg", ".open"))


def flip(path: Path, position: int, bits: int = 0x40) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ bits]))


def chop(path: Path, size: int) -> None:
    os.truncate(path, size)


def as_version(path: Path, version: int) -> None:
    """Have a segment say that it is of an older version: without a seal. (Its blocks are of ours; those of version 2 have fewer rows.)"""
    with path.open("r+b") as file:
        head = file.read(SEGMENT_HEADER_BYTES)
        (length,) = struct.unpack_from("<I", head, 12)
        facts = json.loads(head[SEGMENT_HEADER.size : SEGMENT_HEADER.size + length])
        body = json.dumps({**facts, "version": version}, sort_keys=True).encode()
        file.seek(0)
        file.write((SEGMENT_HEADER.pack(SEGMENT_MAGIC, version, len(body), zlib.crc32(body)) + body).ljust(SEGMENT_HEADER_BYTES, b"\0"))
