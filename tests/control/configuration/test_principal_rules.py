"""control.configuration.principal_rules: rules that can be read, and somebody to use them on."""

from typing import Any

import pytest

from control.configuration.document import document_of
from control.configuration.load import _examine
from tests.fakes.configuration import put


def found(data: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    findings = _examine(document_of(data), in_use=False)
    faults, warnings = ([(fault.key, fault.reason) for fault in items if "principal" in fault.key] for items in (findings.faults, findings.warnings))
    return faults, warnings


def test_rules_of_each_kind(data: dict[str, Any]) -> None:
    rules = [r"RULE:^CN=(\w{1,9}),.*$/$1/L", "DEFAULT"]
    data = put(data, "listeners.0.principal", {"from": "uri", "rules": rules})
    data = put(data, "listeners.0.allowed_principals", ["CN=app", "RULE:spiffe://td/.*"])
    assert found(data) == ([], [])
    config = _examine(document_of(data), in_use=False).config
    assert config is not None
    assert (config.listeners[0].principal.from_, list(config.listeners[0].principal.rules)) == ("uri", rules)


@pytest.mark.parametrize(
    ("place", "value", "key", "words"),
    [
        ("principal", {"from": "cn"}, "principal.from", "must be 'subject', 'uri', 'dns' or 'email'"),
        ("principal", {"rules": []}, "principal.rules", "needs at least one"),
        ("principal", {"rules": ["DEFAULT", "default"]}, "principal.rules[1]", "is no rule: neither DEFAULT nor RULE:"),
        ("principal", {"rules": ["RULE:(/x/"]}, "principal.rules[0]", "the pattern '(' is none"),
        ("principal", {"rules": ["RULE:a/b"]}, "principal.rules[0]", "lacks a slash, at character 1"),
        ("principal", {"rules": [" "]}, "principal.rules[0]", "is empty"),
        ("allowed_principals", ["RULE:("], "allowed_principals[0]", "the pattern '(' is none"),
        ("allowed_principals", ["a", ""], "allowed_principals[1]", "is empty: nobody has no name"),
    ],
)
def test_what_cannot_be_read_is_named(data: dict[str, Any], place: str, value: Any, key: str, words: str) -> None:
    faults, _ = found(put(data, f"listeners.0.{place}", value))
    assert [fault[0] for fault in faults] == [f"listeners[0].{key}"]
    assert words in faults[0][1]


@pytest.mark.parametrize(("allowed", "told"), [(["CN=app"], True), (["CN=app", "ANONYMOUS"], False), ([], False)])
def test_a_listener_that_lets_nobody_in_is_told(data: dict[str, Any], allowed: list[str], told: bool) -> None:
    """The second speaks plaintext, and asks nobody."""
    _, warnings = found(put(data, "listeners.1.allowed_principals", allowed))
    assert [words for _, words in warnings] == ["refuses everybody: without tls and sasl each client is ANONYMOUS"] * told


@pytest.mark.parametrize("listener", [0, 1])
def test_a_principal_of_nobody_is_told(data: dict[str, Any], listener: int) -> None:
    data = put(data, "listeners.0.tls.client_auth", "none")
    data = put(data, f"listeners.{listener}.principal", {"from": "dns"})
    assert found(data) == (
        [],
        [(f"listeners[{listener}].principal", "has no effect: no client is asked for a certificate (tls.client_auth)")],
    )
