"""What follows from the container's CPUs and memory (``cgroup``) for the processors and the memory pool."""

import dataclasses
from typing import Final

from framegate.control.configuration.cgroup import Container
from framegate.control.configuration.units import format_size
from framegate.proxy.config.model import GIB, KIB, LEAST_POOL, MAX_PROCESSORS, MIB, ListenerConfig, ProxyConfig, largest_whole

CONTROL_BASE: Final = 64 * MIB
PROCESSOR_BASE: Final = 29 * MIB
"""Resident memory, with room for control's own work. Control has 36 MiB at start, and 58 MiB once gRPC was loaded, for the first call of the API."""
TOKENS: Final = 12 * MIB  # Control's check of token signatures, if a listener takes tokens
READER: Final = 21 * MIB  # the validator process, which reads a configuration before it is applied: 30 MiB resident, 20 MiB proportional
VALIDATOR: Final = 28 * MIB  # the same, when it checks new certificates, keys and authorities, too: 34 MiB resident, 24 MiB proportional
SHIPPER: Final = 64 * MIB  # the process that ships the tap's log: 40 MiB resident while it sends small segments, and an object of up to 8 MiB twice
HANDLER_BASE: Final = 41 * MIB
"""A handler process: Python with asyncio (25 MiB) and deferred replies (16 MiB). Only ``handlers.memory`` bounds what handlers and waiting requests
take.
"""
CONNECTION: Final = 15 * KIB
"""A plaintext pair that is idle after traffic: 6.9 KiB in framegate (`make bench ARGS="--parts memory"`) and 8 KiB in the kernel for its two sockets,
for which the container is charged as well (deploy/docs/limits.md).
"""
TLS_SIDE: Final = 40 * KIB
"""TLS on one side of a pair: 22.8 KiB after a burst of 1 MB each way (29.7 - 6.9 KiB, OpenSSL 3.5), and one record that has begun, which is not
booked (17 KiB; proxy/network/MEMORY.md).
"""
ONE_READ: Final = 256 * KIB  # the most that one read may book beyond all other bounds (MEMORY.md)
PIECES: Final = 1.25  # Memory held for each byte booked, at most: a piece may be a view of a read that it is four fifths of (MEMORY.md)
_USABLE: Final = 0.85  # Part of the container's limit: the kernel's socket buffers count as well, and framegate does not bound them
UNLIMITED_POOL: Final = GIB  # the largest pool without a size of its own, where the container has no limit
_KEPT: Final = 4  # if connections are not limited, one part in so many of the room for such a pool is kept for them


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The most memory that a configuration may need: ``parts`` has names and bytes; the connections of ``uncounted`` listeners are not limited in
    number and not included.
    """

    parts: tuple[tuple[str, int], ...]
    uncounted: tuple[str, ...]

    @property
    def total(self) -> int:
        """The sum of the parts, in bytes."""
        return sum(size for _, size in self.parts)


def processor_count(configured: int, pool_size: int, largest: int, cpus: int) -> int:
    """How many processors to start; for 0 as many as there are CPUs and parts of the pool that hold the largest frame."""
    if configured:
        return configured
    return max(1, min(cpus, MAX_PROCESSORS, pool_size // largest))


def fitted(config: ProxyConfig, container: Container) -> ProxyConfig:
    """The configuration with values in place of 0: as many processors as the container has CPUs and memory for, and the largest memory pool that fits
    beside them; each processor's part holds the largest frame that passes whole.
    """
    pool, largest = config.memory_pool, max(largest_whole(config))
    if pool.size:
        count = processor_count(config.processors, pool.size, largest, container.cpus)
        return dataclasses.replace(config, processors=count)
    most = config.processors or min(container.cpus, MAX_PROCESSORS)
    least = config.processors or 1
    count = next((count for count in range(most, least, -1) if _room(config, count, container.memory) >= count * largest), least)
    size = max(_room(config, count, container.memory), count * largest, LEAST_POOL)
    return dataclasses.replace(config, processors=count, memory_pool=dataclasses.replace(pool, size=size))


def _room(config: ProxyConfig, processors: int, limit: int | None) -> int:
    """Whole MiB that a memory pool may have; below 0 if there is no room."""
    if limit is None:
        return UNLIMITED_POOL
    rest = memory_need(dataclasses.replace(config, memory_pool=dataclasses.replace(config.memory_pool, size=0)), processors)
    room = int((_usable(limit) - rest.total) / PIECES)
    return (room - room // _KEPT if rest.uncounted and room > 0 else room) // MIB * MIB


def _usable(limit: int) -> int:
    return int(limit * _USABLE) // MIB * MIB


def memory_need(config: ProxyConfig, processors: int) -> MemoryNeed:
    """The need of all processes when the pool is full, each processor holds its largest frame beyond it, and every listener has as many connections
    as it takes.
    """
    beyond = processors * (sum(largest_whole(config)) + ONE_READ)
    handled = any(listener.handler is not None for listener in config.listeners)
    signed = any(listener.sasl is not None and listener.sasl.tokens is not None for listener in config.listeners)
    watched = any(item.tls is not None for item in config.listeners) or any(item.tls is not None for item in config.upstreams)
    parts = {
        "processes": CONTROL_BASE + processors * PROCESSOR_BASE,
        "checks of tokens": TOKENS if signed else 0,
        "validator": VALIDATOR if watched else READER,
        "handler processes": config.handlers.processes * (config.handlers.memory or HANDLER_BASE) if handled else 0,
        "memory pool": int(config.memory_pool.size * PIECES),
        "a frame beyond it in each processor": int(beyond * PIECES),
        "shipper": SHIPPER if config.tap and config.tap.ship else 0,
        "tap queues": config.tap.queue_size * processors if config.tap else 0,
        "connections": _connections(config),
    }
    uncounted = (item.name for item in config.listeners if not item.limits.connections and not _shares(config, item))
    return MemoryNeed(tuple((name, size) for name, size in parts.items() if size), tuple(uncounted))


def _shares(config: ProxyConfig, listener: ListenerConfig) -> bool:
    """Whether the node's limit bounds a listener's connections."""
    return config.limits.connections > 0 and listener.name != config.limits.protected_listener


def _connections(config: ProxyConfig) -> int:
    """Bytes for as many connections as each listener takes, within the node's limit, those that need most first."""
    left, total = config.limits.connections, 0
    for listener in sorted(config.listeners, key=lambda item: _connection(config, item), reverse=True):
        most = listener.limits.connections
        if _shares(config, listener):
            most = min(most or left, left)
            left -= most
        total += most * _connection(config, listener)
    return total


def _connection(config: ProxyConfig, listener: ListenerConfig) -> int:
    upstream_tls = any(item.tls is not None for item in config.upstreams if item.name == listener.upstream)
    return CONNECTION + TLS_SIDE * ((listener.tls is not None) + upstream_tls)


def memory_warning(config: ProxyConfig, processors: int, limit: int | None) -> str | None:
    """A sentence for the key of the memory pool's size when the configuration does not fit into the container; else None."""
    if limit is None:
        return None
    need, usable = memory_need(config, processors), _usable(limit)
    if need.total <= usable:
        return None
    parts = ", ".join(f"{name} {_rounded(size)}" for name, size in need.parts)
    besides = f"; connections of {', '.join(need.uncounted)} are not counted, for limits.connections is not set" if need.uncounted else ""
    return (
        f"does not fit into the container's {format_size(limit)}: {_rounded(need.total)} may be needed, and {format_size(usable)} can be used "
        f"({100 - _USABLE * 100:.0f} % are left to the kernel's buffers): {parts}{besides}"
    )


def _rounded(size: int) -> str:
    """Rounded up to a whole MiB, or KiB below one."""
    unit = MIB if size >= MIB else KIB
    return format_size(-(-size // unit) * unit)
