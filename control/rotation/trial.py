"""A TLS handshake with a new store, in memory, before it is in force.

The other side is made for the trial. It trusts the last certificate of the store's own chain, so the chain is verified as by a peer that trusts its
issuer: signatures, times, and permitted use. A trial cannot show whether real peers trust that issuer.
"""

import datetime
import ssl
from typing import Final

from framegate.proxy.errors import ConfigError
from framegate.proxy.network.tls_context import server_context

_STEPS: Final = 16  # Flights; a handshake has three
_NAME: Final = "framegate.invalid"


class TrialError(Exception):
    """A handshake that failed. ``str`` says why, in OpenSSL's words."""


def try_as_server(context: ssl.SSLContext, anchor: bytes) -> None:
    """Try a handshake of a client with a listener's store. ``context``: of the store; used up: who must show a certificate may now. ``anchor``: what
    the client trusts, in DER form. Raises TrialError: it failed.
    """
    if context.verify_mode is ssl.CERT_REQUIRED:
        context.verify_mode = ssl.CERT_OPTIONAL  # nobody has a key that the authorities signed
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    _trust(client, anchor)
    _shake(client, context)


def try_as_client(context: ssl.SSLContext, anchor: bytes | None) -> None:
    """Try a handshake of an upstream with a store. ``anchor``: what the upstream trusts, in DER form; None: the store has no certificate to be shown.
    Raises TrialError: it failed.
    """
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    certificate, key = _throw_away()
    server = server_context("certificate", "key", files={"certificate": certificate, "key": key})
    if anchor is not None:
        _trust(server, anchor)
        server.verify_mode = ssl.CERT_REQUIRED
    _shake(context, server)


def _trust(context: ssl.SSLContext, anchor: bytes) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=anchor)
    except ssl.SSLError as error:
        raise TrialError(_words(error)) from error


def _shake(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> None:
    """Run the handshake of both sides to its end: in TLS 1.3 the client finishes before the server has verified its certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client = client_context.wrap_bio(to_client, to_server, server_hostname=_NAME)
        server = server_context.wrap_bio(to_server, to_client, server_side=True)
        waiting = [client, server]
        for _ in range(_STEPS):
            waiting = [side for side in waiting if not _step(side)]
            if not waiting:
                return
    except (ssl.SSLError, ConfigError) as error:
        raise TrialError(_words(error)) from error
    raise TrialError("the handshake came to no end")


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _words(error: Exception) -> str:
    verified = getattr(error, "verify_message", None)
    return str(verified or getattr(error, "reason", None) or error).lower().replace("_", " ")


def _throw_away() -> tuple[bytes, bytes]:
    """A self-signed certificate and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day).sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM), private
