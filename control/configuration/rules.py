"""Rules between keys: names that must be unique or known, addresses that must not collide, endpoints, exports over OTLP.

The rules read the model. It has ``document.WRONG`` for a value that is already known to be wrong, so one fault causes no second one.
"""

import grp
import re
import urllib.parse
from typing import Final

from framegate.control.configuration.broker_rules import broker_rules, cluster_rules, port_ranges
from framegate.control.configuration.document import Document, Path, entries, key_of, unique_names
from framegate.control.configuration.kafka_rules import kafka_rules
from framegate.control.configuration.limit_rules import limit_rules, listener_limit_rules, pool_rules, share_rules
from framegate.control.configuration.listener_rules import allowed_rules, framing_rules, handler_rules, listener_rules, mapping_rules
from framegate.control.configuration.sasl_rules import sasl_rules
from framegate.control.configuration.tap_rules import tap_rules
from framegate.control.configuration.tls_rules import listener_tls_rules, upstream_tls_rules
from framegate.control.configuration.units import format_duration_ms
from framegate.proxy.config.address import Address, parse_address
from framegate.proxy.config.log import LEAST_EVERY_MS
from framegate.proxy.config.model import AdminConfig, AdminTcp, EndpointConfig, ListenerConfig, OtlpConfig, ProxyConfig, RoleSocket, UpstreamConfig

Listeners = list[tuple[Path, ListenerConfig]]
Upstreams = list[tuple[Path, UpstreamConfig]]
LEAST_FACTOR: Final = 1.5
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def apply_rules(document: Document, config: ProxyConfig) -> list[tuple[Path, Address]]:
    """Add faults for every rule between keys that a model breaks, and warnings for what has no effect. Returns every address that is to be bound, as
    far as it could be read, with its key.
    """
    listeners: Listeners = entries(("listeners",), config.listeners)
    upstreams: Upstreams = entries(("upstreams",), config.upstreams)
    if (document.data.get("node") or document.files) and not _NODE.fullmatch(config.node):
        document.add(("node",), "must be 1 to 63 letters, digits, dots, hyphens or underscores, a letter or digit first", config.node)
    if not listeners:
        document.add(("listeners",), "needs at least one entry")
    unique_names(document, listeners)
    unique_names(document, upstreams)
    _known_upstreams(document, listeners, upstreams)
    bound = _bound_addresses(document, config, listeners)
    for path, upstream in upstreams:
        framing_rules(document, path, upstream)
        cluster_rules(document, path, upstream)
        _endpoints(document, path, upstream, listeners, bound)
        _choice(document, path, upstream, config.processors)
        if upstream.tls is not None:
            upstream_tls_rules(document, (*path, "tls"), upstream.tls)
    for path, listener in listeners:
        listener_rules(document, path, listener, upstreams)
        broker_rules(document, path, listener, upstreams)
        kafka_rules(document, path, listener)
        listener_limit_rules(document, path, listener)
        if listener.tls is not None:
            listener_tls_rules(document, (*path, "tls"), listener.tls)
    admin_rules(document, config.admin)
    handler_rules(document, config, listeners)
    sasl_rules(document, listeners, upstreams)
    pool_rules(document, config, listeners, upstreams)
    share_rules(document, config.memory_pool, listeners)
    limit_rules(document, config.limits, [item.name for _, item in listeners])
    _readiness(document, config)
    if config.tap is not None:
        tap_rules(document, config.tap, {item.name: item.protocol != "framed" for _, item in listeners})
    if config.telemetry.otlp is not None:
        _otlp(document, config.telemetry.otlp)
    if 0 < config.log.access.every_ms < LEAST_EVERY_MS:  # more rows could not be read
        document.add(("log", "access", "every"), f"must be at least {format_duration_ms(LEAST_EVERY_MS)}, or 0: never")
    return bound


def _readiness(document: Document, config: ProxyConfig) -> None:
    if config.health is not None and config.health.ready_when == "upstream" and not any(item.check for item in config.upstreams):
        document.add(("health", "ready_when"), "has no effect: no upstream has a check section, which finds out whether its endpoints can be reached")


def _known_upstreams(document: Document, listeners: Listeners, upstreams: Upstreams) -> None:
    names = [item.name for _, item in upstreams]
    used = {item.upstream for _, item in listeners}
    for path, listener in listeners:
        document.named((*path, "upstream"), listener.upstream, names, "an upstream")
    if not used <= set(names):
        return  # a misspelt name would be reported twice
    for path, upstream in upstreams:
        if upstream.name not in used:
            document.warn((*path, "name"), "has no effect: no listener names this upstream")


def _bound_addresses(document: Document, config: ProxyConfig, listeners: Listeners) -> list[tuple[Path, Address]]:
    """The addresses that will be bound; faults: malformed, used twice."""
    wanted: list[tuple[Path, str | None]] = [((*path, "address"), item.address) for path, item in listeners]
    sections: dict[Path, object] = {
        **admin_addresses(config.admin),
        ("health", "address"): config.health,
        ("health", "http_address"): config.health,
        ("telemetry", "prometheus", "address"): config.telemetry.prometheus,
    }
    wanted += [(path, getattr(section, str(path[-1]), None)) for path, section in sections.items()]
    bound: list[tuple[Path, Address]] = []
    sockets = {path for path in sections if path[0] == "admin" and "tcp" not in path}
    for path, text in wanted:
        address = None if text is None else _parsed(document, path, text, port_zero=True, unix=path[0] == "listeners" or path in sockets)
        if address is None:
            continue
        if path in sockets and address.kind != "unix":
            document.add(path, "must be unix:PATH")
        other = next((item for item in bound if item[1].collides(address)), None)
        if other is not None:
            document.add(path, f"is already used by {key_of(other[0])} (line {document.line(other[0])})")
        bound.append((path, address))
    _port_ranges(document, listeners, bound)
    return bound


def _port_ranges(document: Document, listeners: Listeners, bound: list[tuple[Path, Address]]) -> None:
    """Ports of brokers that are other addresses' as well, or those of two listeners."""
    known: list[tuple[Path, Address, range]] = [(path, address, range(address.port, address.port + 1)) for path, address in bound if address.port]
    for path, base, ports in port_ranges(listeners):
        for other, address, taken in known:
            shared = range(max(ports[0], taken[0]), min(ports[-1], taken[-1]) + 1)
            if shared and base._replace(port=shared[0]).collides(address._replace(port=shared[0])):
                document.add(path, f"has the port {shared[0]}, which is already used by {key_of(other)} (line {document.line(other)})")
                break
        known.append((path, base, ports))


def _parsed(document: Document, path: Path, text: str, *, port_zero: bool, unix: bool) -> Address | None:
    try:
        return parse_address(text, port_zero=port_zero, unix=unix)
    except ValueError as error:
        document.add(path, str(error))
        return None


def _endpoints(document: Document, path: Path, upstream: UpstreamConfig, listeners: Listeners, bound: list[tuple[Path, Address]]) -> None:
    key = (*path, "endpoints") if upstream.kafka is None else (*path, "kafka", "bootstrap")
    if not upstream.addresses:
        document.add(key, "needs at least one address")
    sections = [upstream.kafka is None and isinstance(item, EndpointConfig) for item in upstream.endpoints]
    for number, (entry, endpoint) in enumerate(entries(key, upstream.addresses)):
        if upstream.kafka is None and sections[number]:
            entry = (*entry, "address")
        address = _parsed(document, entry, endpoint, port_zero=False, unix=upstream.kafka is None)
        own = next((item for item in bound if address is not None and item[0][0] == "listeners" and address.reaches(item[1])), None)
        for ports, host, numbers in port_ranges(listeners):
            if address is not None and address.port in numbers and address.reaches(host._replace(port=address.port)):
                own = (ports, host)
        if own is not None:
            document.add(entry, f"is framegate's own listener {key_of(own[0])}: frames would go in a circle")
    # Each request of a Kafka client is for one broker, at the address that Metadata has for it.
    if len(upstream.endpoints) > 1 and upstream.name in {item.upstream for _, item in listeners if item.protocol == "kafka"}:
        document.warn(
            key,
            "has several, which connections take in turn: if they are brokers of one cluster, clients meet the wrong broker, or walk past "
            "framegate. Name them as kafka: {bootstrap: [...]} instead, with brokers at the listener",
            "",
        )


def _choice(document: Document, path: Path, upstream: UpstreamConfig, processors: int) -> None:
    """Check how an endpoint is chosen, and when one is left out."""
    ejection = upstream.ejection
    if upstream.balance == "first_available" and any(item.weight > 1 for item in upstream.each_endpoint):
        document.warn((*path, "balance"), "uses no weights, which some endpoints have", upstream.balance)
    if 0 < upstream.max_connections < processors:
        reason = f"is less than processors, {processors}: each processor may have 1 connection to each endpoint"
        document.warn((*path, "max_connections"), reason)
    if ejection is not None and 0 < ejection.latency_factor < LEAST_FACTOR:  # half of the endpoints are slower than the median
        document.add((*path, "ejection", "latency_factor"), f"must be at least {LEAST_FACTOR}, or 0: latency is not judged")
    check = upstream.check
    if check is not None and check.kind == "tls" and upstream.tls is None:
        document.add((*path, "check", "kind"), "needs the section tls of the upstream", "tls")
    if check is not None and check.kind == "kafka" and upstream.framing != "int32":
        document.add((*path, "check", "kind"), f"is for Kafka brokers, and the upstream speaks {upstream.framing}", "kafka")
    if upstream.kafka is not None and upstream.send_proxy_protocol is not None:
        document.add((*path, "send_proxy_protocol"), "cannot be used with kafka: brokers take no such header")
    if ejection is not None and not ejection.failures and not ejection.latency_factor:
        document.warn((*path, "ejection"), "has no effect: failures and latency_factor are 0", "")


def _otlp(document: Document, otlp: OtlpConfig) -> None:
    path: Path = ("telemetry", "otlp", "endpoint")
    signals = ("telemetry", "otlp", "signals")
    if otlp.signals is not None and not otlp.signals:
        document.warn(signals, "names none: `otlp` has no effect, and nothing is exported over OTLP")
    elif otlp.signals is not None and len(set(otlp.signals)) < len(otlp.signals):
        document.warn(signals, "names one twice: the second has no effect")
    endpoint = otlp.endpoint
    if endpoint is None:
        return
    secret = any(mark in endpoint for mark in "@?#")  # a password, a token: not to be shown
    has_path = False
    try:
        url = urllib.parse.urlsplit(endpoint)
        has_path = bool(url.path.rstrip("/"))
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and not secret
        good = good and endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    except ValueError:
        good = False
    if not good:
        reason = "must be http://host:port or https://host:port (without a port: 80 or 443), over HTTP perhaps with a path; no user, query, fragment"
        document.add(path, reason, "(not shown)" if secret else None)
    elif has_path and otlp.protocol == "grpc":
        document.add(path, "has a path, which the protocol grpc has no place for; see telemetry.otlp.protocol")


_MODE: Final = re.compile("06[0246][0246]")
_TCP: Final = ("admin", "tcp")


def admin_addresses(config: AdminConfig) -> dict[Path, AdminConfig | RoleSocket | AdminTcp]:
    """The sections with an address, by the path of the address; those of ``tcp`` last."""
    sections: dict[Path, AdminConfig | RoleSocket | AdminTcp | None] = {
        ("admin", "address"): config,
        ("admin", "operate", "address"): config.operate,
        ("admin", "view", "address"): config.view,
    }
    return {path: section for path, section in {**sections, (*_TCP, "address"): config.tcp}.items() if section is not None}


def admin_rules(document: Document, config: AdminConfig) -> None:
    """Check ``admin``."""
    for address, section in admin_addresses(config).items():
        if isinstance(section, AdminTcp):
            continue
        path = address[:-1]
        if not _MODE.fullmatch(section.mode):
            document.add((*path, "mode"), "must be 0600 to 0666, of reading and writing only: 0660 also lets in the group, 0666 everybody")
        elif section.group and section.mode[2] != "6":
            document.add((*path, "group"), "has no effect: mode does not let it in; set mode to 0660")
        elif document.files:
            document.add((*path, "group"), _group_fault(section.group))
        if path == ("admin",) and section.mode.endswith("6"):
            document.warn((*path, "mode"), "lets everybody on this machine drain framegate, create users and record traffic")
    if config.tcp is not None:
        listener_tls_rules(document, _TCP, config.tcp.tls)
        mapping_rules(document, (*_TCP, "principal", "rules"), config.tcp.principal.rules)
        for role in ("view", "operate", "admin"):
            allowed_rules(document, (*_TCP, role), getattr(config.tcp, role))
        if not (config.tcp.view or config.tcp.operate or config.tcp.admin):
            document.warn(_TCP, "refuses everybody: no principal has a role; set view, operate or admin", "")


def _group_fault(group: str) -> str | None:
    if group and not group.isdecimal():
        try:
            grp.getgrnam(group)
        except KeyError:
            return "is no group of this machine"
    return None
