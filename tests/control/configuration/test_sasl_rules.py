"""What SASL asks of the rest of a configuration. What SASL towards an upstream asks of the rest."""

import pathlib
from typing import Any

import pytest

from framegate.control.configuration.load import validate
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig, logins_of
from tests.control.identity.conftest import Signer
from tests.fakes.configuration import faults, put, warnings

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


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("protocol", "framed", KEY, "needs protocol: kafka"),
        ("protocol", ..., KEY, "needs protocol: kafka"),
        ("framing", "uint32_le", "listeners[0].framing", "must be int32"),
        ("sasl.mechanisms", [], f"{KEY}.mechanisms", "needs at least one"),
        ("sasl.mechanisms", ..., f"{KEY}.mechanisms", "is required"),
        ("sasl.mechanisms", ["PLAIN", "OAUTHBEARER", "PLAIN"], f"{KEY}.mechanisms[2]", "is named twice"),
        ("sasl.mechanisms", ["GSSAPI"], f"{KEY}.mechanisms[0]", "must be 'PLAIN', 'SCRAM-SHA-256'"),
        ("sasl.users", ..., f"{KEY}.users", "is required for SCRAM-SHA-256 and PLAIN"),
        ("sasl.tokens", ..., f"{KEY}.tokens", "is required for OAUTHBEARER"),
        ("sasl.users", "/there/is/none", f"{KEY}.users", "cannot be read: No such file"),
        ("sasl.users", "FOLDER/nonsense", f"{KEY}.users", "is no file of users: line 1: "),
        (
            "sasl.users",
            "FOLDER/broken",
            f"{KEY}.users",
            "is no file of users: line 4: a line is NAME MECHANISM CREDENTIAL, with one space between them; 1 other line as well",
        ),
        ("sasl.users", "FOLDER", f"{KEY}.users", "cannot be read: Is a directory"),
        ("sasl.tokens.jwks", "/there/is/none", f"{KEY}.tokens.jwks", "cannot be read: No such file"),
        ("sasl.tokens.jwks", "FOLDER/nonsense", f"{KEY}.tokens.jwks", "is no file of keys: not JSON"),
        ("sasl.tokens.issuer", "", f"{KEY}.tokens.issuer", "must not be empty"),
        ("sasl.tokens.audience", "", f"{KEY}.tokens.audience", "must not be empty"),
        ("sasl.tokens.audience", ..., f"{KEY}.tokens.audience", "is required"),
        ("sasl.tokens.algorithms", [], f"{KEY}.tokens.algorithms", "needs at least one"),
        ("sasl.tokens.algorithms", ["HS256"], f"{KEY}.tokens.algorithms[0]", "must be 'RS256'"),
        ("sasl.tokens.algorithms", ["RS256", "RS256"], f"{KEY}.tokens.algorithms[1]", "is named twice"),
        ("sasl.tokens.scopes", ["a", "b c"], f"{KEY}.tokens.scopes[1]", "is no scope"),
        ("sasl.tokens.scopes", [""], f"{KEY}.tokens.scopes[0]", "is no scope"),
        ("sasl.tokens.clock_skew", "1500ms", f"{KEY}.tokens.clock_skew", "must be whole seconds"),
        ("sasl.tokens.clock_skew", "11m", f"{KEY}.tokens.clock_skew", "must be from 0 to 10m"),
        ("sasl.max_session", "31d", f"{KEY}.max_session", "must be from 0 to 30d"),
        ("sasl.max_frame", "1B", f"{KEY}.max_frame", "must be from 1KiB to 16MiB"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(asking: dict[str, Any], folder: pathlib.Path, path: str, value: object, key: str, part: str) -> None:
    if isinstance(value, str):
        value = value.replace("FOLDER", str(folder))
    found = faults(put(asking, f"listeners.0.{path}", value))
    assert [item for item, reason in found if part in reason] == [key], found
    assert "canary" not in str(found)


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("sasl.mechanisms", ["OAUTHBEARER"], f"{KEY}.users", "has no effect: no mechanism is checked against it"),
        ("sasl.mechanisms", ["PLAIN"], f"{KEY}.tokens", "has no effect: no mechanism is checked against it"),
        ("sasl.users", "FOLDER/empty", f"{KEY}.users", "has no users; framegate users add makes one"),
        ("sasl.users", "FOLDER/shown", f"{KEY}.users", "can be read or written by everybody on this machine"),
        ("sasl.tokens.algorithms", ["ES256"], "", ""),
        ("tls", ..., f"{KEY}.mechanisms", "PLAIN without tls: passwords pass where everybody on the way can read them"),
        ("tls", ..., f"{KEY}.mechanisms", "OAUTHBEARER without tls: tokens pass"),
    ],
)
def test_what_is_hardly_meant_is_warned_of(
    asking: dict[str, Any], folder: pathlib.Path, tmp_path: pathlib.Path, path: str, value: object, key: str, part: str
) -> None:
    if isinstance(value, str):
        value = value.replace("FOLDER", str(folder))
    found = warnings(put(asking, f"listeners.0.{path}", value), tmp_path)
    assert [item for item, reason in found if part and part in reason] == [key] * bool(part), found
    assert bool(found) == bool(part)


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
def test_a_broken_rule_of_an_upstream_is_named_at_its_key(kafka: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
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
