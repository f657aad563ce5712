"""Seals the files that an ended processor left open, so that readers know their end and retention may delete them."""

import contextlib
import dataclasses
import os
from collections.abc import Set

from framegate.proxy.tap.headers import Seal, decode_seal, decode_segment_header, encode_seal
from framegate.proxy.tap.ledger import is_recovery
from framegate.proxy.tap.log_reader import DamagedBlockError, LogError, Segment, read_raw, segments, streams, walk_segment
from framegate.proxy.tap.record import OPEN_SUFFIX, SEAL_AT, SEAL_CUT, SEAL_FINAL, SEALED_SINCE, SEALED_SUFFIX, SEGMENT_HEADER_BYTES, FormatError


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """A segment that its writer left open."""

    # stream, base: which segment
    stream: str
    base: int
    cut_bytes: int  # bytes cut off its end that were not whole, valid blocks
    error: str = ""  # why it could not be sealed, in words; empty when it is


def seal_dead(directory: str, live: Set[str], now_ns: int) -> list[Sealed]:
    """Seal the open segments of streams without a writer; a torn tail is cut off. An error is in the result; the others are sealed all the same."""
    return [sealed for stream in streams(directory) if stream not in live for sealed in seal_stream(directory, stream, now_ns)]


def seal_stream(directory: str, stream: str, now_ns: int) -> list[Sealed]:
    """``seal_dead`` for one stream."""
    return [_seal(segment, now_ns) for segment in segments(directory, stream) if not segment.sealed]


def ends_finally(directory: str, stream: str) -> bool:
    """Whether the stream's last seal says that its processor ended in order, and that all frames are accounted for."""
    listed = segments(directory, stream)
    if not listed or not listed[-1].sealed:
        return False
    try:
        seal = decode_seal(_head(listed[-1].path))
    except (OSError, FormatError):
        return False
    return seal is not None and bool(seal.flags & SEAL_FINAL)


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(SEGMENT_HEADER_BYTES)


def _seal(segment: Segment, now_ns: int) -> Sealed:
    try:
        return Sealed(segment.stream, segment.base, segment.limit - _cut_and_rename(segment, now_ns))
    except (OSError, LogError, FormatError) as error:
        return Sealed(segment.stream, segment.base, 0, str(error))


def _cut_and_rename(segment: Segment, now_ns: int) -> int:
    """Seal and rename a segment, and return the offset of its end; a segment without a valid block is removed."""
    head = _head(segment.path)
    with contextlib.suppress(FormatError):
        if decode_seal(head) is not None:  # only the rename is missing
            os.rename(segment.path, _final_name(segment))
            return segment.limit
    seal = _seal_of(segment, now_ns)
    if seal.end == segment.base:
        os.unlink(segment.path)
        return seal.end
    fd = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, seal.end - segment.base + SEGMENT_HEADER_BYTES)
        if int(decode_segment_header(head)["version"]) >= SEALED_SINCE:
            os.pwrite(fd, encode_seal(seal), SEAL_AT)
    finally:
        os.close(fd)
    os.rename(segment.path, _final_name(segment))
    return seal.end


def _final_name(segment: Segment) -> str:
    return segment.path.removesuffix(OPEN_SUFFIX) + SEALED_SUFFIX


def _seal_of(segment: Segment, now_ns: int) -> Seal:
    """The seal for the valid blocks of a segment. A settlement is one block, so it is complete when that block is valid."""
    end, blocks, requests, responses, lost = segment.base, 0, 0, 0, 0
    for ref in walk_segment(segment, segment.base) if segment.size > SEGMENT_HEADER_BYTES else ():
        try:
            read_raw(ref)
        except DamagedBlockError:
            break
        header = ref.header
        end, blocks = header.end, blocks + 1
        requests, responses, lost = requests + header.request_frames, responses + header.response_frames, lost + header.lost_frames
    flags = (SEAL_CUT if end < segment.limit else 0) | (SEAL_FINAL if is_recovery(segment.stream) else 0)
    return Seal(end, blocks, requests, responses, lost, now_ns, flags)
