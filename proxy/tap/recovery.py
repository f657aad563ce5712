"""What control does for a processor that died: seal its files, and say in the log what never reached it.

A processor that dies takes with it the frames it had matched and not yet flushed. The shared cells still hold how many were matched; the
log itself says how many it has, and how many its gaps already miss. The difference is written as a gap with the reason
``processor_died`` into a stream of its own, ``<node>.recovery.<boot-id>``, because nobody ever appends to another's stream. It is an upper
bound: cells may be a millisecond late the other way, and a frame may have been matched without having been sent on.
"""

import dataclasses
import os
from collections.abc import Mapping, Set
from typing import Final

from proxy.tap.block import BlockBuilder
from proxy.tap.gap import NO_CONNECTION, Gap
from proxy.tap.log_reader import DamagedBlockError, LogError, Segment, read_raw, segments, stream_totals, streams, walk_segment
from proxy.tap.record import (
    CAPTURE_FULL,
    DIRECTIONS,
    FRAMING_INT32,
    OPEN_SUFFIX,
    PROTOCOL_FRAMED,
    REASON_PROCESSOR_DIED,
    SEALED_SUFFIX,
    SEGMENT_HEADER_BYTES,
    stream_name,
)
from proxy.tap.segment import SegmentFiles, SegmentLog

RECOVERY_SLOT: Final = "recovery"


def missing_frames(directory: str, stream: str, matched: Mapping[str, int]) -> dict[str, int]:
    """How many matched frames a dead processor's stream does not account for.

    Args:
        directory: of the tap.
        stream: the dead processor's.
        matched: frames matched in that processor's life, by direction (``request``, ``response``).

    Returns:
        By direction, at least 0.

    Raises:
        LogError: the stream cannot be read; the caller may then assume all of ``matched``.
    """
    totals = stream_totals(directory, stream)
    return {direction: max(0, count - totals.stored[direction] - totals.missing[direction]) for direction, count in matched.items()}


def record_death(
    directory: str,
    node: str,
    boot_id: str,
    missing: Mapping[str, int],
    from_ns: int,
    now_ns: int,
    files: SegmentFiles | None = None,
) -> str | None:
    """Write the gap record of a dead processor.

    Args:
        directory: of the tap.
        node: this proxy's name.
        boot_id: the dead processor's; used once, but for another try after an error.
        missing: frames by direction.
        from_ns: wall clock; the earliest time at which a missing frame can have passed.
        now_ns: wall clock.
        files: the system calls under the record.

    Returns:
        The recovery stream's name; None when nothing is missing, and nothing was written.

    Raises:
        OSError: the disk did not take all of it; to be called again.
    """
    builder = BlockBuilder()
    for direction, frames in missing.items():
        if frames > 0:
            code = DIRECTIONS.index(direction)
            gap = Gap(
                NO_CONNECTION,
                code,
                REASON_PROCESSOR_DIED,
                FRAMING_INT32,
                PROTOCOL_FRAMED,
                CAPTURE_FULL,
                None,
                None,
                None,
                None,
                -1,
                from_ns,
            )
            gap.add(frames, 0, now_ns)
            builder.add_gap(gap)
    if builder.chunk_count == 0:
        return None
    stream = stream_name(node, RECOVERY_SLOT, boot_id)
    if _is_recorded(directory, stream, missing):
        return stream
    for left in segments(directory, stream):
        os.unlink(left.path)
    facts: dict[str, str | int] = {"node": node, "slot": RECOVERY_SLOT, "stream": stream, "boot_id": boot_id}
    log = SegmentLog(os.path.join(directory, stream), facts, 1 << 20, 1 << 62, files)
    log.append(builder.finish(), 0)
    log.seal()
    return stream


def _is_recorded(directory: str, stream: str, missing: Mapping[str, int]) -> bool:
    """Whether an earlier try wrote the record, and could only not rename its file."""
    try:
        return stream_totals(directory, stream).missing == {**dict.fromkeys(DIRECTIONS, 0), **missing}
    except LogError:
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """A segment that its writer left open.

    Attributes:
        stream, base: which one.
        cut_bytes: of its tail, that were no whole, sound blocks.
        error: why it could not be sealed, in words; empty when it is.
    """

    stream: str
    base: int
    cut_bytes: int
    error: str = ""


def seal_dead(directory: str, live: Set[str]) -> list[Sealed]:
    """Seal the open segments of streams that nobody writes any more, so that retention may take them; a torn tail is cut off. One that cannot be
    sealed is told as such, and keeps none of the others from it.

    Args:
        directory: of the tap; the caller holds its lock.
        live: streams that a running processor writes.
    """
    dead = [stream for stream in streams(directory) if stream not in live]
    return [_seal(segment) for stream in dead for segment in segments(directory, stream) if not segment.sealed]


def _seal(segment: Segment) -> Sealed:
    try:
        return Sealed(segment.stream, segment.base, segment.limit - _cut_and_rename(segment))
    except (OSError, LogError) as error:
        return Sealed(segment.stream, segment.base, 0, str(error))


def _cut_and_rename(segment: Segment) -> int:
    """Give a segment its final name, and return the offset of its end; one without a sound block is removed."""
    end = segment.base
    for ref in walk_segment(segment, segment.base):
        try:
            read_raw(ref)
        except DamagedBlockError:
            break
        end = ref.header.end
    if end == segment.base:
        os.unlink(segment.path)
    else:
        os.truncate(segment.path, end - segment.base + SEGMENT_HEADER_BYTES)
        os.rename(segment.path, segment.path.removesuffix(OPEN_SUFFIX) + SEALED_SUFFIX)
    return end
