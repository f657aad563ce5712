"""Lanes: the ways of frames that the fast path passes on, while nothing but a tap inspects them.

The fast path (``fast_path.c``) is there if the data path was compiled. A lane is opened after a run that Python has received and passed on as a
whole; from then on only C sees that direction, until something happens that is not a run of whole frames, or the beginning of one behind it. Then the
lanes of both directions are closed, and Python handles it as if there were no fast path. They are also closed by a mute, by the end of the pair and
by control's commands (``Selector.close_lanes``), and not used while memory is short, because C books none.
"""

from typing import TYPE_CHECKING, Final

from framegate.proxy.network.framing import OK
from framegate.proxy.network.transport import MAX_READ

try:
    from framegate.proxy.network.fast_path import FastPath, Lane, Side
except ImportError:  # it was not compiled
    IS_COMPILED = False
else:
    IS_COMPILED = True

if TYPE_CHECKING:
    from collections.abc import Callable

    from framegate.proxy.network.channel import Channel
    from framegate.proxy.network.selector import Selector

HAS_FAST_PATH: Final = IS_COMPILED


def new_fast_path(epoll: int) -> "FastPath | None":
    """Return the fast path of an epoll descriptor; None: there is none."""
    return FastPath(epoll) if HAS_FAST_PATH else None


def open_lane(
    loop: "Selector", fast_path: "FastPath", channel: "Channel", peer: "Channel", before_send: "Callable[[bytes, int], bool] | None"
) -> None:
    """Have the fast path pass on to ``peer`` what a channel receives next, if Python has nothing to do for it. Both suit a lane. ``before_send``:
    see ``Channel.open_lane``.
    """
    if may_open(channel, peer) and not loop.pool.common.is_short(answers=False):
        lane, out = channel.lane or _new_lane(loop, channel), peer.lane or _new_lane(loop, peer)
        if lane is not None and out is not None and fast_path.open(lane, out, int(channel.read_half.receive.limit), before_send):
            begun = channel.read_half.receive.begun()
            if begun:
                if fast_path.keep(lane, begun):
                    channel.read_half.give_begun()
                else:
                    lane.close()


def may_open(channel: "Channel", peer: "Channel") -> bool:
    """Whether nothing of a channel waits, and nothing is asked before it is read or its peer is written."""
    reads, writes = channel.read_half, peer.write_half
    receive = reads.receive
    low_memory = reads.low_memory
    if channel.gated or channel.mutes.causes != 0 or reads.ended or reads.discards or channel.shutting:
        return False
    if low_memory is not None and (reads.retry_armed or not low_memory.rests):
        return False
    if receive.cut or receive.size > MAX_READ or receive.fault != OK or not writes.can_send or writes.holding:
        return False
    out = peer.transport
    return not channel.transport.has_buffered() and not out.has_buffered() and out.pending_write == 0


def _new_lane(loop: "Selector", channel: "Channel") -> "Lane | None":
    tls = channel.transport.native
    if tls is None and not channel.transport.is_plain:
        return None  # not yet, or never
    stats = channel.options.stats
    side = stats.side
    if side is None:
        side = stats.side = Side(stats)
    lane = channel.lane = Lane(int(channel.fd), side, tls, min(MAX_READ, int(channel.options.cut_from)))
    loop.add_lane(channel, lane)
    return lane
