"""The counts of all pairings of one listener: open requests, and the latency and bytes by API.

Theory of operation. Most frames of a run have the same API, and most responses of a run answer requests of the same run, so they have the same
latency. ``Pairing`` adds to the sums of the frame before (``asked_…``, ``answered_…``); they are added to the API's row when a frame differs from the
one before it, and at the end of the run. ``framegate.proxy.cells.metrics`` says which APIs have rows.
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.cells import ANSWER_BOUNDS, MEASURED_APIS, RESPONSE_ERRORS
from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.network.stats import Histogram

_KEYS: Final = 128
_NAMES: Final = {key: name for key, name in KAFKA_APIS.items() if name in MEASURED_APIS}
_OTHER: Final = MEASURED_APIS.index("other")
_NUMBERS: Final = {
    1: "offset_out_of_range", 3: "unknown_topic_or_partition", 5: "leader_not_available", 6: "not_leader_or_follower", 7: "request_timed_out",
    14: "coordinator_load_in_progress", 15: "coordinator_not_available", 16: "not_coordinator", 19: "not_enough_replicas", 22: "illegal_generation",
    23: "inconsistent_group_protocol", 24: "invalid_group_id", 25: "unknown_member_id", 26: "invalid_session_timeout", 27: "rebalance_in_progress",
    29: "topic_authorization_failed", 30: "group_authorization_failed", 31: "cluster_authorization_failed", 33: "unsupported_sasl_mechanism",
    34: "illegal_sasl_state", 35: "unsupported_version", 41: "not_controller", 42: "invalid_request", 47: "invalid_producer_epoch",
    48: "invalid_txn_state", 51: "concurrent_transactions", 53: "transactional_id_authorization_failed", 58: "sasl_authentication_failed",
    69: "group_id_not_found", 70: "fetch_session_id_not_found", 71: "invalid_fetch_session_epoch", 79: "member_id_required",
    81: "group_max_size_reached", 82: "fenced_instance_id", 89: "throttling_quota_exceeded", 90: "producer_fenced",
}  # fmt: skip
_ERROR_ROWS: Final = {number: RESPONSE_ERRORS.index(name) for number, name in _NUMBERS.items()}
_OTHER_ERROR: Final = RESPONSE_ERRORS.index("other")
_ROWS: Final[vec[i64]] = vec[i64]([MEASURED_APIS.index(_NAMES[key]) if key in _NAMES else _OTHER for key in range(_KEYS)])


def row_of(key: i64) -> i64:
    """The index of an API in ``MEASURED_APIS``."""
    return _ROWS[key] if 0 <= key < _KEYS else i64(_OTHER)


def error_row(code: i64) -> int:
    """The index in ``RESPONSE_ERRORS`` of a code that is not 0."""
    return _ERROR_ROWS.get(int(code), _OTHER_ERROR)


class PairingStats:
    """The counts, as the cells show them. ``durations``: latency, by row of ``MEASURED_APIS``; None: own histograms."""

    def __init__(self, durations: list[Histogram] | None = None) -> None:
        self.open: i64 = 0  # gauge, open requests
        self.lost: i64 = 0  # connections whose pairing is off
        # latency of requests that were paired with their response
        self.durations: Final = [Histogram(ANSWER_BOUNDS) for _ in MEASURED_APIS] if durations is None else durations
        io = vec[i64]()
        zero: i64 = 0
        for _ in MEASURED_APIS:
            io = append(append(io, zero), zero)
        # bytes of bodies, by row of ``MEASURED_APIS``, for requests and responses alternately. All frames are in it; those of an unknown API as
        # ``other``. A frame that is cut through counts when it begins.
        self.io: vec[i64] = io
        # asked_key, asked_bytes: of the requests of a run that are not in ``io`` yet
        self.asked_key: i64 = -1
        self.asked_bytes: i64 = 0
        # answered_key, answered_since_ns, answered_times, answered_bytes: likewise of responses: the API, when the requests came, and how many
        self.answered_key: i64 = -1
        self.answered_since_ns: i64 = 0
        self.answered_times: i64 = 0
        self.answered_bytes: i64 = 0

    @property
    def answered(self) -> i64:
        total: i64 = 0
        for histogram in self.durations:
            total += histogram.count
        return total

    def begin_asked(self, key: i64, size: i64) -> None:
        """A request of another API than the one before it; -1: unknown."""
        self.end_asked()
        self.asked_key = key
        self.asked_bytes = size

    def end_asked(self) -> None:
        if self.asked_bytes != 0:
            self.io[2 * row_of(self.asked_key)] += self.asked_bytes
            self.asked_bytes = 0

    def begin_answered(self, key: i64, since_ns: i64, size: i64, now_ns: i64) -> None:
        """A response that differs from the one before it; ``since_ns``: when its request came."""
        self.end_answered(now_ns)
        self.answered_key = key
        self.answered_since_ns = since_ns
        self.answered_times = 1
        self.answered_bytes = size

    def end_answered(self, now_ns: i64) -> None:
        """The run of responses that came at that time is over."""
        if self.answered_times != 0:
            row = row_of(self.answered_key)
            self.durations[row].observe(now_ns - self.answered_since_ns, self.answered_times)
            self.io[2 * row + 1] += self.answered_bytes
            self.answered_times = 0

    def count_unpaired(self, size: i64) -> None:
        """A response whose request is unknown."""
        self.io[2 * row_of(-1) + 1] += size
