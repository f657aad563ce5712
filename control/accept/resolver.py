"""Resolves the names of upstream endpoints, at the start and then every 30 s, in threads of their own: a slow name server blocks nothing.

All names are looked up at the same time and independently. A name keeps its last good addresses for as long as its look-up fails or does not return,
so an outage of the name server does not affect traffic; processors leave out addresses that do not respond.

An address goes over the link as ``[host, family, ...]``: the host that it was resolved from (its certificate is verified against that) and the
numbers of the ``socket`` module: ``["broker", AF_INET, "10.0.0.1", 9092]``, ``["::1", AF_INET6, "::1", 9092]``, ``["", AF_UNIX, "/path"]``.
"""

import asyncio
import contextlib
import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from framegate.control.errors import StartError
from framegate.control.logs import RowLog
from framegate.proxy.config.address import Address, format_sockaddr, parse_address
from framegate.proxy.config.model import UpstreamConfig

INTERVAL_S: Final = 30.0
FIRST_PAUSE_S: Final = 2.0  # after a round that left an upstream without any address; it doubles, up to the interval, until all have one
PATIENCE_S: Final = 10.0
MOST_AT_ONCE: Final = 64  # Look-ups, each in a thread of its own
_NODATA: Final = getattr(socket, "EAI_NODATA", socket.EAI_NONAME)  # not every C library has it
_REASONS: Final = {socket.EAI_NONAME: "not_found", _NODATA: "not_found", socket.EAI_AGAIN: "temporary"}
Wire = list[Any]
Lookup = Callable[[str, int], Iterable[tuple[int, str]]]
T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run a slow function in a thread that does not delay the end of the process (as ``asyncio.to_thread`` would)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = future.set_result, work()
        except Exception as error:
            outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="framegate-work", daemon=True).start()
    return await future


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """What is known of one upstream. Attributes: ``addresses`` (for the link), ``errors`` of the last look-ups, by endpoint; ``names``: the addresses
    of each endpoint that is a name and was found.
    """

    addresses: list[Wire]
    errors: dict[str, str] = dataclasses.field(default_factory=dict)
    names: dict[str, list[Wire]] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def error(self) -> str:
        """Which endpoints' names could not be looked up last, and why; empty: none."""
        return "; ".join(f"{endpoint}: {error}" for endpoint, error in self.errors.items())

    def texts(self) -> tuple[str, ...]:
        """The addresses as people write them, each once."""
        return tuple(dict.fromkeys(text_of(item) for item in self.addresses))


def text_of(wire: Sequence[Any]) -> str:
    """An address of the link as people write it."""
    _, family, address, *port = wire
    return format_sockaddr(family, (address, *port) if port else address)


def system_lookup(host: str, port: int) -> Iterable[tuple[int, str]]:
    """Family and address of everything that the system's resolver knows of a name. Blocks. Raises OSError, or UnicodeError for what is no name."""
    return [(int(family), str(sockaddr[0])) for family, _, _, _, sockaddr in socket.getaddrinfo(plain(host), port, type=socket.SOCK_STREAM)]


def plain(host: str) -> str | bytes:
    """A name or address for ``socket.getaddrinfo``, which loads the tables of Unicode (1 MiB) for every text, and for no bytes."""
    return host.encode() if host.isascii() else host


def _literal(address: Address) -> Wire | None:
    """An endpoint that needs no look-up."""
    if address.kind == "unix":
        return ["", address.family, address.host]
    if address.kind == "name":
        return None
    return [address.host, address.family, address.host, address.port]


class Names:
    """Looks up the endpoints of all upstreams. One thread at a time asks.

    ``lookup``: family and address of a host, as ``system_lookup``. ``patience_s``: how long an answer is waited for; one that comes later is taken
    with the next ``ask``.

    Attributes:
        any: whether there is a name at all.
    """

    def __init__(self, upstreams: Iterable[UpstreamConfig], lookup: Lookup = system_lookup, patience_s: float = PATIENCE_S) -> None:
        self._lookup = lookup
        self._patience_s = patience_s
        self._known: dict[str, list[Wire]] = {}
        self.watch({item.name: item.addresses for item in upstreams})
        self._errors: dict[str, str] = {}
        self._asked: set[str] = set()
        self._counts: dict[tuple[str, str], int] = {}
        """Look-ups by endpoint and one of ``LOOKUP_ERRORS``."""
        self._answers: queue.SimpleQueue[tuple[str, list[Wire], str, str]] = queue.SimpleQueue()

    def watch(self, upstreams: Mapping[str, Iterable[str]], found: Iterable[Resolution] = ()) -> None:
        """Look up these endpoints from now on, by upstream; those that stay keep what is known of them. Not while another thread asks. ``found``: by
        others; a name that is not known here has these addresses until a look-up returns others.
        """
        self._known = {endpoint: rows for each in found for endpoint, rows in each.names.items()} | self._known
        self._upstreams = {name: {endpoint: parse_address(endpoint) for endpoint in each} for name, each in upstreams.items()}
        self._names = {endpoint: address for each in self._upstreams.values() for endpoint, address in each.items() if address.kind == "name"}
        self.any = bool(self._names)

    def ask(self) -> dict[str, Resolution]:
        """What every upstream's endpoints are now. Blocks until every name was answered, for ``patience_s`` at most."""
        todo = [endpoint for endpoint in reversed(self._names) if endpoint not in self._asked]
        waiting: set[str] = set()
        until = time.monotonic() + self._patience_s
        for known in (self._known, self._errors):
            for endpoint in known.keys() - self._names.keys():
                del known[endpoint]
        self._counts = {key: count for key, count in self._counts.items() if key[0] in self._names}
        with contextlib.suppress(queue.Empty):
            while todo or waiting:
                while todo and len(self._asked) < MOST_AT_ONCE:
                    endpoint = todo.pop()
                    if self._start(endpoint):
                        waiting.add(endpoint)
                if todo or waiting:
                    waiting.discard(self._take(max(until - time.monotonic(), 0.0)))
            while True:  # what came late for those that were asked before
                self._take(0.0)
        for endpoint in (*self._asked, *todo):
            self._errors[endpoint] = f"no answer within {self._patience_s:g} s"
            self._count(endpoint, "timeout")
        return {name: self._resolution(each) for name, each in self._upstreams.items()}

    def _start(self, endpoint: str) -> bool:
        try:
            threading.Thread(target=self._look_up, args=(endpoint, self._names[endpoint]), name="framegate-lookup", daemon=True).start()
        except RuntimeError as error:  # no thread available; the next round may get one
            self._errors[endpoint] = str(error)
            return False
        self._asked.add(endpoint)
        return True

    def _look_up(self, endpoint: str, address: Address) -> None:
        try:
            rows = [[address.host, family, found, address.port] for family, found in self._lookup(address.host, address.port)]
            error, reason = ("", "") if rows else ("no address", "not_found")
        except Exception as failure:  # whatever it is, it is the end of this look-up only, and shown as its error
            rows, error = [], getattr(failure, "strerror", None) or str(failure) or repr(failure)
            reason = _REASONS.get(failure.errno or 0, "other") if isinstance(failure, socket.gaierror) else "other"
        self._answers.put((endpoint, rows, error, reason))

    def _take(self, timeout_s: float) -> str:
        endpoint, rows, error, reason = self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait()
        self._asked.discard(endpoint)
        self._count(endpoint, reason)
        if error:
            self._errors[endpoint] = error
        else:
            self._errors.pop(endpoint, None)
            self._known[endpoint] = rows
        return endpoint

    def _count(self, endpoint: str, reason: str) -> None:
        self._counts[endpoint, reason] = self._counts.get((endpoint, reason), 0) + 1

    def lookups(self) -> dict[tuple[str, ...], float]:
        """How many look-ups there were, by upstream, host, port and one of ``LOOKUP_ERRORS``. Any thread."""
        counts = list(self._counts.items())
        return {
            (name, address.host, str(address.port), reason): float(count)
            for name, each in list(self._upstreams.items())
            for (endpoint, reason), count in counts
            if (address := each.get(endpoint)) is not None
        }

    def _resolution(self, endpoints: dict[str, Address]) -> Resolution:
        addresses: list[Wire] = []
        for endpoint, address in endpoints.items():
            literal = _literal(address)
            found = self._known.get(endpoint, []) if literal is None else [literal]
            addresses += [item for item in found if item not in addresses]
        errors = {endpoint: self._errors[endpoint] for endpoint in endpoints if endpoint in self._errors}
        return Resolution(addresses, errors, {endpoint: self._known[endpoint] for endpoint in endpoints if endpoint in self._known})


class Resolver:
    """Resolves again at an interval. ``current`` is used on the event loop only. ``log``: gets a row for each endpoint whose look-up begins to fail,
    fails for another reason, or is answered again.
    """

    def __init__(
        self,
        names: Names,
        first: dict[str, Resolution],
        on_round: Callable[[], None],
        log: RowLog,
        *,
        interval_s: float = INTERVAL_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.current = first
        self._names = names
        self._on_round = on_round
        self._log = log
        self._interval_s = interval_s
        self._first_pause_s = first_pause_s
        self._loop = asyncio.get_running_loop()
        self._followed: tuple[int, dict[str, Iterable[str]], Iterable[Resolution]] = (0, {}, ())
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._pause(first, 0.0),), name="framegate-resolver", daemon=True)
        log_errors(log, {}, first)
        if names.any:
            self.start()

    def start(self) -> None:
        """Have the thread, which ``follow`` needs. Raises StartError: there is no thread available."""
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:
                raise StartError(f"names of upstreams cannot be resolved: {error}", reason="NO_THREAD") from error

    def follow(self, upstreams: Iterable[UpstreamConfig], found: Mapping[str, Resolution]) -> None:
        """Resolve the endpoints of other upstreams from the next round on, after ``start``. Event loop only. ``found``: of those that are new, or
        have other endpoints.
        """
        watched: dict[str, Iterable[str]] = {item.name: item.addresses for item in upstreams}
        self.current = {name: found.get(name) or self.current[name] for name in watched}
        self._followed = (self._followed[0] + 1, watched, tuple(self.current.values()))
        log_errors(self._log, {}, dict(found))

    def stop(self) -> None:
        """End the thread. A thread that hangs in a look-up is left alone; it does not keep the process alive."""
        self._wake.put(None)

    def _pause(self, found: dict[str, Resolution], last_s: float) -> float:
        """How long to wait after a round, which began after a wait of ``last_s``."""
        if all(resolution.addresses for resolution in found.values()):
            return self._interval_s
        return min(max(2 * last_s, self._first_pause_s), self._interval_s)

    def _run(self, pause_s: float) -> None:
        done = 0
        while True:
            try:
                self._wake.get(timeout=pause_s)
            except queue.Empty:
                number, watched, found = self._followed
                if number != done:
                    self._names.watch(watched, found)
                    done = number
                if not self._names.any:
                    continue
                fresh = self._names.ask()
                pause_s = self._pause(fresh, pause_s)
                try:
                    self._loop.call_soon_threadsafe(self._take, fresh, number)
                except RuntimeError:  # the loop is closed
                    return
            else:
                return

    def _take(self, fresh: dict[str, Resolution], number: int) -> None:
        if number != self._followed[0]:
            return  # of other upstreams
        before, self.current = self.current, fresh
        log_errors(self._log, before, fresh)
        self._on_round()


def log_errors(log: RowLog, before: dict[str, Resolution], now: dict[str, Resolution]) -> None:
    """Write what has changed in the errors of look-ups: ``resolve_failed``, and ``resolved`` when there is none any more."""
    for name, resolution in now.items():
        known = before[name].errors if name in before else {}
        for endpoint, error in resolution.errors.items():
            if known.get(endpoint) != error:
                log.write("resolve_failed", level="warning", upstream=name, endpoint=endpoint, error=error)
        for endpoint in known.keys() - resolution.errors.keys():
            log.write("resolved", upstream=name, endpoint=endpoint)
