"""The manual of the keys is complete."""

import typing
from pathlib import Path

from framegate.control.configuration.manual import EFFECTS, Entry, entries, find, nearest
from framegate.control.configuration.reading import parse_document
from framegate.control.configuration.schema import file_key
from framegate.proxy.config import model
from framegate.proxy.config.key import field_types

NOW, NEW, RESTART = (sentence for _, sentence in EFFECTS.values())


def paths(of: type, prefix: str = "") -> set[str]:
    found = set()
    for name, hint in field_types(of).items():
        path = f"{prefix}{file_key(name)}"
        found.add(path)
        for part in (hint, *typing.get_args(hint), *(inner for outer in typing.get_args(hint) for inner in typing.get_args(outer))):
            if hasattr(part, "__dataclass_fields__"):
                found |= paths(part, f"{path}.")
    return found


def entry(key: str) -> Entry:
    found = find(key)
    assert found is not None, key
    return found


def test_every_key_of_the_model_is_in_the_manual_with_words_and_nothing_else_is() -> None:
    assert set(entries()) == paths(model.ProxyConfig)
    assert [name for name, item in entries().items() if not item.text] == []
    stated = [name for name, item in entries().items() if any(word in " ".join(item.text) for word in ("Range:", "Default:", "ne of:", "Required."))]
    assert stated == [], "what the code knows is stated by the code"


def test_the_example_of_a_key_is_taken_by_it() -> None:
    refused = []
    for item in entries().values():
        if item.example:
            found = parse_document(item.example, Path("/")).data
            refused += [
                item.path for value in found.values() if item.words and not set(value if isinstance(value, list) else [value]) <= set(item.words)
            ]
    assert refused == []


def test_facts_of_a_key_come_from_the_code() -> None:
    said = {
        "listeners.timeouts.idle": ["Range: 0 to 30d.", "Default: 10m.", NEW],
        "node": ['Default: "".', RESTART],
        "memory_pool.size": ["Range: 0B to 1024TiB.", "Default: 256MiB.", NOW],
        "memory_pool.kind": ["One of: bounded, unbounded, leak_finding.", "Default: bounded.", RESTART],
        "memory_pool.shares": ["Range: 1 to 100.", "Default: none.", NOW],
        "listeners.tls.min_version": ['One of: "1.2", "1.3".', 'Default: "1.2".', NEW],
        "listeners.tls": ["Default: none.", NEW],
        "listeners.timeouts": [NEW],
        "listeners.close_revoked": ["Default: true.", NEW],
        "telemetry.otlp.signals": ["One of: metrics, traces, logs.", "Default: none.", NOW],
        "tap.rules": ["Default: [].", NOW],
        "tap.rules.sample_frames": ["Range: 0.0 to 1.0.", "Default: 1.0.", NOW],
        "upstreams.sasl.user": ['Default: "".', NEW],
    }
    assert {key: entry(key).facts for key in said} == said
    effects = {name: item.effect for name, item in entries().items()}
    wanted = {
        "now": (
            "processors",
            "upstreams.endpoints.weight",
            "limits.connections",
            "limits.overrides.access",
            "log.level",
            "listeners.max_receive_size",
            "tap.rules.on_full",
        ),
        "new connections": ("listeners", "listeners.address", "listeners.tls.key", "upstreams.tls.ca"),
        "restart": ("node", "tap.directory", "log.format", "admin.address"),
    }
    assert {effect: tuple(name for name in names if effects[name] == effect) for effect, names in wanted.items()} == wanted
    numbers = ("a size", "a size, each second", "a time", "a whole number", "a number", "a mapping of names to percentages")
    assert [name for name, item in entries().items() if bool(item.range) is not (item.type in numbers)] == []


def test_a_key_is_found_in_each_notation_and_similar_keys_of_an_unknown_one() -> None:
    for text in ("listeners[0].tls.key", "listeners[].tls.key", "listeners.tls.key"):
        assert entry(text).path == "listeners[].tls.key"
    assert entry("listeners").keys[:3] == ("name", "address", "upstream")
    assert (entry("tap.budget").danger[:8], entry("tap.budget").example) == ("segments", "budget: 4GiB")
    assert (find("tap.buget"), find(""), find("keys")) == (None, None, None)
    assert nearest("tap.buget")[0] == "tap.budget"
    assert nearest("idle")[:2] == ["listeners[].socket.keep_alive.idle", "listeners[].timeouts.idle"]
    assert nearest("qqqq") == []


def test_each_kind_of_value_has_a_name() -> None:
    assert {item.type for item in entries().values()} <= {
        "a section",
        "a list, each a section",
        "a list, each an address or a section",
        *(f"{many}{kind}" for many in ("", "a list, each ") for kind in ("a text", "a word", "a path", "an address")),
        *("a size", "a size, each second", "a time", "an instant", "a whole number", "a number", "true or false"),
        "a mapping of names to percentages",
    }
