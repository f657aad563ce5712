"""Quotas: their networks can be read and are no two the same, and the protected listener is one there is."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from control.configuration.document import Document, Path, document_of, key_of
from control.configuration.schema import convert, range_text
from control.configuration.values import Values
from proxy.config.key import keys
from proxy.config.limits import LimitsConfig, RateLimits, parse_network

__all__ = ["MAX_OVERRIDES", "limit_faults", "limit_rules", "quota_faults"]

MAX_OVERRIDES: Final = 1_000
_KEY: Final = "limits."


def limit_rules(document: Document, limits: object, listeners: list[tuple[Path, Values]]) -> None:
    """What the quotas of the node, of addresses and of networks name."""
    if not isinstance(limits, dict):
        return
    _protected(document, limits.get("protected_listener"), [str(item.get("name")) for _, item in listeners])
    originals, overrides = document.data["limits"].get("overrides"), limits.get("overrides")
    if isinstance(overrides, list):
        indexes = [index for index, item in enumerate(originals) if isinstance(item, dict)]
        items: list[tuple[Path, Values]] = [(("limits", "overrides", index), item) for index, item in zip(indexes, overrides, strict=True)]
        if len(items) > MAX_OVERRIDES:
            document.add(("limits", "overrides"), f"has {len(items)} entries; there may be {MAX_OVERRIDES}")
        _networks(document, items)
        for path, override in items:
            _effect(document, path, override)


def _protected(document: Document, name: object, listeners: list[str]) -> None:
    path: Path = ("limits", "protected_listener")
    if not isinstance(name, str):
        return
    if name not in listeners:
        document.add(path, f"is not the name of a listener; there are: {', '.join(listeners) or 'none'}")
    elif len(listeners) == 1:
        document.add(path, "is the only listener: there is none to protect it from, and the node's limits would hold for nobody")


def _networks(document: Document, items: list[tuple[Path, Values]]) -> None:
    first: dict[str, Path] = {}
    for path, override in items:
        if not isinstance(override.get("network"), str):
            continue
        try:
            network = str(parse_network(override["network"]))
        except ValueError as error:
            document.add((*path, "network"), f"cannot be used: {error}")
            continue
        if network in first:
            document.add((*path, "network"), f"is already the network of {key_of(first[network])} (line {document.line(first[network])})")
        first.setdefault(network, path)


def _effect(document: Document, path: Path, override: Values) -> None:
    given = [name for name in RateLimits.__dataclass_fields__ if override.get(name) is not None]
    if override.get("access") == "deny":
        for name in given:
            document.warn((*path, name), "has no effect: access is deny, which takes no connection")


def limit_faults(limits: LimitsConfig, listeners: Sequence[str]) -> list[tuple[str, str]]:
    """What is wrong with quotas that were never in a file: each field's path, as in ``overrides[0].network``, and why, a sentence without it.

    Args:
        limits: its values have their fields' types.
        listeners: the names of all there are.
    """
    document = document_of({"limits": dataclasses.asdict(limits)})
    limit_rules(document, convert(document)["limits"], [(("listeners", index), {"name": name}) for index, name in enumerate(listeners)])
    return [(fault.key.removeprefix(_KEY), fault.reason) for fault in document.faults]


def quota_faults(quotas: Mapping[str, int]) -> list[tuple[str, str]]:
    """What is wrong with some values of ``RateLimits``, by its fields' names: each name, and why."""
    known = keys(RateLimits)
    faults = [(name, f"is not known; there are {', '.join(known)}") for name in quotas if name not in known]
    return faults + [
        (name, f"must be from {range_text(known[name])}") for name, value in quotas.items() if name in known and not known[name].takes(value)
    ]
