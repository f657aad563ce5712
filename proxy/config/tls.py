"""TLS on both sides: what a listener shows its clients and asks of them, what an upstream is shown and asked, and which of a certificate's names
is the principal.

Files are read by the control process, and processors get what is in them.
"""

import dataclasses
from typing import Annotated, Final, Literal

from proxy.config.key import Key

__all__ = ["BY_SUBJECT", "ClientAuth", "ListenerTls", "NameSource", "NamedCertificate", "OnChange", "PrincipalConfig", "TlsVersion", "UpstreamTls"]

ClientAuth = Literal["none", "requested", "required"]
TlsVersion = Literal["1.2", "1.3"]
OnChange = Literal["refuse", "allow"]
NameSource = Literal["subject", "uri", "dns", "email"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamedCertificate:
    """What clients meet that ask for certain hosts (SNI). What it leaves open is the listener's."""

    names: Annotated[
        tuple[str, ...],
        Key("hosts: ``broker.example.org``, or ``*.example.org``, which stands for one label; the exact name goes before the pattern"),
    ]
    certificate: Annotated[str, Key("PEM file with the chain, leaf first", "path")]
    key: Annotated[str, Key("PEM file with the private key, not encrypted", "path")]
    client_ca: Annotated[str | None, Key("PEM file with the authorities of clients that ask for these hosts; none: the listener's", "path")] = None
    crl: Annotated[tuple[str, ...], Key("PEM files with their revocation lists; with a ``client_ca`` of its own only", "path")] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS towards clients. Files are watched (``RotationConfig``): what takes their place is served to those who connect from then on."""

    certificate: Annotated[str, Key("PEM file with the chain, leaf first", "path")]
    key: Annotated[str, Key("PEM file with the private key, not encrypted", "path")]
    client_auth: Annotated[ClientAuth, Key("whether a client must, may or need not show a certificate")] = "none"
    client_ca: Annotated[
        str | None, Key("PEM file with the authorities that clients' certificates must chain to; needed unless ``client_auth`` is none", "path")
    ] = None
    crl: Annotated[
        tuple[str, ...],
        Key("PEM files with revocation lists: one of each authority between a client's certificate and the root; empty: none is looked at", "path"),
    ] = ()
    min_version: Annotated[TlsVersion, Key("the lowest protocol version spoken")] = "1.2"
    max_version: Annotated[TlsVersion, Key("the highest protocol version spoken")] = "1.3"
    ciphers: Annotated[
        str | None,
        Key("OpenSSL's list of ciphers for TLS 1.2, as ``ECDHE+AESGCM``; none: Python's own but those in CBC mode. Those of 1.3 are fixed"),
    ] = None
    curve: Annotated[str | None, Key("the one group of the key exchange, as ``prime256v1`` or ``X25519``; none: OpenSSL's own list")] = None
    alpn: Annotated[
        tuple[str, ...],
        Key("protocols, the best first, of which a client that names some must name one; who names none passes. Empty: not looked at"),
    ] = ()
    certificates: Annotated[
        tuple[NamedCertificate, ...], Key("others, for certain hosts; whoever asks for no host, or for another, gets the one above")
    ] = ()
    lost_names: Annotated[
        OnChange, Key("whether a certificate may take the place of one that has alternative names (DNS, IP, URI …) which it has not")
    ] = "refuse"
    changed_subject: Annotated[OnChange, Key("whether a certificate may take the place of one with another subject")] = "refuse"
    max_age_ms: Annotated[
        int,
        Key(
            "how long connections may go on, at most, behind the moment in which what they began with was replaced. Each ends in its own moment of "
            "the second half, in order, as of ``DrainConfig``; 0: as long as they like",
            "ms",
            (0, 30 * 24 * 3_600_000),
        ),
    ] = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTls:
    """TLS towards an upstream. Files are watched, as of ``ListenerTls``."""

    ca: Annotated[str | None, Key("PEM file with the authorities; none: the system's", "path")] = None
    server_name: Annotated[
        str | None,
        Key(
            "SNI and the name verified, for every endpoint; none: each endpoint's own host, where a number is verified and not sent, and "
            "``localhost`` stands for a Unix socket"
        ),
    ] = None
    certificate: Annotated[str | None, Key("our own identity, PEM file with the chain; this and ``key``, or neither", "path")] = None
    key: Annotated[str | None, Key("PEM file with its private key", "path")] = None
    min_version: Annotated[TlsVersion, Key("the lowest protocol version spoken")] = "1.2"
    pins: Annotated[
        tuple[str, ...],
        Key("``sha256/BASE64`` of public keys (SubjectPublicKeyInfo), one of which the certificate must have, beside all else; empty: any"),
    ] = ()
    lost_names: Annotated[
        OnChange, Key("whether a certificate may take the place of one that has alternative names (DNS, IP, URI …) which it has not")
    ] = "refuse"
    changed_subject: Annotated[OnChange, Key("whether a certificate may take the place of one with another subject")] = "refuse"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalConfig:
    """From a client's certificate to its principal. Who shows none is ``ANONYMOUS``; whose certificate has no such name, or none that a rule matches,
    is refused.
    """

    from_: Annotated[
        NameSource, Key("which name: the ``subject``, as ``CN=app,O=Example``, or the first alternative name of a kind that a rule matches")
    ] = "subject"
    rules: Annotated[
        tuple[str, ...], Key("Kafka's ``ssl.principal.mapping.rules``, one in each entry; the first that matches the whole name wins")
    ] = ("DEFAULT",)


BY_SUBJECT: Final = PrincipalConfig()
"""The subject as it is."""
