"""The counters that processors and control share.

``metrics``: which there are: the table that everything else follows from.
``layout``: where each one's cells lie.
``mapping``: the two ends of the shared memory, and its header.
"""

from proxy.cells.layout import (
    CELL_SIZE,
    HEADER_SIZE,
    LISTENER_BLOCK,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    UPSTREAM_BLOCK,
    Block,
    CellLayout,
)
from proxy.cells.mapping import (
    CellReader,
    CellWriter,
    HistogramValue,
    Snapshot,
    State,
    create,
)
from proxy.cells.metrics import (
    ACCEPT_ERRORS,
    CAUSES,
    CONNECT_ERRORS,
    CONNECTION_BOUNDS,
    DURATION_ERRORS,
    FAULT_PLACES,
    HANDSHAKE_BOUNDS,
    LAG_BOUNDS,
    LISTENER,
    MEMORY_KINDS,
    METRICS,
    MUTE_CAUSES,
    ORDERLY_CAUSES,
    RATE_LEVELS,
    REASON,
    SIDES,
    TAP_DIRECTIONS,
    TAP_DROP_REASONS,
    TLS_ERRORS,
    Metric,
)

__all__ = [
    "ACCEPT_ERRORS",
    "CAUSES",
    "CELL_SIZE",
    "CONNECTION_BOUNDS",
    "CONNECT_ERRORS",
    "DURATION_ERRORS",
    "FAULT_PLACES",
    "HANDSHAKE_BOUNDS",
    "HEADER_SIZE",
    "LAG_BOUNDS",
    "LISTENER",
    "LISTENER_BLOCK",
    "MEMORY_KINDS",
    "METRICS",
    "MUTE_CAUSES",
    "ORDERLY_CAUSES",
    "PROCESSOR_BLOCK",
    "RATE_LEVELS",
    "REASON",
    "SIDES",
    "SIDE_BLOCK",
    "TAP_DIRECTIONS",
    "TAP_DROP_REASONS",
    "TLS_ERRORS",
    "UPSTREAM_BLOCK",
    "Block",
    "CellLayout",
    "CellReader",
    "CellWriter",
    "HistogramValue",
    "Metric",
    "Snapshot",
    "State",
    "create",
]
