"""The certificate stores of a processor: a TLS context for each listener and upstream with TLS, made of its files, and its replacement.

Other stores are made beside those in force, and put in force or dropped. A connection keeps the context with which it began; a replaced context is
freed when its last connection ends.
"""

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.server.rows import Store, StoresRow, listener_owner, read_stores, upstream_owner

if TYPE_CHECKING:
    import ssl

    from framegate.proxy.network.tls_context import ServerStore

SESSION_NS: Final = 7200 * 1_000_000_000
"""For how long clients with certificates may resume sessions. OpenSSL has the same limit for each session, but resuming in TLS 1.3 makes a new one.
"""
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


class MadeStore(NamedTuple):
    """A store with its contexts."""

    store: Store
    context: "ssl.SSLContext"  # of an upstream, or of a listener for hosts without a certificate of their own
    server: "ServerStore | None" = None  # all contexts of a listener; None: it is an upstream's
    # the fingerprints of certificates of named hosts, by context
    shown_by: "Mapping[ssl.SSLContext, str]" = {}  # noqa: RUF012


class Stores:
    """All stores of a processor, by owner. ``row``: from control: those that are new; None: there are none, or at the start: the files are read from
    the disk. ``before``: the stores before; those with the same section and number are used again. Raises ConfigError: one of them cannot be used, or
    its owner does not exist.
    """

    def __init__(self, config: ProxyConfig, row: StoresRow | None, before: "Stores | None" = None) -> None:
        self._sections: Final[dict[str, ListenerConfig | UpstreamConfig]] = {
            **{listener_owner(item.name): item for item in config.listeners if item.tls is not None},
            **{upstream_owner(item.name): item for item in config.upstreams if item.tls is not None},
        }
        given = {} if row is None else _read(row)
        unknown = set(given) - set(self._sections)
        if unknown:
            raise ConfigError(f"nobody has the store {', '.join(sorted(unknown))}")
        known = {} if before is None else before._in_force
        has_files = row is not None or before is not None
        self._in_force: Final[dict[str, MadeStore]] = {}
        for owner in self._sections:
            was = known.get(owner)
            if was is None and owner not in given and before is not None:
                raise ConfigError(f"the store {owner} was not sent")
            store = given.get(owner) or (Store(0) if was is None else was.store)
            same = was is not None and before is not None and was.store.number == store.number and before._shows(owner) == self._shows(owner)
            self._in_force[owner] = was if was is not None and same else self._make(owner, store, has_files=has_files)

    def _shows(self, owner: str) -> tuple[object, bool]:
        """What a context follows from, beside its files."""
        section = self._sections[owner]
        return section.tls, isinstance(section, ListenerConfig) and section.brokers is not None and bool(section.brokers.hosts)

    def number(self, owner: str) -> int:
        return self._in_force[owner].store.number

    def changed(self, before: "Stores") -> set[str]:
        """The owners whose stores are other ones than before, of those that had one."""
        return {owner for owner, made in self._in_force.items() if owner in before._in_force and before._in_force[owner] is not made}

    def renewed(self) -> dict[str, MadeStore]:
        """The stores of listeners that verify their clients, made again of the same files: earlier sessions cannot be resumed."""
        return {owner: self._make(owner, made.store, has_files=True) for owner, made in self._in_force.items() if _verifies(made)}

    @property
    def verifies(self) -> bool:
        return any(map(_verifies, self._in_force.values()))

    def put(self, made: dict[str, MadeStore]) -> None:
        """Replace stores by renewed ones; the caller updates its ``TlsSettings``."""
        self._in_force.update(made)

    def listener(self, name: str) -> TlsSettings | None:
        """TLS towards a listener's clients; None: plaintext."""
        made = self._in_force.get(listener_owner(name))
        if made is None:
            return None
        store = made.store
        return TlsSettings(made.context, server_side=True, store=made.server, number=store.number, shown=store.shown, shown_by=made.shown_by)

    def upstream(self, name: str, server_name: str) -> TlsSettings | None:
        """TLS towards an endpoint of an upstream, whose certificate must have that name; None: plaintext."""
        made = self._in_force.get(upstream_owner(name))
        if made is None:
            return None
        return TlsSettings(made.context, server_side=False, server_name=server_name, number=made.store.number, shown=made.store.shown)

    def _make(self, owner: str, store: Store, *, has_files: bool) -> MadeStore:
        from framegate.proxy.network.tls_context import server_store, upstream_context  # here: it loads OpenSSL

        files = {path: content.encode("latin-1") for path, content in store.files.items()} if has_files else None
        section = self._sections[owner]
        if isinstance(section, UpstreamConfig):
            assert section.tls is not None, "a section with a store has TLS"
            return MadeStore(store, upstream_context(section.tls, files))
        tls = section.tls
        assert tls is not None, "a section with a store has TLS"
        made = server_store(tls, files, reads_host=self._shows(owner)[1])
        if files is None:
            return MadeStore(store, made.default, made)
        shown_by = {made.context(item.names[0].lower().rstrip(".")): _fingerprint(files[item.certificate]) for item in tls.certificates}
        return MadeStore(store, made.default, made, shown_by)


def _verifies(made: MadeStore) -> bool:
    return bool(made.store.files) and made.server is not None and made.context.verify_mode != 0  # ssl.CERT_NONE, without loading OpenSSL here


def _read(row: StoresRow) -> dict[str, Store]:
    try:
        return read_stores(row)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _fingerprint(pem: bytes) -> str:
    """The fingerprint of the first certificate of a file, as in ``Store.shown``."""
    import hashlib  # here: it loads OpenSSL, and only TLS needs it

    first = _CERTIFICATE.search(pem)
    return "" if first is None else hashlib.sha256(base64.b64decode(first[1])).hexdigest()[:16]
