"""How TLS handshakes come out: counted when a channel with TLS is READY, or closed before it was, for then all is known of them."""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cells import PROCESSOR_BLOCK, SIDES, TLS_ERRORS, TLS_VERSIONS
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.tls_failure import handshake_error
from framegate.proxy.relay.counters import LoopCounters

__all__ = ["ACTIVE", "begin", "end"]

ACTIVE: Final = {side: PROCESSOR_BLOCK.at("framegate.tls.handshake.active", side) for side in SIDES}
COUNT: Final = {
    (side, f"TLSv{version}", resumed): PROCESSOR_BLOCK.at("framegate.tls.handshake.count", side, version, "true" if resumed else "false")
    for side in SIDES
    for version in TLS_VERSIONS
    for resumed in (True, False)
}


def begin(loop: LoopCounters, channel: Channel) -> None:
    """A channel is to be opened; harmless without TLS."""
    if channel.options.tls is not None:
        loop.counts.cells[i64(ACTIVE[channel.options.side])] += 1


def end(loop: LoopCounters, channel: Channel) -> None:
    """It is READY, or was never; to be called once. What became of its connection before the handshake, and behind it, is not the handshake's."""
    if channel.options.tls is None:
        return
    side = channel.options.side
    cells = loop.counts.cells
    cells[i64(ACTIVE[side])] -= 1
    histograms = loop.downstream_handshakes if side == "downstream" else loop.upstream_handshakes
    identity = channel.identity
    if channel.secured_ns != 0 and identity is not None:
        histograms[0].observe(channel.secured_ns - channel.connected_ns)
        cell = COUNT.get((side, identity.version, identity.resumed))
        if cell is not None:
            cells[i64(cell)] += 1
    elif channel.connected_ns != 0:
        histograms[TLS_ERRORS.index(handshake_error(channel.close_cause, channel.error))].observe(channel.closed_ns - channel.connected_ns)
