"""TLS of listeners and upstreams, and the name of a client's certificate that is its principal.

Only the control process reads the files; processors get their contents.
"""

import dataclasses
from typing import Annotated, Final, Literal

from framegate.proxy.config.key import Key

ClientAuth = Literal["none", "requested", "required"]
TlsVersion = Literal["1.2", "1.3"]
OnChange = Literal["refuse", "allow"]
NameSource = Literal["subject", "uri", "dns", "email"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamedCertificate:
    """The certificate for clients that ask for certain hosts (SNI); keys that are missing are the listener's."""

    names: tuple[str, ...]
    certificate: Annotated[str, Key("path")]
    key: Annotated[str, Key("path")]
    client_ca: Annotated[str | None, Key("path")] = None
    crl: Annotated[tuple[str, ...], Key("path")] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS towards clients. Files are watched (``RotationConfig``): new connections use replaced ones."""

    certificate: Annotated[str, Key("path")]
    key: Annotated[str, Key("path")]
    client_auth: ClientAuth = "none"
    client_ca: Annotated[str | None, Key("path")] = None
    crl: Annotated[tuple[str, ...], Key("path")] = ()
    min_version: TlsVersion = "1.2"
    max_version: TlsVersion = "1.3"
    ciphers: str | None = None
    curve: str | None = None
    alpn: tuple[str, ...] = ()
    certificates: tuple[NamedCertificate, ...] = ()
    lost_names: OnChange = "refuse"
    changed_subject: OnChange = "refuse"
    max_age_ms: Annotated[int, Key("ms", (0, 30 * 24 * 3_600_000))] = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTls:
    """TLS towards an upstream. Files are watched, as in ``ListenerTls``."""

    ca: Annotated[str | None, Key("path")] = None
    server_name: str | None = None
    certificate: Annotated[str | None, Key("path")] = None
    key: Annotated[str | None, Key("path")] = None
    min_version: TlsVersion = "1.2"
    pins: tuple[str, ...] = ()
    lost_names: OnChange = "refuse"
    changed_subject: OnChange = "refuse"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalConfig:
    """The principal of a client's certificate; ``ANONYMOUS`` without one. A certificate without such a name, or without a rule for it, is refused."""

    from_: NameSource = "subject"
    rules: tuple[str, ...] = ("DEFAULT",)


BY_SUBJECT: Final = PrincipalConfig()  # the unchanged subject
