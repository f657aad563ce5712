"""TLS contexts, made from files or from their contents, which the control process reads so that all processors use the same.

A context is never changed once it is in use: a reload makes another. All contexts of a listener are made together (``server_store``), and so is the
one of an upstream (``upstream_context``), from the settings and the contents of the files. A reload calls only these two functions.

Python's ``ssl`` can set ciphers of TLS 1.2 and one group for the key exchange; ciphers of TLS 1.3, and several groups, only from Python 3.15 on. It
does not send the names of authorities when it requests a client certificate, because it never calls OpenSSL's SSL_CTX_set_client_CA_list.

A session can only be resumed with the context that made it, because each context generates its own keys for tickets. So a session of one host,
processor or certificate is never resumed with another; a full handshake is made instead, with all checks.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from framegate.proxy.config.tls import ListenerTls, UpstreamTls
from framegate.proxy.errors import ConfigError

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_LIST: Final = b"-----BEGIN X509 CRL-----"
WILDCARD: Final = "*."
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

TICKETS: Final = 1
"""Tickets after a full handshake of TLS 1.3. OpenSSL's default is 2. Each costs a fifteenth of the handshake; a client that uses one gets a new one.
"""

Files = Mapping[str, bytes]


class ServerStore:
    """The contexts of one listener. It is never changed: a reload makes another.

    Args:
        default: the context for clients that name no host, or another host.
        named: the other contexts by host: an exact name, or ``*.`` and the labels behind the first one; lower case, without a trailing dot.
        protocols: of ALPN, as in the contexts; empty: protocols are not checked.
    """

    def __init__(
        self, default: ssl.SSLContext, named: Mapping[str, ssl.SSLContext], protocols: Sequence[str] = (), *, reads_host: bool = False
    ) -> None:
        self.default: Final = default
        self.protocols: Final[list[str]] = list(protocols)
        self.reads_hello: Final[bool] = bool(named or protocols) or reads_host  # the host and the protocols in the ClientHello are needed
        self._exact: Final[dict[str, ssl.SSLContext]] = {name: item for name, item in named.items() if not name.startswith(WILDCARD)}
        self._below: Final[dict[str, ssl.SSLContext]] = {name[len(WILDCARD) :]: item for name, item in named.items() if name.startswith(WILDCARD)}

    def context(self, host: str) -> ssl.SSLContext:
        """Return the context for a host, as in ``Hello``. An exact name has precedence over a pattern."""
        found = self._exact.get(host)
        if found is None:
            found = self._below.get(host.partition(".")[2])
        return self.default if found is None else found

    def agrees(self, protocols: list[str]) -> bool:
        """Whether a client with these protocols is accepted: it names none, or one of ours, or we have none."""
        if not protocols or not self.protocols:
            return True
        return any(name in self.protocols for name in protocols)


def server_store(tls: ListenerTls, files: Files | None = None, *, reads_host: bool = False) -> ServerStore:
    """Make the contexts of a listener. ``files``: the contents of the files in the settings, by path; None: they are read now. ``reads_host``: the
    host in the ClientHello is needed, even if there is only one context (``Identity.host``). Raises ConfigError: a file is missing or invalid, or
    OpenSSL does not know a cipher or curve.
    """
    default = _listener_context(tls, tls.certificate, tls.key, tls.client_ca, tls.crl, files)
    named: dict[str, ssl.SSLContext] = {}
    for item in tls.certificates:
        authorities, lists = (item.client_ca, item.crl) if item.client_ca is not None else (tls.client_ca, tls.crl)
        context = _listener_context(tls, item.certificate, item.key, authorities, lists, files)
        named.update((name.lower().rstrip("."), context) for name in item.names)
    return ServerStore(default, named, tls.alpn, reads_host=reads_host)


def upstream_context(tls: UpstreamTls, files: Files | None = None) -> ssl.SSLContext:
    """Make the context of connections to an upstream; arguments and errors as for ``server_store``."""
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
    """Make a context for clients.

    Args:
        certificate: PEM file, chain with the leaf first.
        key: PEM file.
        client_auth: ``none``, ``requested`` or ``required``.
        client_ca: PEM file of the authorities that client certificates must chain to; required unless ``client_auth`` is none.
        crl: PEM files of revocation lists; with any, each authority in a client's chain needs one that is in force.
        min_version: ``1.2`` or ``1.3``.
        files: the contents of the files, by path; None: they are read now.

    Raises ConfigError: a file is missing or invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = TICKETS
    _harden(context, min_version)
    _leave_cbc_out(context)
    _load_identity(context, certificate, key, files)
    context.verify_mode = CLIENT_AUTH[client_auth]
    if client_ca is not None:
        _load_locations(context, "authorities", client_ca, files)
    elif client_auth != "none":
        raise ConfigError(f"client_auth {client_auth} needs client_ca")
    for path in crl:
        _load_revocations(context, path, files)
    return context


def client_context(
    *, ca: str | None = None, certificate: str | None = None, key: str | None = None, min_version: str = "1.2", files: Files | None = None
) -> ssl.SSLContext:
    """Make a context for upstreams: their certificate and name are verified, with ``ca`` or else the system's authorities. ``files`` as above. Raises
    ConfigError: a file is missing or invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, min_version)
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_locations(context, "authorities", ca, files)
    if certificate is not None:
        _load_identity(context, certificate, key or certificate, files)
    return context


def _harden(context: ssl.SSLContext, min_version: str) -> None:
    context.minimum_version = VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _leave_cbc_out(context: ssl.SSLContext) -> None:
    """Keep only the AEAD ciphers among the TLS 1.2 ciphers that Python or the platform's policy allows. All ciphers of TLS 1.3 are AEAD."""
    known = [item for item in context.get_ciphers() if item["protocol"] != "TLSv1.3"]
    kept = [item["name"] for item in known if item["aead"]]
    if kept and len(kept) < len(known):
        context.set_ciphers(":".join(kept))


def _load_identity(context: ssl.SSLContext, certificate: str, key: str, files: Files | None) -> None:
    with _errors_of(f"certificate {certificate} with key {key}"), _path(certificate, files) as certificate_path, _path(key, files) as key_path:
        context.load_cert_chain(certificate_path, key_path, password=_no_password)


def _load_locations(context: ssl.SSLContext, kind: str, path: str, files: Files | None) -> None:
    with _errors_of(f"{kind} {path}"), _path(path, files) as loaded:
        context.load_verify_locations(loaded)


def _load_revocations(context: ssl.SSLContext, path: str, files: Files | None) -> None:
    before = context.cert_store_stats()["crl"]
    _load_locations(context, "revocation list", path, files)
    if context.cert_store_stats()["crl"] == before and not _has_list(path, files):  # a list that was loaded before is not counted again
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
def _errors_of(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{what}: {error}") from error


@contextlib.contextmanager
def _path(name: str, files: Files | None) -> Iterator[str]:
    """Yield a path for OpenSSL, which reads only files: the file itself, or a file in memory with its contents."""
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
    """The password callback. Encrypted keys are not supported, and without the callback OpenSSL would ask on the terminal."""
    return ""
