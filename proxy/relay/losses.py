"""Counts what was received and not passed on: on its leg, for the closed row, and at the leg's tap, as a gap in the log."""

from mypy_extensions import i64

from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import PART_FIRST, PART_LAST, Run
from framegate.proxy.relay import tapping
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.tap.record import REASON_PARTIAL_FRAME


def drop(pair: Pair, leg: Leg, frames: i64, size: i64, run: Run | None) -> None:
    """Count whole frames that were received and are not passed on."""
    leg.dropped_bytes += size
    if leg.tap is not None:
        seen = run
        if run is not None and leg.look is not None:
            seen = leg.look.frames(run) if run.part == 0 else leg.look.part(run)
        leg.tap.drop(frames, size if seen is None else seen.size, leg.frames, pair.wall_ns(), seen)
    leg.frames += frames
    leg.bytes += size


def drop_part(pair: Pair, leg: Leg, channel: Channel, run: Run) -> None:
    """As ``drop``, for a piece of a frame that is dropped whole, or whose beginning was passed on, which is cut short."""
    if run.part & PART_FIRST:
        leg.drops_frame = True
    if leg.drops_frame:
        drop(pair, leg, run.frames, run.size, run)
    else:
        cut_short(pair, leg, channel, max(channel.read_half.cut_at, run.size))
        leg.dropped_bytes += run.size
        leg.frames += run.frames
        leg.bytes += run.size
    if run.part & PART_LAST:
        leg.drops_frame = False


def cut_short(pair: Pair, leg: Leg, channel: Channel, passed: i64) -> None:
    """A frame of which ``passed`` bytes were passed on will not be completed."""
    channel.read_half.cut_frame_short(passed)
    if leg.tap is not None:
        leg.tap.cut_short(pair.wall_ns())
        tapping.end_change(pair, leg)


def cut_short_begun(pair: Pair, leg: Leg) -> None:
    """As ``cut_short``, if a frame was passed on in part that is not complete yet."""
    channel = leg.channel
    if channel is not None and channel.read_half.receive.is_within_cut and not leg.drops_frame:
        cut_short(pair, leg, channel, channel.read_half.cut_at)


def tap_partial(pair: Pair, leg: Leg, channel: Channel) -> None:
    """A frame that was begun on a leg will not be completed."""
    if leg.tap is None:
        return
    if channel.read_half.cut_short_at != 0:
        leg.tap.cut_short(pair.wall_ns())
    elif channel.lost_bytes != 0:
        leg.tap.lose(REASON_PARTIAL_FRAME, 0, channel.lost_bytes, leg.frames, pair.wall_ns())


def drop_rest(pair: Pair, leg: Leg, channel: Channel) -> None:
    """Count the run that was not passed on because of an internal error."""
    if leg.counts_frames() and leg.frames != channel.frames_received:
        drop(pair, leg, channel.frames_received - leg.frames, channel.bytes_received - channel.lost_bytes - leg.bytes, None)


def count_cut_short(leg: Leg) -> None:
    """Count a frame that was cut short for the side that it was passed to."""
    channel, out = leg.channel, leg.other.channel
    if channel is not None and channel.read_half.cut_short_at != 0 and out is not None:
        out.write_half.count_cut_short()
