"""SASL of a listener's clients: how they may prove who they are, and against which files.

The files are the control process's, which reads them again when they change; a processor asks it.
"""

import dataclasses
from typing import Annotated, Final, Literal

from framegate.proxy.config.key import Key

__all__ = ["ListenerSasl", "Mechanism", "TokenAlgorithm", "TokenConfig"]

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
TokenAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_KIB: Final = 1024
_DAY: Final = 86_400_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """Which signed tokens (JWT) are good."""

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
    """How clients say who they are before anything else, as Kafka's brokers ask them to."""

    mechanisms: tuple[Mechanism, ...]
    users: Annotated[str | None, Key("path")] = None
    tokens: TokenConfig | None = None
    max_session_ms: Annotated[int, Key("ms", (0, 30 * _DAY))] = 0
    max_frame: Annotated[int, Key("bytes", (_KIB, 16 * _KIB * _KIB))] = 512 * _KIB
