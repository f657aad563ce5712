"""TLS contexts from files, or from what was read of them before: all processors, whenever they start, are to serve the same.

A context is never changed once it is in use: a reload builds another.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

from proxy.errors import ConfigError

__all__ = ["client_context", "server_context"]

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


Files = Mapping[str, bytes]


def server_context(
    certificate: str,
    key: str,
    *,
    client_auth: str = "none",
    client_ca: str | None = None,
    min_version: str = "1.2",
    files: Files | None = None,
) -> ssl.SSLContext:
    """What clients meet.

    Args:
        certificate: PEM file, chain with the leaf first.
        key: PEM file.
        client_auth: ``none``, ``requested`` or ``required``.
        client_ca: PEM file of the authorities that client certificates must chain to; needed unless ``client_auth`` is none.
        min_version: ``1.2`` or ``1.3``.
        files: what is in the files, by the path they are named with; none: they are read now.

    Raises:
        ConfigError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, min_version)
    _load_identity(context, certificate, key, files)
    context.verify_mode = CLIENT_AUTH[client_auth]
    if client_ca is not None:
        _load_authorities(context, client_ca, files)
    elif client_auth != "none":
        raise ConfigError(f"client_auth {client_auth} needs client_ca")
    return context


def client_context(
    *, ca: str | None = None, certificate: str | None = None, key: str | None = None, min_version: str = "1.2", files: Files | None = None
) -> ssl.SSLContext:
    """What upstreams meet: their certificate and name are verified, against ``ca`` or else the system's authorities. ``files`` as above.

    Raises:
        ConfigError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, min_version)
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, ca, files)
    if certificate is not None:
        _load_identity(context, certificate, key or certificate, files)
    return context


def _harden(context: ssl.SSLContext, min_version: str) -> None:
    context.minimum_version = VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_identity(context: ssl.SSLContext, certificate: str, key: str, files: Files | None) -> None:
    try:
        with _path(certificate, files) as certificate_path, _path(key, files) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certificate {certificate} with key {key}: {error}") from error


def _load_authorities(context: ssl.SSLContext, path: str, files: Files | None) -> None:
    try:
        with _path(path, files) as authorities:
            context.load_verify_locations(authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"authorities {path}: {error}") from error


@contextlib.contextmanager
def _path(name: str, files: Files | None) -> Iterator[str]:
    """Where OpenSSL, which takes files only, finds the content: the file itself, or memory under a name of this process."""
    if files is None:
        yield name
        return
    if name not in files:
        raise ConfigError(f"what is in {name} was not sent along")
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(files[name])
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _no_password() -> str:
    """Keys are not encrypted; without this OpenSSL would ask on the terminal."""
    return ""
