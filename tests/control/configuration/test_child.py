"""A configuration loaded in a child. The child is a fork, so each case runs in a process of its own that has no threads, as the control process."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from framegate.control.configuration.child import load_in_child, load_row, loaded_from_row
from framegate.control.configuration.document import ConfigurationError
from framegate.control.demo.certificates import create
from framegate.control.files import digest
from framegate.proxy.config.model import from_wire
from tests.fakes.configuration import load

EXAMPLE = """
node: n
admin: {address: "unix:admin.sock"}
listeners: [{name: a, address: "127.0.0.1:0", upstream: u, timeouts: {idle: 1m}}]
upstreams: [{name: u, endpoints: ["127.0.0.1:1"]}]
tap: {directory: log, rules: [{name: r, sample_connections: 0.5}]}
"""
CODE = """
import json, os, sys
from framegate.control.configuration.child import load_in_child, load_row, loaded_from_row
from framegate.control.configuration.document import ConfigurationError
from framegate.control.configuration.document import ConfigurationError
from framegate.proxy.config.model import to_wire
files, ends = {}, {}
try:
    loaded = load_in_child(sys.argv[1])
    found = to_wire(loaded.config)
    files, ends = loaded.tls_files, {path: [item.ends for item in each] for path, each in loaded.certificates.items()}
except ConfigurationError as error:
    found = [str(fault) for fault in error.faults]
except RuntimeError as error:
    found = str(error)
try:
    children = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    children = None
modules = [name for name in ("ruamel.yaml", "cryptography", "ssl", "framegate.control.configuration.load") if name in sys.modules]
print(json.dumps([found, modules, children, files, ends]))
"""


def in_child(path: Path, before: str = "") -> tuple[list[object], str]:
    done = subprocess.run([sys.executable, "-c", before + CODE, str(path)], capture_output=True, text=True, timeout=30, check=True)
    row: list[object] = json.loads(done.stdout)
    return row, done.stderr


def test_the_model_is_the_one_of_load_and_nothing_of_the_child_stays(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(EXAMPLE)
    (found, loaded, children, files, ends), errors = in_child(path)
    assert isinstance(found, dict)
    assert from_wire(found) == load(path)
    assert (loaded, children, files, ends, errors) == ([], None, {}, {}, "")


def test_every_fault_comes_back_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text("node: a/ß\nlisteners: []\n")
    (found, _, children, *_), errors = in_child(path)
    assert isinstance(found, list)
    assert len(found) == 3
    assert found[0].startswith("line 1: node = a/ß: must be")
    assert (children, errors) == (None, "")


def test_a_process_with_threads_does_not_fork(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    with pytest.raises(AssertionError, match="threads"):
        load_in_child(tmp_path / "framegate.yaml")


def test_a_child_that_fails_says_why_and_ends_the_start(tmp_path: Path) -> None:
    broken = "import sys; sys.modules['framegate.control.configuration.load'] = None\n"
    (found, _, children, *_), errors = in_child(tmp_path / "framegate.yaml", broken)
    assert found == "the process that reads the configuration ended with 1"
    assert "ModuleNotFoundError" in errors or "ImportError" in errors
    assert children is None


def test_a_process_that_is_asked_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path)
    path = tmp_path / "framegate.yaml"
    text = EXAMPLE.replace("timeouts: {idle: 1m}", "tls: {certificate: server.crt, key: server.key}")
    path.write_text(text)
    monkeypatch.setenv("FRAMEGATE_ZONE", "other")
    question = {"path": str(path), "text": None, "zone": "here", "named": None}
    loaded = loaded_from_row(json.loads(json.dumps(load_row(question))))
    assert (loaded.config, loaded.config.zone) == (load(path), "here")
    assert (loaded.path, loaded.digest) == (str(path), digest({str(path): text.encode()}))
    assert {Path(name).name: len(loaded.certificates[name]) for name in loaded.tls_files} == {"server.crt": 1, "server.key": 0}
    path.write_text("node: [")
    other = loaded_from_row(load_row({**question, "text": text}))
    assert other == loaded._replace(digest=b"")
    with pytest.raises(ConfigurationError, match="line 1: the document: is not YAML"):
        loaded_from_row(load_row(question))
