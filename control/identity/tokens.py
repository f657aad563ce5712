"""Verifies signed tokens (JWT, RFC 7519) and finds their principal.

PyJWT checks the signature. The algorithm and the key are chosen here, before: the algorithm must be one of the rules', and the key one of the file
that has this algorithm. So a token with ``none``, or one that is signed with a public key as if it were a shared secret, is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from framegate.control.identity.jwks import ALGORITHMS, SigningKey
from framegate.proxy.auth.auth_requests import Accepted, Refused

MAX_TOKEN: Final = 32768  # bytes of a token
_MAX_WORDS: Final = 100
_NO_CLAIMS_OF_THE_LIBRARYS: Final[Any] = {
    "verify_signature": True,
    **{f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")},
}


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must be."""

    issuer: str  # its ``iss``
    audience: str  # one of its ``aud``
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")  # that it may be signed with
    scopes: tuple[str, ...] = ()  # the token must have all of them; empty: any
    principal_claim: str = "sub"  # the claim that holds the principal
    scope_claim: str = "scope"  # where its scopes are: a text with spaces, or a list
    clock_skew_s: int = 30  # how much the clocks of the issuer and of this machine may differ

    def __post_init__(self) -> None:
        wrong = [name for name in self.algorithms if name not in ALGORITHMS]
        if wrong or not self.algorithms:
            raise ValueError(f"no algorithm for tokens: {', '.join(wrong) or 'none is allowed'}; there are {', '.join(ALGORITHMS)}")
        if not self.issuer or not self.audience:
            raise ValueError("tokens of any issuer or for any audience are nobody's")


class _BadTokenError(Exception):
    """Why a token is refused; ``scope``: the scopes that it needs."""

    def __init__(self, reason: str, scope: str = "") -> None:
        super().__init__(reason)
        self.scope = scope


class Tokens:
    """Checks tokens by rules and keys, which do not change."""

    def __init__(self, rules: TokenRules, keys: Sequence[SigningKey]) -> None:
        self._rules: Final = rules
        self._keys: Final = tuple(keys)

    def check(self, token: str, now_s: float) -> Accepted | Refused:
        """Check a token at a time in seconds since 1970. Reasons hold nothing that is secret."""
        try:
            claims = self._claims(token)
            lifetime_ms = self._lifetime_ms(claims, now_s)
            self._check_who(claims)
            principal = claims.get(self._rules.principal_claim)
            if not isinstance(principal, str) or not principal.isprintable() or not principal:
                raise _BadTokenError(f"no text in its {self._rules.principal_claim}")
            return Accepted(principal, lifetime_ms)
        except _BadTokenError as error:
            return Refused(f"token: {error}", error.scope)

    def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN:
            raise _BadTokenError(f"more than {MAX_TOKEN} bytes")
        try:
            header = jwt.get_unverified_header(token)
            key, algorithm = self._key(header)
            claims: dict[str, Any] = jwt.decode(token, key.public, algorithms=[algorithm], options=_NO_CLAIMS_OF_THE_LIBRARYS)
        except jwt.InvalidSignatureError:
            raise _BadTokenError("its signature is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise _BadTokenError("not a signed token") from None
        return claims

    def _key(self, header: dict[str, Any]) -> tuple[SigningKey, str]:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._rules.algorithms:
            raise _BadTokenError(f"signed with {_said(algorithm)}, which is not allowed")
        fitting = [key for key in self._keys if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)]
        if len(fitting) == 1:
            return fitting[0], algorithm
        if key_id is None:
            raise _BadTokenError(f"names no key, and {len(fitting)} fit {algorithm}")
        raise _BadTokenError(f"no key {_said(key_id)} for {algorithm}")

    def _lifetime_ms(self, claims: dict[str, Any], now_s: float) -> int:
        """How long the token is still valid."""
        skew = self._rules.clock_skew_s
        ends = _time(claims, "exp")
        if ends is None:
            raise _BadTokenError("it has no exp: it would be good for ever")
        left = ends + skew - now_s
        if left <= 0:
            raise _BadTokenError(f"expired {math.ceil(now_s - ends)} s ago")
        for name in ("nbf", "iat"):
            begins = _time(claims, name)
            if begins is not None and begins - skew > now_s:
                raise _BadTokenError(f"good in {math.ceil(begins - now_s)} s only ({name})")
        return int(min(left, 1e9) * 1000)

    def _check_who(self, claims: dict[str, Any]) -> None:
        rules = self._rules
        if claims.get("iss") != rules.issuer:
            raise _BadTokenError(f"of the issuer {_said(claims.get('iss'))}")
        audience = claims.get("aud")
        if rules.audience not in ([audience] if isinstance(audience, str) else _texts(audience)):
            raise _BadTokenError(f"for the audience {_said(audience)}")
        scopes = claims.get(rules.scope_claim)
        found = scopes.split() if isinstance(scopes, str) else _texts(scopes)
        missing = [scope for scope in rules.scopes if scope not in found]
        if missing:
            raise _BadTokenError(f"lacks the scope {' '.join(missing)}", " ".join(rules.scopes))


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise _BadTokenError(f"its {name} is no time")
    return float(value)


def _said(value: object) -> str:
    return ascii(value)[:_MAX_WORDS]
