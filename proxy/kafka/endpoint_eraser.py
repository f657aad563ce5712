"""Erases the node endpoints of an answer that passes in pieces: Produce, Fetch, ShareFetch and ShareAcknowledge.

The frame's size has been sent before the endpoints come, at the end of the answer, so they cannot be replaced by others. They are a hint: without
them a client asks for metadata. From where they begin up to the end of the frame, the answer is replaced by as many bytes without an address:

- Produce and Fetch have them in the top-level tagged field 0. It becomes one with a number that no version of Kafka uses and zeros as content, which
  clients skip. Tagged fields behind it, which the tables do not know, become empty ones behind that.
- ShareFetch and ShareAcknowledge have them in the last array. It becomes an empty array, and such a tagged field behind it.

No byte is held back: a piece is judged when it comes, and its walker keeps the place. Records are skipped by their size, without a look at them.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.addresses import TAIL, carries_addresses
from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import known_api
from framegate.proxy.kafka.values import varint
from framegate.proxy.kafka.walker import Walker

FIRST_UNKNOWN_TAG: Final = 96
"""The number of the tagged field that replaces the endpoints: one byte, and far above those that Kafka's messages have (less than 10)."""

_MAX_TAGS: Final = 32  # they are numbered from FIRST_UNKNOWN_TAG on, in one byte each
_ERASE: Final = 1
_programs: Final[dict[int, Program]] = {}


def _program(key: i64, version: i64) -> Program:
    found = _programs.get(key << 16 | version)
    if found is None:
        if carries_addresses(key, version) != TAIL:
            raise KafkaFormatError(f"no node endpoints in version {version} of API {key}", 0)
        found = _programs[key << 16 | version] = compile_program(known_api(key, version), version, answer=True, marks={}, erase=_ERASE)
    return found


class EndpointEraser:
    """Follows one answer. ``key``, ``version``: of the request; ``carries_addresses`` is TAIL. ``size``: bytes of the answer's body."""

    def __init__(self, key: i64, version: i64, size: i64) -> None:
        self.replacement: bytes = b""  # of the last piece, the bytes that replace those from the returned position to its end
        self.erased: bool = False  # whether the answer had endpoints
        self._size: Final = size
        self._walker: Final = Walker()
        self._walker.begin(_program(key, version), 0, size)
        self._fed: i64 = 0
        self._from: i64 = 0  # where the replacement begins in the body
        self._head: bytes = b""
        self._tail: bytes = b""

    @property
    def ahead(self) -> i64:
        """How many of the next bytes need no look: records."""
        return 0 if self.erased else self._walker.ahead

    def pass_by(self, size: i64) -> None:
        """Count bytes that are not fed; at most ``ahead``."""
        self._fed += size
        self._walker.pass_by(size)

    def feed(self, data: bytes, start: i64, end: i64) -> i64:
        """The next bytes of the body, consecutive, all of it in the end. Returns the position in ``data`` from which on its bytes are to be replaced
        by ``replacement``, up to ``end``; ``end``: nothing is to be replaced. Raises KafkaFormatError: the answer does not follow its schema. Nothing
        of the piece may be sent.
        """
        fed = self._fed
        self._fed = fed + end - start
        keep = end
        if not self.erased:
            walker = self._walker
            walker.feed(data, start, end)
            if len(walker.marks):
                self.erased = True
                self._from = walker.marks[1]
                self._fill(walker.tags_left)
                keep = start + self._from - fed
        else:
            keep = start
        self.replacement = self._filler(fed + keep - start - self._from, self._fed - self._from) if keep < end else b""
        return keep

    def _fill(self, tags: i64) -> None:
        """Decide what replaces the rest of the answer: from a tagged field on that others follow, or, without ``tags``, from an array on."""
        head = b"" if tags else b"\x01\x01"  # an empty array, one tagged field
        number: i64 = FIRST_UNKNOWN_TAG + 1
        tail = b""
        if tags <= _MAX_TAGS:
            while number < FIRST_UNKNOWN_TAG + tags:
                tail += bytes((number, 0))
                number += 1
        room = self._size - self._from - i64(len(head)) - i64(len(tail)) - 1
        if tags > _MAX_TAGS or room < 1:
            raise KafkaFormatError("node endpoints that the message has no room for", self._from)
        width: i64 = 1
        while width < 5 and room - width >= 1 << (7 * width):
            width += 1
        size = bytearray(varint(room - width))
        while len(size) < width:  # one byte less would be too few, one more too many: clients read zeros in front
            size[-1] |= 0x80
            size.append(0)
        self._head = head + bytes((FIRST_UNKNOWN_TAG,)) + bytes(size)
        self._tail = tail

    def _filler(self, start: i64, end: i64) -> bytes:
        """A part of what replaces the rest of the answer."""
        head = i64(len(self._head))
        zeros_end = self._size - self._from - i64(len(self._tail))
        zeros = min(end, zeros_end) - max(start, head)
        out = self._head[start:end]
        if zeros > 0:
            out += bytes(zeros)
        if end > zeros_end:
            out += self._tail[max(start - zeros_end, 0) : end - zeros_end]
        return out
