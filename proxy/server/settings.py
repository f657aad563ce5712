"""The settings of a processor, made from the ``start`` message, and changes to them.

A change is prepared: all that it needs is made beside what is in force (``in_force``). Then it is committed or aborted; one at a time. New
connections use what is in force when they are taken over. Open connections keep what they began with, except for values that are put into it:
limits, quotas, rules, endpoints.
"""

import collections
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from framegate.proxy.cells import LISTENER, CellLayout
from framegate.proxy.config import model
from framegate.proxy.config.limits import MAX_RECEIVE_SIZE, LimitsInForce, limits_in_force
from framegate.proxy.config.matching import address_matcher, text_matcher
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.relay.bucket import WHOLE
from framegate.proxy.relay.cluster import Report
from framegate.proxy.relay.counters import Counters
from framegate.proxy.relay.drain import Drain
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.publisher import Publisher
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.retirement import Retirement
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.standing import Condition, Standing
from framegate.proxy.server.in_force import NS_PER_MS, InForce
from framegate.proxy.server.messages import Change, StartMessage
from framegate.proxy.server.refusals import Refusals
from framegate.proxy.server.rows import ConditionRow, StandingRow, listener_owner, upstream_owner
from framegate.proxy.server.schema import schema_of
from framegate.proxy.server.stores import SESSION_NS
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter


class Follow(NamedTuple):
    """What open connections are to follow after a change: the tap's rules, the quotas, and what was revoked, whichever is new."""

    rules: bool = False
    limits: bool = False
    revoked: bool = False
    routes: Callable[[set[Route]], None] | None = None  # called with the routes of all open connections; None: nobody asks


class _Prepared(NamedTuple):
    number: int
    change: Change
    in_force: InForce
    rules: TapRules | None
    limits: LimitsInForce | None
    standing: list[Standing] | None
    mapping: Any  # of the cells, for another layout


class _Replaced(NamedTuple):
    """A route that new connections do not get any more, what it was made of, and what its rules about Kafka have refused."""

    route: Route
    listener: model.ListenerConfig
    upstream: model.UpstreamConfig | None
    refusals: Refusals | None


class ChangeError(Exception):
    """A change is impossible; the text is for the operator."""


def _check_known(fault: str, names: Iterable[str], known: Container[str]) -> None:
    unknown = {name for name in names if name not in known}
    if unknown:
        raise ChangeError(f"{fault} {', '.join(sorted(unknown))}")


class Settings:
    """The configuration in force in this processor. ``message``: the ``start`` message. Raises ConfigError: certificates cannot be used, or an
    endpoint has no address.
    """

    def __init__(self, message: StartMessage, pool: MemoryPool) -> None:
        config = model.from_wire(message["config"])
        places = message.get("cells")
        brokers = {name: [each["id"] for each in row["brokers"]] for name, row in (message.get("brokers") or {}).items()}
        layout = CellLayout.of(config, brokers) if places is None else _layout(places)
        self.pool: Final = pool  # the memory pool of this processor, with the size of its share
        self.counters: Final = Counters([], [])  # of all listeners and upstreams
        start = cast(Change, {name: message[name] for name in ("endpoints", "stores", "brokers") if name in message})
        self.in_force: InForce = InForce(None, config, start, layout, pool, self.counters.loop)  # all that follows from the configuration
        collections.deque(self.in_force.build(), maxlen=0)  # all of it
        self.routes: dict[str, Route] = {}  # by listener, for new connections
        self.leaving: set[str] = set()  # of these listeners, those that are not configured any more: their connections are drained
        self._replaced: list[_Replaced] = []
        self._preparing: int | None = None
        self._prepared: _Prepared | None = None
        self._relay: Relay | None = None
        self._tap: TapWriter | None = None
        self._retirement: Retirement | None = None
        self._drain: Drain | None = None
        self._publisher: Publisher | None = None
        self._sessions_end: Final = CallbackTimer(self._end_sessions)
        self._ends_sessions: bool = False
        self._part: int = message.get("part", WHOLE)
        self._standing: Final = standing_of(message.get("standing", []))
        self._report_brokers: Report | None = None
        self._report: Callable[[Any], None] | None = None
        self._put(self.in_force, None)
        self._put_failing(message.get("failing", {}))

    @property
    def config(self) -> model.ProxyConfig:
        return self.in_force.config

    @property
    def limits(self) -> dict[str, ReceiveLimit]:
        """max_receive_size by listener."""
        return self.in_force.limits

    def attach(self, relay: Relay, tap: TapWriter | None, retirement: Retirement | None = None, drain: Drain | None = None) -> None:
        """Set the objects to which changes are applied, before the first change. Without ``tap`` the tap's rules cannot change; ``retirement`` ends
        connections that must not go on for ever.
        """
        self._retirement = retirement
        self._drain = drain
        self._relay = relay
        self._tap = tap
        self._attach_requests()
        relay.pairs.quotas.show_in(self.counters)
        relay.pairs.standing = self._standing
        relay.pairs.retirement = retirement
        self.set_parts(self._part, [])
        relay.pairs.quotas.set_limits(_quotas(self.config))
        self._watch_sessions()

    def attach_link(self, report_brokers: Report, report: Callable[[Any], None]) -> None:
        """Set what reports the brokers that answers name, and sends messages to control that must arrive."""
        self._report_brokers, self._report = report_brokers, report
        self._report_all()

    def attach_cells(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def _report_all(self) -> None:
        for cluster in self.in_force.clusters.values():
            cluster.report = self._report_brokers
        if self.in_force.credentials is not None and self._report is not None:
            self.in_force.credentials.attach(self._report)

    def _attach_requests(self) -> None:
        requests = self.in_force.requests
        if requests is not None and self._relay is not None and not self._relay.pairs.has_handlers:
            from framegate.proxy.relay.handler_leg import HandlerLegs  # here: only processors with handlers need it

            requests.attach(self._relay.pairs.selector)
            self._relay.pairs.handle(HandlerLegs(requests))

    def set_parts(self, default: int, parts: Sequence[tuple[str, str, str, int]]) -> None:
        """Set this processor's parts of rates (``Quotas.set_parts``) and of the connections to endpoints."""
        assert self._relay is not None, "attach comes first"
        self._part = default
        self._relay.pairs.quotas.set_parts(default, parts)
        for upstream in self.in_force.upstreams.values():
            upstream.set_part(default)

    def _watch_sessions(self) -> None:
        if self._relay is not None and not self._ends_sessions and self.in_force.stores.verifies:
            self._ends_sessions = True
            self._end_sessions_later(self._relay.pairs.selector)

    def _end_sessions_later(self, selector: Selector) -> None:
        selector.call_at(selector.now_ns + SESSION_NS, self._sessions_end)

    def _end_sessions(self) -> None:
        """Clients with certificates must show them again: a certificate, or a revocation list, may have expired."""
        assert self._relay is not None, "the timer is set by attach"
        self._end_sessions_later(self._relay.pairs.selector)
        made = self.in_force.stores.renewed()
        self.in_force.stores.put(made)
        self._serve(set(made))

    # Changes.

    def prepare(self, change_id: int, asked: dict[str, Any]) -> Generator[None, None, None]:
        """Make what a change needs, in pieces of about a millisecond, and keep it. If the generator is closed before its end, nothing is kept. Raises
        ChangeError: it is impossible, and is not kept.
        """
        other = self._preparing if self._prepared is None else self._prepared.number
        if other is not None:
            raise ChangeError(f"change {other} is prepared and not decided")
        self._preparing = change_id
        try:
            self._prepared = yield from self._make(change_id, asked)
        finally:
            self._preparing = None

    def _make(self, change_id: int, asked: dict[str, Any]) -> Generator[None, None, _Prepared]:
        _check_known("cannot change", asked, Change.__annotations__)
        fault = schema_of(Change).fault(asked)
        if fault:
            raise ChangeError(f"a change that cannot be read: change{fault}")
        change = cast(Change, asked)
        before = self.in_force
        try:
            config = yield from model.changed_from_wire(before.config, change.get("config", {}))
            layout = _layout(change["cells"]) if "cells" in change else before.layout
            _check_known("no cells for", [item.name for item in config.listeners], layout.names(LISTENER))
            _check_sizes(config, change.get("share", int(self.pool.size)))
            fresh = InForce(before, config, change, layout, self.pool, self.counters.loop)
            yield from fresh.build()
            standing = standing_of(change["standing"]) if "standing" in change else None
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise ChangeError(f"a configuration that cannot be: {error}" if not isinstance(error, ConfigError) else str(error)) from error
        _check_known("no upstream", change.get("failing", {}), fresh.upstream_configs)
        _check_known("no listener", change.get("revoked", {}), fresh.listeners)
        rules = self._rules(config, change)
        limits = self._limits(config)
        mapping = None
        if layout is not before.layout and self._publisher is not None:
            try:
                mapping = self._publisher.map(layout)
            except (OSError, ValueError) as error:
                raise ChangeError(f"the cells cannot be mapped: {error}") from error
        return _Prepared(change_id, change, fresh, rules, limits, standing, mapping)

    def _limits(self, config: model.ProxyConfig) -> LimitsInForce | None:
        was = self.config
        if config.limits == was.limits and [(each.name, each.limits) for each in config.listeners] == [
            (each.name, each.limits) for each in was.listeners
        ]:
            return None
        try:
            return _quotas(config)
        except (TypeError, ValueError) as error:
            raise ChangeError(f"limits that cannot be: {error}") from error

    def _rules(self, config: model.ProxyConfig, change: Change) -> TapRules | None:
        """The tap's rules, if they are other ones, or one of them is to be on again."""
        rules = () if config.tap is None else config.tap.rules
        if "tap_rule" not in change and rules == (() if self.config.tap is None else self.config.tap.rules):
            return None
        if self._tap is None:
            raise ChangeError("there is no tap")
        _check_known("no listener", [listener for rule in rules for listener in rule.listeners], [item.name for item in config.listeners])
        try:
            return TapRules(rules, self._tap)
        except (KeyError, TypeError, ValueError) as error:
            raise ChangeError(f"tap rules that cannot be: {error}") from error

    def commit(self, change_id: int) -> Follow | None:
        """Put the prepared change in force; None if another one, or none, is prepared. The caller has open pairs follow (``jobs.FollowJob``)."""
        prepared = self._prepared
        if prepared is None or prepared.number != change_id:
            return None
        self._prepared = None
        change, before, fresh = prepared.change, self.in_force, prepared.in_force
        self.in_force = fresh
        if "share" in change:
            self.pool.resize(change["share"])
        self._put(fresh, before)
        self._put_failing(change.get("failing", {}))
        if "retired" in change:
            self._retire(change["retired"], before)
        if self._publisher is not None and prepared.mapping is not None:
            self._publisher.follow(fresh.layout, prepared.mapping, fresh.limits)
        if self._relay is not None:
            self._put_rules(prepared, self._relay)
        revoked = "revoked" in change
        return Follow(prepared.rules is not None, prepared.limits is not None, revoked, self._forget_replaced if self._replaced else None)

    def _retire(self, processes: list[str], before: InForce) -> None:
        """Give no connections to these handler processes, and drain those of listeners that had a handler."""
        if self.in_force.requests is not None:
            self.in_force.requests.retire(processes)
        for name, listener in before.listeners.items():
            if listener.handler is not None and self._retirement is not None:
                self._retirement.removed(name)

    def _put_rules(self, prepared: _Prepared, relay: Relay) -> None:
        """Put the tap's rules, quotas and revocations in force, for pairs that open from here on."""
        change = prepared.change
        if prepared.rules is not None:
            if relay.pairs.rules is not None:
                prepared.rules.inherit(relay.pairs.rules, change.get("tap_rule", ""))
            relay.put_rules(prepared.rules)
        if prepared.limits is not None:
            relay.pairs.quotas.set_limits(prepared.limits)
        if prepared.standing is not None:
            relay.pairs.standing = prepared.standing
        relay.pairs.reports_open = change.get("rows_at_open", relay.pairs.reports_open)
        if "request_sample" in change:
            relay.pairs.sampler.set_share(change["request_sample"])
        for name, row in change.get("revoked", {}).items():
            for route in self._routes(name):
                if route.revoked is not None:
                    route.revoked.add(row["users"], row["serials"], relay.pairs.selector.now_ns)

    def _put(self, fresh: InForce, before: InForce | None) -> None:
        """Put the values of a configuration into the objects that connections use."""
        config = fresh.config
        for item in config.listeners:
            fresh.limits[item.name].value = item.max_receive_size
            fresh.limit_rules[item.name].put(item.limits.rules)
        for upstream in config.upstreams:
            fresh.upstream_limits[upstream.name].value = upstream.max_receive_size
        self.counters.listeners, self.counters.upstreams, self.counters.endpoints = fresh.counters, fresh.upstream_counters, fresh.endpoint_counters
        for name, account in fresh.accounts.items():
            fresh.counters[name].account = account
        self.pool.divide([(account, config.memory_pool.shares.get(name, 0)) for name, account in fresh.accounts.items()])
        requests, answers = model.largest_whole(config)
        self.pool.set_largest(fresh.largest_header + requests, fresh.largest_header + answers if answers else 0)
        self.routes = fresh.routes
        self.leaving = fresh.routes.keys() - fresh.listeners.keys()
        if before is not None:
            self._replace_routes(fresh, before)
        for name in fresh.upstream_configs:
            self._put_upstream(name, fresh, before)
        if before is not None and before is not fresh:
            self._serve(fresh.stores.changed(before.stores), before)
            self._put_others(fresh, before)
        self._attach_requests()
        self._report_all()
        self._watch_sessions()

    def _replace_routes(self, fresh: InForce, before: InForce) -> None:
        """Remember the routes that only open connections use, and drain the connections of listeners that are gone."""
        for name, listener in before.listeners.items():
            route = before.routes[name]
            if fresh.routes.get(name) is not route:
                behind = before.upstream_configs.get(listener.upstream or "")
                self._replaced.append(_Replaced(route, listener, behind, before.refusals.get(name)))
            if name not in fresh.listeners and self._retirement is not None:
                self._retirement.removed(name)

    def _forget_replaced(self, used: set[Route]) -> None:
        self._replaced = [each for each in self._replaced if each.route in used or (each.refusals is not None and each.refusals.waiting)]

    @property
    def refusals(self) -> list[Refusals]:
        """What rules about Kafka have refused, on all connections."""
        return [*self.in_force.refusals.values(), *(each.refusals for each in self._replaced if each.refusals is not None)]

    def _routes(self, listener: str) -> list[Route]:
        return [self.routes[listener], *(each.route for each in self._replaced if each.route.listener == listener)]

    def _put_upstream(self, name: str, fresh: InForce, before: InForce | None) -> None:
        config, upstream = fresh.upstream_configs[name], fresh.upstreams[name]
        upstream.places = fresh.endpoint_counters
        same = before is not None and before.upstream_configs.get(name) is config and before.config.zone == fresh.config.zone
        if not same:
            upstream.configure(config, fresh.config.zone)
            upstream.set_part(self._part)
        cluster = fresh.brokers.get(name)
        moved = before is None or fresh.endpoints[name] is not before.endpoints.get(name) or before.brokers.get(name) is not cluster
        if not same or moved:
            upstream.replace(fresh.all_endpoints(name))
        if cluster is not None and (before is None or before.brokers.get(name) is not cluster):
            fresh.clusters[name].put(cluster.brokers)
        for route, listener, behind in self._users(name, fresh):
            if not same or moved:
                fresh.add_options(route, listener, behind)
            if route.brokers is not None and cluster is not None and route.listener in cluster.advertised:
                rewriter = route.brokers.rewriter
                was, rewriter.advertised = rewriter.advertised, cluster.advertised[route.listener]
                if self._retirement is not None and rewriter.advertised.gains(was):
                    self._retirement.gained(route.listener)

    def _users(self, upstream: str, fresh: InForce) -> list[tuple[Route, model.ListenerConfig, model.UpstreamConfig]]:
        config = fresh.upstream_configs[upstream]
        found = [(fresh.routes[item.name], item, config) for item in fresh.config.listeners if item.upstream == upstream]
        return found + [
            (each.route, each.listener, each.upstream) for each in self._replaced if each.upstream is not None and each.upstream.name == upstream
        ]

    def _put_others(self, fresh: InForce, before: InForce) -> None:
        for name, listener in fresh.listeners.items():
            was = before.listeners.get(name)
            if listener.kafka is not None and was is not listener:
                for route in self._routes(name):
                    if route.rules is not None and (was is None or was.kafka != listener.kafka):
                        route.rules.put(listener.kafka)
        handlers = fresh.config.handlers
        if fresh.requests is not None:
            fresh.requests.configure(handlers.queue, handlers.timeout_ms * NS_PER_MS)
        drain = fresh.config.drain
        quiet_ns, timeout_ns = drain.quiet_ms * NS_PER_MS, drain.timeout_ms * NS_PER_MS
        if self._retirement is not None:
            self._retirement.configure(quiet_ns, timeout_ns)
        if self._drain is not None:
            self._drain.quiet_ns = quiet_ns

    def _put_failing(self, failing: dict[str, dict[str, str]]) -> None:
        for name, endpoints in failing.items():
            self.in_force.upstreams[name].set_failing(endpoints)

    def _serve(self, owners: set[str], before: InForce | None = None) -> None:
        """Let later connections use the stores in force of these owners. ``before``: had other ones, whose connections end after a while."""
        stores, listeners = self.in_force.stores, self.in_force.listeners
        for name, listener in listeners.items():
            owner = listener_owner(name)
            if owner in owners and listener.tls is not None:
                if before is not None and self._retirement is not None:
                    self._retirement.replaced(name, before.stores.number(owner), listener.tls.max_age_ms * NS_PER_MS)
                self.routes[name].options.tls = stores.listener(name)
        for name in self.in_force.upstream_configs:
            if upstream_owner(name) in owners:
                for route, _, _ in self._users(name, self.in_force):
                    for server_name, options in route.upstream_options.items():
                        options.tls = stores.upstream(name, server_name)

    def drain_pair(self, pair: Pair) -> None:
        """Drain a connection of a listener that is leaving, which came late."""
        if self._retirement is not None:
            self._retirement.retire(int(pair.id))

    def abort(self, change_id: int) -> None:
        """Forget the prepared change; no effect if another one is prepared."""
        if self._prepared is not None and self._prepared.number == change_id:
            self._prepared = None


def _layout(places: list[list[str]]) -> CellLayout:
    return CellLayout([tuple(place) for place in places])


def _quotas(config: model.ProxyConfig) -> LimitsInForce:
    return limits_in_force(config.limits, {item.name: item.limits for item in config.listeners})


def _check_sizes(config: model.ProxyConfig, share: int) -> None:
    """A share must hold every frame that passes whole, and no limit is out of its range."""
    for listener in config.listeners:
        for size in model.receive_sizes(listener):
            if not MAX_RECEIVE_SIZE.takes(size):
                raise ChangeError(f"max_receive_size {size} of {listener.name} is not within {MAX_RECEIVE_SIZE.least} and {MAX_RECEIVE_SIZE.most}")
            whole = model.whole_request(size, listener)
            if whole > share:
                raise ChangeError(f"the share of {share} bytes is below the max_receive_size of {listener.name}, {whole}")
    answer = model.largest_whole(config)[1]
    if answer > share:
        raise ChangeError(f"the share of {share} bytes is below the max_receive_size of an upstream whose answers pass whole, {answer}")


def standing_of(rows: list[StandingRow]) -> list[Standing]:
    """The actions of rows, in order. Raises ValueError: a network that is not valid; control has looked."""
    return [
        Standing(row["number"], row["verb"], row["reason"], row["request_rate"], row["response_rate"], [*map(_condition, row["conditions"])])
        for row in rows
    ]


def _condition(row: ConditionRow) -> Condition:
    matches = address_matcher(row["value"]) if row["field"] == "address" else text_matcher(row["value"])
    return Condition(row["field"], matches, negated=row["negated"])
