"""Logins to an upstream: which of them a connection uses, and when one is not tried.

After a refusal a login is not tried for ``FIRST_NS``, because a wrong password stays wrong; connections that need it end at once. Then one connection
tries it. A second refusal doubles the time, up to ``MOST_NS``; a success ends it. A try that ends otherwise proves nothing, and is given back.
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.authenticator import AuthenticatorFactory

FIRST_NS: Final = 1_000_000_000
MOST_NS: Final = 30_000_000_000
NS_PER_MS: Final = 1_000_000


class Login:
    """A login, and its state in this processor."""

    def __init__(self, factory: AuthenticatorFactory) -> None:
        self.factory: Final = factory  # makes the authenticator for the login
        self.backoff_ns: i64 = 0  # how long it is not tried after a refusal; 0: it was accepted last, or not tried
        self.due_ns: i64 = 0  # when it may be tried again
        self.tried: bool = False  # it was refused, and one connection tries it again now
        self.detail: str = ""  # of the refusal
        self.accepted_ns: i64 = 0

    def begin(self, now_ns: i64) -> "LoginTry | None":
        """Begin the try of a connection; None: it must not be tried now."""
        if self.backoff_ns == 0:
            return LoginTry(self, now_ns, alone=False)
        if self.tried or now_ns < self.due_ns:
            return None
        self.tried = True
        return LoginTry(self, now_ns, alone=True)

    def why_not(self, now_ns: i64) -> str:
        """The detail for a connection that must not try it."""
        wait_ms = max((self.due_ns - now_ns) // NS_PER_MS, 0)
        when = f"in {wait_ms} ms" if wait_ms > 0 else "by another connection"
        return f"not tried again, it will be {when}: {self.detail}"


class LoginTry:
    """One connection's try of a login; exactly one of ``accepted``, ``refused`` and ``abandoned`` ends it."""

    def __init__(self, login: Login, began_ns: i64, *, alone: bool) -> None:
        self.login: Final = login  # which
        self._began_ns: Final[i64] = began_ns
        self._alone: Final[bool] = alone

    def accepted(self, now_ns: i64) -> None:
        self.abandoned()
        self.login.backoff_ns = 0
        self.login.accepted_ns = now_ns

    def refused(self, detail: str, now_ns: i64) -> None:
        """The upstream refused it. No effect if another try, which began later, was accepted meanwhile."""
        self.abandoned()
        login = self.login
        if login.accepted_ns > self._began_ns:
            return
        if login.backoff_ns == 0:
            login.backoff_ns = FIRST_NS
        elif self._alone:
            login.backoff_ns = min(2 * login.backoff_ns, MOST_NS)
        else:  # it began before the first refusal
            return
        login.due_ns = now_ns + login.backoff_ns
        login.detail = detail

    def abandoned(self) -> None:
        """The try ended for another reason."""
        if self._alone:
            self.login.tried = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Logins(abc.ABC):
    """All logins to one upstream."""

    @abc.abstractmethod
    def choose(self, principal: str) -> Login | None:
        """The login for a client; None: there is none."""
