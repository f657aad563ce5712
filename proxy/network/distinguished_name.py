"""A certificate's subject as text, in the form of RFC 4514: the most specific part first, ``CN=client,OU=edge,O=Example``."""

from typing import Any, Final

__all__ = ["format_name"]

SHORT: Final[dict[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "domainComponent": "DC",
    "userId": "UID",
}
SPECIAL: Final = frozenset('"+,;<>\\')


def format_name(subject: Any) -> str:
    """The text of a subject as ``ssl.SSLObject.getpeercert`` gives it: a tuple of RDNs, each a tuple of (name, value) pairs."""
    return ",".join("+".join(f"{SHORT.get(name, name)}={escape(value)}" for name, value in rdn) for rdn in reversed(subject))


def escape(value: str) -> str:
    """Escape a value: special characters anywhere, a space at either end, ``#`` at the beginning."""
    last = len(value) - 1
    parts: list[str] = []
    for index, character in enumerate(value):
        if character in SPECIAL or (character == " " and index in (0, last)) or (character == "#" and index == 0):
            parts.append("\\" + character)
        elif character == "\0":
            parts.append("\\00")
        else:
            parts.append(character)
    return "".join(parts)
