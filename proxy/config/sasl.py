"""SASL of a listener's clients, and our logins to upstreams.

Only the control process reads the files of users, passwords and tokens; a processor sends it auth requests.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from framegate.proxy.config.key import Key

if TYPE_CHECKING:
    from framegate.proxy.config.model import ProxyConfig

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
TokenAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_KIB: Final = 1024
_DAY: Final = 86_400_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """Which signed tokens (JWT) are valid."""

    jwks: Annotated[str, Key("path")]
    issuer: str
    audience: str
    algorithms: tuple[TokenAlgorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    scopes: tuple[str, ...] = ()
    principal_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_ms: Annotated[int, Key("ms", (0, 600_000))] = 30_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSasl:
    """How clients authenticate with Kafka's SASL requests."""

    mechanisms: tuple[Mechanism, ...]
    users: Annotated[str | None, Key("path")] = None
    tokens: TokenConfig | None = None
    max_session_ms: Annotated[int, Key("ms", (0, 30 * _DAY))] = 0
    max_frame: Annotated[int, Key("bytes", (_KIB, 16 * _KIB * _KIB))] = 512 * _KIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamIdentity:
    """Our login to an upstream for some of the clients."""

    mechanism: Mechanism
    principals: tuple[str, ...] = ()
    user: str = ""
    password_file: Annotated[str | None, Key("path")] = None
    token_file: Annotated[str | None, Key("path")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSasl:
    """Our login to an upstream: the same for all clients, or one of ``identities`` by the client's principal."""

    mechanism: Mechanism | None = None
    user: str = ""
    password_file: Annotated[str | None, Key("path")] = None
    token_file: Annotated[str | None, Key("path")] = None
    identities: tuple[UpstreamIdentity, ...] = ()


class Login(NamedTuple):
    """One of the logins to an upstream."""

    principals: tuple[str, ...]  # of the clients that use it; empty: all
    mechanism: Mechanism
    user: str
    credential: str  # the name of its secret, in auth requests
    file: str  # with the secret


def logins_of(upstream: str, sasl: UpstreamSasl) -> tuple[Login, ...]:
    """The logins to an upstream, the first that fits a client is used; ``sasl`` was validated."""
    if sasl.mechanism is not None:
        return (Login((), sasl.mechanism, sasl.user, upstream, sasl.password_file or sasl.token_file or ""),)
    return tuple(
        Login(item.principals, item.mechanism, item.user, f"{upstream}/{index}", item.password_file or item.token_file or "")
        for index, item in enumerate(sasl.identities)
    )


def secret_files(config: "ProxyConfig") -> dict[str, str]:
    """The files of all upstreams' passwords and tokens, by ``Login.credential``."""
    return {
        login.credential: login.file
        for upstream in config.upstreams
        if upstream.sasl is not None
        for login in logins_of(upstream.name, upstream.sasl)
    }
