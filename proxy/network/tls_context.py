"""TLS contexts from files, or from what was read of them before: all processors, whenever they start, are to serve the same.

A context is never changed once it is in use: a reload builds another. All of one listener are built together (``server_store``), and so is the one of
an upstream (``upstream_context``), from its settings and what is in its files: whoever serves new files calls these again, and nothing else.

Python's ``ssl`` takes TLS 1.2's ciphers and one group for the key exchange; ciphers of TLS 1.3, and several groups, not before Python 3.15. It sends
no names of authorities when it asks for a client's certificate: that needs OpenSSL's SSL_CTX_set_client_CA_list, which no version of it calls.

A server's sessions are resumed within one context only: tickets are encrypted with keys that the context has drawn, and nobody is told. So no session
that was made under one host, one processor or one certificate is resumed under another; that is a full handshake, with all that it asks for.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from framegate.proxy.config.tls import ListenerTls, UpstreamTls
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.tls_store import ServerStore

__all__ = ["client_context", "server_context", "server_store", "upstream_context"]

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_LIST: Final = b"-----BEGIN X509 CRL-----"
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

TICKETS: Final = 1
"""After a full handshake of TLS 1.3. OpenSSL's default is 2; each costs a fifteenth of the handshake, and whoever uses one gets another for it."""

Files = Mapping[str, bytes]


def server_store(tls: ListenerTls, files: Files | None = None) -> ServerStore:
    """All contexts of a listener.

    Args:
        tls: its settings.
        files: what is in the files that they name, by path; none: they are read now.

    Raises:
        ConfigError: a file is missing or not what it should be, or OpenSSL knows no such cipher or curve.
    """
    default = _listener_context(tls, tls.certificate, tls.key, tls.client_ca, tls.crl, files)
    named: dict[str, ssl.SSLContext] = {}
    for item in tls.certificates:
        authorities, lists = (item.client_ca, item.crl) if item.client_ca is not None else (tls.client_ca, tls.crl)
        context = _listener_context(tls, item.certificate, item.key, authorities, lists, files)
        named.update((name.lower().rstrip("."), context) for name in item.names)
    return ServerStore(default, named, tls.alpn)


def upstream_context(tls: UpstreamTls, files: Files | None = None) -> ssl.SSLContext:
    """The context of connections to an upstream; arguments and errors as above."""
    return client_context(ca=tls.ca, certificate=tls.certificate, key=tls.key, min_version=tls.min_version, files=files)


def _listener_context(tls: ListenerTls, certificate: str, key: str, client_ca: str | None, crl: Sequence[str], files: Files | None) -> ssl.SSLContext:
    context = server_context(certificate, key, client_auth=tls.client_auth, client_ca=client_ca, crl=crl, min_version=tls.min_version, files=files)
    context.maximum_version = VERSIONS[tls.max_version]
    if tls.ciphers is not None:
        _set_ciphers(context, tls.ciphers)
    if tls.curve is not None:
        _set_curve(context, tls.curve)
    if tls.alpn:
        context.set_alpn_protocols(tls.alpn)
    return context


def server_context(
    certificate: str,
    key: str,
    *,
    client_auth: str = "none",
    client_ca: str | None = None,
    crl: Sequence[str] = (),
    min_version: str = "1.2",
    files: Files | None = None,
) -> ssl.SSLContext:
    """What clients meet.

    Args:
        certificate: PEM file, chain with the leaf first.
        key: PEM file.
        client_auth: ``none``, ``requested`` or ``required``.
        client_ca: PEM file of the authorities that client certificates must chain to; needed unless ``client_auth`` is none.
        crl: PEM files of revocation lists; with any, there must be one that is in force of each authority in a client's chain.
        min_version: ``1.2`` or ``1.3``.
        files: what is in the files, by the path they are named with; none: they are read now.

    Raises:
        ConfigError: a file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = TICKETS
    _harden(context, min_version)
    _leave_cbc_out(context)
    _load_identity(context, certificate, key, files)
    context.verify_mode = CLIENT_AUTH[client_auth]
    if client_ca is not None:
        _load_authorities(context, client_ca, files)
    elif client_auth != "none":
        raise ConfigError(f"client_auth {client_auth} needs client_ca")
    for path in crl:
        _load_revocations(context, path, files)
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


def _leave_cbc_out(context: ssl.SSLContext) -> None:
    """Of TLS 1.2's ciphers that Python, or the platform's policy, allows, keep those that authenticate what they encrypt; all of TLS 1.3 do."""
    known = [item for item in context.get_ciphers() if item["protocol"] != "TLSv1.3"]
    kept = [item["name"] for item in known if item["aead"]]
    if kept and len(kept) < len(known):
        context.set_ciphers(":".join(kept))


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


def _load_revocations(context: ssl.SSLContext, path: str, files: Files | None) -> None:
    before = context.cert_store_stats()["crl"]
    try:
        with _path(path, files) as lists:
            context.load_verify_locations(lists)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"revocation list {path}: {error}") from error
    if context.cert_store_stats()["crl"] == before and not _has_list(path, files):  # one that was loaded before is there
        raise ConfigError(f"revocation list {path}: there is none in it")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN


def _has_list(path: str, files: Files | None) -> bool:
    if files is None:
        with open(path, "rb") as file:
            return _LIST in file.read()
    return _LIST in files[path]


def _set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError as error:
        raise ConfigError(f"ciphers {ciphers}: OpenSSL knows none of them") from error


def _set_curve(context: ssl.SSLContext, curve: str) -> None:
    try:
        context.set_ecdh_curve(curve)
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(f"curve {curve}: OpenSSL knows none of that name") from error


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
