"""Counters of the hot path: native attributes that one thread adds to and that the processor copies into the shared cells."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.cells import FORWARD_BOUNDS
from framegate.proxy.network.framing import SIZE_BUCKETS
from framegate.proxy.network.histogram import Histogram
from framegate.proxy.network.mute import CAUSE_COUNT

__all__ = ["SideStats"]


class SideStats:
    """What passed one side (clients or upstreams) of one listener. Only ever counts up, but for the gauges.

    Args:
        forwards: where to count times of what is written to that side; None: here.

    Attributes:
        frames_received, bytes_received, reads: whole frames read from that side; its bytes, headers and parts of frames counted; reads that
            gave any.
        frames_sent, bytes_sent, writes: the same for what was written to it; a write that the socket took nothing of is none.
        frame_sizes: count of received frames by body size, upper bounds ``framing.SIZE_BOUNDS`` (inclusive), the last bucket above all.
        refused_too_large, refused_negative, refused_incomplete: frames that were not passed on.
        cut_short: frames that were cut through and never became whole; each counts on the side that began it and on the side that it was passed to.
        lost_bytes: bytes of frames that were begun and never became whole.
        mutes, mute_ns: by position of the cause in ``mute.CAUSES``; the time is added when the cause goes away.
        muted: gauge, channels that hold the cause now.
        forwards: how long some of the runs that were written took (``WriteHalf``).
        pending: gauge, channels with a pending send, or for whose room somebody waits: whose peer does not take what is to be sent to it.
    """

    def __init__(self, forwards: Histogram | None = None) -> None:
        self.forwards: Final = forwards or Histogram(FORWARD_BOUNDS)
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.reads: i64 = 0
        self.frames_sent: i64 = 0
        self.bytes_sent: i64 = 0
        self.writes: i64 = 0
        self.refused_too_large: i64 = 0
        self.refused_negative: i64 = 0
        self.refused_incomplete: i64 = 0
        self.cut_short: i64 = 0
        self.lost_bytes: i64 = 0
        self.pending: i64 = 0
        self.frame_sizes: vec[i64] = vec[i64]([0] * SIZE_BUCKETS)
        self.mutes: vec[i64] = vec[i64]([0] * CAUSE_COUNT)
        self.mute_ns: vec[i64] = vec[i64]([0] * CAUSE_COUNT)
        self.muted: vec[i64] = vec[i64]([0] * CAUSE_COUNT)
