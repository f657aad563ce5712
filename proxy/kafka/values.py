"""Values within messages: read at positions that a walker has found, so that their lengths are right; and written."""

from librt.strings import read_i16_be
from mypy_extensions import i64


def varint(value: i64) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_at(data: bytes, pos: i64) -> tuple[i64, i64]:
    """The unsigned varint at a position, and the position after it."""
    value: i64 = 0
    bits: i64 = 0
    while data[pos] >= 0x80:
        value |= (i64(data[pos]) & 0x7F) << bits
        bits += 7
        pos += 1
    return value | i64(data[pos]) << bits, pos + 1


def string_at(data: bytes, pos: i64, compact: bool) -> tuple[str | None, i64]:
    """The string at a position, and the position after it. Bytes that are no UTF-8 are replaced."""
    if compact:
        size, pos = varint_at(data, pos)
        size -= 1
    else:
        size = i64(read_i16_be(data, pos))
        pos += 2
    if size < 0:
        return None, pos
    return data[pos : pos + size].decode(errors="replace"), pos + size
