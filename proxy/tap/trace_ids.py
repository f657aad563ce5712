"""The ids of a segment's span, made from the segment's name.

Control makes a span of each segment of the tap's log; the Spark job's span of a batch links to the segments that it read. Both compute the ids with
``segment_trace``: the first 16 and the next 8 bytes of the SHA-256 of::

    framegate.tap.segment NUL stream NUL base

in UTF-8; the base (the logical offset of the segment's first block) is in decimal digits without leading zeros. A stream's name has the boot id of
the processor's run, so no two segments have the same ids. They are evenly distributed, so a sampler by trace id decides equally on both sides.
"""

import hashlib
from typing import Final, NamedTuple

SEGMENT_SPAN: Final = "framegate.tap.segment"  # the span's name; samplers may use it
STREAM: Final = "framegate.tap.stream"
BASE_OFFSET: Final = "framegate.tap.base_offset"  # Attributes of the span, and of a link to it


class SegmentTrace(NamedTuple):
    """Attributes: ``trace_id`` (128 bits) and ``span_id`` (64 bits), neither of them 0."""

    trace_id: int
    span_id: int


def segment_trace(stream: str, base: int) -> SegmentTrace:
    """The ids of the span of one segment. ``stream``: the name of its stream: the folder's. ``base``: the logical offset of its first block, 0 or
    more.
    """
    digest = hashlib.sha256(b"\0".join((SEGMENT_SPAN.encode(), stream.encode(), b"%d" % base))).digest()
    # 0 is not a valid id in OpenTelemetry.
    return SegmentTrace(int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:24], "big") or 1)
