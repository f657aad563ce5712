"""The counters that processors and control share."""

from framegate.proxy.cause import ORDERLY_CAUSES
from framegate.proxy.cells.layout import (
    CELL_SIZE,
    ENDPOINT,
    ENDPOINT_BLOCK,
    HEADER_SIZE,
    LISTENER_BLOCK,
    OTHERS,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    UPSTREAM_BLOCK,
    Block,
    CellLayout,
    HistogramValue,
    Place,
    broker_place,
    endpoint_place,
)
from framegate.proxy.cells.mapping import CellReader, CellWriter, State, create, enlarge
from framegate.proxy.cells.metric import ANSWER_BOUNDS, APPEND_BOUNDS, FIRST_POWERS, FORWARD_BOUNDS, WAIT_BOUNDS, Metric
from framegate.proxy.cells.metrics import (
    ACCEPT_ERRORS,
    APPEND_ERRORS,
    CAUSES,
    CONNECT_ERRORS,
    DURATION_ERRORS,
    EJECTION_REASONS,
    END_ERRORS,
    END_SIDES,
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
    RESPONSE_ERRORS,
    SIDES,
    TAP_DIRECTIONS,
    TAP_DROP_REASONS,
    TLS_ERRORS,
    TLS_VERSIONS,
    UPSTREAM,
)

__all__ = [
    "ACCEPT_ERRORS", "ANSWER_BOUNDS", "APPEND_BOUNDS", "APPEND_ERRORS", "CAUSES", "CELL_SIZE", "CONNECT_ERRORS", "DURATION_ERRORS",
    "EJECTION_REASONS", "ENDPOINT", "ENDPOINT_BLOCK", "END_ERRORS", "END_SIDES", "FAULT_PLACES", "FILE_KINDS", "FIRST_POWERS", "FORWARD_BOUNDS",
    "HEADER_SIZE", "LISTENER", "LISTENER_BLOCK", "MEASURED_APIS", "MECHANISMS", "MEMORY_KINDS", "METRICS", "MUTE_CAUSES", "ORDERLY_CAUSES", "OTHERS",
    "PIPELINE_METRICS", "PROCESSOR_BLOCK", "RATE_LEVELS", "REASON", "REFUSED_APIS", "RESPONSE_ERRORS", "SIDES", "SIDE_BLOCK", "TAP_DIRECTIONS",
    "TAP_DROP_REASONS", "TLS_ERRORS", "TLS_VERSIONS", "UPSTREAM", "UPSTREAM_BLOCK", "WAIT_BOUNDS", "Block", "CellLayout", "CellReader", "CellWriter",
    "HistogramValue", "Metric", "Place", "State", "broker_place", "create", "endpoint_place", "enlarge",
]  # fmt: skip
