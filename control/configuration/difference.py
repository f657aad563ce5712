"""The differences of two configurations: each value that is not the same, its path, and when a change of it is in force.

Entries of lists are told apart by name, network or address, so that one that is added does not shift the others; entries without one (rules about
Kafka) by position. A configuration has no secrets, only paths of files that hold them; the contents of files are not compared.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from framegate.control.configuration.schema import file_key
from framegate.control.configuration.writing import flow
from framegate.proxy.config.key import Effect, Key, keys
from framegate.proxy.config.model import ProxyConfig

_NAMES: Final = ("name", "network", "address")
_MOST: Final = 100
_TEXT: Final = 256


class Difference(NamedTuple):
    """One difference."""

    path: str  # as ``listeners[kafka].timeouts.idle``; of an entry that is added or removed ``listeners[kafka]``
    # before, after: the values; None: there is none. Of a list whose entries have another order: their names.
    before: object
    after: object
    effect: Effect  # when a change of the value is in force
    key: Key = Key()  # its declaration

    @property
    def texts(self) -> tuple[str | None, str | None]:
        """Both values in one line, as they are written in a file; None: there is none."""
        before, after = (None if value is None else flow(value, self.key) for value in (self.before, self.after))
        return before, after


def differences(before: ProxyConfig, after: ProxyConfig) -> tuple[Difference, ...]:
    """All differences, in the order of the model; none only if the configurations are equal."""
    return tuple(_section(before, after, "", None))


def values(found: Sequence[Difference]) -> tuple[dict[str, str], dict[str, str]]:
    """The values before and after, by path, for an audit row: of the first differences, and of long ones the beginning."""
    texts = {item.path: tuple(text or "" for text in item.texts) for item in found[:_MOST]}
    before, after = ({path: pair[at] if len(pair[at]) <= _TEXT else f"{pair[at][:_TEXT]}…" for path, pair in texts.items()} for at in (0, 1))
    return before, after


def _section(before: Any, after: Any, path: str, effect: Effect | None) -> Iterator[Difference]:
    for name, key in keys(cast(type, type(after))).items():
        place = f"{path}.{file_key(name)}" if path else file_key(name)
        yield from _value(getattr(before, name), getattr(after, name), place, key._replace(effect=key.effect or effect))


def _value(before: Any, after: Any, path: str, key: Key) -> Iterator[Difference]:
    if before == after:
        return
    if dataclasses.is_dataclass(before) and type(before) is type(after):
        yield from _section(before, after, path, key.effect)
    elif isinstance(before, tuple) and isinstance(after, tuple) and any(map(dataclasses.is_dataclass, before + after)):
        yield from _list(before, after, path, key)
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _entries(before, after, path, key)
    else:
        yield _difference(before, after, path, key)


def _list(before: Sequence[Any], after: Sequence[Any], path: str, key: Key) -> Iterator[Difference]:
    old, new = _named(before), _named(after)
    if len(old) < len(before) or len(new) < len(after):  # two have one name
        yield _difference(before, after, path, key)
        return
    yield from _entries(old, new, path, key)
    both = [[name for name in entries if name in old and name in new] for entries in (old, new)]
    if both[0] != both[1]:
        yield _difference(tuple(map(str, both[0])), tuple(map(str, both[1])), path, key)


def _named(entries: Sequence[Any]) -> dict[str | int, Any]:
    return {
        next((getattr(entry, name) for name in _NAMES if hasattr(entry, name)), _address(entry, place)): entry for place, entry in enumerate(entries)
    }


def _address(entry: object, place: int) -> str | int:
    return entry if isinstance(entry, str) else place


def _entries(before: dict[Any, Any], after: dict[Any, Any], path: str, key: Key) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *after)):
        yield from _value(before.get(name), after.get(name), f"{path}[{name}]", key)


def _difference(before: object, after: object, path: str, key: Key) -> Difference:
    assert key.effect is not None, f"{path} does not say when a change takes effect"
    return Difference(path, before, after, key.effect, key)
