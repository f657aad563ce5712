"""The counters that processors and control share.

``metrics``: the table of all metrics; ``metric``: what a metric is.
``layout``: where the cells of each metric lie.
``mapping``: the two ends of the shared memory, and its header.
"""

from framegate.proxy.cause import ORDERLY_CAUSES
from framegate.proxy.cells.layout import (
    CELL_SIZE,
    HEADER_SIZE,
    LISTENER_BLOCK,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    UPSTREAM_BLOCK,
    Block,
    CellLayout,
    HistogramValue,
)
from framegate.proxy.cells.mapping import CellReader, CellWriter, State, create
from framegate.proxy.cells.metric import APPEND_BOUNDS, FORWARD_BOUNDS, KAFKA_BOUNDS, WAIT_BOUNDS, Metric
from framegate.proxy.cells.metrics import (
    ACCEPT_ERRORS,
    APPEND_ERRORS,
    CAUSES,
    CONNECT_ERRORS,
    DURATION_ERRORS,
    FAULT_PLACES,
    FILE_KINDS,
    LISTENER,
    MEASURED_APIS,
    MECHANISMS,
    MEMORY_KINDS,
    METRICS,
    MUTE_CAUSES,
    PIPELINE_METRICS,
    RATE_LEVELS,
    REASON,
    REFUSED_APIS,
    SIDES,
    TAP_DIRECTIONS,
    TAP_DROP_REASONS,
    TLS_ERRORS,
    TLS_VERSIONS,
)

__all__ = [
    "ACCEPT_ERRORS",
    "APPEND_BOUNDS",
    "APPEND_ERRORS",
    "CAUSES",
    "CELL_SIZE",
    "CONNECT_ERRORS",
    "DURATION_ERRORS",
    "FAULT_PLACES",
    "FILE_KINDS",
    "FORWARD_BOUNDS",
    "HEADER_SIZE",
    "KAFKA_BOUNDS",
    "LISTENER",
    "LISTENER_BLOCK",
    "MEASURED_APIS",
    "MECHANISMS",
    "MEMORY_KINDS",
    "METRICS",
    "MUTE_CAUSES",
    "ORDERLY_CAUSES",
    "PIPELINE_METRICS",
    "PROCESSOR_BLOCK",
    "RATE_LEVELS",
    "REASON",
    "REFUSED_APIS",
    "SIDES",
    "SIDE_BLOCK",
    "TAP_DIRECTIONS",
    "TAP_DROP_REASONS",
    "TLS_ERRORS",
    "TLS_VERSIONS",
    "UPSTREAM_BLOCK",
    "WAIT_BOUNDS",
    "Block",
    "CellLayout",
    "CellReader",
    "CellWriter",
    "HistogramValue",
    "Metric",
    "State",
    "create",
]
