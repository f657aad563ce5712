"""TLS as the files say: a context for each listener and upstream that speaks it, and how another takes its place.

A store is prepared (its context is built, and nothing else happens), then put in place or dropped. Connections that are being opened, or are open,
keep the context that they began with; the last of them to end lets it go.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from proxy.errors import ConfigError
from proxy.network.options import TlsSettings
from proxy.server.store_rows import Store, StoresRow, listener_owner, read_stores, upstream_owner

if TYPE_CHECKING:
    import ssl

__all__ = ["MadeStore", "Stores"]

Files = dict[str, bytes] | None


class MadeStore(NamedTuple):
    """A store that can be served."""

    store: Store
    context: "ssl.SSLContext"


class Stores:
    """All stores of a processor, by owner.

    Args:
        row: what control sent; None: the files are read here.

    Raises:
        ConfigError: one of them cannot be used.
    """

    def __init__(self, config: ProxyConfig, row: StoresRow | None) -> None:
        self._sections: Final[dict[str, ListenerConfig | UpstreamConfig]] = {
            **{listener_owner(item.name): item for item in config.listeners if item.tls is not None},
            **{upstream_owner(item.name): item for item in config.upstreams if item.tls is not None},
        }
        given = {} if row is None else _read(row)
        self._in_force: Final = {
            owner: self._make(owner, Store(0) if row is None else given.get(owner, Store(0)), has_files=row is not None) for owner in self._sections
        }

    def prepare(self, row: StoresRow) -> dict[str, MadeStore]:
        """What is to take the place of what is in force: that alone which is another.

        Raises:
            ConfigError: one cannot be used, or nobody has it.
        """
        given = _read(row)
        unknown = set(given) - set(self._sections)
        if unknown:
            raise ConfigError(f"nobody has the store {', '.join(sorted(unknown))}")
        return {
            owner: self._make(owner, store, has_files=True) for owner, store in given.items() if store.number != self._in_force[owner].store.number
        }

    def put(self, made: dict[str, MadeStore]) -> None:
        """Have what was prepared; who serves asks for it anew."""
        self._in_force.update(made)

    def listener(self, name: str) -> TlsSettings | None:
        """How a listener's clients are spoken to; None: not in TLS."""
        made = self._in_force.get(listener_owner(name))
        return None if made is None else TlsSettings(made.context, server_side=True, number=made.store.number, shown=made.store.shown)

    def upstream(self, name: str, server_name: str) -> TlsSettings | None:
        """How an endpoint of an upstream is spoken to, whose certificate must have that name."""
        made = self._in_force.get(upstream_owner(name))
        if made is None:
            return None
        return TlsSettings(made.context, server_side=False, server_name=server_name, number=made.store.number, shown=made.store.shown)

    def _make(self, owner: str, store: Store, *, has_files: bool) -> MadeStore:
        files = {path: content.encode("latin-1") for path, content in store.files.items()} if has_files else None
        section = self._sections[owner]
        return MadeStore(store, _server(section, files) if isinstance(section, ListenerConfig) else _client(section, files))


def _read(row: StoresRow) -> dict[str, Store]:
    try:
        return read_stores(row)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _server(listener: ListenerConfig, files: Files) -> "ssl.SSLContext":
    from proxy.network.tls_context import server_context  # it loads OpenSSL

    tls = listener.tls
    assert tls is not None, "who has a store speaks TLS"
    return server_context(tls.certificate, tls.key, client_auth=tls.client_auth, client_ca=tls.client_ca, min_version=tls.min_version, files=files)


def _client(upstream: UpstreamConfig, files: Files) -> "ssl.SSLContext":
    from proxy.network.tls_context import client_context  # it loads OpenSSL

    tls = upstream.tls
    assert tls is not None, "who has a store speaks TLS"
    return client_context(ca=tls.ca, certificate=tls.certificate, key=tls.key, min_version=tls.min_version, files=files)
