"""What follows from one configuration in a processor: routes with their limits, TLS stores, upstreams, accounts of the memory pool.

Another configuration is built beside the one in force: each object whose configuration is the same is used again, with all its state, and others are
made, one after another, so that traffic goes on meanwhile (``build``). Nothing of it is in use before ``Settings`` puts it in force; what cannot be
made raises before that. So open connections keep the objects with which they began. Values that apply to them at once are put into these objects then
(``Settings.commit``).
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from framegate.proxy.auth import factories
from framegate.proxy.cells import ENDPOINT, LISTENER, LISTENER_BLOCK, MECHANISMS, UPSTREAM, UPSTREAM_BLOCK, CellLayout, Place
from framegate.proxy.config import model
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.limits import UNLIMITED_LISTENER
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import framing_of
from framegate.proxy.network.int32 import HEADER
from framegate.proxy.network.memory_pool import Account, MemoryPool
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.proxy_protocol import ProxyProtocol
from framegate.proxy.network.receive import NEVER_CUT, ReceiveLimit
from framegate.proxy.relay.cluster import Cluster, RouteBrokers
from framegate.proxy.relay.counters import EndpointCounters, ListenerCounters, LoopCounters, UpstreamCounters
from framegate.proxy.relay.handled_connection import HandlerMetrics
from framegate.proxy.relay.kafka_rules import KafkaRulesInForce
from framegate.proxy.relay.limit_rules import LimitRules
from framegate.proxy.relay.revocation import Revocations
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.upstream import Endpoint, Upstream
from framegate.proxy.server.endpoints import Address, BrokersInForce, endpoints_of, literal, read_cluster, server_names
from framegate.proxy.server.messages import Change, ClusterRow
from framegate.proxy.server.refusals import Refusals
from framegate.proxy.server.stores import Stores

if TYPE_CHECKING:
    from framegate.proxy.network.authenticator import AuthenticatorFactory
    from framegate.proxy.relay.login import Logins
    from framegate.proxy.relay.request_channel import RequestChannel
    from framegate.proxy.server.credentials import Credentials

NS_PER_MS: Final = 1_000_000
KAFKA_HEAD: Final = 131_200  # bytes of a request that pairing may have to read, see ``framegate.proxy.relay.pairing``
ADDRESSES_HEAD: Final = 131_072  # bytes of a large answer in which the addresses of brokers must be, see ``framegate.proxy.relay.rewriting``


class InForce:
    """All that follows from one configuration, addresses and stores, once ``build`` is done.

    Args:
        before: what is in force; None at the start.
        change: endpoints, brokers and stores that are new; those that are missing stay.
        layout: of the cells. Listeners and upstreams that have a place, and are not in the configuration any more, stay as they were in ``before``,
            for the connections that they have.

    Raises ConfigError: it cannot be made.
    """

    def __init__(
        self, before: "InForce | None", config: model.ProxyConfig, change: Change, layout: CellLayout, pool: MemoryPool, loop: LoopCounters
    ) -> None:
        self.config: Final = config
        self.layout: Final = layout
        self._before: InForce | None = before
        self._pool: Final = pool
        self._loop: Final = loop
        # listeners, upstream_configs: of the configuration, by name
        self.listeners: Final = {item.name: item for item in config.listeners}
        self.upstream_configs: Final = {item.name: item for item in config.upstreams}
        self._framings: Final[dict[model.HeaderConfig, Framing]] = {} if before is None else before._framings
        # sends auth requests to control; None: no listener or upstream uses SASL, or has used it
        self.credentials: Final[Credentials | None] = (None if before is None else before.credentials) or _credentials(config)
        # sends frames to the handler processes; None: no listener has a handler, or had one
        self.requests: Final[RequestChannel | None] = (None if before is None else before.requests) or _request_channel(config)
        self.stores: Final[Stores] = Stores(config, change.get("stores"), None if before is None else before.stores)  # of certificates
        # Of owners that are gone and have a place, because another processor has their connections, a new processor knows nothing.
        kept = [name for name in layout.names(LISTENER) if name in self.listeners or _known(before, "routes", name) is not None]
        self._kept: Final = kept
        self._kept_upstreams: Final = [
            name for name in layout.names(UPSTREAM) if name in self.upstream_configs or _known(before, "upstreams", name) is not None
        ]
        # of listeners, by name; ``upstream_counters`` of upstreams, ``endpoint_counters`` of their endpoints, by place
        self.counters: Final[dict[str, ListenerCounters]] = {}
        self.upstream_counters: Final[dict[str, UpstreamCounters]] = {}
        self.endpoint_counters: Final[dict[Place, EndpointCounters]] = {
            place: (None if before is None else before.endpoint_counters.get(place)) or EndpointCounters() for place in layout.owners(ENDPOINT)
        }
        self._handled: Final[dict[str, HandlerMetrics]] = {name: each for name in kept if (each := _known(before, "_handled", name)) is not None}
        # max_receive_size by listener; ``upstream_limits`` by upstream
        self.limits: Final[dict[str, ReceiveLimit]] = {
            name: _known(before, "limits", name) or ReceiveLimit(self.listeners[name].max_receive_size) for name in kept
        }
        # by listener
        self.limit_rules: Final[dict[str, LimitRules]] = {
            name: _known(before, "limit_rules", name) or LimitRules(name, self.limits[name]) for name in kept
        }
        self.upstream_limits: Final[dict[str, ReceiveLimit]] = {
            item.name: _known(before, "upstream_limits", item.name) or ReceiveLimit(item.max_receive_size) for item in config.upstreams
        }
        # of the memory pool, by listener
        self.accounts: Final[dict[str, Account]] = {name: _known(before, "accounts", name) or pool.new_account(0) for name in kept}
        self.rows: Final = self._addresses(change.get("endpoints") or {})
        # of each upstream, without those of brokers; ``brokers`` of each cluster. If they are the same as in ``before``, the same objects.
        self.endpoints: Final = {name: self._endpoints(item) for name, item in self.upstream_configs.items()}
        self.brokers: Final = self._clusters(change.get("brokers") or {})
        self.upstreams: Final[dict[str, Upstream]] = {}  # by name; shared by the routes of all listeners that use it
        # those of them that are Kafka clusters
        self.clusters: Final = {name: _known(before, "clusters", name) or Cluster(name) for name in self.brokers}
        self.logins: Final[dict[str, Logins | None]] = {}  # to upstreams, by name
        # rules, refusals: by listener, of those with rules about Kafka
        self.rules: Final[dict[str, KafkaRulesInForce]] = {}
        self.refusals: Final[dict[str, Refusals]] = {}
        self.routes: Final[dict[str, Route]] = {}  # by listener

    def build(self) -> Iterator[None]:
        """Make what is new, in pieces of less than a millisecond. Raises ConfigError."""
        before = self._before
        for name in self._kept:
            self.counters[name] = known = _known(before, "counters", name) or ListenerCounters()
            if before is None or before.counters.get(name) is not known:
                yield
        for name in self._kept_upstreams:
            self.upstream_counters[name] = _known(before, "upstream_counters", name) or UpstreamCounters()
            self.upstreams[name] = upstream = _known(before, "upstreams", name) or self._upstream(name)
            if before is None or before.upstreams.get(name) is not upstream:
                yield
        self.logins.update((item.name, self._login(item)) for item in self.config.upstreams)
        for name in self._kept:
            self.routes[name] = route = self._route_of(name)
            if before is None or before.routes.get(name) is not route:
                yield
        self._before = None

    # Endpoints and brokers.

    def _addresses(self, given: Mapping[str, list[Address]]) -> dict[str, list[Address]]:
        known = {} if self._before is None else self._before.rows
        unknown = given.keys() - self.upstream_configs.keys()
        if unknown:
            raise ConfigError(f"no upstream {', '.join(sorted(unknown))}")
        return {
            name: given[name] if name in given else known[name] if name in known else [literal(endpoint) for endpoint in item.addresses]
            for name, item in self.upstream_configs.items()
        }

    def _endpoints(self, item: model.UpstreamConfig) -> list[Endpoint]:
        before = self._before
        if before is not None and before.upstream_configs.get(item.name) is item and before.rows[item.name] is self.rows[item.name]:
            return before.endpoints[item.name]
        return endpoints_of(item, self.rows[item.name], self.endpoint_counters)

    def _clusters(self, given: Mapping[str, ClusterRow]) -> dict[str, BrokersInForce]:
        before = self._before
        for name in given:
            if name not in self.upstream_configs:
                raise ConfigError(f"no upstream {name}")
        wanted = {name: item for name, item in self.upstream_configs.items() if item.kafka is not None}
        found = {name: read_cluster(self.upstream_configs[name], self._fronts(name), row, self.endpoint_counters) for name, row in given.items()}
        for name in wanted.keys() - found.keys():
            if before is None or name not in before.brokers or set(before.brokers[name].advertised) != set(self._fronts(name)):
                raise ConfigError(f"the brokers of {name} were not sent")
            found[name] = before.brokers[name]
        return {name: found[name] for name in wanted}

    def _fronts(self, upstream: str) -> list[str]:
        """The listeners in front of a cluster."""
        return [item.name for item in self.config.listeners if item.upstream == upstream and item.brokers is not None]

    def all_endpoints(self, upstream: str) -> list[Endpoint]:
        """The endpoints of an upstream, those of its brokers included."""
        return [*self.endpoints[upstream], *(self.brokers[upstream].endpoints if upstream in self.brokers else ())]

    def _upstream(self, name: str) -> Upstream:
        return Upstream(name, self.all_endpoints(name), self.upstream_configs[name], self.config.zone, _seed())

    # Routes.

    def _route_of(self, name: str) -> Route:
        """The route of a listener: the same one as before, unless its connections are to have other options."""
        listener, before = self.listeners.get(name), self._before
        if listener is None:
            assert before is not None, "a listener with a place that is not configured was there before"
            if name in before.rules:
                self.rules[name], self.refusals[name] = before.rules[name], before.refusals[name]
            return before.routes[name]
        upstream = None if listener.upstream is None else self.upstream_configs[listener.upstream]
        if before is not None and name in before.listeners and self._is_same(before, listener, upstream):
            if name in before.rules:
                self.rules[name], self.refusals[name] = before.rules[name], before.refusals[name]
            return before.routes[name]
        return self._route(listener, upstream)

    def _is_same(self, before: "InForce", listener: model.ListenerConfig, upstream: model.UpstreamConfig | None) -> bool:
        was = before.listeners[listener.name]
        behind = None if was.upstream is None else before.upstream_configs[was.upstream]
        if upstream is not None and before.upstreams.get(upstream.name) is not self.upstreams[upstream.name]:
            return False
        return (was is listener and behind is upstream) or (_of_route(was), _of_upstream(behind)) == (_of_route(listener), _of_upstream(upstream))

    def _route(self, listener: model.ListenerConfig, upstream: model.UpstreamConfig | None) -> Route:
        name, times = listener.name, listener.timeouts
        counters = self.counters[name]
        rules = None if listener.kafka is None else self._rules(name, listener.kafka)
        speaks = self._framing(listener)
        onward = speaks if upstream is None else self._framing(upstream)
        options = ChannelOptions(
            side="downstream",
            limit=self.limits[name],
            stats=counters.downstream,
            handshake_timeout_ns=times.handshake_ms * NS_PER_MS,
            failed_authentication_delay_ns=times.failed_authentication_ms * NS_PER_MS,
            idle_ns=times.idle_ms * NS_PER_MS,
            max_age_ns=times.max_connection_age_ms * NS_PER_MS,
            stall_ns=times.stall_ms * NS_PER_MS,
            min_rate=listener.min_rate,
            tls=self.stores.listener(name),
            authenticators=self._sasl(listener, rules) or factories.of_clients(listener),
            account=self.accounts[name],
            cut_from=_cut_from(model.forwarding_of(listener).requests),
            first_piece=0 if listener.protocol == "framed" else KAFKA_HEAD,
            keeps_first=listener.kafka is not None,
            framing=speaks,
            onward=onward if onward is not speaks else None,
            socket=_socket(listener.socket),
            proxy_protocol=_proxy_protocol(listener),
            sasl_limit=NEVER_CUT if listener.sasl is None else min(listener.sasl.max_frame, model.CUT_ABOVE - HEADER),
        )
        if listener.handler is not None and name not in self._handled:
            self._handled[name] = HandlerMetrics(counters)
        return Route(
            listener=name,
            upstream=None if upstream is None else self.upstreams[upstream.name],
            protocol=listener.protocol,
            options=options,
            upstream_options={} if upstream is None else {each: self._upstream_options(listener, upstream, each) for each in self._names(upstream)},
            half_close_ns=times.half_close_ms * NS_PER_MS,
            waits_before_data=listener.half_close_before_data == "wait",
            counters=counters,
            handler=None if listener.handler is None else self._handled[name],
            authenticates=listener.sasl is not None,
            logins=None if upstream is None else self.logins[upstream.name],
            send_proxy_protocol="" if upstream is None else upstream.send_proxy_protocol or "",
            revoked=Revocations(times.handshake_ms * NS_PER_MS) if listener.close_revoked else None,
            brokers=self._route_brokers(listener),
            rules=rules,
            limit_rules=self.limit_rules[name],
            is_local=_is_local(listener),
        )

    def _names(self, upstream: model.UpstreamConfig) -> set[str]:
        return server_names(upstream) | {endpoint.server_name for endpoint in self.all_endpoints(upstream.name)}

    def add_options(self, route: Route, listener: model.ListenerConfig, upstream: model.UpstreamConfig) -> None:
        """Let a route have the options of channels to all endpoints of its upstream, and no others."""
        options = route.upstream_options
        fresh = {each: options.get(each) or self._upstream_options(listener, upstream, each) for each in self._names(upstream)}
        options.clear()
        options.update(fresh)

    def _rules(self, listener: str, rules: model.KafkaRules) -> KafkaRulesInForce:
        self.rules[listener] = made = KafkaRulesInForce(rules)
        self.refusals[listener] = refusals = Refusals(listener, made, self.counters[listener].counts)
        made.refused = refusals.note
        return made

    def _route_brokers(self, listener: model.ListenerConfig) -> RouteBrokers | None:
        if listener.brokers is None or listener.upstream is None:
            return None
        advertised = self.brokers[listener.upstream].advertised[listener.name]
        return RouteBrokers(self.clusters[listener.upstream], advertised, listener.brokers.hosts, narrow=_narrows(listener))

    def _sasl(self, listener: model.ListenerConfig, rules: KafkaRulesInForce | None) -> "AuthenticatorFactory | None":
        """The SASL authenticators of a listener's clients; None: it uses none."""
        sasl = listener.sasl
        if sasl is None or self.credentials is None:
            return None
        from framegate.proxy.auth.server import SaslServerAuthenticators, SaslServerSettings
        from framegate.proxy.server.credentials import listener_auth_queue

        counts, durations = self.counters[listener.name].counts, self._loop.authentications

        def count(mechanism: str, error: str, duration_ns: int) -> None:
            counts.count(LISTENER_BLOCK.at("framegate.authentication.count", mechanism, error))
            durations[MECHANISMS.index(mechanism)].observe(duration_ns)

        settings = SaslServerSettings(
            sasl.mechanisms,
            sasl.max_session_ms,
            sasl.max_frame,
            reauthenticates=listener.handler is None,
            allowed_principals=factories.allowed_principals_of(listener),
            narrows=_narrows(listener),
            greatest=None if rules is None else rules.greatest,
        )
        return SaslServerAuthenticators(settings, self.credentials.source(listener_auth_queue(listener.name)), count=count)

    def _login(self, upstream: model.UpstreamConfig) -> "Logins | None":
        if upstream.sasl is None or self.credentials is None:
            return None
        before = self._before
        if before is not None and upstream.name in before.logins and before.upstream_configs[upstream.name].sasl == upstream.sasl:
            return before.logins[upstream.name]
        from framegate.proxy.server.credentials import upstream_auth_queue
        from framegate.proxy.server.upstream_logins import UpstreamLogins

        counts = self.upstream_counters[upstream.name].counts

        def count(mechanism: str, error: str) -> None:
            counts.count(UPSTREAM_BLOCK.at("framegate.upstream.authentication.count", mechanism, error))

        return UpstreamLogins(upstream.name, upstream.sasl, self.credentials.source(upstream_auth_queue(upstream.name)), count)

    def _upstream_options(self, listener: model.ListenerConfig, upstream: model.UpstreamConfig, server_name: str) -> ChannelOptions:
        speaks, onward = self._framing(upstream), self._framing(listener)
        return ChannelOptions(
            side="upstream",
            limit=self.upstream_limits[upstream.name],
            stats=self.counters[listener.name].upstream,
            handshake_timeout_ns=upstream.timeouts.connect_ms * NS_PER_MS,
            stall_ns=listener.timeouts.stall_ms * NS_PER_MS,
            min_rate=listener.min_rate,
            tls=self.stores.upstream(upstream.name, server_name),
            authenticators=factories.of_upstream(upstream),
            account=self.accounts[listener.name],
            cut_from=_cut_from(model.forwarding_of(listener).responses, model.responses_cut_above(listener)),
            first_piece=0 if listener.brokers is None and listener.kafka is None else ADDRESSES_HEAD,
            keeps_first=listener.brokers is not None or listener.kafka is not None,
            framing=speaks,
            onward=onward if onward is not speaks else None,
            socket=_socket(upstream.socket),
        )

    def _framing(self, side: model.ListenerConfig | model.UpstreamConfig) -> Framing:
        return framing_of(side.framing, side.header, self._framings)

    @property
    def largest_header(self) -> int:
        """Of the framings of all listeners and upstreams, in bytes."""
        sides: list[model.ListenerConfig | model.UpstreamConfig] = [*self.config.listeners, *self.config.upstreams]
        return max(int(self._framing(side).most_header) for side in sides)


def _known(before: "InForce | None", attribute: str, name: str) -> Any:
    """The object that something of that name has already; None: there is none."""
    return None if before is None else getattr(before, attribute).get(name)


def _is_local(listener: model.ListenerConfig) -> bool:
    """Whether only clients on this machine, or in this pod, reach it."""
    return parse_address(listener.address, port_zero=True).is_loopback


def _of_route(listener: model.ListenerConfig) -> model.ListenerConfig:
    """The part of a listener's configuration that its route has for good."""
    kafka = None if listener.kafka is None else dataclasses.replace(listener.kafka, report_only=False, rules=())
    return dataclasses.replace(
        listener, address="local" if _is_local(listener) else "", backlog=1, max_receive_size=1, limits=UNLIMITED_LISTENER, kafka=kafka
    )


def _of_upstream(upstream: model.UpstreamConfig | None) -> model.UpstreamConfig | None:
    """The same of the upstream behind it."""
    if upstream is None:
        return None
    kafka = None if upstream.kafka is None else model.KafkaCluster(bootstrap=())
    plain = model.UpstreamConfig(name="")
    chosen = {"balance": plain.balance, "max_connections": 0, "ejection": None, "check": None, "max_receive_size": 1}
    return dataclasses.replace(upstream, endpoints=(), kafka=kafka, **chosen)  # type: ignore[arg-type]


def _proxy_protocol(listener: model.ListenerConfig) -> ProxyProtocol | None:
    config = listener.proxy_protocol
    return None if config is None else ProxyProtocol(config.version, config.trusted)


def _narrows(listener: model.ListenerConfig) -> bool:
    """Whether an API or version that is not known is not passed, because answers may have addresses."""
    return listener.brokers is not None and (listener.kafka is None or listener.kafka.unknown_versions == "narrow")


def _socket(config: model.SocketConfig) -> model.SocketConfig | None:
    return None if config == model.SocketConfig() else config


def _request_channel(config: model.ProxyConfig) -> "RequestChannel | None":
    if all(listener.handler is None for listener in config.listeners):
        return None
    from framegate.proxy.relay.request_channel import RequestChannel  # here: only processors with handlers need it

    return RequestChannel(config.handlers.queue, config.handlers.timeout_ms * NS_PER_MS)


def _credentials(config: model.ProxyConfig) -> "Credentials | None":
    if all(listener.sasl is None for listener in config.listeners) and all(upstream.sasl is None for upstream in config.upstreams):
        return None
    from framegate.proxy.server.credentials import Credentials  # here: only processors with SASL need it

    return Credentials()


def _seed() -> int:
    return int.from_bytes(os.urandom(4), "big") >> 1


def _cut_from(forward: model.Forward, size: int = model.CUT_ABOVE) -> int:
    return size if forward == "cut_through" else NEVER_CUT
