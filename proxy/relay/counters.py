"""Counters of a processor, in blocks of cells with the layout of the shared cells.

A metric is declared in ``proxy.cells.metrics`` and counted in one module, which looks its cell up when it is imported, keeps the number as a
constant, and adds to ``Counts.cells`` there. ``Publisher`` copies whole blocks; counts in attributes of other packages it puts into the blocks first.

Counters begin at 0 in each processor; the publisher adds the values of the cells from before the processor started. One thread.
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.cells import (
    CAUSES,
    DURATION_ERRORS,
    ENDPOINT_BLOCK,
    LISTENER_BLOCK,
    MEASURED_APIS,
    ORDERLY_CAUSES,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    SIDES,
    TLS_ERRORS,
    TLS_VERSIONS,
    UPSTREAM_BLOCK,
    Block,
    Place,
)
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.stats import Histogram, SideStats
from framegate.proxy.network.tls_failure import handshake_error
from framegate.proxy.relay.pairing_stats import PairingStats

ERROR_INDEX: Final = {cause: 0 if cause in ORDERLY_CAUSES else DURATION_ERRORS.index(cause) for cause in CAUSES}
"""By cause, the index of its histogram of ``framegate.connection.duration``."""
HANDSHAKING: Final = {side: PROCESSOR_BLOCK.at("framegate.tls.handshake.active", side) for side in SIDES}
HANDSHAKES: Final = {
    (side, f"TLSv{version}", resumed): PROCESSOR_BLOCK.at("framegate.tls.handshake.count", side, version, "true" if resumed else "false")
    for side in SIDES
    for version in TLS_VERSIONS
    for resumed in (True, False)
}


def _zeros(count: i64) -> "vec[i64]":
    out = vec[i64]([], capacity=count)
    for _ in range(count):
        out = append(out, 0)
    return out


class Counts:
    """The counts of one block."""

    def __init__(self, block: Block) -> None:
        self.cells: vec[i64] = _zeros(block.count)  # counts and gauges, by ``Block.at``
        self.histograms: Final[list[Histogram]] = []  # those that are observed
        self._block: Final = block

    def count(self, cell: i64) -> None:
        """Count one; for interpreted modules that do it rarely."""
        self.cells[cell] += 1

    def histogram(self, name: str, *values: str) -> Histogram:
        """Make a histogram of the block; arguments as ``Block.at``."""
        made = Histogram(self._block.metric(name).bounds, self._block.at(name, *values))
        self.histograms.append(made)
        return made

    def each_histogram(self, name: str, *values: str) -> list[Histogram]:
        """One for each value of a metric's last attribute, in the order of ``Block.values``."""
        return [self.histogram(name, *values, value) for value in self._block.values(name)]


class ListenerCounters:
    """Counters of one listener."""

    def __init__(self) -> None:
        self.counts: Final = Counts(LISTENER_BLOCK)  # of the listener; ``downstream_counts`` and ``upstream_counts`` of its sides
        self.downstream_counts: Final = Counts(SIDE_BLOCK)
        self.upstream_counts: Final = Counts(SIDE_BLOCK)
        # downstream, upstream: the counts of the network layer, by side
        self.downstream: Final = SideStats(self.counts.histogram("framegate.frame.forward.duration", "response"))
        self.upstream: Final = SideStats(self.counts.histogram("framegate.frame.forward.duration", "request"))
        self.pairing: Final = PairingStats(self.counts.each_histogram("framegate.kafka.request.duration"))  # the counts of the pairings
        # while ``in_flight`` looks at the pairs: connections whose oldest Kafka request waits for long, by its row of ``MEASURED_APIS``
        self.waiting: vec[i64] = _zeros(len(MEASURED_APIS))
        self.account: Account | None = None  # of the memory pool; None: the common one


class UpstreamCounters:
    """Counters of one upstream."""

    def __init__(self) -> None:
        self.counts: Final = Counts(UPSTREAM_BLOCK)


class EndpointCounters:
    """Counters of one endpoint of an upstream, as configured, or of one broker: those of all its addresses."""

    def __init__(self) -> None:
        self.counts: Final = Counts(ENDPOINT_BLOCK)  # of the endpoint
        # of attempts to connect, for each of ``CONNECT_ERRORS``
        self.durations: Final = self.counts.each_histogram("framegate.upstream.connect.duration")
        self.first_bytes: Final = self.counts.histogram("framegate.upstream.first_byte.duration")  # the times until the first answer of a connection
        # open, oldest_ns: while ``in_flight`` looks at the pairs: open requests so far, and when the oldest of them came (0: none)
        self.open: i64 = 0
        self.oldest_ns: i64 = 0
        # waiting, asked_ns: likewise connections that wait for an answer, and since when the first of them does
        self.waiting: i64 = 0
        self.asked_ns: i64 = 0
        self.held: i64 = 0  # likewise connections on which it takes nothing of what waits for it
        # frames from it at the last three marks; ``marked_ns``: of the last one
        self.mark: i64 = 0
        self.mark_before: i64 = 0
        self.mark_last: i64 = 0
        self.marked_ns: i64 = 0


class LoopCounters:
    """Counters of the processor: ``…_durations`` by ``DURATION_ERRORS``, ``…_handshakes`` by ``TLS_ERRORS``, ``authentications`` by mechanism."""

    def __init__(self) -> None:
        self.counts: Final = Counts(PROCESSOR_BLOCK)
        self.lag: Final = self.counts.histogram("framegate.event_loop.lag")
        self.downstream_durations: Final = self.counts.each_histogram("framegate.connection.duration", "downstream")
        self.upstream_durations: Final = self.counts.each_histogram("framegate.connection.duration", "upstream")
        self.downstream_handshakes: Final = self.counts.each_histogram("framegate.tls.handshake.duration", "downstream")
        self.upstream_handshakes: Final = self.counts.each_histogram("framegate.tls.handshake.duration", "upstream")
        self.authentications: Final = self.counts.each_histogram("framegate.authentication.duration")

    def begin_handshake(self, channel: Channel) -> None:
        """A channel is to be opened. No effect without TLS."""
        if channel.options.tls is not None:
            self.counts.cells[i64(HANDSHAKING[channel.options.side])] += 1

    def end_handshake(self, channel: Channel) -> None:
        """A channel is READY, or closed before it was: count its TLS handshake. To be called once. The times of connecting, and of what follows the
        handshake, are not counted. No effect without TLS.
        """
        if channel.options.tls is None:
            return
        side = channel.options.side
        cells = self.counts.cells
        cells[i64(HANDSHAKING[side])] -= 1
        histograms = self.downstream_handshakes if side == "downstream" else self.upstream_handshakes
        identity = channel.identity
        if channel.secured_ns != 0 and identity is not None:
            histograms[0].observe(channel.secured_ns - channel.connected_ns)
            cell = HANDSHAKES.get((side, identity.version, identity.resumed))
            if cell is not None:
                cells[i64(cell)] += 1
        elif channel.connected_ns != 0:
            error = TLS_ERRORS.index(handshake_error(channel.close_cause, channel.error))
            histograms[error].observe(channel.closed_ns - channel.connected_ns)


class Counters:
    """All counters of a processor, by the names of its configuration, which may change; ``endpoints`` by their places in the layout of the cells."""

    def __init__(self, listeners: list[str], upstreams: list[str], endpoints: list[Place] | None = None) -> None:
        self.loop: Final = LoopCounters()
        self.listeners: dict[str, ListenerCounters] = {name: ListenerCounters() for name in listeners}
        self.upstreams: dict[str, UpstreamCounters] = {name: UpstreamCounters() for name in upstreams}
        self.endpoints: dict[Place, EndpointCounters] = {place: EndpointCounters() for place in endpoints or []}
