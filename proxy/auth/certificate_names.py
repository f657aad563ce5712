"""The names beside its subject that a certificate has: URIs (a SPIFFE id is one), DNS names and e-mail addresses (RFC 5280, 4.2.1.6).

OpenSSL hands a certificate over in DER form, and the standard library reads none. What is read here is what its verification has accepted.
"""

from typing import Final, Literal

from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.certificate import OCTETS, OID, elements, only

__all__ = ["NameKind", "alternative_names"]

NameKind = Literal["uri", "dns", "email"]

_TAGS: Final[dict[NameKind, int]] = {"email": 0x81, "dns": 0x82, "uri": 0x86}
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
    for tag, name, _ in elements(_names_extension(certificate)):
        if tag != wanted:
            continue
        if not name or not all(0x20 < byte < 0x7F for byte in name):
            raise AuthenticationError(f"the certificate has a {kind} name with characters that none has: {name!r}")
        names.append(name.decode("ascii"))
    return names


def _names_extension(certificate: bytes) -> bytes:
    """The elements of the extension; none without it."""
    signed = next((item.content for item in elements(only(certificate))), b"")
    for tag, content, _ in elements(signed):
        if tag == _EXTENSIONS:
            for extension in elements(only(content)):
                fields = list(elements(extension.content))
                if len(fields) >= 2 and fields[0][:2] == (OID, _SUBJECT_ALTERNATIVE_NAME) and fields[-1].tag == OCTETS:
                    return only(fields[-1].content)
    return b""
