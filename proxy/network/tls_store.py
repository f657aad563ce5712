"""The TLS contexts of a listener: one for whoever asks for no host that has its own, and those for certain hosts. Never changed: a reload builds
another (``tls_context.server_store``), and connections that run keep what they have.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

__all__ = ["ServerStore"]

WILDCARD: Final = "*."


class ServerStore:
    """All that clients of one listener may meet.

    Args:
        default: the context for whoever asks for no host, or for one that is not named here.
        named: the others, by the host: exact, or ``*.`` and what stands behind the first label; lower case, without a dot at the end.
        protocols: of ALPN, as the contexts know them; empty: they are not looked at.

    Attributes:
        default: as above.
        protocols: as above.
        reads_hello: who is asked needs to know what the client asks for.
    """

    def __init__(self, default: "ssl.SSLContext", named: "Mapping[str, ssl.SSLContext]", protocols: Sequence[str] = ()) -> None:
        self.default: Final = default
        self.protocols: Final[list[str]] = list(protocols)
        self.reads_hello: Final[bool] = bool(named or protocols)
        self._exact: Final[dict[str, ssl.SSLContext]] = {name: item for name, item in named.items() if not name.startswith(WILDCARD)}
        self._below: Final[dict[str, ssl.SSLContext]] = {name[len(WILDCARD) :]: item for name, item in named.items() if name.startswith(WILDCARD)}

    def context(self, host: str) -> "ssl.SSLContext":
        """For a client that asks for a host, as ``tls_hello`` gives it. The exact name goes before the pattern."""
        found = self._exact.get(host)
        if found is None:
            found = self._below.get(host.partition(".")[2])
        return self.default if found is None else found

    def agrees(self, protocols: list[str]) -> bool:
        """Whether a client that names these protocols can be talked to: it names none, or one of ours, or we have none."""
        if not protocols or not self.protocols:
            return True
        return any(name in self.protocols for name in protocols)
