"""Quotas, with networks that are readable and distinct; limit rules of listeners; the memory pool, which must hold the frames that pass whole; the
listeners' shares.
"""

import dataclasses
import ipaddress
import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

from framegate.control.configuration.capacity import processor_count
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.document import WRONG, ConfigurationError, Document, Path, document_of, entries, key_of, unique_names
from framegate.control.configuration.schema import build_section
from framegate.control.configuration.units import format_size
from framegate.proxy.config.limits import LimitRule, LimitsConfig, ListenerLimits, RateLimits, parse_network
from framegate.proxy.config.model import LEAST_POOL, ListenerConfig, MemoryPoolConfig, ProxyConfig, UpstreamConfig, forwarding_of, whole_request
from framegate.proxy.kafka.subjects import Patterns
from framegate.proxy.network.authenticator import ANONYMOUS

Listeners = list[tuple[Path, ListenerConfig]]
Upstreams = list[tuple[Path, UpstreamConfig]]
MAX_OVERRIDES: Final = 1_000
MOST_RULES: Final = 256
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


def listener_limit_rules(document: Document, path: Path, listener: ListenerConfig) -> None:
    """Check the limit rules of one listener."""
    rules = entries((*path, "limits", "rules"), listener.limits.rules)
    if len(rules) > MOST_RULES:
        document.add((*path, "limits", "rules"), f"has {len(rules)} entries, more than {MOST_RULES}: each is compared for each new connection")
    unique_names(document, rules)
    for number, (at, rule) in enumerate(rules):
        _limit_rule(document, at, rule, listener)
        asks, last = bool(rule.principals or rule.client_ids or rule.networks), number == len(rules) - 1
        if not asks and not last:
            document.warn(at, "matches every client, so the rules after it have no effect")
        elif last and rule == LimitRule(name=rule.name, principals=rule.principals, client_ids=rule.client_ids, networks=rule.networks):
            document.warn(at, "has no effect: clients that no rule matches have the same limits")


def _limit_rule(document: Document, path: Path, rule: LimitRule, listener: ListenerConfig) -> None:
    for key in ("principals", "client_ids"):
        for entry, pattern in entries((*path, key), getattr(rule, key)):
            if not pattern:
                document.add(entry, "is empty, and matches no name; an empty list does not restrict anything")
    for entry, network in entries((*path, "networks"), rule.networks):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            document.add(entry, f"is no network: {error}")
    _clients(document, path, rule, listener)
    if rule.report_only:
        _reported(document, path, rule, listener)


def _clients(document: Document, path: Path, rule: LimitRule, listener: ListenerConfig) -> None:
    if rule.client_ids and listener.protocol != "kafka":
        document.add((*path, "client_ids"), "needs the listener's protocol to be kafka: other clients have no client id", listener.protocol)
    anonymous = listener.sasl is None and (listener.tls is None or listener.tls.client_auth == "none")
    if anonymous and rule.principals and not Patterns(rule.principals).match(ANONYMOUS):
        document.warn((*path, "principals"), f"match nobody: without sasl or client certificates at the listener each client is {ANONYMOUS}")


def _reported(document: Document, path: Path, rule: LimitRule, listener: ListenerConfig) -> None:
    if rule.max_receive_size is None:
        document.add((*path, "report_only"), "needs max_receive_size: only frames above a size can be reported")
    elif rule.max_receive_size >= listener.max_receive_size:
        reason = f"has no effect with report_only: frames above {format_size(listener.max_receive_size)}, the listener's, are refused"
        document.warn((*path, "max_receive_size"), reason)
    if listener.framing in ("lines", "lines_crlf"):
        document.add((*path, "report_only"), f"cannot be used with framing {listener.framing}: the size of a line is not known before its end")


def listener_limit_faults(listener: ListenerConfig) -> list[tuple[str, str]]:
    """The faults of a listener's limit rules that came over the API: each field's path, as in ``rules[0].networks[1]``, and a sentence without it."""
    row = dataclasses.asdict(listener.limits)
    document = document_of({"limits": row})
    limits = build_section(document, ListenerLimits, row, ("limits",))
    listener_limit_rules(document, (), dataclasses.replace(listener, limits=limits))
    return [(fault.key.removeprefix(_KEY), fault.reason) for fault in document.faults]


def read_limit_rules(text: str) -> tuple[LimitRule, ...]:
    """The limit rules in a text of YAML with the key ``rules``, to be changed while framegate runs. Those of other keys are not checked. Raises
    ConfigurationError: with every fault.
    """
    from framegate.control.configuration.reading import parse_document  # here: only the command line reads YAML

    document = parse_document(text, pathlib.Path())
    for key in document.data:
        if key != "rules":
            document.add((str(key),), "is not a known key; known here: rules", "")
    rules = build_section(document, ListenerLimits, {"rules": document.data.get("rules", ())}, ()).rules
    if document.faults:
        raise ConfigurationError(document.faults)
    return rules


def pool_rules(document: Document, config: ProxyConfig, listeners: Listeners, upstreams: Upstreams) -> None:
    """Check that a processor's part of the pool holds each frame that passes whole."""
    size, processors = config.memory_pool.size, config.processors
    if size == 0:
        return  # what stands for 0 is chosen so that it fits (``capacity.fitted``)
    if size < LEAST_POOL:
        reason = f"must be at least {format_size(LEAST_POOL)}, or 0 for what the container's memory allows"
        document.add(("memory_pool", "size"), reason, format_size(size))
        return
    requests = [(path, whole_request(size, item)) for at, item in listeners for path, size in _sizes(at, item) if size is not WRONG]
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


def _sizes(path: Path, listener: ListenerConfig) -> Iterator[tuple[Path, int]]:
    """The key of each max_receive_size of a listener, and its value."""
    yield (*path, "max_receive_size"), listener.max_receive_size
    for at, rule in entries((*path, "limits", "rules"), listener.limits.rules):
        if rule.max_receive_size is not None:
            yield (*at, "max_receive_size"), rule.max_receive_size


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
