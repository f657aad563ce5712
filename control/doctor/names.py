"""How names are looked up: ``/etc/resolv.conf``. How long each takes is told with the upstreams, who are looked up."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings
from proxy.config.address import parse_address

__all__ = ["Resolver", "look", "resolver_of"]

_MANY: Final = 3
_MOST_ASKED: Final = 3
"""More name servers than glibc asks (MAXNS) have no effect."""


class Resolver(NamedTuple):
    """What the file says, with resolv.conf(5)'s defaults."""

    servers: tuple[str, ...]
    search: tuple[str, ...]
    ndots: int


def resolver_of(text: str) -> Resolver:
    """Of the file's text; the last ``search``, or ``domain``, counts."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    ndots = 1
    for line in text.splitlines():
        words = line.partition("#")[0].partition(";")[0].split()
        if not words:
            continue
        if words[0] == "nameserver" and len(words) > 1:
            servers.append(words[1])
        elif words[0] in ("search", "domain"):
            search = tuple(words[1:])
        elif words[0] == "options":
            found = [word.partition(":")[2] for word in words if word.startswith("ndots:")]
            ndots = next((min(int(item), 15) for item in reversed(found) if item.isdecimal()), ndots)
    return Resolver(tuple(servers), search, ndots)


def look(around: Surroundings) -> Iterator[Finding]:
    """The file, and what it makes of each upstream's names."""
    path, text = around.root / "etc/resolv.conf", around.text("etc/resolv.conf")
    if text is None:
        yield Finding("names", str(path), "unknown", "cannot be read: the resolver asks a name server on this machine")
        return
    resolver = resolver_of(text)
    servers, domains = ", ".join(resolver.servers) or "a name server on this machine", " ".join(resolver.search) or "nothing"
    words = f"asks {servers}; ndots {resolver.ndots}; searches {domains}"
    figures = {"servers": len(resolver.servers), "search": len(resolver.search), "ndots": resolver.ndots}
    if len(resolver.servers) > _MOST_ASKED:
        yield Finding("names", str(path), "warning", words, f"name {_MOST_ASKED} servers at most: the others are never asked", figures)
    else:
        yield Finding("names", str(path), "ok", words, figures=figures)
    if around.config is not None:
        for host in sorted(
            {address.host for item in around.config.upstreams for address in map(parse_address, item.endpoints) if address.kind == "name"}
        ):
            yield _host(host, resolver)


def _host(host: str, resolver: Resolver) -> Finding:
    """A name with fewer dots than ``ndots`` is tried with each search domain first, IPv4 and IPv6 each, as it is last."""
    before = 0 if host.endswith(".") or host.count(".") >= resolver.ndots else len(resolver.search)
    figures = {"searched": before}
    if before < _MANY or "." not in host or host.endswith((".svc", ".cluster.local")):
        return Finding("names", host, "ok", f"is tried with {before} search domains before it is as it stands", figures=figures)
    advice = f"write {host}. with a dot at its end in endpoints, if it is the whole name: then it is asked for at once"
    return Finding(
        "names", host, "warning", f"is tried with {before} search domains ({2 * before} questions) before it is as it stands", advice, figures
    )
