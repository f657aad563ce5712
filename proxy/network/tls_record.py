"""Where TLS records end. Reads no secrets: a record's five-byte header (type, version, length) is always in the clear.

OpenSSL says "want read" by an exception, which costs as much as decrypting a small record, and what it has been given of a record it keeps.
Knowing where records end, the transport gives it whole ones only, and asks it only when it has.
"""

from typing import Final

from mypy_extensions import i64

__all__ = ["LONGEST", "RECORD_HEADER", "is_refused", "missing", "most_plaintext", "whole_records"]

RECORD_HEADER: Final = 5
MAJOR_VERSION: Final = 3  # of every record since SSL 3.0
LEAST_TAG: Final = 16  # what every cipher adds to the plaintext of a record, at least
LONGEST: Final = 17408  # with its header; OpenSSL refuses a record a little shorter: 16 KiB of plaintext, 320 bytes of overhead, the header


def whole_records(data: bytes, start: i64) -> i64:
    """Where the last whole record ends, of those that follow each other from ``start`` on; ``start`` when none is whole."""
    length: i64 = len(data)
    end = start
    while end + RECORD_HEADER <= length:
        following = end + _record_size(data, end)
        if following > length:
            break
        end = following
    return end


def missing(begun: bytes) -> i64:
    """How many bytes follow of a record begun, which is not whole: of its header first, then of the rest."""
    have: i64 = len(begun)
    if have < RECORD_HEADER:
        return RECORD_HEADER - have
    return _record_size(begun, 0) - have


def is_refused(begun: bytes) -> bool:
    """Whether OpenSSL refuses a record for its header alone: it is not worth waiting for its end."""
    return len(begun) >= RECORD_HEADER and (begun[1] != MAJOR_VERSION or _record_size(begun, 0) > LONGEST)


def most_plaintext(data: bytes) -> i64:
    """How many bytes of plaintext the whole records in ``data`` hold at most; one that will be refused counts, too: OpenSSL is to see it."""
    length: i64 = len(data)
    found: i64 = 0
    start: i64 = 0
    while start + RECORD_HEADER <= length:
        size = _record_size(data, start)
        if data[start + 1] != MAJOR_VERSION or size > LONGEST:
            return found + LONGEST
        if start + size > length:
            break
        found += max(size - RECORD_HEADER - LEAST_TAG, 0)
        start += size
    return found


def _record_size(data: bytes, start: i64) -> i64:
    return RECORD_HEADER + (data[start + 3] << 8 | data[start + 4])
