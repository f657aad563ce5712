"""What the ``start`` message becomes: routes with their limits, TLS contexts and endpoints, and the changes that may be made to them.

A change is prepared (judged against what is in force now), then committed or aborted; one at a time. Everything it may name exists from the
start: limits, the pool's share, endpoints.
"""

import ipaddress
import socket
from typing import Any, Final

from proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig, from_wire
from proxy.errors import ConfigError
from proxy.network.memory_pool import MemoryPool
from proxy.network.options import ChannelOptions, TlsSettings
from proxy.network.receive import ReceiveLimit
from proxy.relay.counters import Counters
from proxy.relay.route import Endpoint, Route

__all__ = ["ChangeError", "Settings"]

Message = dict[str, Any]
Addresses = list[tuple[int, Any]]
Files = dict[str, bytes] | None
NS_PER_MS: Final = 1_000_000
MAX_INT32: Final = 2**31 - 1


class ChangeError(Exception):
    """A change that cannot be made; the text is for the operator."""


def _literal(endpoint: str) -> tuple[int, Any]:
    """An endpoint that needs no resolver: a number, or a Unix socket."""
    if endpoint.startswith("unix:"):
        return socket.AF_UNIX, endpoint.removeprefix("unix:")
    host, _, port = endpoint.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError as error:
        raise ConfigError(f"the endpoint {endpoint} came without an address") from error
    return (socket.AF_INET if address.version == 4 else socket.AF_INET6), (str(address), int(port))


def _addresses(rows: list[list[Any]]) -> Addresses:
    """Rows of the link, ``[family, path]`` or ``[family, host, port]``, as ``socket.connect`` takes them."""
    return [(int(row[0]), str(row[1]) if row[0] == socket.AF_UNIX else tuple(row[1:])) for row in rows]


class Settings:
    """The configuration in force in this processor.

    Args:
        message: the ``start`` message.

    Attributes:
        config: as it was at the start.
        pool: the memory pool of this processor, sized to its share.
        counters: of everything named in the configuration.
        routes: by listener.
        limits: max_receive_size by listener.

    Raises:
        ConfigError: certificates cannot be used, or an endpoint has no address.
    """

    def __init__(self, message: Message, pool: MemoryPool) -> None:
        self.config: Final[ProxyConfig] = from_wire(message["config"])
        self.pool: Final = pool
        self.counters: Final = Counters([item.name for item in self.config.listeners], [item.name for item in self.config.upstreams])
        self._upstreams: Final = {item.name: item for item in self.config.upstreams}
        self._files: Final = _files(message)
        self._tls: Final = {item.name: _client_tls(item, self._files) for item in self.config.upstreams}
        self._upstream_limits: Final = {item.name: ReceiveLimit(item.max_receive_size) for item in self.config.upstreams}
        given = message.get("endpoints") or {}
        self._endpoints: dict[str, Addresses] = {
            name: _addresses(given[name]) if name in given else [_literal(endpoint) for endpoint in item.endpoints]
            for name, item in self._upstreams.items()
        }
        self.routes: Final = {item.name: self._route(item) for item in self.config.listeners}
        self.limits: Final = {name: route.options.limit for name, route in self.routes.items()}
        self._prepared: tuple[int, Message] | None = None

    def _route(self, listener: ListenerConfig) -> Route:
        counters = self.counters.listeners[listener.name]
        tls = listener.tls
        times = listener.timeouts
        context = None
        if tls is not None:
            from proxy.network.tls_context import server_context  # it loads OpenSSL

            context = server_context(
                tls.certificate, tls.key, client_auth=tls.client_auth, client_ca=tls.client_ca, min_version=tls.min_version, files=self._files
            )
        options = ChannelOptions(
            side="downstream",
            limit=ReceiveLimit(listener.max_receive_size),
            stats=counters.downstream,
            handshake_timeout_ns=times.handshake_ms * NS_PER_MS,
            idle_ns=times.idle_ms * NS_PER_MS,
            stall_ns=times.stall_ms * NS_PER_MS,
            min_rate=listener.min_rate,
            tls=None if context is None else TlsSettings(context, server_side=True),
        )
        return Route(
            listener=listener.name,
            upstream=listener.upstream,
            protocol=listener.protocol,
            options=options,
            upstream_limit=self._upstream_limits[listener.upstream],
            half_close_ns=times.half_close_ms * NS_PER_MS,
            counters=counters,
            upstream_counters=self.counters.upstreams[listener.upstream],
            endpoints=self._route_endpoints(listener),
        )

    def _route_endpoints(self, listener: ListenerConfig) -> list[Endpoint]:
        upstream = self._upstreams[listener.upstream]
        return [
            Endpoint(family, address, self._upstream_options(listener, upstream, family, address))
            for family, address in self._endpoints[upstream.name]
        ]

    def _upstream_options(self, listener: ListenerConfig, upstream: UpstreamConfig, family: int, address: Any) -> ChannelOptions:
        context = self._tls[upstream.name]
        tls = None
        if context is not None and upstream.tls is not None:
            tls = TlsSettings(context, server_side=False, server_name=upstream.tls.server_name or _host(upstream, family, address))
        return ChannelOptions(
            side="upstream",
            limit=self._upstream_limits[upstream.name],
            stats=self.counters.listeners[listener.name].upstream,
            handshake_timeout_ns=upstream.timeouts.connect_ms * NS_PER_MS,
            stall_ns=listener.timeouts.stall_ms * NS_PER_MS,
            min_rate=listener.min_rate,
            tls=tls,
        )

    # Changes.

    def prepare(self, change_id: int, change: Message) -> None:
        """Judge a change and keep it.

        Raises:
            ChangeError: it cannot be made; nothing is kept.
        """
        if self._prepared is not None:
            raise ChangeError(f"change {self._prepared[0]} is prepared and not decided")
        unknown = set(change) - {"max_receive_size", "share", "endpoints"}
        if unknown:
            raise ChangeError(f"cannot change {', '.join(sorted(unknown))}")
        limits = {name: int(limit.value) for name, limit in self.limits.items()}
        for name, size in change.get("max_receive_size", {}).items():
            if name not in limits:
                raise ChangeError(f"no listener {name}")
            if not 1 <= size <= MAX_INT32:
                raise ChangeError(f"max_receive_size {size} of {name} is not within 1 and {MAX_INT32}")
            limits[name] = size
        share = change.get("share", int(self.pool.size))
        for name, size in limits.items():
            if size > share:
                raise ChangeError(f"the share of {share} bytes is below the max_receive_size of {name}, {size}")
        for name in change.get("endpoints", {}):
            if name not in self._upstreams:
                raise ChangeError(f"no upstream {name}")
        self._prepared = change_id, change

    def commit(self, change_id: int) -> bool:
        """Put the prepared change in force; False when it is not that one."""
        if self._prepared is None or self._prepared[0] != change_id:
            return False
        change = self._prepared[1]
        self._prepared = None
        for name, size in change.get("max_receive_size", {}).items():
            self.limits[name].value = size
        if "share" in change:
            self.pool.resize(change["share"])
        for name, rows in change.get("endpoints", {}).items():
            self._endpoints[name] = _addresses(rows)
            for listener in self.config.listeners:
                if listener.upstream == name:
                    self.routes[listener.name].endpoints = self._route_endpoints(listener)
        return True

    def abort(self, change_id: int) -> None:
        """Forget the prepared change; harmless when it is another."""
        if self._prepared is not None and self._prepared[0] == change_id:
            self._prepared = None


def _files(message: Message) -> Files:
    """Certificates, keys and authorities as control read them at its start; none: they are read here."""
    files = message.get("files")
    return None if files is None else {path: text.encode("latin-1") for path, text in files.items()}


def _client_tls(upstream: UpstreamConfig, files: Files) -> Any:
    tls = upstream.tls
    if tls is None:
        return None
    from proxy.network.tls_context import client_context  # it loads OpenSSL

    return client_context(ca=tls.ca, certificate=tls.certificate, key=tls.key, min_version=tls.min_version, files=files)


def _host(upstream: UpstreamConfig, family: int, address: Any) -> str:
    """The name to verify: of the configured endpoints the one this address belongs to, as far as that can be told."""
    if family == socket.AF_UNIX:
        return "localhost"
    hosts = {endpoint.rpartition(":")[0].strip("[]") for endpoint in upstream.endpoints}
    if address[0] in hosts:
        return str(address[0])
    names = sorted(host for host in hosts if not _is_number(host))
    return names[0] if names else str(address[0])


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
