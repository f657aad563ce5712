"""The error code of an answer as a whole: at a fixed place in the heads of many, first or after the throttle time. Codes of topics and partitions are
further inside, and are not looked for.
"""

from typing import Final

from librt.strings import read_i16_be
from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.cells import RESPONSE_ERRORS
from framegate.proxy.kafka.schema import api

__all__ = ["ERROR_HEAD", "error_code", "error_row"]

ERROR_HEAD: Final = 11
"""Bytes of an answer that are enough: correlation id, tagged fields (none), throttle time, code."""
_CORRELATION: Final = 4
_THROTTLE: Final = 4
_SIZE: Final = 2
_KEYS: Final = 128
_VERSIONS: Final = 32
_UNKNOWN: Final = -1
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
_ROWS: Final = {number: RESPONSE_ERRORS.index(name) for number, name in _NUMBERS.items()}
_OTHER: Final = RESPONSE_ERRORS.index("other")


def _unknown() -> "vec[i64]":
    out = vec[i64](capacity=_KEYS * _VERSIONS)
    unknown: i64 = _UNKNOWN
    for _ in range(_KEYS * _VERSIONS):
        out = append(out, unknown)
    return out


_PLACES: Final[vec[i64]] = _unknown()  # by API and version; found when they are met first, because most never are


def error_code(call: i64, data: bytes, start: i64, end: i64) -> i64:
    """The error code of an answer; 0: it has none, or none at a fixed place.

    Args:
        call: API key << 16 | version of the request.
        data: has the body of the answer from ``start`` on, ``ERROR_HEAD`` bytes of it or all.
        start, end: of the body.
    """
    key, version = call >> 16, call & 0xFFFF
    if key < 0 or key >= _KEYS or version >= _VERSIONS:
        return 0
    place = _PLACES[key * _VERSIONS + version]
    if place == 0:
        return 0
    if place == _UNKNOWN:
        place = _PLACES[key * _VERSIONS + version] = _place(int(key), int(version))
        if place == 0:
            return 0
    at = start + place
    if at + _SIZE > end or at + _SIZE > i64(len(data)):
        return 0
    code = i64(read_i16_be(data, at))
    has_tags = place & 1 != 0
    return 0 if code != 0 and has_tags and data[start + _CORRELATION] != 0 else code


def error_row(code: i64) -> int:
    """The index in ``RESPONSE_ERRORS`` of a code that is not 0."""
    return _ROWS.get(int(code), _OTHER)


def _place(key: int, version: int) -> int:
    """Where the code is in the body of an answer; 0: nowhere. It is odd if the header has tagged fields, whose number is one byte."""
    known = api(key)
    if known is None:
        return 0
    place = _CORRELATION + known.has_header_tags(version, True)
    for field in known.fields(True):
        if not field.is_in(version) or field.tag(version) >= 0:
            continue
        if field.name == "ErrorCode":
            return place
        if field.name != "ThrottleTimeMs":
            return 0
        place += _THROTTLE
    return 0
