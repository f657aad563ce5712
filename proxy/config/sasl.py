"""SASL of a listener's clients: how they may prove who they are, and against which files.

The files are the control process's, which reads them again when they change; a processor asks it.
"""

import dataclasses
from typing import Annotated, Final, Literal

from proxy.config.key import Key

__all__ = ["ListenerSasl", "Mechanism", "TokenAlgorithm", "TokenConfig"]

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
TokenAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_KIB: Final = 1024
_DAY: Final = 86_400_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """Which signed tokens (JWT) are good."""

    jwks: Annotated[str, Key("JSON file with the public keys that tokens are signed with (a JWKS)", "path")]
    issuer: Annotated[str, Key("what a token's ``iss`` must be")]
    audience: Annotated[str, Key("what must be among a token's ``aud``")]
    algorithms: Annotated[
        tuple[TokenAlgorithm, ...], Key("that tokens may be signed with; those with a shared secret do not exist here, nor does ``none``")
    ] = ("RS256", "PS256", "ES256", "EdDSA")
    scopes: Annotated[tuple[str, ...], Key("all of which a token must have; empty asks for none")] = ()
    principal_claim: Annotated[str, Key("the claim whose text is the principal")] = "sub"
    scope_claim: Annotated[str, Key("the claim that has the scopes: a text with spaces between them, or a list")] = "scope"
    clock_skew_ms: Annotated[int, Key("so much may the issuer's clock and ours differ, in whole seconds", "ms", (0, 600_000))] = 30_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSasl:
    """How clients say who they are before anything else, as Kafka's brokers ask them to."""

    mechanisms: Annotated[tuple[Mechanism, ...], Key("that clients may choose from, in the order in which they are told; at least one")]
    users: Annotated[
        str | None,
        Key("the file of users that ``framegate users`` makes; needed for ``PLAIN`` and ``SCRAM``, and read again when it changes", "path"),
    ] = None
    tokens: Annotated[TokenConfig | None, Key("which tokens are good; needed for ``OAUTHBEARER``")] = None
    max_session_ms: Annotated[
        int,
        Key(
            "after so long a client must authenticate again (Kafka's ``connections.max.reauth.ms``); earlier where what it showed ends earlier, as a "
            "token does; 0 asks for it only then",
            "ms",
            (0, 30 * _DAY),
        ),
    ] = 0
    max_frame: Annotated[
        int,
        Key("the largest frame before it is known who the client is (Kafka's ``sasl.server.max.receive.size``)", "bytes", (_KIB, 16 * _KIB * _KIB)),
    ] = 512 * _KIB
