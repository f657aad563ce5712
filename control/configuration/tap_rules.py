"""The tap's rules and sizes: names that must exist, selections that can match, sizes that fit each other."""

import dataclasses
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from framegate.control.configuration.document import Document, Path, document_of, entries, unique_names
from framegate.control.configuration.schema import build_section, file_key
from framegate.control.configuration.units import format_size
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.config.selection import api_key, byte_range, overlap
from framegate.proxy.tap.store import url_fault

Found = TypeVar("Found")
_KEY: Final = "tap.rules[0]."


def tap_rules(document: Document, tap: TapConfig, listeners: Mapping[str, bool]) -> None:
    """``listeners``: by name, whether it speaks Kafka."""
    for small, large in (("flush_size", "queue_size"), ("flush_size", "segment_size"), ("segment_size", "budget")):
        low, high = getattr(tap, small), getattr(tap, large)
        if low > high:
            key = small if ("tap", small) in document.texts else large
            document.add(("tap", key), f"{small} ({format_size(low)}) must not be larger than {large} ({format_size(high)})")
    if tap.ship is not None and (fault := url_fault(str(tap.ship.to))):
        document.add(("tap", "ship", "to"), fault)
    items = entries(("tap", "rules"), tap.rules)
    unique_names(document, items)
    for path, rule in items:
        _tap_rule(document, path, rule, listeners)


def _tap_rule(document: Document, path: Path, rule: TapRule, listeners: Mapping[str, bool], *, by_call: bool = False) -> None:
    for entry, name in entries((*path, "listeners"), rule.listeners):
        document.named(entry, name, sorted(listeners), "a listener")
    _each(document, (*path, "networks"), rule.networks, _network)
    if not rule.directions:
        document.add((*path, "directions"), "needs request, response or both")
    for key in ("max_frame_bytes", "blank", "hash"):
        if rule.capture in ("lengths", "hash") and getattr(rule, key):
            tell = document.add if by_call else document.warn
            tell((*path, key), f"has no effect: capture is {rule.capture}, which keeps no bytes of bodies")
    if rule.max_loss_percent and rule.on_full == "mute":
        document.warn((*path, "max_loss_percent"), "has no effect: on_full is mute, which loses nothing")
    _selection(document, path, rule, listeners)
    ranges = [item for key in ("blank", "hash") for item in _each(document, (*path, key), getattr(rule, key), byte_range)]
    if overlap(ranges):
        document.add((*path, "hash" if rule.hash else "blank"), "has bytes that are in two ranges of the rule, of blank and hash together")


def _selection(document: Document, path: Path, rule: TapRule, listeners: Mapping[str, bool]) -> None:
    if 0 < rule.max_size < rule.min_size:
        reason = f"is above max_size ({format_size(rule.max_size)}), so no frame matches"
        document.add((*path, "min_size"), reason, format_size(rule.min_size))
    _each(document, (*path, "apis"), rule.apis, api_key)
    names = rule.listeners or sorted(listeners)
    if names and not any(listeners.get(name, True) for name in names):
        for key in ("apis", "clients"):
            if getattr(rule, key):
                document.warn((*path, key), "matches nothing: no listener of the rule has protocol kafka")
    if 0 < rule.expires_ns <= time.time_ns():
        document.warn((*path, "expires"), "has passed: the rule matches nothing")


def _network(text: str) -> object:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"not a network: {error}") from error


def _each(document: Document, path: Path, texts: Iterable[str], meaning: Callable[[str], Found]) -> list[Found]:
    """The value of each text of a list; faults for those that cannot be read."""
    found = []
    for entry, text in entries(path, texts):
        try:
            found.append(meaning(text))
        except ValueError as error:
            document.add(entry, f"is {error}")
    return found


def tap_rule_faults(rule: TapRule, listeners: Mapping[str, bool]) -> list[tuple[str, str]]:
    """The faults of a rule that came over the API: each field's path, as in ``networks[0]``, and a sentence without it. A key without effect beside
    ``capture`` is a fault here. ``expires_ns`` is not checked: it may be in the past. ``listeners``: by name, whether it speaks Kafka.
    """
    row = {file_key(name): value for name, value in dataclasses.asdict(rule).items() if name != "expires_ns"}
    document = document_of({"tap": {"rules": [row]}})
    path: Path = ("tap", "rules", 0)
    found = build_section(document, TapRule, row, path)
    unique_names(document, [(path, found)])
    _tap_rule(document, path, found, listeners, by_call=True)
    return [(fault.key.removeprefix(_KEY), fault.reason) for fault in document.faults]
