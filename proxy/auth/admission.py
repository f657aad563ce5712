"""Who may come in, of those who have proved who they are: principals that a listener names, or whose pattern it gives."""

import re
from collections.abc import Iterable
from typing import Final

from proxy.auth.mapping_rules import compile_pattern
from proxy.errors import AuthenticationError, quoted
from proxy.network.authenticator import Authenticator, AuthenticatorFactory
from proxy.network.transport import Identity

__all__ = ["Admission", "AdmittingAuthenticators", "not_admitted"]

_RULE: Final = "RULE:"


class Admission:
    """The principals of one listener. Immutable."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Args:
        entries: each a principal as it is, or ``RULE:`` and a pattern, as mapping rules have them, that must match all of one.

        Raises:
            RuleError: of a pattern that is none.
        """
        entries = list(entries)
        self._exact: Final = frozenset(entry for entry in entries if not entry.startswith(_RULE))
        self._patterns: Final[list[re.Pattern[str]]] = [compile_pattern(entry[len(_RULE) :]) for entry in entries if entry.startswith(_RULE)]

    def admits(self, principal: str) -> bool:
        """Whether that one may come in."""
        return principal in self._exact or any(pattern.fullmatch(principal) for pattern in self._patterns)


def not_admitted(principal: str) -> str:
    """Why one may not, for the log."""
    return f"the principal {quoted(principal)} is none of allowed_principals"


class AdmittingAuthenticators(AuthenticatorFactory):
    """Judges what another factory knows of a peer from its handshake. Who proves it in frames is judged before it is told that it has
    (``proxy.auth.server``).
    """

    def __init__(self, admission: Admission, factory: AuthenticatorFactory) -> None:
        self._admission: Final = admission
        self._factory: Final = factory

    def make(self, identity: Identity) -> Authenticator:
        found = self._factory.make(identity)
        if not self._admission.admits(found.principal):
            found.close()
            raise AuthenticationError(not_admitted(found.principal))
        return found
