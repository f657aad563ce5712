"""Ranges of bodies that are not stored as they passed: zeros, or a hash, of the same length.

What is stored of a body keeps its length, so what follows a range stays where it was. Ranges hold for what the rule keeps of a body
(``max_frame_bytes``): a range that begins behind that is not stored at all.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.record import HASH_BYTES

if TYPE_CHECKING:
    import hashlib

__all__ = ["Redaction", "Redactor", "new_digest"]

# Zeros, and repeated hashes, are given in pieces of at most this size, which is the same object again and again.
_FILL: Final = 65536


def new_digest() -> "hashlib.blake2b":
    """Of bytes of which nothing was hashed yet."""
    import hashlib  # here: it loads OpenSSL, and only a rule that hashes needs it

    return hashlib.blake2b(digest_size=HASH_BYTES)


class Redaction:
    """The ranges of one rule.

    Attributes:
        starts, ends: of each range, in order; half open, within the body.
        hashed: for each, whether a hash stands for it; else zeros.
    """

    def __init__(self, blank: list[tuple[int, int]], hashed: list[tuple[int, int]]) -> None:
        """Ranges of which no two share a byte."""
        ranges = sorted([(start, end, False) for start, end in blank] + [(start, end, True) for start, end in hashed])
        self.starts = [start for start, _, _ in ranges]
        self.ends = [end for _, end, _ in ranges]
        self.hashed = [is_hashed for _, _, is_hashed in ranges]


class Redactor:
    """One body on its way through the ranges of a rule, in as many pieces as it comes.

    Attributes:
        replaced: bytes given that are not those that passed.
    """

    def __init__(self, redaction: Redaction, kept: i64) -> None:
        """``kept``: bytes of the body that are kept; what is fed behind them is left out."""
        self.replaced: i64 = 0
        self._ranges = redaction
        self._kept: i64 = kept
        self._position: i64 = 0
        self._index: i64 = 0
        self._digest: hashlib.blake2b | None = None

    def feed(self, parts: list[Buffer]) -> list[Buffer]:
        """The next bytes of the body; what can be stored now, in order. With the last byte that is kept, all is given."""
        given: list[Buffer] = []
        for part in parts:
            at: i64 = 0
            length: i64 = len(part)
            while at < length and self._position < self._kept:
                at = self._step(part, at, length, given)
        return given

    def _step(self, part: Buffer, at: i64, length: i64, given: list[Buffer]) -> i64:
        """Take what of a part lies before or within the next range; returns where the rest of it begins."""
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
        """Bytes within the range at ``_index``."""
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
    """Give ``size`` bytes of a pattern that is repeated; its length divides ``_FILL``."""
    if size <= _FILL:
        given.append((pattern * int(size // len(pattern) + 1))[:size])
        return
    block = pattern * (_FILL // len(pattern))
    while size > _FILL:
        given.append(block)
        size -= _FILL
    given.append(block[:size])
