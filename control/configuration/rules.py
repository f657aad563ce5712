"""Rules between keys: names that must be unique or known, addresses that must not collide, files that must fit, a pool that must hold a frame.

They work on converted values in which what was already found wrong is missing, so one fault never hides another.
"""

import re
import urllib.parse
from typing import Final

from control.configuration.document import Document, Path, key_of
from control.configuration.framing_rules import framing_rules
from control.configuration.handler_rules import handler_rules
from control.configuration.limit_rules import limit_rules
from control.configuration.pool_rules import pool_rules, share_rules
from control.configuration.principal_rules import principal_rules
from control.configuration.sasl_rules import sasl_rules
from control.configuration.tap_rules import tap_rules
from control.configuration.tls_rules import listener_tls_rules, upstream_tls_rules
from control.configuration.units import format_duration_ms
from control.configuration.upstream_sasl_rules import upstream_sasl_rules
from control.configuration.values import Values, default_of, given, names_below, unique_names
from proxy.config.address import Address, parse_address
from proxy.config.log import LEAST_EVERY_MS
from proxy.config.model import (
    AdminConfig,
    ListenerConfig,
    ListenerTimeouts,
)

__all__ = ["apply_rules"]

_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def apply_rules(document: Document, values: Values) -> list[tuple[Path, Address]]:
    """Add to ``document.faults`` every rule between keys that the values break, to its warnings what has no effect.

    Returns:
        Every address that is to be bound, as far as it could be read, with its key.
    """
    _node(document, values)
    listeners = _named(document, values, "listeners")
    upstreams = _named(document, values, "upstreams")
    _known_upstreams(document, listeners, upstreams)
    bound = _bound_addresses(document, values, listeners)
    _endpoints(document, upstreams, bound)
    _brokers(document, listeners, upstreams)
    for path, listener in listeners:
        listener_tls_rules(document, (*path, "tls"), listener.get("tls"))
        principal_rules(document, path, listener)
        _listener_timeouts(document, (*path, "timeouts"), listener.get("timeouts") or {})
    for path, upstream in upstreams:
        upstream_tls_rules(document, (*path, "tls"), upstream.get("tls"))
    framing_rules(document, listeners, upstreams)
    handler_rules(document, values, listeners)
    sasl_rules(document, listeners)
    upstream_sasl_rules(document, listeners, upstreams)
    pool_rules(document, values, listeners, upstreams)
    share_rules(document, values.get("memory_pool"), listeners)
    limit_rules(document, values.get("limits"), listeners)
    tap_rules(
        document,
        values.get("tap"),
        {str(item.get("name")): item.get("protocol", default_of(ListenerConfig, "protocol")) == "kafka" for _, item in listeners},
    )
    _telemetry(document, values.get("telemetry"))
    _log(document, values.get("log"))
    return bound


def _node(document: Document, values: Values) -> None:
    node = values.get("node")
    if isinstance(node, str) and not _NODE.fullmatch(node):
        document.add(("node",), "must be 1 to 63 letters, digits, dots, hyphens or underscores, a letter or digit first")


def _named(document: Document, values: Values, section: str) -> list[tuple[Path, Values]]:
    """The section's mappings with their paths; faults: none at all, bad names, a name used twice."""
    raw = values.get(section)
    if not isinstance(raw, list):
        return []
    originals = document.data[section]
    items: list[tuple[Path, Values]] = []
    position = 0
    for index, original in enumerate(originals):
        if isinstance(original, dict):
            items.append(((section, index), raw[position]))
        position += 1 if isinstance(original, dict) else 0
    if not originals and section != "upstreams":
        document.add((section,), "needs at least one entry")
    unique_names(document, items)
    return items


def _known_upstreams(document: Document, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> None:
    names = [str(item.get("name")) for _, item in upstreams]
    for path, listener in listeners:
        upstream = listener.get("upstream")
        if isinstance(upstream, str) and upstream not in names:
            document.add((*path, "upstream"), f"is not the name of an upstream; there are: {', '.join(names) or 'none'}")
    used = {item.get("upstream") for _, item in listeners}
    if not used <= set(names):
        return  # a misspelt name would be told twice
    for path, upstream in upstreams:
        if isinstance(upstream.get("name"), str) and upstream["name"] not in used:
            document.warn((*path, "name"), "has no effect: no listener names this upstream")


def _listener_timeouts(document: Document, path: Path, timeouts: Values) -> None:
    """The answer to who is refused comes within the time that it has to say who it is."""
    delay = given(timeouts, ListenerTimeouts, "failed_authentication_ms", document, path)
    handshake = given(timeouts, ListenerTimeouts, "handshake_ms", document, path)
    if isinstance(delay, int) and isinstance(handshake, int) and delay > handshake:
        shown = format_duration_ms(handshake)
        document.add(
            (*path, "failed_authentication"), f"is longer than handshake, {shown}, which ends the connection first", format_duration_ms(delay)
        )


def _parsed(document: Document, path: Path, value: object, *, port_zero: bool, unix: bool) -> Address | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_address(value, port_zero=port_zero, unix=unix)
    except ValueError as error:
        document.add(path, str(error))
        return None


def _bound_addresses(document: Document, values: Values, listeners: list[tuple[Path, Values]]) -> list[tuple[Path, Address]]:
    """Everything that will be bound; faults: malformed, used twice."""
    wanted: list[tuple[Path, object, bool]] = [((*path, "address"), item.get("address"), True) for path, item in listeners]
    telemetry = values.get("telemetry") or {}
    admin = document.data.get("admin") or {}
    if isinstance(admin, dict) and "address" not in names_below(document, ("admin",)):
        wanted.append((("admin", "address"), default_of(AdminConfig, "address"), True))
    sections: list[tuple[Path, object, bool]] = [
        (("admin", "address"), values.get("admin"), True),
        (("health", "address"), values.get("health"), False),
        (("health", "http_address"), values.get("health"), False),
        (("telemetry", "prometheus", "address"), telemetry.get("prometheus"), False),
    ]
    for path, section, unix in sections:
        if isinstance(section, dict):
            wanted.append((path, section.get(path[-1]), unix))
    bound: list[tuple[Path, Address]] = []
    for path, value, unix in wanted:
        address = _parsed(document, path, value, port_zero=True, unix=unix)
        if address is None:
            continue
        if path == ("admin", "address") and address.kind != "unix":
            document.add(path, "must be unix:PATH")
        other = next((item for item in bound if item[1].collides(address)), None)
        if other is not None:
            document.add(path, f"is already used by {key_of(other[0])} (line {document.line(other[0])})")
        bound.append((path, address))
    return bound


def _endpoints(document: Document, upstreams: list[tuple[Path, Values]], bound: list[tuple[Path, Address]]) -> None:
    listening = [item for item in bound if item[0][0] == "listeners"]
    for path, upstream in upstreams:
        endpoints = upstream.get("endpoints")
        if isinstance(endpoints, list) and not endpoints:
            document.add((*path, "endpoints"), "needs at least one address")
        for index, endpoint in enumerate(endpoints if isinstance(endpoints, list) else ()):
            entry = (*path, "endpoints", index)
            address = _parsed(document, entry, endpoint, port_zero=False, unix=True)
            own = next((item for item in listening if address is not None and address.reaches(item[1])), None)
            if own is not None:
                document.add(entry, f"is framegate's own listener {key_of(own[0])}: frames would go in a circle")


def _brokers(document: Document, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> None:
    """Kafka's clients want a certain broker, and go where Metadata says that it is."""
    kafka = {item.get("upstream") for _, item in listeners if item.get("protocol", default_of(ListenerConfig, "protocol")) == "kafka"}
    for path, upstream in upstreams:
        endpoints = upstream.get("endpoints")
        if isinstance(endpoints, list) and len(endpoints) > 1 and upstream.get("name") in kafka:
            document.warn(
                (*path, "endpoints"),
                "has several, which connections take in turn: if they are brokers of one cluster, clients meet the wrong broker, or walk past "
                "framegate. Give each broker a listener and an upstream of its own, and have it advertise that listener",
                "",
            )


def _log(document: Document, log: object) -> None:
    """Rows that come faster than anybody reads them help nobody."""
    access = log.get("access") if isinstance(log, dict) else None
    every_ms = access.get("every_ms") if isinstance(access, dict) else None
    if isinstance(every_ms, int) and 0 < every_ms < LEAST_EVERY_MS:
        document.add(("log", "access", "every"), f"must be at least {format_duration_ms(LEAST_EVERY_MS)}, or 0: never")


def _telemetry(document: Document, telemetry: object) -> None:
    otlp = telemetry.get("otlp") if isinstance(telemetry, dict) else None
    if not isinstance(otlp, dict):
        return
    endpoint, signals = otlp.get("endpoint"), otlp.get("signals")
    if signals is not None and not signals:
        document.warn(("telemetry", "otlp", "signals"), "names none: `otlp` has no effect, and nothing is exported over OTLP")
    elif signals is not None and len(set(signals)) < len(signals):
        document.warn(("telemetry", "otlp", "signals"), "names one twice: the second has no effect")
    if not isinstance(endpoint, str):
        return
    path: Path = ("telemetry", "otlp", "endpoint")
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
    elif has_path and otlp.get("protocol") == "grpc":
        document.add(path, "has a path, which the protocol grpc has no place for; see telemetry.otlp.protocol")
