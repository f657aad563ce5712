"""The names of upstreams, looked up as framegate does it (``control.intake.resolver``): what they stand for, and how long it took."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings
from control.intake.resolver import Lookup, Names, system_lookup
from proxy.config.address import format_sockaddr, parse_address
from proxy.config.model import UpstreamConfig

__all__ = ["Lookups"]

_SLOW_S: Final = 1.0
Wire = list[Any]


class Lookups:
    """Attributes: ``addresses``: of each upstream, as ``Resolution`` has them, once ``look`` has ended; literal ones need no look-up."""

    def __init__(self, around: Surroundings, lookup: Lookup = system_lookup) -> None:
        self.addresses: dict[str, list[Wire]] = {}
        self._around: Final = around
        self._lookup: Final = lookup
        self._seconds: Final[dict[str, float]] = {}

    def look(self) -> Iterator[Finding]:
        """Each name, all at once."""
        upstreams = () if self._around.config is None else self._around.config.upstreams
        found = Names(upstreams, self._timed, self._around.timeout_s).ask()
        self.addresses = {name: resolution.addresses for name, resolution in found.items()}
        told: set[str] = set()
        for upstream in upstreams:
            for endpoint, address in ((text, parse_address(text)) for text in upstream.endpoints):
                if address.kind == "name" and address.host not in told:
                    told.add(address.host)
                    yield self._finding(upstream, address.host, found[upstream.name].errors.get(endpoint, ""))

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
            return Finding("names", subject, "fault", f"cannot be looked up: {error}", advice)
        rows = [row for row in self.addresses[upstream.name] if row[0] == host]
        texts = list(dict.fromkeys(format_sockaddr(row[1], (row[2], row[3])).rpartition(":")[0] for row in rows))
        taken = self._seconds[host]
        figures = {"addresses": len(texts), "lookup_ms": round(taken * 1000, 2)}
        words = f"is {', '.join(texts)}, looked up in {taken * 1000:.1f} ms"
        if taken < _SLOW_S:
            return Finding("names", subject, "ok", words, figures=figures)
        return Finding("names", subject, "warning", words, "find out which name server is slow (/etc/resolv.conf asks them in turn)", figures)
