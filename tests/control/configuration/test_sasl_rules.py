"""SASL of listeners, and SASL towards upstreams."""

import pathlib
from typing import Any

import pytest

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig, logins_of
from tests.control.configuration.conftest import unwarned
from tests.control.identity.conftest import Signer
from tests.fakes.configuration import faults, misnamed, put, validate, warnings

KEY = "listeners[0].sasl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Files that are good, and some that are not."""
    folder = tmp_path_factory.mktemp("sasl")
    users = UsersFile()
    (folder / "empty").write_text(users.text())
    users.add("alice", new_credentials("secret", iterations=4096))
    (folder / "users").write_text(users.text())
    (folder / "shown").write_text(users.text())
    (folder / "jwks").write_bytes(Signer().jwks())
    (folder / "nonsense").write_text("nonsense canary\n")
    (folder / "broken").write_text(f"{users.text()}canary\ncanary\n")
    for path in folder.iterdir():
        path.chmod(0o600)
    (folder / "shown").chmod(0o604)
    return folder


@pytest.fixture
def asking(data: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """The first listener asks for SASL of every kind, within TLS."""
    tokens = {"jwks": str(folder / "jwks"), "issuer": "https://i", "audience": "a"}
    sasl = {"mechanisms": ["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"], "users": str(folder / "users"), "tokens": tokens}
    data["listeners"][0] |= {"protocol": "kafka", "sasl": sasl}
    return data


def test_a_listener_that_asks_for_sasl(asking: dict[str, Any], folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert (faults(asking), warnings(asking, tmp_path)) == ([], [])
    asking["listeners"][0]["sasl"] |= {"max_session": "90s", "max_frame": "64KiB"}
    found = validate(asking, pathlib.Path("/etc")).listeners[0].sasl
    assert found == ListenerSasl(
        mechanisms=("SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"),
        users=str(folder / "users"),
        tokens=TokenConfig(jwks=str(folder / "jwks"), issuer="https://i", audience="a"),
        max_session_ms=90_000,
        max_frame=65536,
    )


def test_a_broken_rule_is_named_at_its_key(asking: dict[str, Any], folder: pathlib.Path) -> None:
    broken = "a line is NAME MECHANISM CREDENTIAL, with one space between them"
    cases = [
        ("listeners.0.protocol", "framed", KEY, "needs protocol: kafka"),
        ("listeners.0.protocol", ..., KEY, "needs protocol: kafka"),
        ("listeners.0.framing", "uint32_le", "listeners[0].framing", "must be int32"),
        ("listeners.0.sasl.mechanisms", [], f"{KEY}.mechanisms", "needs at least one"),
        ("listeners.0.sasl.mechanisms", ..., f"{KEY}.mechanisms", "is required"),
        ("listeners.0.sasl.mechanisms", ["PLAIN", "OAUTHBEARER", "PLAIN"], f"{KEY}.mechanisms[2]", "is named twice"),
        ("listeners.0.sasl.mechanisms", ["GSSAPI"], f"{KEY}.mechanisms[0]", "must be 'PLAIN', 'SCRAM-SHA-256'"),
        ("listeners.0.sasl.users", ..., f"{KEY}.users", "is required for SCRAM-SHA-256 and PLAIN"),
        ("listeners.0.sasl.tokens", ..., f"{KEY}.tokens", "is required for OAUTHBEARER"),
        ("listeners.0.sasl.users", "/there/is/none", f"{KEY}.users", "cannot be read: No such file"),
        ("listeners.0.sasl.users", f"{folder}/nonsense", f"{KEY}.users", "is no file of users: line 1: "),
        ("listeners.0.sasl.users", f"{folder}/broken", f"{KEY}.users", f"is no file of users: line 4: {broken}; 1 other line as well"),
        ("listeners.0.sasl.users", str(folder), f"{KEY}.users", "cannot be read: Is a directory"),
        ("listeners.0.sasl.tokens.jwks", "/there/is/none", f"{KEY}.tokens.jwks", "cannot be read: No such file"),
        ("listeners.0.sasl.tokens.jwks", f"{folder}/nonsense", f"{KEY}.tokens.jwks", "is no file of keys: not JSON"),
        ("listeners.0.sasl.tokens.issuer", "", f"{KEY}.tokens.issuer", "must not be empty"),
        ("listeners.0.sasl.tokens.audience", "", f"{KEY}.tokens.audience", "must not be empty"),
        ("listeners.0.sasl.tokens.audience", ..., f"{KEY}.tokens.audience", "is required"),
        ("listeners.0.sasl.tokens.algorithms", [], f"{KEY}.tokens.algorithms", "needs at least one"),
        ("listeners.0.sasl.tokens.algorithms", ["HS256"], f"{KEY}.tokens.algorithms[0]", "must be 'RS256'"),
        ("listeners.0.sasl.tokens.algorithms", ["RS256", "RS256"], f"{KEY}.tokens.algorithms[1]", "is named twice"),
        ("listeners.0.sasl.tokens.scopes", ["a", "b c"], f"{KEY}.tokens.scopes[1]", "is no scope"),
        ("listeners.0.sasl.tokens.scopes", [""], f"{KEY}.tokens.scopes[0]", "is no scope"),
        ("listeners.0.sasl.tokens.clock_skew", "1500ms", f"{KEY}.tokens.clock_skew", "must be whole seconds"),
        ("listeners.0.sasl.tokens.clock_skew", "11m", f"{KEY}.tokens.clock_skew", "must be from 0 to 10m"),
        ("listeners.0.sasl.max_session", "31d", f"{KEY}.max_session", "must be from 0 to 30d"),
        ("listeners.0.sasl.max_frame", "1B", f"{KEY}.max_frame", "must be from 1KiB to 16MiB"),
    ]
    assert misnamed(asking, cases) == []
    for name in ("nonsense", "broken"):
        assert "canary" not in str(faults(put(asking, "listeners.0.sasl.users", f"{folder}/{name}")))


def test_an_unlikely_setting_is_a_warning(asking: dict[str, Any], folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cases = [
        ("listeners.0.sasl.mechanisms", ["OAUTHBEARER"], f"{KEY}.users", "has no effect: no mechanism is checked against it"),
        ("listeners.0.sasl.mechanisms", ["PLAIN"], f"{KEY}.tokens", "has no effect: no mechanism is checked against it"),
        ("listeners.0.sasl.users", f"{folder}/empty", f"{KEY}.users", "has no users; framegate users add makes one"),
        ("listeners.0.sasl.users", f"{folder}/shown", f"{KEY}.users", "can be read or written by everybody on this machine"),
    ]
    assert unwarned(asking, tmp_path, cases) == []
    assert warnings(put(asking, "listeners.0.sasl.tokens.algorithms", ["ES256"]), tmp_path) == []
    found = warnings(put(asking, "listeners.0.tls", ...), tmp_path)
    way = "are sent unencrypted"
    words = [f"OAUTHBEARER without tls: tokens {way}", f"PLAIN without tls: passwords {way}"]
    assert found == [(f"{KEY}.mechanisms", text) for text in words]


SECRET = "canary-7f3a9c"


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def kafka(data: dict[str, Any], secret: str) -> dict[str, Any]:
    for listener in data["listeners"]:
        listener["protocol"] = "kafka"
    data["upstreams"][0]["sasl"] = {"mechanism": "SCRAM-SHA-512", "user": "gate", "password_file": secret}
    return data


@pytest.fixture
def ruled(kafka: dict[str, Any], secret: str) -> dict[str, Any]:
    """Logins by the client's principal."""
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


def test_a_broken_rule_of_an_upstream_is_named_at_its_key(kafka: dict[str, Any]) -> None:
    cases = [
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
    ]
    for path, value, key, part in cases:
        found = faults(put(kafka, path, value))
        assert key in [item for item, reason in found if part in reason], (path, value, found)


def test_a_broken_rule_of_identities_is_named_at_its_key(ruled: dict[str, Any]) -> None:
    cases: list[tuple[str, object, str, str]] = [
        ("mechanism", "PLAIN", "mechanism", "and identities exclude each other"),
        ("identities.0.principals", [], "identities[1]", "is never taken"),
        ("identities.0.principals.0", "RULE:(//", "identities[0].principals[0]", "is no rule"),
        ("identities.0.principals.0", "RULE:a//,RULE:b//", "identities[0].principals[0]", "must be one rule"),
        ("identities.0.principals.1", "alice", "identities[0].principals[1]", "is named twice"),
        ("identities.0.user", "", "identities[0].user", "is required for PLAIN"),
        ("identities.1.token_file", ..., "identities[1].token_file", "is required for OAUTHBEARER"),
        ("identities.1.mechanism", ..., "identities[1].mechanism", "is required"),
    ]
    for path, value, key, part in cases:
        found = faults(put(ruled, f"upstreams.0.sasl.{path}", value))
        assert [(item, part in reason) for item, reason in found] == [(f"upstreams[0].sasl.{key}", True)], (path, value, found)


def test_a_file_that_holds_no_secret_is_refused_and_its_contents_are_not_shown(kafka: dict[str, Any], secret: str) -> None:
    for content in ("", "\n", "two\nlines\n", "a\0b", "x" * 70_000):
        pathlib.Path(secret).write_text(content)
        ((key, reason),) = faults(kafka)
        assert (key, reason.startswith("cannot be used: ")) == ("upstreams[0].sasl.password_file", True)
        assert not content.strip() or content.strip() not in reason


def test_a_secret_in_clear_and_one_that_everybody_can_read_are_warned_of(kafka: dict[str, Any], secret: str, tmp_path: pathlib.Path) -> None:
    kafka["upstreams"][0].pop("tls")
    assert warnings(kafka, tmp_path) == [], "SCRAM shows no password"
    kafka["upstreams"][0]["sasl"]["mechanism"] = "PLAIN"
    pathlib.Path(secret).chmod(0o644)
    assert warnings(kafka, tmp_path) == [
        ("upstreams[0].sasl.mechanism", "PLAIN without tls: the password is sent unencrypted"),
        ("upstreams[0].sasl.password_file", "can be read or written by everybody on this machine; chmod 600"),
    ]
