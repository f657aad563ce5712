"""Rules of listeners: framings, handlers, principals."""

import pathlib
import sys
import types
from typing import Any

import pytest

from framegate.control.configuration.document import document_of
from framegate.control.configuration.load import judge
from tests.fakes.configuration import faults, misnamed, put, validate, warnings


def test_a_broken_rule_of_framings_is_named_at_its_key(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    cases = [
        ("listeners.1.framing", "int64", "listeners[1].framing", "must be 'int32'"),
        ("listeners.1.framing", "header", "listeners[1].framing", "needs the key header"),
        ("upstreams.0.framing", "header", "upstreams[0].framing", "needs the key header"),
        ("listeners.1.framing", "lines", "listeners[1].forwarding.responses", "must be whole"),
    ]
    assert misnamed(data, cases) == []
    found = warnings(put(data, "listeners.1.header", {"size": 4}), tmp_path)
    assert ("listeners[1].header", "has no effect: framing is not header") in found
    data["listeners"][1]["framing"] = "header"
    headers: list[tuple[str, object, str, str]] = [
        ("listeners.1.header", {}, "listeners[1].header.size", "is required"),
        ("listeners.1.header", {"size": 65}, "listeners[1].header.size", "must be from 1B to 64B"),
        ("listeners.1.header", {"size": 4, "offset": 1}, "listeners[1].header.width", "4 bytes from 1 on, and the header has 4"),
        ("listeners.1.header", {"size": 4, "width": 5}, "listeners[1].header.width", "5 bytes from 0 on"),
        ("listeners.1.header", {"size": 6, "fill": "0102f"}, "listeners[1].header.fill", "is not hexadecimal"),
        ("listeners.1.header", {"size": 6, "fill": "01"}, "listeners[1].header.fill", "has 1 bytes, and the header has 2 besides"),
        ("listeners.1.header", {"size": 6, "counts": "all"}, "listeners[1].header.counts", "must be 'body', 'rest' or 'frame'"),
        ("listeners.1.header", {"size": 6, "wide": 3}, "listeners[1].header.wide", "did you mean width?"),
    ]
    assert misnamed(data, headers) == []


ECHO = "framegate.proxy.config.model:ListenerConfig"  # Something that is there: whether it can be a handler is found out where it is imported


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
    for upstreams, words in (([], "needs at least one entry"), (..., "is required")):
        assert ("upstreams", f"{words}, unless each listener has a handler") in faults(put(handled, "upstreams", upstreams))


def test_a_handlers_name_is_a_module_and_a_name_in_it(handled: dict[str, Any]) -> None:
    names = ("", "echo", ":echo", "a:", "a.:b", "a..b:c", "a:b.c", "a:b:c", "a-b:c", "a:1b", "class:b", "a/b:c", " a:b")
    assert misnamed(handled, [("listeners.1.handler", name, "listeners[1].handler", "must be package.module:name") for name in names]) == []


def test_a_broken_rule_is_named_at_its_key(handled: dict[str, Any]) -> None:
    cases = [
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
    ]
    assert misnamed(handled, cases) == []


def test_a_handler_before_an_upstream_has_whole_frames_of_both(handled: dict[str, Any]) -> None:
    handled["upstreams"][0]["max_receive_size"] = "1MiB"
    for forwarding in ({}, {"responses": "whole"}):
        handled["listeners"][1] |= {"upstream": "brokers", "forwarding": forwarding}
        assert faults(handled) == []
    handled["listeners"][1]["framing"] = "lines"
    assert faults(handled) == []


def test_keys_of_handlers_without_effect_are_warnings(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
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


def test_a_missing_module_is_a_fault_and_within_a_package_a_warning(
    handled: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "unplaced", types.ModuleType("unplaced"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "alone.py").touch()
    handled["handlers"] = {"path": [str(tmp_path)]}
    for module, fault, warning in (
        ("nowhere_at_all", f"cannot be found: there is no module nowhere_at_all in {tmp_path}, nor in sys.path", ""),
        ("alone.part", "cannot be found: alone is a module, not a package", ""),
        ("unplaced", f"cannot be found: there is no module unplaced in {tmp_path}, nor in sys.path", ""),
        ("own.part", "", f"may not be found: there is no module own.part in {tmp_path}/own"),
        ("own.part.deeper", "", f"may not be found: there is no module own.part in {tmp_path}/own"),
    ):
        handled["listeners"][1]["handler"] = f"{module}:h"
        assert faults(handled) == ([("listeners[1].handler", fault)] if fault else []), module
        assert fault or warnings(handled, tmp_path) == [("listeners[1].handler", warning)], module


def found(data: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    findings = judge(document_of(data), machine=True)
    faults, warnings = ([(fault.key, fault.reason) for fault in items if "principal" in fault.key] for items in (findings.faults, findings.warnings))
    return faults, warnings


def test_rules_of_each_kind(data: dict[str, Any]) -> None:
    rules = [r"RULE:^CN=(\w{1,9}),.*$/$1/L", "DEFAULT"]
    data = put(data, "listeners.0.principal", {"from": "uri", "rules": rules})
    data = put(data, "listeners.0.allowed_principals", ["CN=app", "RULE:spiffe://td/.*"])
    assert found(data) == ([], [])
    config = judge(document_of(data), machine=True).config
    assert config is not None
    assert (config.listeners[0].principal.from_, list(config.listeners[0].principal.rules)) == ("uri", rules)


def test_a_principal_that_cannot_be_read_is_named(data: dict[str, Any]) -> None:
    wrong = []
    for place, value, key, words in (
        ("principal", {"from": "cn"}, "principal.from", "must be 'subject', 'uri', 'dns' or 'email'"),
        ("principal", {"rules": []}, "principal.rules", "needs at least one"),
        ("principal", {"rules": ["DEFAULT", "default"]}, "principal.rules[1]", "is no rule: neither DEFAULT nor RULE:"),
        ("principal", {"rules": ["RULE:(/x/"]}, "principal.rules[0]", "the pattern '(' is none"),
        ("principal", {"rules": ["RULE:a/b"]}, "principal.rules[0]", "lacks a slash, at character 1"),
        ("principal", {"rules": [" "]}, "principal.rules[0]", "is empty"),
        ("allowed_principals", ["RULE:("], "allowed_principals[0]", "the pattern '(' is none"),
        ("allowed_principals", ["a", ""], "allowed_principals[1]", "is empty: every client has a name"),
    ):
        faults, _ = found(put(data, f"listeners.0.{place}", value))
        if [(fault, words in reason) for fault, reason in faults] != [(f"listeners[0].{key}", True)]:
            wrong.append((place, value, faults))
    assert wrong == []


def test_principals_that_no_client_can_have_are_a_warning(data: dict[str, Any]) -> None:
    """The second listener speaks plaintext and asks for no login."""
    for allowed, warned in ((["CN=app"], True), (["CN=app", "ANONYMOUS"], False), ([], False)):
        _, warnings = found(put(data, "listeners.1.allowed_principals", allowed))
        assert [words for _, words in warnings] == ["refuses everybody: without tls and sasl each client is ANONYMOUS"] * warned
    data = put(data, "listeners.0.tls.client_auth", "none")
    for listener in (0, 1):
        words = "has no effect: no client is asked for a certificate (tls.client_auth)"
        assert found(put(data, f"listeners.{listener}.principal", {"from": "dns"})) == ([], [(f"listeners[{listener}].principal", words)])
