"""Rules between keys: names that must be unique or known, addresses that must not collide, files that must fit, a pool that must hold a frame.

They work on converted values in which what was already found wrong is missing, so one fault never hides another.
"""

import dataclasses
import ipaddress
import re
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, Final, TypeVar

from control.configuration.capacity import cpu_limit, processor_count
from control.configuration.document import Document, Path, key_of
from control.configuration.files import authority_fault, identity_fault, readable_fault, validity_warning
from control.configuration.units import format_size
from proxy.config.address import Address, parse_address
from proxy.config.model import (
    AdminConfig,
    Forwarding,
    ListenerConfig,
    ListenerTls,
    MemoryPoolConfig,
    ProxyConfig,
    TapConfig,
    TapRule,
    UpstreamConfig,
    whole_request,
    whole_response,
)
from proxy.config.selection import api_key, byte_range, overlap

__all__ = ["apply_rules", "apply_tap_rules"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Values = dict[str, Any]
Found = TypeVar("Found")


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
    for path, listener in listeners:
        _listener_tls(document, (*path, "tls"), listener.get("tls"))
    for path, upstream in upstreams:
        _upstream_tls(document, (*path, "tls"), upstream.get("tls"))
    _pool(document, values, listeners, upstreams)
    _guaranteed(document, values.get("memory_pool"), listeners)
    _tap(
        document,
        values.get("tap"),
        {str(item.get("name")): item.get("protocol", _default(ListenerConfig, "protocol")) == "kafka" for _, item in listeners},
    )
    _telemetry(document, values.get("telemetry"))
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
    if not originals:
        document.add((section,), "needs at least one entry")
    _unique_names(document, items)
    return items


def _unique_names(document: Document, items: list[tuple[Path, Values]]) -> None:
    first: dict[str, Path] = {}
    for path, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        if not _NAME.fullmatch(name):
            document.add((*path, "name"), "must be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first")
        if name in first:
            document.add((*path, "name"), f"is already the name of {key_of(first[name])} (line {document.line(first[name])})")
        first.setdefault(name, path)


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
    if isinstance(admin, dict) and "address" not in _names(document, ("admin",)):
        wanted.append((("admin", "address"), _default(AdminConfig, "address"), True))
    sections: list[tuple[Path, object, bool]] = [
        (("admin", "address"), values.get("admin"), True),
        (("health", "address"), values.get("health"), False),
        (("telemetry", "prometheus", "address"), telemetry.get("prometheus"), False),
    ]
    for path, section, unix in sections:
        if isinstance(section, dict):
            wanted.append((path, section.get("address"), unix))
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


def _file(document: Document, path: Path, value: object) -> str | None:
    """The path of a file that can be read, or None with a fault."""
    if not isinstance(value, str):
        return None
    reason = readable_fault(value)
    if reason is not None:
        document.add(path, reason)
        return None
    return value


def _identity(document: Document, path: Path, tls: Values) -> None:
    certificate = _file(document, (*path, "certificate"), tls.get("certificate"))
    key = _file(document, (*path, "key"), tls.get("key"))
    if certificate is not None and key is not None:
        fault = identity_fault(certificate, key)
        if fault is not None:
            document.add((*path, fault[0]), fault[1])
    if certificate is not None:
        _validity(document, (*path, "certificate"), validity_warning(certificate))


def _authorities(document: Document, path: Path, value: object) -> None:
    authorities = _file(document, path, value)
    if authorities is not None:
        reason = authority_fault(authorities)
        if reason is not None:
            document.add(path, reason)
        _validity(document, path, validity_warning(authorities, all_of_them=True))


def _validity(document: Document, path: Path, warning: str | None) -> None:
    if warning is not None:
        document.warn(path, warning)


def _listener_tls(document: Document, path: Path, tls: object) -> None:
    if not isinstance(tls, dict):
        return
    _identity(document, path, tls)
    _authorities(document, (*path, "client_ca"), tls.get("client_ca"))
    if tls.get("client_auth") in ("requested", "required") and tls.get("client_ca") is None and "client_ca" not in _names(document, path):
        document.add((*path, "client_auth"), "needs client_ca: the authorities that clients' certificates must chain to")
    if tls.get("client_ca") is not None and _given(tls, ListenerTls, "client_auth", document, path) == "none":
        document.warn((*path, "client_ca"), "has no effect: client_auth is none, no client is asked for a certificate")


def _names(document: Document, path: Path) -> set[str]:
    """The keys that stand in the file below a path, right or wrong, without those that are empty."""
    return {str(item[-1]) for item in document.texts if item[:-1] == path}


def _upstream_tls(document: Document, path: Path, tls: object) -> None:
    if not isinstance(tls, dict):
        return
    _authorities(document, (*path, "ca"), tls.get("ca"))
    given = [name for name in ("certificate", "key") if tls.get(name) is not None]
    if len(given) == 1:
        other = "key" if given[0] == "certificate" else "certificate"
        document.add((*path, given[0]), f"needs {other} beside it")
    _identity(document, path, tls)


def _default(model: type, name: str) -> Any:
    """What a field of the model is that nobody set."""
    return next(field.default for field in dataclasses.fields(model) if field.name == name)


def _given(section: Values, model: type, name: str, document: Document, path: Path) -> Any:
    """A value as converted, or its default; None when it stands in the file and was found wrong."""
    return section.get(name, None if name in _names(document, path) else _default(model, name))


def _pool(document: Document, values: Values, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> None:
    """A processor's part of the pool holds each frame that passes whole."""
    size = _given(values.get("memory_pool") or {}, MemoryPoolConfig, "size", document, ("memory_pool",))
    processors = _given(values, ProxyConfig, "processors", document, ())
    if not isinstance(size, int) or not isinstance(processors, int):
        return
    requests = [((*path, "max_receive_size"), limit) for path, item in listeners if (limit := _whole_request(document, path, item)) is not None]
    answers = _whole_answers(document, listeners, upstreams)
    largest = max((limit for _, limit in requests), default=1)
    wanted = max([largest, *(limit for _, _, limit in answers)])
    count = processor_count(processors, size, wanted, cpu_limit())
    share = size // count
    if share < largest:
        path = next(path for path, limit in requests if limit == largest)
        document.add(
            ("memory_pool", "size"),
            f"gives each of {count} processors {format_size(share)}, less than the largest frame: {key_of(path)} is "
            f"{format_size(largest)}, so at least {format_size(largest * count)} are needed",
            format_size(size),
        )
    for path, upstream, limit in answers:
        if share < limit:
            document.add(
                path,
                f"needs answers that a processor can hold: {key_of(upstream)} is {format_size(limit)}, and each of {count} processors has "
                f"{format_size(share)} of memory_pool.size; set {key_of(upstream)} to at most {format_size(share)}, or cut_through here",
                "whole",
            )


def _whole_request(document: Document, path: Path, listener: Values) -> int | None:
    limit = listener.get("max_receive_size", _default(ListenerConfig, "max_receive_size"))
    forward = _forward(document, path, listener, "requests")
    return whole_request(limit, forward) if isinstance(limit, int) and forward in ("whole", "cut_through") else None


def _forward(document: Document, path: Path, listener: Values, direction: str) -> Any:
    return _given(listener.get("forwarding") or {}, Forwarding, direction, document, (*path, "forwarding"))


def _whole_answers(document: Document, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> list[tuple[Path, Path, int]]:
    """For each listener whose answers pass whole: where it says so, where its upstream's limit is, and that limit."""
    found = []
    for path, listener in listeners:
        known = next(((at, item) for at, item in upstreams if item.get("name") == listener.get("upstream")), None)
        if known is None or _forward(document, path, listener, "responses") != "whole":
            continue
        limit = _given(known[1], UpstreamConfig, "max_receive_size", document, known[0])
        if isinstance(limit, int):
            found.append(((*path, "forwarding", "responses"), (*known[0], "max_receive_size"), whole_response(limit, "whole")))
    return found


def _guaranteed(document: Document, pool: object, listeners: list[tuple[Path, Values]]) -> None:
    """What listeners are guaranteed of the pool can be kept, and leaves something to those that are guaranteed nothing."""
    shares = pool.get("shares") if isinstance(pool, dict) else None
    if not isinstance(shares, dict):
        return
    base: Path = ("memory_pool", "shares")
    names = [str(item.get("name")) for _, item in listeners]
    for name in shares:
        if name not in names:
            document.add((*base, name), f"is not the name of a listener; there are: {', '.join(names) or 'none'}")
    if not all(isinstance(percent, int) for percent in shares.values()):
        return
    total = sum(shares.values())
    left_out = [name for name in names if name not in shares]
    if total > 100:
        document.add(base, f"guarantees {total} percent, and there are 100")
    elif total == 100 and left_out:
        document.add(base, f"guarantees all of the pool and leaves nothing to {', '.join(left_out)}: give it a share, or others less")
    elif shares and len(names) == 1:
        document.warn(base, "has no effect: there is one listener, and the whole pool is its own")


def _tap(document: Document, tap: object, listeners: dict[str, bool]) -> None:
    """``listeners``: by name, whether it speaks Kafka."""
    if not isinstance(tap, dict):
        return
    _tap_sizes(document, tap)
    apply_tap_rules(document, tap, listeners)


def apply_tap_rules(document: Document, tap: Values, listeners: dict[str, bool]) -> None:
    """The part of ``apply_rules`` that is about the tap's rules; ``listeners``: by name, whether it speaks Kafka."""
    rules = tap.get("rules")
    originals = document.data["tap"].get("rules")
    if not isinstance(rules, list):
        return
    indexes = [index for index, item in enumerate(originals) if isinstance(item, dict)]
    items: list[tuple[Path, Values]] = [(("tap", "rules", index), rule) for index, rule in zip(indexes, rules, strict=True)]
    _unique_names(document, items)
    for path, rule in items:
        _tap_rule(document, path, rule, listeners)


def _tap_rule(document: Document, path: Path, rule: Values, listeners: dict[str, bool]) -> None:
    for index, name in enumerate(rule.get("listeners") or ()):
        if name not in listeners:
            document.add((*path, "listeners", index), f"is not the name of a listener; there are: {', '.join(sorted(listeners)) or 'none'}")
    for index, network in enumerate(rule.get("networks") or ()):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            document.add((*path, "networks", index), f"is not a network: {error}")
    if rule.get("directions") == []:
        document.add((*path, "directions"), "needs request, response or both")
    for key in ("max_frame_bytes", "blank", "hash"):
        if rule.get(key) and rule.get("capture", _default(TapRule, "capture")) in ("lengths", "hash"):
            document.warn((*path, key), f"has no effect: capture is {rule['capture']}, which keeps no bytes of bodies")
    if rule.get("max_loss_percent") and rule.get("on_full") == "mute":
        document.warn((*path, "max_loss_percent"), "has no effect: on_full is mute, which loses nothing")
    _selection(document, path, rule, listeners)
    _body_ranges(document, path, rule)


def _selection(document: Document, path: Path, rule: Values, listeners: dict[str, bool]) -> None:
    """What a rule demands of each frame can be met."""
    smallest, largest = rule.get("min_size") or 0, rule.get("max_size") or 0
    if isinstance(smallest, int) and isinstance(largest, int) and 0 < largest < smallest:
        document.add((*path, "min_size"), f"is above max_size ({format_size(largest)}), so no frame matches", format_size(smallest))
    _each(document, (*path, "apis"), rule.get("apis"), api_key)
    names = rule.get("listeners") or sorted(listeners)
    if names and not any(listeners.get(name, True) for name in names):
        for key in ("apis", "clients"):
            if rule.get(key):
                document.warn((*path, key), "matches nothing: no listener of the rule has protocol kafka")
    if (expires := rule.get("expires_ns")) and expires <= time.time_ns():
        document.warn((*path, "expires"), "has passed: the rule matches nothing")


def _body_ranges(document: Document, path: Path, rule: Values) -> None:
    ranges = [item for key in ("blank", "hash") for item in _each(document, (*path, key), rule.get(key), byte_range)]
    if overlap(ranges):
        document.add((*path, "hash" if rule.get("hash") else "blank"), "has bytes that are in two ranges of the rule, of blank and hash together")


def _each(document: Document, path: Path, texts: object, meaning: Callable[[str], Found]) -> list[Found]:
    """What each of a list's texts means; faults for those that mean nothing."""
    found = []
    for index, text in enumerate(texts if isinstance(texts, list) else ()):
        try:
            found.append(meaning(str(text)))
        except ValueError as error:
            document.add((*path, index), f"is {error}")
    return found


def _tap_sizes(document: Document, tap: Values) -> None:
    def value(name: str) -> int | None:
        found = _given(tap, TapConfig, name, document, ("tap",))
        return found if isinstance(found, int) else None

    for small, large in (("flush_size", "queue_size"), ("flush_size", "segment_size"), ("segment_size", "budget")):
        low, high = value(small), value(large)
        if low is not None and high is not None and low > high:
            key = small if small in tap else large
            document.add(("tap", key), f"{small} ({format_size(low)}) must not be larger than {large} ({format_size(high)})")


def _telemetry(document: Document, telemetry: object) -> None:
    otlp = telemetry.get("otlp") if isinstance(telemetry, dict) else None
    endpoint = otlp.get("endpoint") if isinstance(otlp, dict) else None
    if not isinstance(endpoint, str):
        return
    try:
        url = urllib.parse.urlsplit(endpoint)
        good = url.scheme in ("http", "https") and bool(url.hostname) and bool(url.port) and f"{url.scheme}://{url.netloc}" == endpoint.rstrip("/")
        good = good and "@" not in url.netloc
    except ValueError:
        good = False
    if not good:
        document.add(("telemetry", "otlp", "endpoint"), "must be http://host:port or https://host:port")
