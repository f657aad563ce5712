"""Kafka's primitive types, read and written. Nothing is allocated from a length that the message does not have."""

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from framegate.proxy.errors import AuthenticationError

T = TypeVar("T")
Tags = tuple[tuple[int, bytes], ...]  # Tagged fields: the number of each, ascending, and its bytes
MAX_TAGS: Final = 128  # Tagged fields in one place. Kafka's messages have a few; more are refused, because the client is not authenticated yet.
_MAX_VARINT: Final = 5  # bytes of an unsigned 32-bit varint


class MalformedError(AuthenticationError):
    """A message that is too short, too long, or has an impossible field."""


class Reader:
    """Reads a message from its beginning to its end. ``position``: of the next byte."""

    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._data: Final = data

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def raw(self, size: int, what: str) -> bytes:
        """So many bytes; raises MalformedError if there are fewer."""
        if not 0 <= size <= self.remaining:
            raise MalformedError(f"{what} of {size} bytes where {self.remaining} are left")
        start = self.position
        self.position += size
        return self._data[start : self.position]

    def int16(self, what: str) -> int:
        return int.from_bytes(self.raw(2, what), "big", signed=True)

    def int32(self, what: str) -> int:
        return int.from_bytes(self.raw(4, what), "big", signed=True)

    def int64(self, what: str) -> int:
        return int.from_bytes(self.raw(8, what), "big", signed=True)

    def uvarint(self, what: str) -> int:
        """An unsigned varint of at most 32 bits."""
        value = 0
        for index in range(_MAX_VARINT):
            byte = self.raw(1, what)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise MalformedError(f"{what} is no 32-bit varint")

    def nullable_string(self, what: str, *, compact: bool = False) -> str | None:
        size = self.uvarint(what) - 1 if compact else self.int16(what)
        if size == -1:
            return None
        try:
            return self.raw(size, what).decode()
        except UnicodeDecodeError:
            raise MalformedError(f"{what} is not UTF-8") from None

    def string(self, what: str, *, compact: bool = False) -> str:
        text = self.nullable_string(what, compact=compact)
        if text is None:
            raise MalformedError(f"{what} is null")
        return text

    def data(self, what: str, *, compact: bool = False) -> bytes:
        return self.raw(self.uvarint(what) - 1 if compact else self.int32(what), what)

    def array(self, what: str, read: Callable[[], T], least: int, *, compact: bool = False) -> list[T]:
        """An array whose elements have at least ``least`` bytes each: its size is checked before the first is read."""
        count = self.uvarint(what) - 1 if compact else self.int32(what)
        if not 0 <= count * least <= self.remaining:
            raise MalformedError(f"{what} of {count} elements where {self.remaining} bytes are left")
        return [read() for _ in range(count)]

    def tags(self, what: str) -> Tags:
        """Tagged fields, ``MAX_TAGS`` at most."""
        last = -1
        found: list[tuple[int, bytes]] = []
        count = self.uvarint(what)
        if count > MAX_TAGS:
            raise MalformedError(f"{what}: {count} tagged fields, more than {MAX_TAGS}")
        for _ in range(count):
            tag = self.uvarint(what)
            if tag <= last:
                raise MalformedError(f"{what}: tag {tag} behind tag {last}")
            last = tag
            found.append((tag, self.raw(self.uvarint(what), what)))
        return tuple(found)

    def end(self, what: str) -> None:
        """Raises MalformedError if bytes are left."""
        if self.remaining:
            raise MalformedError(f"{self.remaining} bytes behind {what}")


class Writer:
    """Writes a message."""

    def __init__(self) -> None:
        self._parts: Final[list[bytes]] = []

    def message(self) -> bytes:
        return b"".join(self._parts)

    def int16(self, value: int) -> None:
        self._parts.append(struct.pack(">h", value))

    def int32(self, value: int) -> None:
        self._parts.append(struct.pack(">i", value))

    def int64(self, value: int) -> None:
        self._parts.append(struct.pack(">q", value))

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self._parts.append(bytes((value & 0x7F | 0x80,)))
            value >>= 7
        self._parts.append(bytes((value,)))

    def string(self, text: str | None, *, compact: bool = False) -> None:
        data = None if text is None else text.encode()
        size = -1 if data is None else len(data)
        if compact:
            self.uvarint(size + 1)
        else:
            self.int16(size)
        self._parts.append(data or b"")

    def data(self, data: bytes, *, compact: bool = False) -> None:
        self.count(len(data), compact=compact)
        self._parts.append(data)

    def count(self, size: int, *, compact: bool = False) -> None:
        """The number of elements, or bytes, that follow."""
        if compact:
            self.uvarint(size + 1)
        else:
            self.int32(size)

    def tags(self, tags: Tags = ()) -> None:
        self.uvarint(len(tags))
        for tag, data in tags:
            self.uvarint(tag)
            self.uvarint(len(data))
            self._parts.append(data)
