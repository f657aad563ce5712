"""SASL towards an upstream: who we are there, for all clients alike or by who the client is.

Passwords and tokens are in files, which the control process reads each time one is needed; a processor knows what they are called, and no more.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, NamedTuple

from proxy.config.key import Key
from proxy.config.sasl import Mechanism

if TYPE_CHECKING:
    from proxy.config.model import ProxyConfig

__all__ = ["Login", "UpstreamIdentity", "UpstreamSasl", "logins_of", "secret_files"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamIdentity:
    """Who we are to an upstream for some of the clients."""

    mechanism: Annotated[Mechanism, Key("to prove it with")]
    principals: Annotated[
        tuple[str, ...],
        Key("of the clients: exact names, or ``RULE:pattern/replacement/`` for those that the pattern matches; empty for everybody"),
    ] = ()
    user: Annotated[str, Key("whom to be; needed unless the mechanism is OAUTHBEARER, where the token says it")] = ""
    password_file: Annotated[str | None, Key("holds the password, in one line; needed unless the mechanism is OAUTHBEARER", "path")] = None
    token_file: Annotated[str | None, Key("holds the token, in one line; needed where the mechanism is OAUTHBEARER", "path")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSasl:
    """Who we are to an upstream: the same for all clients, or ``identities``."""

    mechanism: Annotated[Mechanism | None, Key("to prove it with, where it is the same for all clients; needed unless there are ``identities``")] = (
        None
    )
    user: Annotated[str, Key("likewise")] = ""
    password_file: Annotated[str | None, Key("likewise", "path")] = None
    token_file: Annotated[str | None, Key("likewise", "path")] = None
    identities: Annotated[
        tuple[UpstreamIdentity, ...],
        Key("instead of all these: by who the client is, the first that names it; whom none names is not let through"),
    ] = ()


class Login(NamedTuple):
    """One of the logins to an upstream.

    Attributes:
        principals: of the clients that it is for; empty: all.
        credential: what its secret is called, in questions about it.
        file: where the secret is.
    """

    principals: tuple[str, ...]
    mechanism: Mechanism
    user: str
    credential: str
    file: str


def logins_of(upstream: str, sasl: UpstreamSasl) -> tuple[Login, ...]:
    """The logins to an upstream, in the order in which they are looked through; ``sasl`` was validated."""
    if sasl.mechanism is not None:
        return (Login((), sasl.mechanism, sasl.user, upstream, sasl.password_file or sasl.token_file or ""),)
    return tuple(
        Login(item.principals, item.mechanism, item.user, f"{upstream}/{index}", item.password_file or item.token_file or "")
        for index, item in enumerate(sasl.identities)
    )


def secret_files(config: "ProxyConfig") -> dict[str, str]:
    """The files of all upstreams' passwords and tokens, by what their secrets are called."""
    return {
        login.credential: login.file
        for upstream in config.upstreams
        if upstream.sasl is not None
        for login in logins_of(upstream.name, upstream.sasl)
    }
