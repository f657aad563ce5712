"""When a certificate ends: the few bytes of DER that say it, so that no library has to be loaded for one number.

SEQUENCE { tbsCertificate SEQUENCE { [0] version, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, … (RFC 5280, 4.1).
"""

import contextlib
import datetime
import ssl
from collections.abc import Mapping
from typing import Final

from proxy.config.model import ProxyConfig

__all__ = ["not_after", "served_ends"]

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_END: Final = "-----END CERTIFICATE-----"


def not_after(pem: str) -> float:
    """Seconds since 1970 at which the first certificate of a PEM text ends. Raises ValueError when there is none or it is broken."""
    start = pem.find("-----BEGIN CERTIFICATE-----")
    end = pem.find(_END, start)
    if start < 0 or end < 0:
        raise ValueError("there is no certificate")
    try:
        return _validity_end(ssl.PEM_cert_to_DER_cert(pem[start : end + len(_END)]))
    except IndexError as error:
        raise ValueError("the certificate is cut off") from error


def _validity_end(der: bytes) -> float:
    position = _enter(der, _enter(der, 0))
    if der[position] == _VERSION:
        position = _skip(der, position)
    for _ in ("serialNumber", "signature", "issuer"):
        position = _skip(der, position)
    end = _skip(der, _enter(der, position))
    kind, (start, length) = der[end], _content(der, end)
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


def served_ends(config: ProxyConfig, files: Mapping[str, str]) -> dict[str, float]:
    """When each certificate that is in use ends, by what it is for: ``listener/NAME`` or ``upstream/NAME``.

    Args:
        files: what was read of the files at the start, by path; a file that was renewed since then is not in use.
    """
    identities = [(f"listener/{item.name}", item.tls.certificate) for item in config.listeners if item.tls is not None]
    identities += [(f"upstream/{item.name}", item.tls.certificate) for item in config.upstreams if item.tls is not None and item.tls.certificate]
    found: dict[str, float] = {}
    for use, path in identities:
        with contextlib.suppress(ValueError):  # OpenSSL has read it, so it is one; of an odd form
            found[use] = not_after(files[path])
    return found
