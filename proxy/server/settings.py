"""The settings of a processor, made from the ``start`` message: routes with their limits, TLS stores and endpoints; and changes to them.

A change is prepared (checked against what is in force), then committed or aborted; one at a time. It can only change what exists from the start:
limits, the pool's share, endpoints, brokers of clusters, quotas, tap rules, rules about Kafka, stores of certificates.
"""

import os
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from framegate.proxy.auth import factories
from framegate.proxy.cells import LISTENER_BLOCK, MECHANISMS, UPSTREAM_BLOCK
from framegate.proxy.config import model
from framegate.proxy.config.limits import LimitsInForce, limits_from_wire
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import framing_of
from framegate.proxy.network.int32 import HEADER
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.proxy_protocol import ProxyProtocol
from framegate.proxy.network.receive import NEVER_CUT, ReceiveLimit
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.relay.bucket import WHOLE
from framegate.proxy.relay.cluster import Cluster, RouteBrokers
from framegate.proxy.relay.counters import Counters
from framegate.proxy.relay.handled_connection import HandlerMetrics
from framegate.proxy.relay.kafka_rules import KafkaRulesInForce
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.retirement import Retirement
from framegate.proxy.relay.revocation import Revocations
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.standing import Standing
from framegate.proxy.relay.upstream import Endpoint, Upstream
from framegate.proxy.server.endpoints import BrokersInForce, endpoints_of, literal, read_cluster, server_names
from framegate.proxy.server.messages import Change, ClusterRow, StartMessage
from framegate.proxy.server.refusals import Refusals
from framegate.proxy.server.rows import LimitsRow, listener_owner, upstream_owner
from framegate.proxy.server.schema import schema_of
from framegate.proxy.server.standing_rows import standing_of
from framegate.proxy.server.stores import SESSION_NS, MadeStore, Stores
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter

if TYPE_CHECKING:
    from framegate.proxy.network.authenticator import AuthenticatorFactory
    from framegate.proxy.relay.login import Logins
    from framegate.proxy.relay.request_channel import RequestChannel
    from framegate.proxy.server.credentials import Credentials

__all__ = ["ChangeError", "Settings"]

NS_PER_MS: Final = 1_000_000
KAFKA_HEAD: Final = 131_200  # bytes of a request that pairing may have to read, see ``framegate.proxy.relay.pairing``
ADDRESSES_HEAD: Final = 131_072  # bytes of a large answer in which the addresses of brokers must be, see ``framegate.proxy.relay.rewriting``


class _Prepared(NamedTuple):
    number: int
    change: Change
    endpoints: dict[str, list[Endpoint]]
    clusters: dict[str, BrokersInForce]
    rules: TapRules | None
    limits: LimitsInForce | None
    stores: dict[str, MadeStore]
    kafka_rules: dict[str, model.KafkaRules]
    standing: list[Standing] | None


class ChangeError(Exception):
    """A change is impossible; the text is for the operator."""


def _check_known(fault: str, names: Iterable[str], known: Container[str]) -> None:
    unknown = {name for name in names if name not in known}
    if unknown:
        raise ChangeError(f"{fault} {', '.join(sorted(unknown))}")


class Settings:
    """The configuration in force in this processor.

    Args:
        message: the ``start`` message.

    Attributes:
        config: as it was at the start.
        pool: the memory pool of this processor, with the size of its share.
        counters: of all listeners and upstreams.
        upstreams: by name; shared by the routes of all listeners that use it.
        clusters: those of them that are Kafka clusters.
        routes: by listener.
        refusals: by listener, of those with rules about Kafka.
        limits: max_receive_size by listener.
        requests: sends frames to the handler processes; None: no listener has a handler.
        credentials: sends auth requests to control; None: no listener or upstream uses SASL.

    Raises:
        ConfigError: certificates cannot be used, or an endpoint has no address.
    """

    def __init__(self, message: StartMessage, pool: MemoryPool) -> None:
        self.config: Final[model.ProxyConfig] = model.from_wire(message["config"])
        self.pool: Final = pool
        self.counters: Final = Counters([item.name for item in self.config.listeners], [item.name for item in self.config.upstreams])
        self._upstream_configs: Final = {item.name: item for item in self.config.upstreams}
        self._stores: Final = Stores(self.config, message.get("stores"))
        self._framings: Final[dict[model.HeaderConfig, Framing]] = {}
        self._upstream_limits: Final = {item.name: ReceiveLimit(item.max_receive_size) for item in self.config.upstreams}
        given = message.get("endpoints") or {}
        self._endpoints: Final = {
            name: endpoints_of(item, given[name] if name in given else [literal(endpoint) for endpoint in item.addresses])
            for name, item in self._upstream_configs.items()
        }
        self._broker_endpoints: Final[dict[str, list[Endpoint]]] = {}
        self.upstreams: Final = {
            name: Upstream(name, self.counters.upstreams[name], endpoints, self._upstream_configs[name], self.config.zone, _seed())
            for name, endpoints in self._endpoints.items()
        }
        self._put_failing(message.get("failing", {}))
        self.clusters: Final = {name: Cluster(name) for name, item in self._upstream_configs.items() if item.kafka is not None}
        rows = message.get("brokers") or {}
        without = self.clusters.keys() - rows.keys()
        if without:
            raise ConfigError(f"the brokers of {', '.join(sorted(without))} were not sent")
        clusters = self._read_clusters(rows)
        self._advertised: Final = {name: told for each in clusters.values() for name, told in each.advertised.items()}
        self._accounts: Final = {item.name: pool.account(self.config.memory_pool.shares.get(item.name, 0)) for item in self.config.listeners}
        for name, account in self._accounts.items():
            self.counters.listeners[name].account = account
        self.requests: Final = _request_channel(self.config)
        self.credentials: Final = _credentials(self.config)
        self._logins: Final = {item.name: self._upstream_logins(item) for item in self.config.upstreams}
        self.refusals: Final[dict[str, Refusals]] = {}
        self.routes: Final = {item.name: self._route(item) for item in self.config.listeners}
        self._put_clusters(clusters)
        self.limits: Final = {name: route.options.limit for name, route in self.routes.items()}
        self._prepared: _Prepared | None = None
        self._relay: Relay | None = None
        self._tap: TapWriter | None = None
        self._retirement: Retirement | None = None
        self._sessions_end: Final = CallbackTimer(self._end_sessions)
        self._part: Final = message.get("part", WHOLE)
        self._standing: Final = standing_of(message.get("standing", []))
        self._set_largest()

    def attach(self, relay: Relay, tap: TapWriter | None, retirement: Retirement | None = None) -> None:
        """Set the objects to which changes are applied, before the first change. Without ``tap`` the tap's rules cannot change; ``retirement`` ends
        connections whose certificate was replaced.
        """
        self._retirement = retirement
        self._relay = relay
        self._tap = tap
        if self.requests is not None:
            self.requests.attach(relay.pairs.selector)
        relay.pairs.quotas.show_in(self.counters)
        relay.pairs.standing = self._standing
        self.set_parts(self._part, [])
        relay.pairs.quotas.set_limits(limits_from_wire(model.quotas_to_wire(self.config)))
        if self._stores.verifies:
            self._end_sessions_later(relay.pairs.selector)

    def set_parts(self, default: int, parts: Sequence[tuple[str, str, str, int]]) -> None:
        """Set this processor's parts of rates (``Quotas.set_parts``) and of the connections to endpoints."""
        assert self._relay is not None, "attach comes first"
        self._relay.pairs.quotas.set_parts(default, parts)
        for upstream in self.upstreams.values():
            upstream.set_part(default)

    def _end_sessions_later(self, selector: Selector) -> None:
        selector.call_at(selector.now_ns + SESSION_NS, self._sessions_end)

    def _end_sessions(self) -> None:
        """Clients with certificates must show them again: a certificate, or a revocation list, may have expired."""
        assert self._relay is not None, "the timer is set by attach"
        self._end_sessions_later(self._relay.pairs.selector)
        self._serve(self._stores.renewed())

    def _route(self, listener: model.ListenerConfig) -> Route:
        counters = self.counters.listeners[listener.name]
        rules = None if listener.kafka is None else self._kafka_rules_of(listener.name, listener.kafka)
        times = listener.timeouts
        upstream = None if listener.upstream is None else self._upstream_configs[listener.upstream]
        speaks = self._framing(listener)
        onward = speaks if upstream is None else self._framing(upstream)
        options = ChannelOptions(
            side="downstream",
            limit=ReceiveLimit(listener.max_receive_size),
            stats=counters.downstream,
            handshake_timeout_ns=times.handshake_ms * NS_PER_MS,
            failed_authentication_delay_ns=times.failed_authentication_ms * NS_PER_MS,
            idle_ns=times.idle_ms * NS_PER_MS,
            stall_ns=times.stall_ms * NS_PER_MS,
            min_rate=listener.min_rate,
            tls=self._stores.listener(listener.name),
            authenticators=self._sasl(listener, rules) or factories.of_clients(listener),
            account=self._accounts[listener.name],
            cut_from=_cut_from(model.forwarding_of(listener).requests),
            first_piece=0 if listener.protocol == "framed" else KAFKA_HEAD,
            keeps_first=listener.kafka is not None,
            framing=speaks,
            onward=onward if onward is not speaks else None,
            socket=_socket(listener.socket),
            proxy_protocol=_proxy_protocol(listener),
            sasl_limit=NEVER_CUT if listener.sasl is None else min(listener.sasl.max_frame, model.CUT_ABOVE - HEADER),
        )
        return Route(
            listener=listener.name,
            upstream=None if upstream is None else self.upstreams[upstream.name],
            protocol=listener.protocol,
            options=options,
            upstream_options={} if upstream is None else {name: self._upstream_options(listener, upstream, name) for name in server_names(upstream)},
            half_close_ns=times.half_close_ms * NS_PER_MS,
            waits_before_data=listener.half_close_before_data == "wait",
            counters=counters,
            handler=None if listener.handler is None else HandlerMetrics(counters),
            authenticates=listener.sasl is not None,
            logins=None if upstream is None else self._logins[upstream.name],
            send_proxy_protocol="" if upstream is None else upstream.send_proxy_protocol or "",
            revoked=Revocations(times.handshake_ms * NS_PER_MS) if listener.close_revoked else None,
            brokers=self._route_brokers(listener),
            rules=rules,
        )

    def _kafka_rules_of(self, listener: str, rules: model.KafkaRules) -> KafkaRulesInForce:
        made = KafkaRulesInForce(rules)
        self.refusals[listener] = refusals = Refusals(listener, made, self.counters.listeners[listener].counts)
        made.refused = refusals.note
        return made

    def _route_brokers(self, listener: model.ListenerConfig) -> RouteBrokers | None:
        if listener.brokers is None or listener.upstream is None:
            return None
        narrow = listener.kafka is None or listener.kafka.unknown_versions == "narrow"
        return RouteBrokers(self.clusters[listener.upstream], self._advertised[listener.name], listener.brokers.hosts, narrow=narrow)

    def _sasl(self, listener: model.ListenerConfig, rules: KafkaRulesInForce | None) -> "AuthenticatorFactory | None":
        """The SASL authenticators of a listener's clients; None: it uses none."""
        sasl = listener.sasl
        if sasl is None or self.credentials is None:
            return None
        from framegate.proxy.auth.server import SaslServerAuthenticators, SaslServerSettings
        from framegate.proxy.server.credentials import listener_auth_queue

        counts, durations = self.counters.listeners[listener.name].counts, self.counters.loop.authentications

        def count(mechanism: str, error: str, duration_ns: int) -> None:
            counts.count(LISTENER_BLOCK.at("framegate.authentication.count", mechanism, error))
            durations[MECHANISMS.index(mechanism)].observe(duration_ns)

        settings = SaslServerSettings(
            sasl.mechanisms,
            sasl.max_session_ms,
            sasl.max_frame,
            reauthenticates=listener.handler is None,
            allowed_principals=factories.allowed_principals_of(listener),
            narrows=listener.brokers is not None,
            greatest=None if rules is None else rules.greatest,
        )
        return SaslServerAuthenticators(settings, self.credentials.source(listener_auth_queue(listener.name)), count=count)

    def _upstream_logins(self, upstream: model.UpstreamConfig) -> "Logins | None":
        """Our logins to an upstream; None: it needs none."""
        if upstream.sasl is None or self.credentials is None:
            return None
        from framegate.proxy.server.credentials import upstream_auth_queue
        from framegate.proxy.server.upstream_logins import UpstreamLogins

        counts = self.counters.upstreams[upstream.name].counts

        def count(mechanism: str, error: str) -> None:
            counts.count(UPSTREAM_BLOCK.at("framegate.upstream.authentication.count", mechanism, error))

        return UpstreamLogins(upstream.name, upstream.sasl, self.credentials.source(upstream_auth_queue(upstream.name)), count)

    def _upstream_options(self, listener: model.ListenerConfig, upstream: model.UpstreamConfig, server_name: str) -> ChannelOptions:
        """The options of channels to the endpoints with a server name."""
        speaks, onward = self._framing(upstream), self._framing(listener)
        return ChannelOptions(
            side="upstream",
            limit=self._upstream_limits[upstream.name],
            stats=self.counters.listeners[listener.name].upstream,
            handshake_timeout_ns=upstream.timeouts.connect_ms * NS_PER_MS,
            stall_ns=listener.timeouts.stall_ms * NS_PER_MS,
            min_rate=listener.min_rate,
            tls=self._stores.upstream(upstream.name, server_name),
            authenticators=factories.of_upstream(upstream),
            account=self._accounts[listener.name],
            cut_from=_cut_from(model.forwarding_of(listener).responses, model.responses_cut_above(listener)),
            first_piece=0 if listener.brokers is None and listener.kafka is None else ADDRESSES_HEAD,
            keeps_first=listener.brokers is not None or listener.kafka is not None,
            framing=speaks,
            onward=onward if onward is not speaks else None,
            socket=_socket(upstream.socket),
        )

    def _framing(self, side: model.ListenerConfig | model.UpstreamConfig) -> Framing:
        return framing_of(side.framing, side.header, self._framings)

    def _set_largest(self) -> None:
        """Set the largest frames that pass whole in the pool."""
        requests = [model.whole_request(int(self.limits[item.name].value), model.forwarding_of(item).requests) for item in self.config.listeners]
        answer = model.largest_whole(self.config)[1]
        framings = [*map(self._framing, self.config.listeners), *map(self._framing, self.config.upstreams)]
        header = max(framing.most_header for framing in framings)
        self.pool.set_largest(int(header) + max(requests), int(header) + answer if answer else 0)

    # Changes.

    def prepare(self, change_id: int, asked: dict[str, Any]) -> None:
        """Check a change and keep it.

        Raises:
            ChangeError: it is impossible, and is not kept.
        """
        if self._prepared is not None:
            raise ChangeError(f"change {self._prepared.number} is prepared and not decided")
        _check_known("cannot change", asked, Change.__annotations__)
        fault = schema_of(Change).fault(asked)
        if fault:
            raise ChangeError(f"a change that cannot be read: change{fault}")
        change = cast(Change, asked)
        limits = {name: int(limit.value) for name, limit in self.limits.items()}
        for name, size in change.get("max_receive_size", {}).items():
            _check_known("no listener", [name], limits)
            if not model.MAX_RECEIVE_SIZE.takes(size):
                raise ChangeError(f"max_receive_size {size} of {name} is not within {model.MAX_RECEIVE_SIZE.least} and {model.MAX_RECEIVE_SIZE.most}")
            limits[name] = size
        self._check_share(change.get("share", int(self.pool.size)), limits)
        endpoints = change.get("endpoints", {})
        _check_known("no upstream", [*endpoints, *change.get("failing", {})], self.upstreams)
        try:
            fresh = {name: endpoints_of(self._upstream_configs[name], rows) for name, rows in endpoints.items()}
            clusters = self._read_clusters(change.get("brokers", {}))
            stores = self._stores.prepare(change["stores"]) if "stores" in change else {}
            standing = standing_of(change["standing"]) if "standing" in change else None
        except (ConfigError, ValueError) as error:
            raise ChangeError(str(error)) from error
        _check_known("no listener", change.get("revoked", {}), self.routes)
        rules = self._rules(change["tap_rules"]) if "tap_rules" in change else None
        limits_in_force = self._quotas(change["limits"]) if "limits" in change else None
        kafka_rules = self._kafka_rules(change.get("kafka_rules", {}))
        self._prepared = _Prepared(change_id, change, fresh, clusters, rules, limits_in_force, stores, kafka_rules, standing)

    def _kafka_rules(self, rows: dict[str, dict[str, Any]]) -> dict[str, model.KafkaRules]:
        _check_known("no rules about Kafka for the listener", rows, [name for name, route in self.routes.items() if route.rules is not None])
        try:
            return {name: model.kafka_rules_from_wire(row) for name, row in rows.items()}
        except TypeError as error:
            raise ChangeError(f"rules about Kafka that cannot be: {error}") from error

    def _read_clusters(self, rows: dict[str, ClusterRow]) -> dict[str, BrokersInForce]:
        """The brokers of rows, by upstream; raises ConfigError for rows that cannot be."""
        for name in rows:
            if name not in self._upstream_configs:
                raise ConfigError(f"no upstream {name}")
        return {name: read_cluster(self._upstream_configs[name], self._fronts(name), row) for name, row in rows.items()}

    def _fronts(self, upstream: str) -> list[str]:
        """The listeners in front of a cluster."""
        return [item.name for item in self.config.listeners if item.upstream == upstream and item.brokers is not None]

    def _put_clusters(self, clusters: dict[str, BrokersInForce]) -> None:
        for name, cluster in clusters.items():
            self._broker_endpoints[name] = cluster.endpoints
            self.clusters[name].put(cluster.brokers)
            self._put_endpoints(name)
            for listener, advertised in cluster.advertised.items():
                brokers = self.routes[listener].brokers
                assert brokers is not None, "read_cluster has compared the listeners"
                brokers.rewriter.advertised = advertised

    def _put_failing(self, failing: dict[str, dict[str, str]]) -> None:
        for name, endpoints in failing.items():
            self.upstreams[name].set_failing(endpoints)

    def _put_endpoints(self, name: str) -> None:
        """Put the endpoints of an upstream in force, those of its brokers included, and the options of channels to them."""
        brokers, upstream = self._broker_endpoints.get(name, []), self._upstream_configs[name]
        names = server_names(upstream) | {endpoint.server_name for endpoint in brokers}
        for listener in self.config.listeners:
            if listener.upstream == name:
                options = self.routes[listener.name].upstream_options
                fresh = {each: options.get(each) or self._upstream_options(listener, upstream, each) for each in names}
                options.clear()
                options.update(fresh)
        self.upstreams[name].replace([*self._endpoints[name], *brokers])

    def _quotas(self, row: LimitsRow) -> LimitsInForce:
        try:
            limits = limits_from_wire(row)
        except (KeyError, TypeError, ValueError) as error:
            raise ChangeError(f"limits that cannot be: {error}") from error
        _check_known("no listener", limits.listeners, self.limits)
        return limits

    def _rules(self, rows: list[dict[str, Any]]) -> TapRules:
        if self._tap is None:
            raise ChangeError("there is no tap")
        try:
            rules = tuple(model.rule_from_wire(row) for row in rows)
            _check_known("no listener", [listener for rule in rules for listener in rule.listeners], self.limits)
            return TapRules(rules, self._tap)
        except (KeyError, TypeError, ValueError) as error:
            raise ChangeError(f"tap rules that cannot be: {error}") from error

    def _check_share(self, share: int, limits: dict[str, int]) -> None:
        """A share must hold every frame that passes whole."""
        for listener in self.config.listeners:
            size = model.whole_request(limits[listener.name], model.forwarding_of(listener).requests)
            if size > share:
                raise ChangeError(f"the share of {share} bytes is below the max_receive_size of {listener.name}, {size}")
        answer = model.largest_whole(self.config)[1]
        if answer > share:
            raise ChangeError(f"the share of {share} bytes is below the max_receive_size of an upstream whose answers pass whole, {answer}")

    def commit(self, change_id: int) -> bool:
        """Put the prepared change in force; False if another one, or none, is prepared. New tap rules, rates and revocations apply to new pairs; the
        caller applies them to open pairs (``jobs.FollowJob``).
        """
        prepared = self._prepared
        if prepared is None or prepared.number != change_id:
            return False
        self._prepared = None
        change = prepared.change
        for name, size in change.get("max_receive_size", {}).items():
            self.limits[name].value = size
        self._set_largest()
        if "share" in change:
            self.pool.resize(change["share"])
        self._endpoints.update(prepared.endpoints)
        for name in prepared.endpoints.keys() - prepared.clusters.keys():
            self._put_endpoints(name)
        self._put_clusters(prepared.clusters)
        self._put_failing(change.get("failing", {}))
        if prepared.rules is not None and self._relay is not None:
            if self._relay.pairs.rules is not None:
                prepared.rules.inherit(self._relay.pairs.rules, change.get("tap_rule", ""))
            self._relay.put_rules(prepared.rules)
        if prepared.limits is not None and self._relay is not None:
            self._relay.pairs.quotas.set_limits(prepared.limits)
        self._put_standing(prepared.standing)
        self._put_stores(prepared.stores)
        self._put_kafka_rules(prepared.kafka_rules)
        for name, row in change.get("revoked", {}).items():
            revoked = self.routes[name].revoked
            if revoked is not None and self._relay is not None:
                revoked.add(row["users"], row["serials"], self._relay.pairs.selector.now_ns)
        return True

    def _put_standing(self, standing: list[Standing] | None) -> None:
        if standing is not None and self._relay is not None:
            self._relay.pairs.standing = standing

    def _put_kafka_rules(self, rules: dict[str, model.KafkaRules]) -> None:
        for name, each in rules.items():
            in_force = self.routes[name].rules
            assert in_force is not None, "prepare has looked"
            in_force.put(each)

    def revokes(self, change_id: int) -> bool:
        """Whether the prepared change revokes identities."""
        return self._prepared is not None and self._prepared.number == change_id and "revoked" in self._prepared.change

    def _put_stores(self, made: dict[str, MadeStore]) -> None:
        if not made:
            return
        max_ages = {item.name: item.tls.max_age_ms * NS_PER_MS for item in self.config.listeners if item.tls is not None}
        if self._retirement is not None:
            for name, route in self.routes.items():
                if listener_owner(name) in made and route.options.tls is not None:
                    self._retirement.replaced(route, route.options.tls.number, max_ages[name])
        self._serve(made)

    def _serve(self, made: dict[str, MadeStore]) -> None:
        self._stores.put(made)
        for name, route in self.routes.items():
            if listener_owner(name) in made:
                route.options.tls = self._stores.listener(name)
            upstream = None if route.upstream is None else route.upstream.name
            if upstream is not None and upstream_owner(upstream) in made:
                for server_name, options in route.upstream_options.items():
                    options.tls = self._stores.upstream(upstream, server_name)

    def abort(self, change_id: int) -> None:
        """Forget the prepared change; no effect if another one is prepared."""
        if self._prepared is not None and self._prepared.number == change_id:
            self._prepared = None


def _proxy_protocol(listener: model.ListenerConfig) -> ProxyProtocol | None:
    config = listener.proxy_protocol
    return None if config is None else ProxyProtocol(config.version, config.trusted)


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
