"""The names beside its subject that a certificate has: URIs (a SPIFFE id is one), DNS names and e-mail addresses (RFC 5280, 4.2.1.6).

OpenSSL hands a certificate over in DER form, and the standard library reads none. What is read here is what its verification has accepted; all the
same no length is believed.
"""

from collections.abc import Iterator
from typing import Final, Literal

from proxy.errors import AuthenticationError

__all__ = ["NameKind", "alternative_names"]

NameKind = Literal["uri", "dns", "email"]

_TAGS: Final[dict[NameKind, int]] = {"email": 0x81, "dns": 0x82, "uri": 0x86}
_SEQUENCE: Final = 0x30
_OID: Final = 0x06
_OCTETS: Final = 0x04
_EXTENSIONS: Final = 0xA3
_SUBJECT_ALTERNATIVE_NAME: Final = b"\x55\x1d\x11"  # 2.5.29.17


def alternative_names(certificate: bytes, kind: NameKind) -> list[str]:
    """The alternative names of one kind, in the certificate's order.

    Args:
        certificate: in DER form.
        kind: of the names.

    Raises:
        AuthenticationError: it cannot be read, or a name has characters that no such name has.
    """
    wanted = _TAGS[kind]
    names: list[str] = []
    for tag, name in _elements(_names_extension(certificate)):
        if tag != wanted:
            continue
        if not name or not all(0x20 < byte < 0x7F for byte in name):
            raise AuthenticationError(f"the certificate has a {kind} name with characters that none has: {name!r}")
        names.append(name.decode("ascii"))
    return names


def _names_extension(certificate: bytes) -> bytes:
    """The elements of the extension; none without it."""
    signed = next(_elements(_only(certificate)), (0, b""))[1]
    for tag, content in _elements(signed):
        if tag == _EXTENSIONS:
            for extension in _elements(_only(content)):
                fields = list(_elements(extension[1]))
                if len(fields) >= 2 and fields[0] == (_OID, _SUBJECT_ALTERNATIVE_NAME) and fields[-1][0] == _OCTETS:
                    return _only(fields[-1][1])
    return b""


def _only(data: bytes) -> bytes:
    """The content of the one SEQUENCE that it must be."""
    found = list(_elements(data))
    if len(found) != 1 or found[0][0] != _SEQUENCE:
        raise AuthenticationError("the certificate cannot be read: a SEQUENCE is missing")
    return found[0][1]


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements that follow one another, as (tag, content)."""
    position = 0
    while position < len(data):
        tag, length, position = _header(data, position)
        if length > len(data) - position:
            raise AuthenticationError(f"the certificate cannot be read: {length} bytes where {len(data) - position} are left")
        yield tag, data[position : position + length]
        position += length


def _header(data: bytes, position: int) -> tuple[int, int, int]:
    """Tag and length of an element, and where its content begins."""
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
