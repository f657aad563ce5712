"""Finds the acks of a Kafka Produce request."""

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

NO_ACKS_FIELD: Final = -2
_FLEXIBLE_PRODUCE: Final = 9
_REQUEST_HEAD: Final = 8  # of a body: key, version, correlation id


def _skip_varint(data: bytes, pos: i64, end: i64) -> i64:
    while pos < end and data[pos] & 0x80:
        pos += 1
    return pos + 1


def _varint(data: bytes, pos: i64, end: i64) -> i64:
    value: i64 = 0
    shift: i64 = 0
    while pos < end and shift < 35:
        byte = i64(data[pos])
        value |= (byte & 0x7F) << shift
        if byte & 0x80 == 0:
            return value
        pos += 1
        shift += 7
    return -1


def _skip_string(data: bytes, pos: i64, end: i64) -> i64:
    """The position after a nullable string with an int16 length; past ``end`` if it is not whole."""
    if pos + 2 > end:
        return end + 1
    length = i64(read_i16_be(data, pos))
    return pos + 2 + length if length > 0 else pos + 2


def _skip_compact_string(data: bytes, pos: i64, end: i64) -> i64:
    length = _varint(data, pos, end)
    if length < 0:
        return end + 1
    pos = _skip_varint(data, pos, end)
    return pos + length - 1 if length > 1 else pos


def _skip_tags(data: bytes, pos: i64, end: i64) -> i64:
    count = _varint(data, pos, end)
    pos = _skip_varint(data, pos, end)
    if count < 0 or count > 16:
        return end + 1
    while count > 0 and pos < end:
        pos = _skip_varint(data, pos, end)
        length = _varint(data, pos, end)
        if length < 0:
            return end + 1
        pos = _skip_varint(data, pos, end) + length
        count -= 1
    return pos


def produce_acks(data: bytes, pos: i64, end: i64, version: i64) -> i64:
    """The acks of a Produce request; -2: they are not within ``data``. ``data``: has the first bytes of the body. ``end``: the position after the
    frame's last byte in ``data``. Source: ProduceRequest; header v1 up to version 8, v2 with tagged fields from 9; transactional id from 3.
    """
    pos = _skip_string(data, pos + _REQUEST_HEAD, end)
    if version >= _FLEXIBLE_PRODUCE:
        pos = _skip_tags(data, pos, end)
        pos = _skip_compact_string(data, pos, end)
    elif version >= 3:
        pos = _skip_string(data, pos, end)
    if pos + 2 > end:
        return NO_ACKS_FIELD
    return i64(read_i16_be(data, pos))
