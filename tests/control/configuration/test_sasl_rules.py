"""What SASL asks of the rest of a configuration."""

import json
import pathlib
from typing import Any

import pytest

from control.configuration.load import validate
from control.identity.passwords import new_credentials
from control.identity.users_file import UsersFile
from proxy.config.sasl import ListenerSasl, TokenConfig
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


def test_paths_begin_at_the_folder_of_the_file(asking: dict[str, Any], folder: pathlib.Path) -> None:
    asking["listeners"][0]["sasl"]["users"] = "users"
    asking["listeners"][0]["sasl"]["tokens"]["jwks"] = "jwks"
    found = validate(asking, folder).listeners[0].sasl
    assert found is not None
    assert found.tokens is not None
    assert (found.users, found.tokens.jwks) == (f"{folder}/users", f"{folder}/jwks")


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


def test_keys_that_no_token_can_be_signed_with_are_warned_of(asking: dict[str, Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "jwks").write_text(json.dumps({"keys": [Signer().jwk("p384")]}))
    asking["listeners"][0]["sasl"]["tokens"]["jwks"] = str(tmp_path / "jwks")
    assert warnings(asking, tmp_path) == [(f"{KEY}.tokens.jwks", "has no key for RS256, PS256, ES256, EdDSA: no token is good")]
