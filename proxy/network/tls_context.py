"""TLS contexts from files. A context is never changed once it is in use: a reload builds another."""

import ssl
from typing import Final

from proxy.errors import ConfigError

__all__ = ["client_context", "server_context"]

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(
    certificate: str, key: str, *, client_auth: str = "none", client_ca: str | None = None, min_version: str = "1.2"
) -> ssl.SSLContext:
    """What clients meet.

    Args:
        certificate: PEM file, chain with the leaf first.
        key: PEM file.
        client_auth: ``none``, ``requested`` or ``required``.
        client_ca: PEM file of the authorities that client certificates must chain to; needed unless ``client_auth`` is none.
        min_version: ``1.2`` or ``1.3``.

    Raises:
        ConfigError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, min_version)
    _load_identity(context, certificate, key)
    context.verify_mode = CLIENT_AUTH[client_auth]
    if client_ca is not None:
        _load_authorities(context, client_ca)
    elif client_auth != "none":
        raise ConfigError(f"client_auth {client_auth} needs client_ca")
    return context


def client_context(*, ca: str | None = None, certificate: str | None = None, key: str | None = None, min_version: str = "1.2") -> ssl.SSLContext:
    """What upstreams meet: their certificate and name are verified, against ``ca`` or else the system's authorities.

    Raises:
        ConfigError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, min_version)
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, ca)
    if certificate is not None:
        _load_identity(context, certificate, key or certificate)
    return context


def _harden(context: ssl.SSLContext, min_version: str) -> None:
    context.minimum_version = VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_identity(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certificate {certificate} with key {key}: {error}") from error


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"authorities {path}: {error}") from error


def _no_password() -> str:
    """Keys are not encrypted; without this OpenSSL would ask on the terminal."""
    return ""
