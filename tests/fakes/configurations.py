"""Generated configurations: every key with values of its type and range, whether or not they fit together."""

import dataclasses
import types
import typing
from typing import Any, Literal

from hypothesis import strategies as st

from framegate.proxy.config.key import Key, field_types, keys
from framegate.proxy.config.model import ProxyConfig

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
_WORDS = st.sampled_from(
    ["on", "null", "1.2", "2026-12-31", "0x10", "a: b", "# c", "- d", "[e]", "{f", "'g", "%h", "@i", " j ", "1_000", "~", "=", "!k"]
)
_PATHS = st.text("ab .-:#'\"é", min_size=1, max_size=8).filter(lambda text: text not in (".", "..")).map(lambda text: f"/{text}")


def models(model: type) -> st.SearchStrategy[Any]:
    """Values of a class of the model; a key is often left at its default."""
    parts = {}
    for field in dataclasses.fields(model):
        value = _values(field_types(model)[field.name], keys(model)[field.name])
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        parts[field.name] = value if default is dataclasses.MISSING else st.one_of(st.just(default), value)
    return st.builds(model, **parts)


def _values(hint: Any, key: Key) -> st.SearchStrategy[Any]:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return models(typing.cast(type, hint))
    if origin in (types.UnionType, typing.Union):
        return st.one_of([_values(part, key) for part in of if part is not types.NoneType])
    if origin is tuple:
        return st.lists(_values(of[0], key), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_TEXT, _values(of[1], key), max_size=3)
    if origin is Literal:
        return st.sampled_from(of)
    if hint is str:
        return _PATHS if key.unit == "path" else st.one_of(_TEXT, _WORDS).filter(lambda text: not text.startswith("unix:"))
    if hint is bool:
        return st.booleans()
    if key.unit == "ns":
        return st.integers(0, 2**62)
    least, most = key.range or (0, 2**31)
    return st.integers(int(least), int(most)) if hint is int else st.floats(least, most, allow_nan=False)


configurations = models(ProxyConfig)
