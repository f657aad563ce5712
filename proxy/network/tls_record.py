"""The boundaries of TLS records, from their headers of five bytes (type, version, length), which are never encrypted.

OpenSSL reports "want read" with an exception, which costs as much as decrypting a small record, and it keeps the bytes of an incomplete record. So
the transport gives it whole records only, and calls it only after that.
"""

from typing import Final

from mypy_extensions import i64

RECORD_HEADER: Final = 5
MAJOR_VERSION: Final = 3  # of every record since SSL 3.0
LONGEST: Final = 17408  # with its header; slightly more than OpenSSL accepts: 16 KiB of plaintext, 320 bytes of overhead, the header


def whole_records(data: bytes, start: i64) -> i64:
    """Return the end of the last whole record in ``data``, whose records begin at ``start``; ``start`` if none is whole."""
    length: i64 = len(data)
    end = start
    while end + RECORD_HEADER <= length:
        following = end + _record_size(data, end)
        if following > length:
            break
        end = following
    return end


def missing(begun: bytes) -> i64:
    """Return how many bytes an incomplete record misses: of its header first, then of the rest."""
    have: i64 = len(begun)
    if have < RECORD_HEADER:
        return RECORD_HEADER - have
    return _record_size(begun, 0) - have


def is_refused(begun: bytes) -> bool:
    """Whether OpenSSL refuses a record because of its header, so that there is no need to wait for its end."""
    return len(begun) >= RECORD_HEADER and (begun[1] != MAJOR_VERSION or _record_size(begun, 0) > LONGEST)


def least_overhead(version: str, cipher: str) -> i64:
    """Return the overhead of a record, header counted. It is larger if the peer pads records (1.3), or the cipher does (CBC). Source: RFC 8446 5.2
    (content type, tag), RFC 5288 and 6655 (explicit nonce, tag), RFC 7905, RFC 5246 6.2.3.2 (IV, MAC, padding length).
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
    """Estimate the plaintext in ``data``. Returns the most plaintext bytes in whole records, if each has ``overhead``; a record that will be refused
    counts. And the bytes of the rest.
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
