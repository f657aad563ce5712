"""The error code of an answer as a whole: at a fixed place in the heads of many, first or after the throttle time. Codes of topics and partitions are
further inside, and are not looked for.
"""

from typing import Final

from librt.strings import read_i16_be
from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.kafka.schema import api

ERROR_HEAD: Final = 11  # bytes of an answer that are enough: correlation id, tagged fields (none), throttle time, code
_CORRELATION: Final = 4
_THROTTLE: Final = 4
_SIZE: Final = 2
_KEYS: Final = 128
_VERSIONS: Final = 32
_UNKNOWN: Final = -1


def _unknown() -> "vec[i64]":
    out = vec[i64](capacity=_KEYS * _VERSIONS)
    unknown: i64 = _UNKNOWN
    for _ in range(_KEYS * _VERSIONS):
        out = append(out, unknown)
    return out


_PLACES: Final[vec[i64]] = _unknown()  # by API and version; found when they are met first, because most never are


def error_place(call: i64) -> i64:
    """Where answers have their error code, for ``error_code``; 0: at no fixed place. ``call``: API key << 16 | version of the request."""
    key, version = call >> 16, call & 0xFFFF
    if key < 0 or key >= _KEYS or version >= _VERSIONS:
        return 0
    place = _PLACES[key * _VERSIONS + version]
    if place == _UNKNOWN:
        place = _PLACES[key * _VERSIONS + version] = _place(int(key), int(version))
    return place


def error_code(place: i64, data: bytes, start: i64, end: i64) -> i64:
    """The error code of an answer; 0: it has none. ``place``: not 0. ``data``: has the body of the answer from ``start`` on, ``ERROR_HEAD`` bytes of
    it or all.
    """
    at = start + place
    if at + _SIZE > end or at + _SIZE > i64(len(data)):
        return 0
    code = i64(read_i16_be(data, at))
    return 0 if code != 0 and place & 1 != 0 and data[start + _CORRELATION] != 0 else code  # tagged fields in the header: brokers send none


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
