"""The resolver's settings (``/etc/resolv.conf``), and a look-up of the upstreams' names as framegate does it (``control.accept.resolver``), with its
time.
"""

import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from framegate.control.accept.resolver import Lookup, Names, system_lookup
from framegate.control.doctor.finding import Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.address import format_sockaddr, parse_address
from framegate.proxy.config.model import UpstreamConfig

_MANY: Final = 3
_MOST_ASKED: Final = 3  # glibc asks only so many name servers (MAXNS)
_SLOW_S: Final = 0.3
_judged = functools.partial(judged, "names")


class Resolver(NamedTuple):
    """The file's settings, with resolv.conf(5)'s defaults."""

    servers: tuple[str, ...]
    search: tuple[str, ...]
    ndots: int


def resolver_of(text: str) -> Resolver:
    """The settings in the file's text; the last ``search`` or ``domain`` counts."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    ndots = 1
    for line in text.splitlines():
        word, *rest = line.partition("#")[0].partition(";")[0].split() or [""]
        if word == "nameserver":
            servers += rest[:1]
        elif word in ("search", "domain"):
            search = tuple(rest)
        elif word == "options":
            found = [item.partition(":")[2] for item in rest if item.startswith("ndots:")]
            ndots = next((min(int(item), 15) for item in reversed(found) if item.isdecimal()), ndots)
    return Resolver(tuple(servers), search, ndots)


def look(around: Surroundings) -> Iterator[Finding]:
    """The settings, and how they apply to each upstream's names."""
    path, text = around.root / "etc/resolv.conf", around.text("etc/resolv.conf")
    if text is None:
        yield unknown("names", str(path), "cannot be read: the resolver asks a name server on this machine")
        return
    resolver = resolver_of(text)
    servers, domains = ", ".join(resolver.servers) or "a name server on this machine", " ".join(resolver.search) or "nothing"
    words = f"asks {servers}; ndots {resolver.ndots}; searches {domains}"
    figures = {"servers": len(resolver.servers), "search": len(resolver.search), "ndots": resolver.ndots}
    advice = f"name {_MOST_ASKED} servers at most: the others are never asked" if len(resolver.servers) > _MOST_ASKED else None
    yield _judged(str(path), words, figures, warning=advice)
    for host in sorted({host for _, _, host in _hosts(around)}):
        yield _searched(host, resolver)


def _hosts(around: Surroundings) -> Iterator[tuple[UpstreamConfig, str, str]]:
    """Upstream, endpoint and name of each endpoint that has a name."""
    for upstream in () if around.config is None else around.config.upstreams:
        for text in upstream.addresses:
            if (address := parse_address(text)).kind == "name":
                yield upstream, text, address.host


def _searched(host: str, resolver: Resolver) -> Finding:
    """A name with fewer dots than ``ndots`` is tried with each search domain first, for IPv4 and for IPv6."""
    before = 0 if host.endswith(".") or host.count(".") >= resolver.ndots else len(resolver.search)
    many = before >= _MANY and "." in host and not host.endswith((".svc", ".cluster.local"))
    words = f"is tried with {before} search domains{f' ({2 * before} questions)' if many else ''} before it is as it stands"
    advice = f"write {host}. with a dot at its end in endpoints, if it is the whole name: then it is asked for at once"
    return _judged(host, words, {"searched": before}, warning=advice if many else None)


def literal_addresses(around: Surroundings) -> dict[str, list[list[Any]]]:
    """The addresses of the upstreams that have no names."""
    named = {upstream.name for upstream, _, _ in _hosts(around)}
    upstreams = () if around.config is None else around.config.upstreams
    found = Names([item for item in upstreams if item.name not in named]).ask()
    return {name: resolution.addresses for name, resolution in found.items()}


class Lookups:
    """After ``look``, ``addresses`` has those of each upstream with a name, in the form of ``Resolution``, with its literal ones."""

    def __init__(self, around: Surroundings, lookup: Lookup = system_lookup) -> None:
        self.addresses: dict[str, list[list[Any]]] = {}
        self._around: Final = around
        self._lookup: Final = lookup
        self._seconds: Final[dict[str, float]] = {}

    def look(self) -> Iterator[Finding]:
        named = {upstream.name: upstream for upstream, _, _ in _hosts(self._around)}
        found = Names(named.values(), self._timed, self._around.timeout_s).ask()
        self.addresses = {name: resolution.addresses for name, resolution in found.items()}
        seen: set[str] = set()
        for upstream, endpoint, host in _hosts(self._around):
            if host not in seen:
                seen.add(host)
                yield self._finding(upstream, host, found[upstream.name].errors.get(endpoint, ""))

    def _timed(self, host: str, port: int) -> Iterable[tuple[int, str]]:
        begun = time.monotonic()
        try:
            return self._lookup(host, port)
        finally:
            self._seconds[host] = time.monotonic() - begun

    def _finding(self, upstream: UpstreamConfig, host: str, error: str) -> Finding:
        subject = f"{host} (upstream {upstream.name})"
        if error:
            advice = "look at the name, at /etc/resolv.conf and at the name server: framegate starts, and has nobody to connect to there"
            return _judged(subject, f"cannot be looked up: {error}", fault=advice)
        rows = [row for row in self.addresses[upstream.name] if row[0] == host]
        texts = list(dict.fromkeys(format_sockaddr(row[1], (row[2], row[3])).rpartition(":")[0] for row in rows))
        taken = self._seconds[host]
        slow = "find out which name server is slow (/etc/resolv.conf asks them in turn)" if taken >= _SLOW_S else None
        figures = {"addresses": len(texts), "lookup_ms": round(taken * 1000, 2)}
        return _judged(subject, f"is {', '.join(texts)}, looked up in {taken * 1000:.1f} ms", figures, warning=slow)
