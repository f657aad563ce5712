"""What the memory pool must hold: the frames that pass whole, and what listeners are guaranteed of it."""

from typing import Any

from control.configuration.capacity import processor_count
from control.configuration.cgroup import cpu_limit
from control.configuration.document import Document, Path, key_of
from control.configuration.units import format_size
from control.configuration.values import Values, default_of, given
from proxy.config.model import LEAST_POOL, Forwarding, ListenerConfig, MemoryPoolConfig, ProxyConfig, UpstreamConfig, whole_request, whole_response

__all__ = ["pool_rules", "share_rules"]


def pool_rules(document: Document, values: Values, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> None:
    """A processor's part of the pool holds each frame that passes whole."""
    size = given(values.get("memory_pool") or {}, MemoryPoolConfig, "size", document, ("memory_pool",))
    processors = given(values, ProxyConfig, "processors", document, ())
    if not isinstance(size, int) or not isinstance(processors, int) or size == 0:
        return  # what stands for 0 is chosen so that it fits (``capacity.fitted``)
    if 0 < size < LEAST_POOL:
        reason = f"must be at least {format_size(LEAST_POOL)}, or 0 for what the container's memory allows"
        document.add(("memory_pool", "size"), reason, format_size(size))
        return
    requests = [((*path, "max_receive_size"), limit) for path, item in listeners if (limit := _whole_request(document, path, item)) is not None]
    answers = _whole_answers(document, listeners, upstreams)
    largest = max((limit for _, limit in requests), default=1)
    wanted = max([largest, *(limit for _, _, limit in answers)])
    count = processor_count(processors, size, wanted, cpu_limit())
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


def _whole_request(document: Document, path: Path, listener: Values) -> int | None:
    limit = listener.get("max_receive_size", default_of(ListenerConfig, "max_receive_size"))
    forward = _forward(document, path, listener, "requests")
    return whole_request(limit, forward) if isinstance(limit, int) and forward in ("whole", "cut_through") else None


def _forward(document: Document, path: Path, listener: Values, direction: str) -> Any:
    if listener.get("handler") is not None:
        return "whole"
    return given(listener.get("forwarding") or {}, Forwarding, direction, document, (*path, "forwarding"))


def _whole_answers(document: Document, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> list[tuple[Path, Path, int]]:
    """For each listener whose answers pass whole: where it says so, where its upstream's limit is, and that limit."""
    found = []
    for path, listener in listeners:
        known = next(((at, item) for at, item in upstreams if item.get("name") == listener.get("upstream")), None)
        if known is None or _forward(document, path, listener, "responses") != "whole":
            continue
        limit = given(known[1], UpstreamConfig, "max_receive_size", document, known[0])
        if isinstance(limit, int):
            says = ("forwarding", "responses") if listener.get("handler") is None else ("handler",)
            found.append(((*path, *says), (*known[0], "max_receive_size"), whole_response(limit, "whole")))
    return found


def share_rules(document: Document, pool: object, listeners: list[tuple[Path, Values]]) -> None:
    """What listeners are guaranteed of the pool can be kept, and leaves something to those that are guaranteed nothing."""
    shares = pool.get("shares") if isinstance(pool, dict) else None
    if not isinstance(pool, dict) or not isinstance(shares, dict):
        return
    base: Path = ("memory_pool", "shares")
    names = [str(item.get("name")) for _, item in listeners]
    for name in shares:
        if name not in names:
            document.add((*base, name), f"is not the name of a listener; there are: {', '.join(names) or 'none'}")
    if shares and pool.get("kind") == "unbounded":
        document.warn(base, "has no effect: with kind unbounded nobody waits for memory")
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
