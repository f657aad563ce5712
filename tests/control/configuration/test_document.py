"""Documents, their faults, and values that are wrong."""

from typing import Any

from framegate.control.configuration.document import WRONG, ConfigurationError, Fault, document_of, entries, key_of, unique_names
from framegate.control.configuration.schema import build
from framegate.proxy.config.model import ListenerConfig
from tests.fakes.configuration import faults, put


def test_a_document_of_a_mapping_and_the_texts_of_faults() -> None:
    document = document_of({"a": {"b": [True, "x", None]}})
    assert document.texts == {("a", "b", 0): "true", ("a", "b", 1): "x"}
    assert document.line(("a", "b")) == 0
    assert (key_of(("listeners", 0, "tls", "key")), key_of(())) == ("listeners[0].tls.key", "")
    error = ConfigurationError([Fault(3, "a.b", "x", "is wrong"), Fault(3, "a.b", "", "is required"), Fault(0, "", "", "is empty")])
    assert str(error).splitlines() == ["line 3: a.b = x: is wrong", "line 3: a.b: is required", "line 0: the document: is empty"]
    assert [fault.in_file("f.yaml") for fault in error.faults] == [
        "f.yaml: line 3: a.b = x: is wrong",
        "f.yaml: line 3: a.b: is required",
        "f.yaml: is empty",
    ]


def test_a_value_that_is_already_faulty_breaks_no_second_rule(data: dict[str, Any]) -> None:
    assert [key for key, _ in faults(put(data, "memory_pool.size", "lots"))] == ["memory_pool.size"]


def test_a_wrong_value_breaks_no_further_rule() -> None:
    document = document_of({"node": ["n"], "drain": {"timeout": "soon"}, "tap": 5})
    config = build(document)
    assert config.tap is not None
    for wrong in (config.node, config.listeners, config.drain.timeout_ms, config.tap, config.tap.budget, config.tap.rules, WRONG + 5, WRONG // 2):
        assert wrong is WRONG
        held = [wrong == "", wrong != "", wrong < 5, wrong >= 5, wrong > 0, "" in wrong, bool(wrong), wrong is None]
        assert (any(held), list(wrong)) == (False, [])
    assert config.drain.quiet_ms == 1000
    before = list(document.faults)
    for path in (("node",), ("tap", "budget"), ("drain", "timeout")):
        document.add(path, "is wrong for another reason as well")
        document.warn(path, "has no effect")
    assert (document.faults, document.warnings) == (before, [])
    document.add(("drain", "quiet"), "is too long")
    assert document.faults[-1].key == "drain.quiet"


def test_names_are_well_formed_and_used_once() -> None:
    document = document_of({"listeners": [{"name": name} for name in ("a", "B", "a")]})
    unique_names(document, entries(("listeners",), [ListenerConfig(name=row["name"], address="") for row in document.data["listeners"]]))
    assert [(fault.key, fault.reason.split(":")[0]) for fault in document.faults] == [
        ("listeners[1].name", "must be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first"),
        ("listeners[2].name", "is already used by listeners[0].name (line 0)"),
    ]
