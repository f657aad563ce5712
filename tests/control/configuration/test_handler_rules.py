"""What a listener with a handler asks of the rest, and where its handler is looked for."""

import pathlib
import sys
import types
from typing import Any

import pytest

from control.configuration.load import validate
from tests.fakes.configuration import faults, put, warnings

ECHO = "proxy.config.model:ListenerConfig"
"""Something that is there: whether it can be a handler is found out where it is imported."""


@pytest.fixture
def handled(data: dict[str, Any]) -> dict[str, Any]:
    """The second listener has a handler, and no upstream."""
    data["listeners"][1] = {"name": "plain", "address": "127.0.0.1:0", "handler": ECHO, "max_receive_size": "1MiB"}
    return data


def test_a_handler_stands_for_an_upstream(handled: dict[str, Any], tmp_path: pathlib.Path) -> None:
    assert (faults(handled), warnings(handled, tmp_path)) == ([], [])
    config = validate(handled, pathlib.Path("/etc"))
    assert [(item.handler, item.upstream) for item in config.listeners] == [(None, "brokers"), (ECHO, None)]
    assert config.handlers.path == ("/etc",)
    del handled["listeners"][1]["handler"]
    assert faults(handled) == [("listeners[1].upstream", "is required where there is no handler")]
    handled["listeners"][1]["handler"] = None
    assert faults(handled) == [("listeners[1].upstream", "is required where there is no handler")]


def test_without_an_upstream_nothing_else_is_needed(handled: dict[str, Any]) -> None:
    del handled["listeners"][0], handled["upstreams"]
    handled["tap"]["rules"] = []
    assert faults(handled) == []
    handled["upstreams"] = []
    assert faults(handled) == []
    handled["listeners"].append({"name": "other", "address": "127.0.0.1:0", "upstream": "brokers", "max_receive_size": "1MiB"})
    assert ("upstreams", "needs at least one entry, unless each listener has a handler") in faults(handled)
    del handled["upstreams"]
    assert ("upstreams", "is required, unless each listener has a handler") in faults(handled)


@pytest.mark.parametrize("name", ["", "echo", ":echo", "a:", "a.:b", "a..b:c", "a:b.c", "a:b:c", "a-b:c", "a:1b", "class:b", "a/b:c", " a:b"])
def test_a_handlers_name_is_a_module_and_a_name_in_it(handled: dict[str, Any], name: str) -> None:
    found = faults(put(handled, "listeners.1.handler", name))
    assert [key for key, reason in found if "must be package.module:name" in reason] == ["listeners[1].handler"], found


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("listeners.1.forwarding", {"requests": "cut_through"}, "listeners[1].forwarding.requests", "a handler gets each frame whole"),
        ("listeners.1.forwarding", {"responses": "cut_through"}, "listeners[1].forwarding.responses", "a handler gets each frame whole"),
        ("listeners.1.upstream", "brokers", "listeners[1].handler", "set upstreams[0].max_receive_size to at most 4MiB"),
        ("listeners.1.max_receive_size", "5MiB", "memory_pool.size", "listeners[1].max_receive_size is 5MiB"),
        ("listeners.1.handler", [], "listeners[1].handler", "must be text"),
        ("handlers", {"processes": 0}, "handlers.processes", "must be from 1 to 64"),
        ("handlers", {"queue": 0}, "handlers.queue", "must be from 1 to 1000000"),
        ("handlers", {"timeout": "2h"}, "handlers.timeout", "must be from 0 to 1h"),
        ("handlers", {"memory": "2TiB"}, "handlers.memory", "must be from 0B to 1TiB"),
        ("handlers", {"path": "here"}, "handlers.path", "must be a list"),
        ("handlers", {"path": ["/there/is/none"]}, "handlers.path[0]", "is not a folder"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(handled: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    found = faults(put(handled, path, value))
    assert [item for item, reason in found if part in reason] == [key], found
    assert "or cut_through here" not in str(found)


def test_a_handler_before_an_upstream_has_whole_frames_of_both(handled: dict[str, Any]) -> None:
    handled["upstreams"][0]["max_receive_size"] = "1MiB"
    for forwarding in ({}, {"responses": "whole"}):
        handled["listeners"][1] |= {"upstream": "brokers", "forwarding": forwarding}
        assert faults(handled) == []
    handled["listeners"][1]["framing"] = "lines"
    assert faults(handled) == []


def test_what_has_no_effect_is_said(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["handlers"] = {"processes": 2}
    assert warnings(data, tmp_path) == [("handlers", "has no effect: no listener has a handler, so there are no processes for them")]
    data["listeners"][1] = {"name": "plain", "address": "127.0.0.1:0", "handler": ECHO, "max_receive_size": "1MiB", "half_close_before_data": "wait"}
    assert warnings(data, tmp_path) == [("listeners[1].half_close_before_data", "has no effect: a handler answers, and says nothing first")]


def test_a_module_is_looked_for_on_the_path_and_then_where_python_looks_and_nothing_of_it_runs(
    handled: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "alone.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "own" / "__init__.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "own" / "part.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "part.py").write_text("raise SystemExit('it ran')\n")
    handled["handlers"] = {"path": [str(tmp_path)]}
    for module in ("alone", "own", "own.part", "space.part", "json.decoder"):
        handled["listeners"][1]["handler"] = f"{module}:h"
        assert (faults(handled), warnings(handled, tmp_path)) == ([], []), module
    assert not {"alone", "own", "space"} & set(sys.modules)


@pytest.mark.parametrize(
    ("module", "fault", "warning"),
    [
        ("nowhere_at_all", "cannot be found: there is no module nowhere_at_all in {folder}, nor where Python looks", ""),
        ("alone.part", "cannot be found: alone is a module, not a package", ""),
        ("unplaced", "cannot be found: there is no module unplaced in {folder}, nor where Python looks", ""),
        ("own.part", "", "may not be found: there is no module own.part in {folder}/own"),
        ("own.part.deeper", "", "may not be found: there is no module own.part in {folder}/own"),
    ],
)
def test_a_module_that_is_not_there_is_said(
    handled: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, module: str, fault: str, warning: str
) -> None:
    monkeypatch.setitem(sys.modules, "unplaced", types.ModuleType("unplaced"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "alone.py").touch()
    handled["handlers"] = {"path": [str(tmp_path)]}
    handled["listeners"][1]["handler"] = f"{module}:h"
    expected = [("listeners[1].handler", text.format(folder=tmp_path)) for text in (fault, warning)]
    assert faults(handled) == expected[:1] * bool(fault)
    if warning:
        assert warnings(handled, tmp_path) == expected[1:]
