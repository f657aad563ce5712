"""The principals that may connect to a listener, by name or pattern."""

import re
from collections.abc import Iterable
from typing import Final

from framegate.proxy.auth.mapping_rules import compile_pattern
from framegate.proxy.errors import AuthenticationError, quoted
from framegate.proxy.network.authenticator import Authenticator, AuthenticatorFactory
from framegate.proxy.network.transport import Identity

_RULE: Final = "RULE:"


class AllowedPrincipals:
    """The principals of one listener. Immutable."""

    def __init__(self, entries: Iterable[str]) -> None:
        """``entries``: each a principal, or ``RULE:`` and a pattern of mapping rules that must match a whole principal. Raises RuleError: a pattern
        cannot be read.
        """
        entries = list(entries)
        self._exact: Final = frozenset(entry for entry in entries if not entry.startswith(_RULE))
        self._patterns: Final[list[re.Pattern[str]]] = [compile_pattern(entry[len(_RULE) :]) for entry in entries if entry.startswith(_RULE)]

    def allows(self, principal: str) -> bool:
        return principal in self._exact or any(pattern.fullmatch(principal) for pattern in self._patterns)


def not_allowed_text(principal: str) -> str:
    """Why a principal may not connect, for the log."""
    return f"the principal {quoted(principal)} is none of allowed_principals"


class AllowedPrincipalsAuthenticators(AuthenticatorFactory):
    """Refuses principals that are not allowed, if another factory knows them from the handshake (for SASL see ``framegate.proxy.auth.server``)."""

    def __init__(self, allowed_principals: AllowedPrincipals, factory: AuthenticatorFactory) -> None:
        self._allowed_principals: Final = allowed_principals
        self._factory: Final = factory

    def make(self, identity: Identity) -> Authenticator:
        found = self._factory.make(identity)
        if not self._allowed_principals.allows(found.principal):
            found.close()
            raise AuthenticationError(not_allowed_text(found.principal))
        return found
