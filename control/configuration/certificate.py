"""When a certificate begins and ends: the few bytes of DER that say it, so that no library has to be loaded for two numbers.

SEQUENCE { tbsCertificate SEQUENCE { [0] version, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, … (RFC 5280, 4.1).
"""

import datetime
import ssl
from typing import Final

__all__ = ["not_after", "validities"]

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def not_after(pem: str) -> float:
    """Seconds since 1970 at which the first certificate of a PEM text ends. Raises ValueError when there is none or it is broken."""
    return validities(pem, 1)[0][1]


def validities(pem: str, most: int | None = None) -> list[tuple[float, float]]:
    """When each certificate of a PEM text begins and ends, in seconds since 1970, in order; at most so many.

    Raises:
        ValueError: there is none, or one is broken.
    """
    found: list[tuple[float, float]] = []
    end = 0
    while most is None or len(found) < most:
        start = pem.find(_BEGIN, end)
        end = pem.find(_END, start)
        if start < 0 or end < 0:
            break
        end += len(_END)
        try:
            found.append(_validity(ssl.PEM_cert_to_DER_cert(pem[start:end])))
        except IndexError as error:
            raise ValueError("the certificate is cut off") from error
    if not found:
        raise ValueError("there is no certificate")
    return found


def _validity(der: bytes) -> tuple[float, float]:
    position = _enter(der, _enter(der, 0))
    if der[position] == _VERSION:
        position = _skip(der, position)
    for _ in ("serialNumber", "signature", "issuer"):
        position = _skip(der, position)
    begin = _enter(der, position)
    return _time(der, begin), _time(der, _skip(der, begin))


def _time(der: bytes, position: int) -> float:
    kind, (start, length) = der[position], _content(der, position)
    text = der[start : start + length].decode("ascii")
    if kind not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"a time has the tag {kind:#x}")
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    moment = datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)
    if kind == _UTC_TIME:
        # RFC 5280: two digits up to 49 are 20xx; strptime would say so up to 68.
        moment = moment.replace(year=moment.year - 100) if moment.year >= 2050 else moment
    return moment.timestamp()


def _content(der: bytes, position: int) -> tuple[int, int]:
    """Where the content of the element begins, and how long it is."""
    first = der[position + 1]
    if first < 0x80:
        return position + 2, first
    count = first & 0x7F
    return position + 2 + count, int.from_bytes(der[position + 2 : position + 2 + count], "big")


def _enter(der: bytes, position: int) -> int:
    if der[position] != _SEQUENCE:
        raise ValueError(f"a SEQUENCE is expected, not the tag {der[position]:#x}")
    return _content(der, position)[0]


def _skip(der: bytes, position: int) -> int:
    start, length = _content(der, position)
    return start + length
