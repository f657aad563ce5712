"""Where TLS records end. Reads no secrets: a record's five-byte header (type, version, length) is always in the clear.

OpenSSL says "want read" by an exception, which costs as much as decrypting a small record. Knowing where records end, the transport asks
OpenSSL only for records that are whole, and feeds it portions that end with a record.
"""

from typing import Final

from mypy_extensions import i64

__all__ = ["RecordCutter"]

RECORD_HEADER: Final = 5


class RecordCutter:
    """Follows the records of one direction of one connection.

    Attributes:
        partial: bytes of the last record that were cut so far, if it is not whole; 0 at the end of a record.
    """

    def __init__(self) -> None:
        self.partial: i64 = 0
        self._header: bytes = b""
        self._left: i64 = 0

    def cut(self, data: bytes, start: i64, most: i64) -> i64:
        """Where to end a portion of ``data`` that starts at ``start``, where the portion before ended.

        Returns:
            The end of the last record that ends within ``most`` bytes, or of the first if that is longer; ``len(data)`` when none ends in it.
        """
        length: i64 = len(data)
        end = self._first_end(data, start, length)
        if end < 0 or end > length:
            self.partial += length - start
            return length
        while end + RECORD_HEADER <= length:
            following = end + RECORD_HEADER + (data[end + 3] << 8 | data[end + 4])
            if following > length or following - start > most:
                break
            end = following
        self.partial = 0
        return end

    def _first_end(self, data: bytes, start: i64, length: i64) -> i64:
        """The end of the record that ``start`` lies in, which may lie behind ``data``; -1 when its header is not whole."""
        if self._left > 0:
            end = start + self._left
        else:
            taken: i64 = min(RECORD_HEADER - len(self._header), length - start)
            self._header += data[start : start + taken]
            if len(self._header) < RECORD_HEADER:
                return -1
            end = start + taken + (self._header[3] << 8 | self._header[4])
            self._header = b""
        self._left = max(end - length, 0)
        return end
