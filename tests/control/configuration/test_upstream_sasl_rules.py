"""What SASL towards an upstream asks of the rest."""

import pathlib
from typing import Any

import pytest

from control.configuration.load import validate
from proxy.config.upstream_sasl import logins_of
from tests.fakes.configuration import faults, put, warnings

SECRET = "canary-7f3a9c"


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def kafka(data: dict[str, Any], secret: str) -> dict[str, Any]:
    """One login for all."""
    for listener in data["listeners"]:
        listener["protocol"] = "kafka"
    data["upstreams"][0]["sasl"] = {"mechanism": "SCRAM-SHA-512", "user": "gate", "password_file": secret}
    return data


@pytest.fixture
def ruled(kafka: dict[str, Any], secret: str) -> dict[str, Any]:
    """By who the client is."""
    kafka["upstreams"][0]["sasl"] = {
        "identities": [
            {"principals": ["alice", "RULE:CN=app-.*//"], "mechanism": "PLAIN", "user": "apps", "password_file": secret},
            {"mechanism": "OAUTHBEARER", "token_file": secret},
        ]
    }
    return kafka


def test_one_login_for_all_and_logins_by_rule_are_good(kafka: dict[str, Any], ruled: dict[str, Any], tmp_path: pathlib.Path, secret: str) -> None:
    assert (faults(ruled), warnings(ruled, tmp_path)) == ([], [])
    sasl = validate(ruled).upstreams[0].sasl
    assert sasl is not None
    assert [tuple(login) for login in logins_of("brokers", sasl)] == [
        (("alice", "RULE:CN=app-.*//"), "PLAIN", "apps", "brokers/0", secret),
        ((), "OAUTHBEARER", "", "brokers/1", secret),
    ]
    ruled["upstreams"][0]["sasl"] = {"mechanism": "SCRAM-SHA-256", "user": "gate", "password_file": secret}
    assert (faults(ruled), warnings(ruled, tmp_path)) == ([], [])


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("listeners.1.protocol", "framed", "listeners[1].protocol", "must be kafka: SASL of the upstream brokers is Kafka's"),
        ("listeners.1.protocol", ..., "listeners[1].protocol", "must be kafka"),
        ("upstreams.0.framing", "varint", "upstreams[0].sasl", "needs framing: int32"),
        ("upstreams.0.sasl", {}, "upstreams[0].sasl.mechanism", "is required where there are no identities"),
        ("upstreams.0.sasl.mechanism", "GSSAPI", "upstreams[0].sasl.mechanism", "must be 'PLAIN'"),
        ("upstreams.0.sasl.mechanism", "OAUTHBEARER", "upstreams[0].sasl.token_file", "is required for OAUTHBEARER"),
        ("upstreams.0.sasl.mechanism", "OAUTHBEARER", "upstreams[0].sasl.password_file", "is not for OAUTHBEARER"),
        ("upstreams.0.sasl.user", ..., "upstreams[0].sasl.user", "is required for SCRAM-SHA-512"),
        ("upstreams.0.sasl.password_file", ..., "upstreams[0].sasl.password_file", "is required for SCRAM-SHA-512"),
        ("upstreams.0.sasl.password_file", "/nowhere/secret", "upstreams[0].sasl.password_file", "cannot be read: No such file"),
        ("upstreams.0.sasl.password_file", "/dev/null", "upstreams[0].sasl.password_file", "no ordinary file"),
        ("upstreams.0.sasl.token_file", "/etc/hostname", "upstreams[0].sasl.token_file", "is not for SCRAM-SHA-512"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(kafka: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    found = faults(put(kafka, path, value))
    assert key in [item for item, reason in found if part in reason], found


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("mechanism", "PLAIN", "mechanism", "and identities exclude each other"),
        ("identities.0.principals", [], "identities[1]", "is never taken"),
        ("identities.0.principals.0", "RULE:(//", "identities[0].principals[0]", "is no rule"),
        ("identities.0.principals.0", "RULE:a//,RULE:b//", "identities[0].principals[0]", "must be one rule"),
        ("identities.0.principals.1", "alice", "identities[0].principals[1]", "is named twice"),
        ("identities.0.user", "", "identities[0].user", "is required for PLAIN"),
        ("identities.1.token_file", ..., "identities[1].token_file", "is required for OAUTHBEARER"),
        ("identities.1.mechanism", ..., "identities[1].mechanism", "is required"),
    ],
)
def test_a_broken_rule_of_identities_is_named_at_its_key(ruled: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    found = faults(put(ruled, f"upstreams.0.sasl.{path}", value))
    assert [(item, part in reason) for item, reason in found] == [(f"upstreams[0].sasl.{key}", True)], found


@pytest.mark.parametrize("content", ["", "\n", "two\nlines\n", "a\0b", "x" * 70_000])
def test_a_file_that_holds_no_secret_is_refused_without_a_word_of_it(kafka: dict[str, Any], secret: str, content: str) -> None:
    pathlib.Path(secret).write_text(content)
    ((key, reason),) = faults(kafka)
    assert key == "upstreams[0].sasl.password_file"
    assert reason.startswith("cannot be used: ")
    assert not content.strip() or content.strip() not in reason


def test_a_secret_in_clear_and_one_that_everybody_can_read_are_warned_of(kafka: dict[str, Any], secret: str, tmp_path: pathlib.Path) -> None:
    kafka["upstreams"][0].pop("tls")
    assert warnings(kafka, tmp_path) == [], "SCRAM shows no password"
    kafka["upstreams"][0]["sasl"]["mechanism"] = "PLAIN"
    pathlib.Path(secret).chmod(0o644)
    assert warnings(kafka, tmp_path) == [
        ("upstreams[0].sasl.mechanism", "PLAIN without tls: the password passes where everybody on the way can read it"),
        ("upstreams[0].sasl.password_file", "can be read or written by everybody on this machine; chmod 600"),
    ]
