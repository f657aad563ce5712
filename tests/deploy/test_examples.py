"""The manual of the configuration's keys: complete, loadable, and honest about defaults."""

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from control.configuration import capacity
from control.configuration.load import load
from control.configuration.schema import file_key, range_text
from control.demo import certificates
from control.identity.passwords import new_credentials
from control.identity.users_file import UsersFile
from proxy.config import model
from proxy.config.key import Key, field_types, keys
from proxy.handler import Answer
from proxy.handler.load import load as load_handler

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
MANUAL = EXAMPLES / "framegate.yaml"
UNITS = {"": 1, "B": 1, "KiB": model.KIB, "MiB": model.MIB, "GiB": model.GIB, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


@dataclasses.dataclass(frozen=True)
class Stated:
    """One key of the manual: its path, joined by dots, and the comment above it."""

    path: str
    comment: str


def manual_keys(text: str) -> Iterator[Stated]:
    """Every key of the manual, by indentation, with the comment lines that stand directly above it."""
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        match = re.match(r"^( *)(- )?([a-z_]+):", line)
        if line.lstrip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
        elif match:
            indent = len(match[1]) + len(match[2] or "")
            while stack and stack[-1][0] >= indent:
                stack.pop()
            stack.append((indent, match[3]))
            yield Stated(".".join(name for _, name in stack), " ".join(comment))
            comment = []
        else:
            comment = []


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of the model: its own, its type, and what is said of it."""

    field: "dataclasses.Field[Any]"
    kind: Any
    key: Key


def model_fields(model: type, path: str = "") -> Iterator[tuple[str, Field]]:
    """Every field of the model below `model`, by its path in the file."""
    for field in dataclasses.fields(model):
        name, kind = f"{path}{file_key(field.name)}", field_types(model)[field.name]
        yield name, Field(field, kind, keys(model)[field.name])
        for part in (kind, *typing.get_args(kind)):
            if dataclasses.is_dataclass(part):
                assert isinstance(part, type)
                assert not isinstance(part, types.GenericAlias)
                yield from model_fields(part, f"{name}.")


def words_of(path: str) -> list[str]:
    """The words that a field takes; none when it is not about words."""
    kind = FIELDS[path].kind
    for part in (kind, *typing.get_args(kind)):
        if typing.get_origin(part) is typing.Literal:
            return list(typing.get_args(part))
    return []


def explained(path: str) -> str:
    """The comment of a key, where it has one."""
    return next(key.comment for key in KEYS if key.path == path and key.comment)


FIELDS = dict(model_fields(model.ProxyConfig))
KEYS = list(manual_keys(MANUAL.read_text()))


def test_every_field_of_the_model_is_in_the_manual_and_nothing_else() -> None:
    assert {key.path for key in KEYS} == set(FIELDS)


@pytest.mark.parametrize("path", sorted(FIELDS))
def test_a_field_is_explained_and_its_default_is_true(path: str) -> None:
    field = FIELDS[path].field
    explained = [key.comment for key in KEYS if key.path == path and key.comment]
    if dataclasses.is_dataclass(field.default) and not isinstance(field.default, type):
        return  # a section whose keys speak for themselves
    assert explained, f"{path} has no comment"
    stated = re.search(r"Default: (.*?)\.(?: |$)", explained[0])
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if default is dataclasses.MISSING:
        assert "Required." in explained[0]
        return
    assert stated is not None, f"{path} states no default"
    assert as_value(stated[1], default) == as_plain(default)


RANGED = sorted(path for path, field in FIELDS.items() if field.key.range)
WORDED = sorted(path for path in FIELDS if words_of(path))


@pytest.mark.parametrize("path", RANGED)
def test_the_range_that_the_manual_states_is_the_one_of_the_code(path: str) -> None:
    comment = explained(path)
    stated = re.search(r"Range: (.*?)(?: \(.*?\))?\.(?: |$)", comment)
    assert stated is not None, f"{path} states no range"
    assert stated[1] == range_text(FIELDS[path].key)
    assert comment.count("Range:") == 1


@pytest.mark.parametrize("path", WORDED)
def test_the_words_that_the_manual_states_are_those_that_are_taken(path: str) -> None:
    stated = re.search(r"[Oo]ne of: (.*?)\.(?: |$)", explained(path))
    assert stated is not None, f"{path} does not say which words it takes"
    assert [word.strip('"') for word in stated[1].split(", ")] == words_of(path)


def test_the_manual_states_a_range_for_every_number_and_for_nothing_else() -> None:
    numbers = {path for path, field in FIELDS.items() if field.kind in (int, float, dict[str, int], int | None) and field.key.unit != "ns"}
    assert set(RANGED) == numbers
    assert {key.path for key in KEYS if "Range:" in key.comment} == numbers
    assert {key.path for key in KEYS if re.search("[Oo]ne of:", key.comment)} == set(WORDED)


def test_the_manual_says_of_what_can_be_changed_at_run_time_that_it_can_and_of_nothing_else() -> None:
    assert {key.path for key in KEYS if "Can be changed at run time" in key.comment} == {path for path, field in FIELDS.items() if field.key.live}


def test_what_the_manual_reckons_with_is_what_the_warning_reckons_with() -> None:
    comment = explained("memory_pool.size")
    processes = f"{capacity.CONTROL_BASE // model.MIB} MiB for the control process, {capacity.PROCESSOR_BASE // model.MIB} MiB for each processor"
    assert processes in comment
    assert f"{capacity.HANDLER_BASE // model.MIB} MiB (or `handlers.memory`) for each handler process" in comment
    assert f"{capacity.CONNECTION // model.KIB} KiB for each connection and {capacity.TLS_SIDE // model.KIB} KiB for each side" in comment
    assert (capacity.PIECES, "a quarter more than the pool" in comment) == (1.25, True)


def as_plain(default: object) -> object:
    return list(default) if isinstance(default, tuple) else default


def as_value(text: str, default: object) -> object:
    """What the text of a default says, in the type of the default."""
    if isinstance(default, dict):
        return {} if text == "none" else text
    if isinstance(default, tuple):
        return [item for item in text.strip("[]").split(", ") if item]
    if default is None:
        return None if text == "none" else text
    if isinstance(default, bool):
        return {"true": True, "false": False}[text]
    if isinstance(default, int):
        match = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
        assert match is not None, text
        return int(match[1]) * UNITS[match[2]]
    return float(text) if isinstance(default, float) else text.strip('"')


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
        target.write_text(re.sub(r"/(?:run|var/lib)/framegate", str(folder), text))
        return target

    return copy


def test_the_manual_loads_and_says_what_it_says(installed: Callable[[Path], Path]) -> None:
    config = load(installed(MANUAL))
    assert config.node == "edge-1"
    assert [listener.name for listener in config.listeners] == ["kafka", "lookup", "echo"]
    assert config.listeners[0].timeouts == model.ListenerTimeouts()
    assert config.listeners[0].tls is not None
    assert config.listeners[0].tls.client_auth == "required"
    assert config.tap is not None
    assert config.tap.segment_age_ms == 300_000
    assert dataclasses.replace(config.tap, directory="", rules=()) == model.TapConfig(directory="")
    header = model.HeaderConfig(size=8, offset=2, byte_order="little", counts="rest", other_bytes="set", fill="c0de0001")
    assert config.listeners[1] == model.ListenerConfig(name="lookup", address="127.0.0.1:9190", upstream="lookup", framing="header", header=header)


def test_what_the_readme_shows_loads(installed: Callable[[Path], Path], tmp_path: Path) -> None:
    readme = (EXAMPLES.parents[1] / "README.md").read_text()
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL) if "listeners:" in block]
    assert blocks
    modules = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", readme, re.DOTALL)
    for block in blocks:
        path = tmp_path / "readme.yaml"
        path.write_text(re.sub(r"\b(tls\.(?:crt|key))", r"/var/run/framegate/tls/\1", block))
        copied = installed(path)
        for name, text in modules:
            (copied.parent / name).write_text(text)
        load(copied)


def test_the_handler_that_the_readme_shows_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (EXAMPLES.parents[1] / "README.md").read_text()
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", readme, re.DOTALL)
    (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = load_handler("shout:shout")
    context = types.SimpleNamespace(state={})
    assert found.handle(b"hello", context) == Answer(b"HELLO", throttle=0)
    assert found.handle(b"x" * 10_000, context) == Answer(b"X" * 10_000, throttle=0.5)


def test_the_configuration_of_the_overlay_loads(installed: Callable[[Path], Path]) -> None:
    config = load(installed(EXAMPLES.parent / "kustomize" / "example" / "framegate.yaml"))
    assert config.listeners[0].max_receive_size == 16 * model.MIB
