"""What rules ask of converted values."""

from typing import Any

from control.configuration.document import Path, document_of
from control.configuration.values import default_of, given, names_below, unique_names
from proxy.config.model import DrainConfig, MemoryPoolConfig
from tests.fakes.configuration import faults, put


def test_a_value_that_is_already_faulty_breaks_no_second_rule(data: dict[str, Any]) -> None:
    assert [key for key, _ in faults(put(data, "memory_pool.size", "lots"))] == ["memory_pool.size"]


def test_what_nobody_gave_is_the_default_and_what_is_wrong_is_nothing() -> None:
    path: Path = ("drain",)
    document = document_of({"drain": {"timeout": "soon"}})
    assert given({}, DrainConfig, "quiet_ms", document, path) == default_of(DrainConfig, "quiet_ms") == DrainConfig().quiet_ms
    assert given({"quiet_ms": 7}, DrainConfig, "quiet_ms", document, path) == 7
    document = document_of({"memory_pool": {"size": "much"}})
    assert given({}, MemoryPoolConfig, "size", document, ("memory_pool",)) is None
    assert given({}, MemoryPoolConfig, "size", document_of({"memory_pool": {"size": None}}), ("memory_pool",)) == MemoryPoolConfig().size


def test_the_names_below_a_path_are_those_that_have_a_value() -> None:
    document = document_of({"a": {"b": 1, "c": None, "d": {"e": 2}}})
    assert names_below(document, ("a",)) == {"b"}
    assert names_below(document, ("a", "d")) == {"e"}


def test_names_are_well_formed_and_used_once() -> None:
    rows = [{"name": "a"}, {"name": "B"}, {"name": "a"}, {"name": 5}, {}]
    document = document_of({"listeners": rows})
    unique_names(document, [(("listeners", index), row) for index, row in enumerate(rows)])
    assert [(fault.key, fault.reason.split(":")[0]) for fault in document.faults] == [
        ("listeners[1].name", "must be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first"),
        ("listeners[2].name", "is already the name of listeners[0] (line 0)"),
    ]
