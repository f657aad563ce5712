"""SASL towards an upstream: who we are there, for all clients alike or by who the client is.

Passwords and tokens are in files, which the control process reads each time one is needed; a processor knows what they are called, and no more.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, NamedTuple

from framegate.proxy.config.key import Key
from framegate.proxy.config.sasl import Mechanism

if TYPE_CHECKING:
    from framegate.proxy.config.model import ProxyConfig

__all__ = ["Login", "UpstreamIdentity", "UpstreamSasl", "logins_of", "secret_files"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamIdentity:
    """Who we are to an upstream for some of the clients."""

    mechanism: Mechanism
    principals: tuple[str, ...] = ()
    user: str = ""
    password_file: Annotated[str | None, Key("path")] = None
    token_file: Annotated[str | None, Key("path")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSasl:
    """Who we are to an upstream: the same for all clients, or ``identities``."""

    mechanism: Mechanism | None = None
    user: str = ""
    password_file: Annotated[str | None, Key("path")] = None
    token_file: Annotated[str | None, Key("path")] = None
    identities: tuple[UpstreamIdentity, ...] = ()


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
