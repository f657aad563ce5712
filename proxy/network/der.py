"""DER (ITU-T X.690), the format of certificates: nested elements with a tag and a length each. Every length is checked against the data."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from framegate.proxy.errors import AuthenticationError

__all__ = ["OCTETS", "OID", "SEQUENCE", "SET", "Element", "elements", "only", "serial_of"]

INTEGER: Final = 0x02
SEQUENCE: Final = 0x30
SET: Final = 0x31
OID: Final = 0x06
OCTETS: Final = 0x04


class Element(NamedTuple):
    """One element: its tag, its content, and the whole encoding."""

    tag: int
    content: bytes
    encoded: bytes


def elements(data: bytes) -> Iterator[Element]:
    """Iterate over a sequence of elements.

    Raises:
        AuthenticationError: the data is not valid DER.
    """
    position = 0
    while position < len(data):
        tag, length, begin = _header(data, position)
        end = begin + length
        if end > len(data):
            raise AuthenticationError(f"the certificate cannot be read: {length} bytes where {len(data) - begin} are left")
        yield Element(tag, data[begin:end], data[position:end])
        position = end


def only(data: bytes) -> bytes:
    """Return the content of data that must be one SEQUENCE. Raises AuthenticationError if it is not."""
    found = list(elements(data))
    if len(found) != 1 or found[0].tag != SEQUENCE:
        raise AuthenticationError("the certificate cannot be read: a SEQUENCE is missing")
    return found[0].content


def serial_of(certificate: bytes) -> str:
    """Return the serial number of a certificate in DER form, in hexadecimal without leading zeros. Raises AuthenticationError if it has none."""
    for item in elements(next((item.content for item in elements(only(certificate))), b"")):
        if item.tag == INTEGER:  # only the version may precede it
            return f"{int.from_bytes(item.content, 'big'):x}"
    raise AuthenticationError("the certificate cannot be read: it has no serial number")


def _header(data: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag and the length of an element, and the position of its content."""
    tag, *rest = data[position : position + 2]
    if not rest or tag & 0x1F == 0x1F:
        raise AuthenticationError("the certificate cannot be read: a tag that none has")
    length = rest[0]
    position += 2
    if length >= 0x80:
        size = length & 0x7F
        digits = data[position : position + size]
        if not 1 <= size <= 4 or len(digits) < size:
            raise AuthenticationError("the certificate cannot be read: a length that none has")
        length = int.from_bytes(digits, "big")
        position += size
    return tag, length, position
