"""When certificates begin and end.

``cryptography`` reads them: 45 ms and 16 MiB, which only a process pays that reads a configuration and then ends (``child``).
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Final

from proxy.config.model import ProxyConfig

__all__ = ["hosts", "revocation_ends", "served_ends", "validities"]

_REVOCATIONS: Final = re.compile(b"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


def validities(pem: bytes) -> list[tuple[float, float]]:
    """When each certificate of a PEM file begins and ends, in seconds since 1970, in order; what else is in it is passed over.

    Raises:
        ValueError: there is none, or one is broken.
    """
    from cryptography import x509

    found = x509.load_pem_x509_certificates(pem)
    return [(item.not_valid_before_utc.timestamp(), item.not_valid_after_utc.timestamp()) for item in found]


def hosts(pem: bytes) -> list[str]:
    """The DNS names of the first certificate of a PEM file, in lower case; without any its common name, as clients read it then.

    Raises:
        ValueError: there is none, or it is broken.
    """
    from cryptography import x509

    leaf = x509.load_pem_x509_certificates(pem)[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = [str(item.value) for item in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    return [name.lower() for name in names]


def revocation_ends(pem: bytes) -> list[float]:
    """When each revocation list of a PEM file ends, in seconds since 1970, of those that do.

    Raises:
        ValueError: one is broken.
    """
    from cryptography import x509

    found = [x509.load_pem_x509_crl(block).next_update_utc for block in _REVOCATIONS.findall(pem)]
    return [end.timestamp() for end in found if end is not None]


def served_ends(config: ProxyConfig, files: Mapping[str, str]) -> dict[str, float]:
    """When each certificate that is in use ends, in seconds since 1970, by what it is for: ``listener/NAME`` or ``upstream/NAME``; of
    one for certain hosts ``listener/NAME/HOST``, the first of them.

    Args:
        files: what was read of the files at the start, by path (``read_tls_files``); a file that was renewed since then is not in use.
    """
    identities = [(f"listener/{item.name}", item.tls.certificate) for item in config.listeners if item.tls is not None]
    identities += [
        (f"listener/{item.name}/{named.names[0]}", named.certificate)
        for item in config.listeners
        if item.tls is not None
        for named in item.tls.certificates
    ]
    identities += [(f"upstream/{item.name}", item.tls.certificate) for item in config.upstreams if item.tls is not None and item.tls.certificate]
    found: dict[str, float] = {}
    for use, path in identities:
        with contextlib.suppress(ValueError):  # OpenSSL has read it, so it is one; of an odd form
            found[use] = validities(files[path].encode("latin-1"))[0][1]
    return found
