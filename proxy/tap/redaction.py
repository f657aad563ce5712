"""Replaces ranges of bodies by zeros or a hash of the same length.

The stored body keeps its length, so bytes behind a range stay in place. Ranges apply to the part of a body that the rule keeps
(``max_frame_bytes``); a range behind that part is not stored.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.record import HASH_BYTES

if TYPE_CHECKING:
    import hashlib

# Zeros and repeated hashes come in pieces of at most this size, all of them the same object.
_FILL: Final = 65536


def new_digest() -> "hashlib.blake2b":
    """A hash of no bytes yet."""
    import hashlib  # imported late: it loads OpenSSL, which only rules with hashes need

    return hashlib.blake2b(digest_size=HASH_BYTES)


class Redaction:
    """The ranges of one rule."""

    def __init__(self, blank: list[tuple[int, int]], hashed: list[tuple[int, int]]) -> None:
        """The ranges do not overlap."""
        ranges = sorted([(start, end, False) for start, end in blank] + [(start, end, True) for start, end in hashed])
        # starts, ends: of each range, in order; half open, within the body
        self.starts = [start for start, _, _ in ranges]
        self.ends = [end for _, end, _ in ranges]
        self.hashed = [is_hashed for _, _, is_hashed in ranges]  # whether a range is replaced by a hash, otherwise by zeros


class Redactor:
    """Replaces the ranges of one body, which may come in pieces."""

    def __init__(self, redaction: Redaction, kept: i64) -> None:
        """``kept``: bytes of the body that are stored; bytes behind them are ignored."""
        self.replaced: i64 = 0  # number of bytes replaced
        self._ranges = redaction
        self._kept: i64 = kept
        self._position: i64 = 0
        self._index: i64 = 0
        self._digest: hashlib.blake2b | None = None

    def feed(self, parts: list[Buffer]) -> list[Buffer]:
        """Take the next bytes of the body; returns the bytes to store now, in order. After the last stored byte nothing is left."""
        given: list[Buffer] = []
        for part in parts:
            at: i64 = 0
            length: i64 = len(part)
            while at < length and self._position < self._kept:
                at = self._step(part, at, length, given)
        return given

    def _step(self, part: Buffer, at: i64, length: i64, given: list[Buffer]) -> i64:
        """Take the bytes of a part before the next border of a range; returns where the rest begins."""
        ranges = self._ranges
        inside = False
        stop = self._kept
        if self._index < len(ranges.starts):
            start: i64 = ranges.starts[self._index]
            inside = self._position >= start
            border: i64 = ranges.ends[self._index] if inside else start
            if border < stop:
                stop = border
        size = stop - self._position
        if size > length - at:
            size = length - at
        piece = part if size == length else part[at : at + size]
        self._position += size
        if not inside:
            given.append(piece)
        else:
            self._replace(piece, size, ended=self._position == stop, given=given)
        return at + size

    def _replace(self, piece: Buffer, size: i64, *, ended: bool, given: list[Buffer]) -> None:
        """Replace bytes within the range at ``_index``."""
        ranges = self._ranges
        self.replaced += size
        if not ranges.hashed[self._index]:
            _fill(given, b"\0", size)
        else:
            digest = self._digest
            if digest is None:
                digest = self._digest = new_digest()
            digest.update(piece)
            if ended:
                _fill(given, digest.digest(), self._position - i64(ranges.starts[self._index]))
                self._digest = None
        if ended:
            self._index += 1


def _fill(given: list[Buffer], pattern: bytes, size: i64) -> None:
    """Add ``size`` bytes of a repeated pattern, whose length divides ``_FILL``."""
    if size <= _FILL:
        given.append((pattern * int(size // len(pattern) + 1))[:size])
        return
    block = pattern * (_FILL // len(pattern))
    while size > _FILL:
        given.append(block)
        size -= _FILL
    given.append(block[:size])
