"""Quotas: their networks can be read and are no two the same, and the protected listener is one there is."""

from control.configuration.document import Document, Path, key_of
from control.configuration.values import Values
from proxy.config.limits import RateLimits, parse_network

__all__ = ["limit_rules"]


def limit_rules(document: Document, limits: object, listeners: list[tuple[Path, Values]]) -> None:
    """What the quotas of the node, of addresses and of networks name."""
    if not isinstance(limits, dict):
        return
    _protected(document, limits.get("protected_listener"), [str(item.get("name")) for _, item in listeners])
    originals, overrides = document.data["limits"].get("overrides"), limits.get("overrides")
    if isinstance(overrides, list):
        indexes = [index for index, item in enumerate(originals) if isinstance(item, dict)]
        items: list[tuple[Path, Values]] = [(("limits", "overrides", index), item) for index, item in zip(indexes, overrides, strict=True)]
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
