"""Quotas, with networks that are readable and distinct; the memory pool, which must hold the frames that pass whole; the listeners' shares."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from framegate.control.configuration.capacity import processor_count
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.document import WRONG, Document, Path, document_of, entries, key_of
from framegate.control.configuration.schema import build_section
from framegate.control.configuration.units import format_size
from framegate.proxy.config.limits import LimitsConfig, RateLimits, parse_network
from framegate.proxy.config.model import (
    LEAST_POOL,
    ListenerConfig,
    MemoryPoolConfig,
    ProxyConfig,
    UpstreamConfig,
    forwarding_of,
    whole_request,
)

__all__ = ["limit_faults", "limit_rules", "pool_rules", "share_rules"]

Listeners = list[tuple[Path, ListenerConfig]]
Upstreams = list[tuple[Path, UpstreamConfig]]
MAX_OVERRIDES: Final = 1_000
_KEY: Final = "limits."


def limit_rules(document: Document, limits: LimitsConfig, listeners: Sequence[str]) -> None:
    """Check the quotas of the node, of addresses and of networks; ``listeners``: the names of all there are."""
    path: Path = ("limits", "protected_listener")
    document.named(path, limits.protected_listener, listeners, "a listener")
    if len(listeners) == 1 and limits.protected_listener in listeners:
        document.add(path, "is the only listener: the node's limits do not apply to the protected listener, so they would have no effect")
    if len(limits.overrides) > MAX_OVERRIDES:
        document.add(("limits", "overrides"), f"has {len(limits.overrides)} entries; there may be {MAX_OVERRIDES}")
    first: dict[str, Path] = {}
    for entry, override in entries(("limits", "overrides"), limits.overrides):
        _network(document, (*entry, "network"), override.network, first)
        for field in RateLimits.__dataclass_fields__:
            if override.access == "deny" and getattr(override, field) is not None:
                document.warn((*entry, field), "has no effect: access is deny, which takes no connection")


def _network(document: Document, path: Path, text: str, first: dict[str, Path]) -> None:
    try:
        network = str(parse_network(text))
    except ValueError as error:
        document.add(path, f"cannot be used: {error}")
    else:
        document.once(path, network, first)


def limit_faults(limits: LimitsConfig, listeners: Sequence[str]) -> list[tuple[str, str]]:
    """The faults of quotas that came over the API: each field's path, as in ``overrides[0].network``, and a sentence without it. ``listeners``: the
    names of all there are.
    """
    row = dataclasses.asdict(limits)
    document = document_of({"limits": row})
    limit_rules(document, build_section(document, LimitsConfig, row, ("limits",)), listeners)
    return [(fault.key.removeprefix(_KEY), fault.reason) for fault in document.faults]


def pool_rules(document: Document, config: ProxyConfig, listeners: Listeners, upstreams: Upstreams) -> None:
    """Check that a processor's part of the pool holds each frame that passes whole."""
    size, processors = config.memory_pool.size, config.processors
    if size == 0:
        return  # what stands for 0 is chosen so that it fits (``capacity.fitted``)
    if size < LEAST_POOL:
        reason = f"must be at least {format_size(LEAST_POOL)}, or 0 for what the container's memory allows"
        document.add(("memory_pool", "size"), reason, format_size(size))
        return
    requests = [((*path, "max_receive_size"), whole_request(item.max_receive_size, forwarding_of(item).requests)) for path, item in listeners]
    requests = [(path, limit) for path, limit in requests if limit is not WRONG]
    answers = [found for path, item in listeners for found in _whole_answers(path, item, upstreams)]
    largest = max((limit for _, limit in requests), default=1)
    wanted = max([largest, *(limit for _, _, limit in answers)])
    count = processor_count(processors, size, wanted, container().cpus)
    share = size // count
    each = "the processor" if count == 1 else f"each of {count} processors"
    if share < largest:
        path = next(path for path, limit in requests if limit == largest)
        document.add(
            ("memory_pool", "size"),
            f"gives {each} {format_size(share)}, less than the largest frame: {key_of(path)} is "
            f"{format_size(largest)}, so at least {format_size(largest * count)} are needed",
            format_size(size),
        )
    for path, upstream, limit in answers:
        if share < limit:
            other = ", or cut_through here" if path[-1] == "responses" else ""
            document.add(
                path,
                f"needs answers that a processor can hold: {key_of(upstream)} is {format_size(limit)}, and {each} has "
                f"{format_size(share)} of memory_pool.size; set {key_of(upstream)} to at most {format_size(share)}{other}",
                "whole" if other else None,
            )


def _whole_answers(path: Path, listener: ListenerConfig, upstreams: Upstreams) -> Iterator[tuple[Path, Path, int]]:
    """If a listener's answers pass whole: the key that says so, the key of its upstream's limit, and that limit."""
    for at, upstream in upstreams:
        if upstream.name == listener.upstream and forwarding_of(listener).responses == "whole" and upstream.max_receive_size is not WRONG:
            says = ("forwarding", "responses") if listener.handler is None else ("handler",)
            yield (*path, *says), (*at, "max_receive_size"), upstream.max_receive_size


def share_rules(document: Document, pool: MemoryPoolConfig, listeners: Listeners) -> None:
    """Check that the guaranteed shares of the pool are possible, and that the other listeners have some of it."""
    shares = pool.shares
    base: Path = ("memory_pool", "shares")
    names = [item.name for _, item in listeners]
    for name in shares:
        document.named((*base, name), name, names, "a listener")
    total = sum(shares.values())
    left_out = [name for name in names if name not in shares]
    if total > 100:
        document.add(base, f"guarantees {total} percent, and there are 100")
    elif total == 100 and left_out:
        document.add(base, f"guarantees all of the pool and leaves nothing to {', '.join(left_out)}: give it a share, or others less")
    elif shares and len(names) == 1:
        document.warn(base, "has no effect: there is one listener, and the whole pool is its own")
    if shares and pool.kind == "unbounded":
        document.warn(base, "has no effect: with kind unbounded nobody waits for memory")
