"""Where TLS records end. Reads no secrets: a record's five-byte header (type, version, length) is always in the clear.

OpenSSL says "want read" by an exception, which costs as much as decrypting a small record, and what it has been given of a record it keeps.
Knowing where records end, the transport gives it whole ones only, and asks it only when it has.
"""

from typing import Final

from mypy_extensions import i64

__all__ = ["LONGEST", "RECORD_HEADER", "is_refused", "least_overhead", "missing", "most_plaintext", "whole_records"]

RECORD_HEADER: Final = 5
MAJOR_VERSION: Final = 3  # of every record since SSL 3.0
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


def least_overhead(version: str, cipher: str) -> i64:
    """What a record is longer than its plaintext, header counted, at least; and exactly, unless the peer pads (1.3) or the cipher does (CBC).

    Source: RFC 8446 5.2 (content type, tag), RFC 5288 and 6655 (explicit nonce, tag), RFC 7905, RFC 5246 6.2.3.2 (IV, MAC, padding length).
    """
    tag: i64 = 8 if cipher.endswith(("CCM8", "CCM_8_SHA256")) else 16
    if version == "TLSv1.3":
        return RECORD_HEADER + 1 + tag
    if "GCM" in cipher or "CCM" in cipher:
        return RECORD_HEADER + 8 + tag
    if "CHACHA20" in cipher:
        return RECORD_HEADER + tag
    return RECORD_HEADER + 16 + 1 + (48 if cipher.endswith("SHA384") else 32 if cipher.endswith("SHA256") else 16)


def most_plaintext(data: bytes, overhead: i64) -> tuple[i64, i64]:
    """What the whole records in ``data`` hold.

    Returns:
        Bytes of plaintext at most, if each is longer than its own by ``overhead``; a record that will be refused counts, too: OpenSSL is to see it.
        And the bytes of the record that is begun behind them.
    """
    length: i64 = len(data)
    found: i64 = 0
    start: i64 = 0
    while start + RECORD_HEADER <= length:
        size = _record_size(data, start)
        if data[start + 1] != MAJOR_VERSION or size > LONGEST:
            return found + LONGEST, 0
        if start + size > length:
            break
        found += max(size - overhead, 0)
        start += size
    return found, length - start


def _record_size(data: bytes, start: i64) -> i64:
    return RECORD_HEADER + (data[start + 3] << 8 | data[start + 4])
