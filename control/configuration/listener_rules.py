"""Rules of listeners: a framing that fits the upstream's, what a handler needs, principals that can be read, timeouts in order."""

import importlib.machinery
import importlib.util
import ipaddress
import keyword
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from framegate.control.configuration.document import Document, Path, entries
from framegate.control.configuration.units import format_duration_ms
from framegate.proxy.auth.allowed_principals import AllowedPrincipals
from framegate.proxy.auth.mapping_rules import MappingRules, RuleError
from framegate.proxy.config.model import HeaderConfig, ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.tls import BY_SUBJECT
from framegate.proxy.network.authenticator import ANONYMOUS

Text = TypeVar("Text")
Listeners = list[tuple[Path, ListenerConfig]]


def listener_rules(document: Document, path: Path, listener: ListenerConfig, upstreams: list[tuple[Path, UpstreamConfig]]) -> None:
    """Check one listener without its handler, TLS and SASL."""
    framing_rules(document, path, listener)
    _spoken(document, path, listener, next((item.framing for _, item in upstreams if item.name == listener.upstream), None))
    _principals(document, path, listener)
    if listener.proxy_protocol is not None:
        _trusted(document, (*path, "proxy_protocol", "trusted"), listener.proxy_protocol.trusted, listener.address)
    delay, handshake = listener.timeouts.failed_authentication_ms, listener.timeouts.handshake_ms
    if delay > handshake:  # a refused client gets its answer before the handshake times out
        reason = f"is longer than handshake, {format_duration_ms(handshake)}, which ends the connection first"
        document.add((*path, "timeouts", "failed_authentication"), reason, format_duration_ms(delay))


def _trusted(document: Document, path: Path, networks: tuple[str, ...], address: str) -> None:
    for entry, text in entries(path, networks):
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            document.add(entry, f"is no network: {error}", text)
    if not networks and not str(address).startswith("unix:"):
        document.warn(path, "refuses everybody: no proxy is trusted", "[]")


def framing_rules(document: Document, path: Path, side: ListenerConfig | UpstreamConfig) -> None:
    """Check that one side has a header if its framing has one, and only then."""
    if side.framing == "header" and side.header is None:
        document.add((*path, "framing"), "needs the key header, which says where in a header the size lies", "header")
    elif side.framing == "header" and side.header is not None:
        _header(document, (*path, "header"), side.header)
    elif side.header is not None:
        document.warn((*path, "header"), "has no effect: framing is not header")


def _header(document: Document, path: Path, header: HeaderConfig) -> None:
    size, offset, width, fill = header.size, header.offset, header.width, header.fill
    if offset + width > size:
        document.add((*path, "width"), f"does not fit: {width} bytes from {offset} on, and the header has {size}", width)
        return
    try:
        count = len(bytes.fromhex(fill))
    except ValueError:
        document.add((*path, "fill"), "is not hexadecimal, two digits for each byte", fill)
        return
    if fill and count != size - width:
        document.add((*path, "fill"), f"has {count} bytes, and the header has {size - width} besides the integer", fill)


def _spoken(document: Document, path: Path, listener: ListenerConfig, other: str | None) -> None:
    """Check what two sides that are joined ask of each other; ``other``: the upstream's framing."""
    mine = listener.framing
    if listener.protocol == "kafka" and mine != "int32":
        document.add((*path, "framing"), "must be int32: protocol kafka has no other", mine)
    elif listener.protocol == "kafka" and other is not None and other != "int32":
        document.add((*path, "upstream"), f"speaks {other}, and protocol kafka has no framing but int32")
    if listener.handler is None and any(framing in ("lines", "lines_crlf") for framing in (mine, other)):
        for direction in ("requests", "responses"):
            if getattr(listener.forwarding, direction) == "cut_through":
                reason = "must be whole: where one side speaks lines, a frame ends where its line does, so no part of it can go on before"
                document.add((*path, "forwarding", direction), reason, "cut_through")


def handler_rules(document: Document, config: ProxyConfig, listeners: Listeners) -> None:
    """Check that each listener has a handler or an upstream, and what a handler needs."""
    handled = [(path, item) for path, item in listeners if item.handler is not None]
    if not config.upstreams and len(handled) < max(1, len(listeners)):
        reason = "needs at least one entry" if "upstreams" in document.data else "is required"
        document.add(("upstreams",), f"{reason}, unless each listener has a handler")
    for path, listener in listeners:
        if listener.handler is None and listener.upstream is None:
            document.add((*path, "upstream"), "is required where there is no handler")
    for path, listener in handled:
        if not _is_name(str(listener.handler)):
            document.add((*path, "handler"), "must be package.module:name, the module that Python imports and what in it is the handler")
        for direction in ("requests", "responses"):
            if document.texts.get((*path, "forwarding", direction)) == "cut_through":
                document.add((*path, "forwarding", direction), "must be whole, or left out: a handler gets each frame whole")
        if listener.upstream is None and listener.half_close_before_data == "wait":
            document.warn((*path, "half_close_before_data"), "has no effect: a handler answers, and says nothing first")
    if "handlers" in document.data and not handled:
        document.warn(("handlers",), "has no effect: no listener has a handler, so there are no processes for them", "")


def _is_name(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() and not keyword.iskeyword(part) for part in (*module.split("."), name))


def handler_places(document: Document, config: ProxyConfig) -> None:
    """Check whether handlers can be found on ``handlers.path`` or ``sys.path``, without importing anything of them. A package may define only at its
    import where its modules are, so for a module within a package this is a warning.
    """
    handled = {(*path, "handler"): item.handler for path, item in entries(("listeners",), config.listeners) if item.handler}
    folders = config.handlers.path if handled else ()
    for entry, folder in entries(("handlers", "path"), folders):
        if not os.path.isdir(folder):
            document.add(entry, "is not a folder", folder)
    for path, name in handled.items():
        if _is_name(name):
            _place(document, path, name.partition(":")[0], folders)


def _place(document: Document, path: Path, module: str, folders: Sequence[str]) -> None:
    first, *within = module.split(".")
    found = _top(first, folders)
    if found is None:
        document.add(path, f"cannot be found: there is no module {first} in {', '.join(folders) or 'handlers.path'}, nor in sys.path")
        return
    name = first
    for part in within:
        locations = found.submodule_search_locations
        if locations is None:
            document.add(path, f"cannot be found: {name} is a module, not a package")
            return
        name = f"{name}.{part}"
        found = _spec(name, list(locations))
        if found is None:
            document.warn(path, f"may not be found: there is no module {name} in {', '.join(locations)}")
            return


def _top(name: str, folders: Sequence[str]) -> Any:
    try:
        return _spec(name, folders) or importlib.util.find_spec(name)
    except ValueError:  # a module that runs as a program has no spec
        return None


def _spec(name: str, locations: Sequence[str]) -> Any:
    return importlib.machinery.PathFinder.find_spec(name, locations)


def _principals(document: Document, path: Path, listener: ListenerConfig) -> None:
    rules, allowed = listener.principal.rules, listener.allowed_principals
    mapping_rules(document, (*path, "principal", "rules"), rules)
    if listener.principal != BY_SUBJECT and (listener.tls is None or listener.tls.client_auth == "none"):
        document.warn((*path, "principal"), "has no effect: no client is asked for a certificate (tls.client_auth)", "")
    if allowed and ANONYMOUS not in allowed and listener.tls is None and listener.sasl is None:
        document.warn((*path, "allowed_principals"), f"refuses everybody: without tls and sasl each client is {ANONYMOUS}", "")
    allowed_rules(document, (*path, "allowed_principals"), allowed)


def mapping_rules(document: Document, path: Path, rules: tuple[str, ...]) -> None:
    """Check ``principal.rules``."""
    if not rules:
        document.add(path, "needs at least one: without any no name is mapped, and each client with a certificate is refused", "[]")
    for entry, text in entries(path, rules):
        _readable(document, entry, MappingRules, text)
        if not text.strip(" \t,"):
            document.add(entry, "is empty")


def allowed_rules(document: Document, path: Path, allowed: tuple[str, ...]) -> None:
    """Check a list of principals."""
    for entry, name in entries(path, allowed):
        if name == "":
            document.add(entry, "is empty: every client has a name; that of a client without a certificate is ANONYMOUS", '""')
        else:
            _readable(document, entry, AllowedPrincipals, [name])


def _readable(document: Document, path: Path, read: Callable[[Text], object], text: Text) -> None:
    try:
        read(text)
    except RuleError as error:
        document.add(path, f"is no rule: {error}, at character {error.position + 1}")
