"""The examples load, and what the pages show of configurations and handlers does."""

import dataclasses
import json
import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from framegate.control.demo import certificates
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.config import model
from framegate.proxy.handler import Answer
from framegate.proxy.handler.load import load as load_handler
from tests.fakes.configuration import load

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
MANUAL = EXAMPLES / "framegate.yaml"
DOCS = EXAMPLES.parent / "docs"
PAGES = [DOCS.parents[1] / "README.md", *sorted(DOCS.glob("*.md"))]
HANDLER = (DOCS / "handlers.md").read_text().partition("shout.py <<'EOF'\n")[2].partition("EOF\n")[0]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A copy of an example whose certificates are there."""
    folder = tmp_path_factory.mktemp("installed")
    made = certificates.create(folder)
    made.server.rename(folder / "tls.crt")
    made.server_key.rename(folder / "tls.key")
    users = UsersFile()
    users.add("alice", new_credentials("secret", iterations=4096))
    (folder / "users").write_text(users.text())
    (folder / "users").chmod(0o600)
    for name in ("password", "token"):
        (folder / name).write_text("secret\n")
        (folder / name).chmod(0o600)
    public = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))

    def copy(path: Path) -> Path:
        target = folder / path.name
        text = re.sub("/var/run/framegate/(?:tls|sasl)", str(folder), path.read_text())
        target.write_text(re.sub(r"/(?:run|var/lib|var/log)/framegate", str(folder), text))
        return target

    return copy


def test_the_manual_loads_and_says_what_it_says(installed: Callable[[Path], Path]) -> None:
    config = load(installed(MANUAL))
    assert config.node == "edge-1"
    assert [listener.name for listener in config.listeners] == ["kafka", "lookup", "cluster", "echo"]
    assert config.listeners[0].timeouts == model.ListenerTimeouts()
    assert config.listeners[0].tls is not None
    assert config.listeners[0].tls.client_auth == "required"
    assert config.tap is not None
    assert config.tap.segment_age_ms == 300_000
    assert dataclasses.replace(config.tap, directory="", rules=(), ship=None) == model.TapConfig(directory="")
    assert config.tap.ship is not None
    assert config.tap.ship == model.ShipConfig(to=config.tap.ship.to)
    assert config.listeners[2].brokers == model.BrokersConfig(ports="19100-19199", advertise="127.0.0.1")
    assert [upstream.kafka is not None for upstream in config.upstreams] == [False, False, True]
    header = model.HeaderConfig(size=8, offset=2, byte_order="little", counts="rest", other_bytes="set", fill="c0de0001")
    assert config.listeners[1] == model.ListenerConfig(name="lookup", address="127.0.0.1:9190", upstream="lookup", framing="header", header=header)


def test_the_configurations_that_pages_show_load(installed: Callable[[Path], Path], tmp_path: Path) -> None:
    blocks = [
        block for page in PAGES for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE) if "listeners:" in block
    ]
    assert blocks
    for block in blocks:
        path = tmp_path / "page.yaml"
        path.write_text(re.sub(r"\b(tls\.(?:crt|key))", r"/var/run/framegate/tls/\1", block))
        copied = installed(path)
        (copied.parent / "shout.py").write_text(HANDLER)
        load(copied)


def test_the_handler_that_its_page_shows_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shout.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    found = load_handler("shout:shout")
    context = types.SimpleNamespace(state={})
    assert found.handle(b"hello", context) == Answer(b"HELLO", throttle=0)
    assert found.handle(b"x" * 10_000, context) == Answer(b"X" * 10_000, throttle=0.5)
