"""Counters and histograms of the hot path. One thread writes them; the processor copies them into the shared cells."""

from typing import TYPE_CHECKING, Final

from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.cells import FIRST_POWERS, FORWARD_BOUNDS, MUTE_CAUSES
from framegate.proxy.network.framing import SIZE_BUCKETS

if TYPE_CHECKING:
    from framegate.proxy.network.fast_path import Side

QUARTERS: Final = 4


class Histogram:
    """Durations in ns, counted in buckets. ``bounds_s``: ascending upper bounds in seconds, inclusive; one more bucket lies above them. ``offset``:
    index of its first cell in its block of cells; the cells are the buckets, then the sum.
    """

    def __init__(self, bounds_s: tuple[float, ...], offset: i64 = 0) -> None:
        zero: i64 = 0
        buckets = vec[i64]([0])
        for _ in bounds_s:
            buckets = append(buckets, zero)
        self.buckets: vec[i64] = buckets  # the count of each bucket, not cumulative
        # count, sum: the number of all durations, and their sum in ns
        self.count: i64 = 0
        self.sum: i64 = 0
        self.offset: Final[i64] = offset
        self._bounds: vec[i64] = vec[i64]([round(bound * 1e9) for bound in bounds_s])
        self._first_octave: Final[i64] = round(bounds_s[0] * 1e9).bit_length() - 1 if bounds_s in FIRST_POWERS else 0

    def observe(self, duration_ns: i64, times: i64 = 1) -> None:
        bucket: i64 = 0
        bounds = self._bounds
        if self._first_octave != 0:
            bucket = self._fine_bucket(duration_ns)
        else:
            while bucket < len(bounds) and duration_ns > bounds[bucket]:
                bucket += 1
        self.buckets[bucket] += times
        self.count += times
        self.sum += duration_ns * times

    def _fine_bucket(self, duration_ns: i64) -> i64:
        """The bucket of four to each power of two, by the first bit and the four bounds of its octave."""
        bounds = self._bounds
        if duration_ns <= bounds[0]:
            return 0
        octave: i64 = 0
        rest = duration_ns
        step: i64 = 32
        while step != 0:
            if rest >> step != 0:
                rest >>= step
                octave += step
            step >>= 1
        bucket = QUARTERS * (octave - self._first_octave)
        end = min(bucket + QUARTERS, i64(len(bounds)))
        while bucket < end and duration_ns > bounds[bucket]:
            bucket += 1
        return min(bucket, end)


class SideStats:
    """The traffic of one side (clients or upstreams) of one listener. Counters only increase; ``muted`` and ``pending`` are gauges. ``forwards``: the
    histogram for runs written to that side; None: a new one.
    """

    def __init__(self, forwards: Histogram | None = None) -> None:
        self.forwards: Final = forwards or Histogram(FORWARD_BOUNDS)  # the times that runs took (``WriteHalf``)
        self.runs: i64 = 0  # those of this poll that are not in ``forwards`` yet; ``next``: the next side with such runs (``Selector``)
        self.next: SideStats | None = None
        self.side: Side | None = None  # counts what the fast path moves, until ``Selector.settle``; None: it has moved nothing
        # frames_received, bytes_received, reads: whole frames read from that side; bytes, with headers and parts of frames; reads that returned bytes
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.reads: i64 = 0
        # frames_sent, bytes_sent, writes: the same for writes; a write of which the socket took nothing is not counted
        self.frames_sent: i64 = 0
        self.bytes_sent: i64 = 0
        self.writes: i64 = 0
        # refused_too_large, refused_negative, refused_incomplete: frames that were not passed on
        self.refused_too_large: i64 = 0
        self.refused_negative: i64 = 0
        self.refused_incomplete: i64 = 0
        # frames that were cut through and not completed, counted on the side that sent them and on the side that they were passed to
        self.cut_short: i64 = 0
        self.lost_bytes: i64 = 0  # bytes of frames that were not completed
        self.pending: i64 = 0  # channels with a pending send, or with a peer channel that waits for room in their socket
        # received frames by body size; the upper bounds are ``framing.SIZE_BOUNDS`` (inclusive), the last bucket is above all
        self.frame_sizes: vec[i64] = vec[i64]([0] * SIZE_BUCKETS)
        # mutes, mute_ns: by index in ``mute.CAUSES``; the time is added when the cause is removed
        self.mutes: vec[i64] = vec[i64]([0] * len(MUTE_CAUSES))
        self.mute_ns: vec[i64] = vec[i64]([0] * len(MUTE_CAUSES))
        self.muted: vec[i64] = vec[i64]([0] * len(MUTE_CAUSES))  # channels that have the cause now

    def count_passed(
        self, reads: i64, frames_received: i64, bytes_received: i64, writes: i64, frames_sent: i64, bytes_sent: i64, sizes: list[int]
    ) -> None:
        """Count what the fast path has moved. ``sizes``: received frames, as in ``frame_sizes``."""
        self.reads += reads
        self.frames_received += frames_received
        self.bytes_received += bytes_received
        self.writes += writes
        self.frames_sent += frames_sent
        self.bytes_sent += bytes_sent
        for bucket, count in enumerate(sizes):
            self.frame_sizes[bucket] += count
