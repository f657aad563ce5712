"""Who may come in, of those who have proved who they are: principals that a listener names, or whose pattern it gives."""

import re
from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from proxy.auth.mapping_rules import compile_pattern
from proxy.errors import AuthenticationError
from proxy.network.authenticator import Authenticator, AuthenticatorFactory, Waker
from proxy.network.frame_exchange import FrameExchange
from proxy.network.transport import DONE, Identity

__all__ = ["Admission", "AdmittingAuthenticators"]

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

    def judge(self, principal: str) -> None:
        """Raises AuthenticationError for one that may not."""
        if not self.admits(principal):
            raise AuthenticationError(f"the principal {principal!r} is none of allowed_principals")


class AdmittingAuthenticators(AuthenticatorFactory):
    """Judges what the authenticators of another factory find out."""

    def __init__(self, admission: Admission, factory: AuthenticatorFactory) -> None:
        self._admission: Final = admission
        self._factory: Final = factory

    def make(self, identity: Identity) -> Authenticator:
        found = self._factory.make(identity)
        if not found.complete:
            return _Judged(found, self._admission)
        try:
            self._admission.judge(found.principal)
        except AuthenticationError:
            found.close()
            raise
        return found


class _Judged(Authenticator):
    """Another one, whose principal is judged once it knows it."""

    def __init__(self, inner: Authenticator, admission: Admission) -> None:
        super().__init__()
        self._inner: Final = inner
        self._admission: Final = admission

    def start(self, frames: FrameExchange, waker: Waker) -> None:
        self._inner.start(frames, waker)

    def step(self) -> i64:
        inner = self._inner
        code = inner.step()
        if code == DONE:
            self._admission.judge(inner.principal)
            self.principal, self.principal_type, self.expires_ns = inner.principal, inner.principal_type, inner.expires_ns
            self.complete = True
        return code

    def close(self) -> None:
        self._inner.close()
