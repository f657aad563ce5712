"""Names of upstream endpoints become addresses, at the start and then every 30 s, on a thread of its own: a slow name server blocks nothing.

What failed keeps the addresses it had. An address goes over the link as ``[family, ...]`` with the numbers of the ``socket`` module:
``[AF_INET, "10.0.0.1", 9092]``, ``[AF_INET6, "::1", 9092]``, ``[AF_UNIX, "/path"]``.
"""

import asyncio
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from control.configuration.address import Address, parse_address
from proxy.config.model import UpstreamConfig

__all__ = ["Resolution", "Resolver", "resolve"]

INTERVAL_S: Final = 30.0
Wire = list[Any]


class Resolution:
    """What is known of one upstream. Attributes: ``addresses`` (for the link), ``error`` (of the last attempt; empty: none)."""

    __slots__ = ("addresses", "error")

    def __init__(self, addresses: list[Wire], error: str = "") -> None:
        self.addresses = addresses
        self.error = error

    def texts(self) -> tuple[str, ...]:
        """The addresses as people write them."""
        return tuple(_text(item) for item in self.addresses)


def _text(wire: Wire) -> str:
    if wire[0] == socket.AF_UNIX:
        return f"unix:{wire[1]}"
    return f"[{wire[1]}]:{wire[2]}" if wire[0] == socket.AF_INET6 else f"{wire[1]}:{wire[2]}"


def _lookup(address: Address) -> list[Wire]:
    if address.kind == "unix":
        return [[int(socket.AF_UNIX), address.host]]
    if address.kind != "name":
        family = socket.AF_INET6 if address.kind == "ipv6" else socket.AF_INET
        return [[int(family), address.host, address.port]]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [[int(family), sockaddr[0], address.port] for family, _, _, _, sockaddr in found]


def resolve(upstream: UpstreamConfig, before: Resolution | None = None) -> Resolution:
    """The addresses of every endpoint, in order, each once. May block for as long as the name server takes."""
    addresses: list[Wire] = []
    errors: list[str] = []
    for endpoint in upstream.endpoints:
        try:
            addresses += [item for item in _lookup(parse_address(endpoint)) if item not in addresses]
        except OSError as error:
            errors.append(f"{endpoint}: {error.strerror or error}")
    if errors and before is not None:
        addresses += [item for item in before.addresses if item not in addresses]
    return Resolution(addresses, "; ".join(errors))


class Resolver:
    """Keeps looking. ``current`` belongs to the event loop.

    Args:
        upstreams: of the configuration.
        first: what the start resolved.
        on_change: is called on the loop when addresses of any upstream are others than before.
    """

    def __init__(self, upstreams: tuple[UpstreamConfig, ...], first: dict[str, Resolution], on_change: Callable[[], None]) -> None:
        self.current = first
        self._upstreams = [item for item in upstreams if any(parse_address(endpoint).kind == "name" for endpoint in item.endpoints)]
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="framegate-resolver", daemon=True)
        if self._upstreams:
            self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in a lookup is left behind, it cannot keep the process."""
        self._wake.put(None)

    def _run(self) -> None:
        while True:
            try:
                self._wake.get(timeout=INTERVAL_S)
            except queue.Empty:
                fresh = {item.name: resolve(item, self.current.get(item.name)) for item in self._upstreams}
                self._loop.call_soon_threadsafe(self._take, fresh)
            else:
                return

    def _take(self, fresh: dict[str, Resolution]) -> None:
        changed = any(_as_set(resolution) != _as_set(self.current[name]) for name, resolution in fresh.items())
        self.current.update(fresh)
        if changed:
            self._on_change()


def _as_set(resolution: Resolution) -> set[tuple[Any, ...]]:
    """Name servers rotate their answers; an order that differs is no change."""
    return {tuple(item) for item in resolution.addresses}
