"""Reading a certificate (DER, ITU-T X.690): its serial number, and its subject as text in the form of Java (RFC 2253), which Kafka's brokers, rules
and ACLs use: the most specific part first, ``CN=client,OU=edge,O=Example``.

Nine attributes have names; any other is written as its number, with the encoded value in hexadecimal: ``1.2.840.113549.1.9.1=#1605614062…``. So is
the value of a named attribute if its type is not one of the six below. The text is that of Java 25. Java 17 decodes T61String and BMPString as UTF-8,
so it writes other texts for them, and may write the same text for different subjects.

A malformed name is refused, because a replacement character, as in Java, could make it equal to the name of another subject.
Source: RFC 2253, 2.3 and 2.4; X.690, 8.19; the comparison with ``X500Principal.getName()`` in the tests.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from framegate.proxy.errors import AuthenticationError

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
    """Iterate over a sequence of elements. Raises AuthenticationError: the data is not valid DER."""
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


NAMES: Final[dict[str, str]] = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
CHARSETS: Final[dict[int, str]] = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "ascii",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
SPECIAL: Final = frozenset('",=+<>#;\\')
SPACES: Final = " \r"
VERSION: Final = 0xA0
BEFORE_SUBJECT: Final = 4  # fields: serial number, signature, issuer, validity


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER form; empty if it has none. Raises AuthenticationError: the certificate or its subject is
    malformed.
    """
    fields = list(elements(next((item.content for item in elements(only(certificate))), b"")))
    place = BEFORE_SUBJECT + (1 if fields and fields[0].tag == VERSION else 0)
    if place >= len(fields) or fields[place].tag != SEQUENCE:
        raise AuthenticationError("the certificate cannot be read: it has no place for a subject")
    return format_name(fields[place].content)


def format_name(name: bytes) -> str:
    """Return the text of a distinguished name, given its RDNs in DER form. Raises AuthenticationError if it is malformed."""
    parts = [_part(rdn) for rdn in elements(name)]
    parts.reverse()
    return ",".join(parts)


def _part(rdn: Element) -> str:
    attributes = [_attribute(item) for item in elements(rdn.content)]
    if rdn.tag != SET or not attributes:
        raise AuthenticationError("the certificate cannot be read: a part of its subject that is none")
    return "+".join(attributes)


def _attribute(attribute: Element) -> str:
    fields = list(elements(attribute.content))
    if attribute.tag != SEQUENCE or len(fields) != 2 or fields[0].tag != OID:
        raise AuthenticationError("the certificate cannot be read: an attribute that is none")
    kind, value = _number(fields[0].content), fields[1]
    name = NAMES.get(kind, kind)
    charset = CHARSETS.get(value.tag)
    if charset is None or name is kind:
        return f"{name}=#{value.encoded.hex()}"
    try:
        text = value.content.decode(charset)
    except UnicodeDecodeError:
        raise AuthenticationError(f"the certificate cannot be read: {name} of its subject is not {charset}: {value.content.hex()}") from None
    return f"{name}={escape(text)}"


def _number(content: bytes) -> str:
    """Return an object identifier with dots. Raises AuthenticationError if a number is not encoded in the fewest bytes."""
    parts: list[str] = []
    part = 0
    begins = True
    for byte in content:
        if begins and byte == 0x80:
            raise _no_number(content)
        begins = byte < 0x80
        part = part << 7 | byte & 0x7F
        if byte < 0x80:
            if not parts:
                first = min(part // 40, 2)
                parts.append(str(first))
                part -= 40 * first
            parts.append(str(part))
            part = 0
    if not parts or not begins:
        raise _no_number(content)
    return ".".join(parts)


def _no_number(content: bytes) -> AuthenticationError:
    return AuthenticationError(f"the certificate cannot be read: {content.hex()} is no object identifier")


def escape(value: str) -> str:
    """Escape special characters, and spaces and carriage returns at either end."""
    last = len(value.rstrip(SPACES))
    first = len(value) - len(value.lstrip(SPACES))
    parts: list[str] = []
    for index, character in enumerate(value):
        if character == "\0":
            parts.append("\\00")
        elif character in SPECIAL or not first <= index < last:
            parts.append("\\" + character)
        else:
            parts.append(character)
    return "".join(parts)
