"""What the tap's rules must name and can meet, and how its sizes fit each other."""

import ipaddress
import time
from collections.abc import Callable
from typing import TypeVar

from control.configuration.document import Document, Path
from control.configuration.units import format_size
from control.configuration.values import Values, default_of, given, unique_names
from proxy.config.model import TapConfig, TapRule
from proxy.config.selection import api_key, byte_range, overlap

__all__ = ["apply_tap_rules", "tap_rules"]

Found = TypeVar("Found")


def tap_rules(document: Document, tap: object, listeners: dict[str, bool]) -> None:
    """``listeners``: by name, whether it speaks Kafka."""
    if not isinstance(tap, dict):
        return
    _tap_sizes(document, tap)
    apply_tap_rules(document, tap, listeners)


def apply_tap_rules(document: Document, tap: Values, listeners: dict[str, bool]) -> None:
    """The part of ``apply_rules`` that is about the tap's rules; ``listeners``: by name, whether it speaks Kafka."""
    rules = tap.get("rules")
    originals = document.data["tap"].get("rules")
    if not isinstance(rules, list):
        return
    indexes = [index for index, item in enumerate(originals) if isinstance(item, dict)]
    items: list[tuple[Path, Values]] = [(("tap", "rules", index), rule) for index, rule in zip(indexes, rules, strict=True)]
    unique_names(document, items)
    for path, rule in items:
        _tap_rule(document, path, rule, listeners)


def _tap_rule(document: Document, path: Path, rule: Values, listeners: dict[str, bool]) -> None:
    for index, name in enumerate(rule.get("listeners") or ()):
        if name not in listeners:
            document.add((*path, "listeners", index), f"is not the name of a listener; there are: {', '.join(sorted(listeners)) or 'none'}")
    for index, network in enumerate(rule.get("networks") or ()):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            document.add((*path, "networks", index), f"is not a network: {error}")
    if rule.get("directions") == []:
        document.add((*path, "directions"), "needs request, response or both")
    for key in ("max_frame_bytes", "blank", "hash"):
        if rule.get(key) and rule.get("capture", default_of(TapRule, "capture")) in ("lengths", "hash"):
            document.warn((*path, key), f"has no effect: capture is {rule['capture']}, which keeps no bytes of bodies")
    if rule.get("max_loss_percent") and rule.get("on_full") == "mute":
        document.warn((*path, "max_loss_percent"), "has no effect: on_full is mute, which loses nothing")
    _selection(document, path, rule, listeners)
    _body_ranges(document, path, rule)


def _selection(document: Document, path: Path, rule: Values, listeners: dict[str, bool]) -> None:
    """What a rule demands of each frame can be met."""
    smallest, largest = rule.get("min_size") or 0, rule.get("max_size") or 0
    if isinstance(smallest, int) and isinstance(largest, int) and 0 < largest < smallest:
        document.add((*path, "min_size"), f"is above max_size ({format_size(largest)}), so no frame matches", format_size(smallest))
    _each(document, (*path, "apis"), rule.get("apis"), api_key)
    names = rule.get("listeners") or sorted(listeners)
    if names and not any(listeners.get(name, True) for name in names):
        for key in ("apis", "clients"):
            if rule.get(key):
                document.warn((*path, key), "matches nothing: no listener of the rule has protocol kafka")
    if (expires := rule.get("expires_ns")) and expires <= time.time_ns():
        document.warn((*path, "expires"), "has passed: the rule matches nothing")


def _body_ranges(document: Document, path: Path, rule: Values) -> None:
    ranges = [item for key in ("blank", "hash") for item in _each(document, (*path, key), rule.get(key), byte_range)]
    if overlap(ranges):
        document.add((*path, "hash" if rule.get("hash") else "blank"), "has bytes that are in two ranges of the rule, of blank and hash together")


def _each(document: Document, path: Path, texts: object, meaning: Callable[[str], Found]) -> list[Found]:
    """What each of a list's texts means; faults for those that mean nothing."""
    found = []
    for index, text in enumerate(texts if isinstance(texts, list) else ()):
        try:
            found.append(meaning(str(text)))
        except ValueError as error:
            document.add((*path, index), f"is {error}")
    return found


def _tap_sizes(document: Document, tap: Values) -> None:
    def value(name: str) -> int | None:
        found = given(tap, TapConfig, name, document, ("tap",))
        return found if isinstance(found, int) else None

    for small, large in (("flush_size", "queue_size"), ("flush_size", "segment_size"), ("segment_size", "budget")):
        low, high = value(small), value(large)
        if low is not None and high is not None and low > high:
            key = small if small in tap else large
            document.add(("tap", key), f"{small} ({format_size(low)}) must not be larger than {large} ({format_size(high)})")
