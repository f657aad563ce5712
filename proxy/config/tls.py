"""TLS on both sides: what a listener shows its clients and asks of them, what an upstream is shown and asked.

Files are read by the control process, and processors get what is in them.
"""

import dataclasses
from typing import Annotated, Literal

from proxy.config.key import Key

__all__ = ["ClientAuth", "ListenerTls", "OnChange", "TlsVersion", "UpstreamTls"]

ClientAuth = Literal["none", "requested", "required"]
TlsVersion = Literal["1.2", "1.3"]
OnChange = Literal["refuse", "allow"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS towards clients. Files are watched (``RotationConfig``): what takes their place is served to those who connect from then on."""

    certificate: Annotated[str, Key("PEM file with the chain, leaf first", "path")]
    key: Annotated[str, Key("PEM file with the private key, not encrypted", "path")]
    client_auth: Annotated[ClientAuth, Key("whether a client must, may or need not show a certificate")] = "none"
    client_ca: Annotated[
        str | None, Key("PEM file with the authorities that clients' certificates must chain to; needed unless ``client_auth`` is none", "path")
    ] = None
    min_version: Annotated[TlsVersion, Key("the lowest protocol version spoken")] = "1.2"
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
    lost_names: Annotated[
        OnChange, Key("whether a certificate may take the place of one that has alternative names (DNS, IP, URI …) which it has not")
    ] = "refuse"
    changed_subject: Annotated[OnChange, Key("whether a certificate may take the place of one with another subject")] = "refuse"
