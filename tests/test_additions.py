"""What one touches to add something, as README's "Developing" says: done to a copy of the source, and nothing else.

What is missing when one of the files is forgotten is told by the tests beside the code; here they are asked in the copy.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.cause import Cause
from proxy.network import mute

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MODEL, MANUAL = "proxy/config/model.py", "deploy/examples/framegate.yaml"
PROTO = "proto/framegate/control/v1/channel_service.proto"


def row(kind: str) -> tuple[int, list[str]]:
    """How many files README says one touches to add something, and which."""
    found = re.search(rf"^\| {kind} \| (\d+) \| (.*?)(?:;|\|)", README, re.MULTILINE)
    assert found is not None, f"README does not say what {kind} touches"
    return int(found[1]), re.findall(r"`((?:proxy|control|proto|deploy)/[a-z_0-9/.]*)`", found[2])


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The source, to be changed."""
    for name in ("proxy", "control", "deploy", "proto"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    shutil.copytree(ROOT / "tests" / "deploy", tmp_path / "tests" / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def change(copy: Path, path: str, after: str, text: str) -> None:
    """Put a text behind another that is there once."""
    before = (copy / path).read_text()
    assert before.count(after) == 1, after
    (copy / path).write_text(before.replace(after, after + text))


def ask(copy: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a script on the copy."""
    command = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60, check=False)


FLAT = {
    MODEL: (
        '    """How connections end when the proxy stops. Frames pass as ever until a connection is done, or its client is not read any more."""\n',
        '    grace_ms: Annotated[int, Key("added", "ms", (1, 2 * _SECOND), live=True)] = 5\n',
    ),
    MANUAL: ("\ndrain:\n", "  # Added. Range: 1ms to 2s. Default: 5ms. Can be changed at run time.\n  grace: 5ms\n"),
}
ADDED_SECTION = '''
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddedConfig:
    """Added."""

    file: Annotated[str, Key("added", "path")]
    parts: Annotated[tuple[str, ...], Key("added")] = ()
    size: Annotated[int, Key("added", "bytes", (KIB, MIB))] = KIB

'''
CONFIGURED = """
import json
from control.configuration.document import document_of
from control.configuration.paths import make_absolute
from control.configuration.schema import build, convert
from proxy.config.model import from_wire, to_wire
import pathlib

SMALL = {
    "node": "n",
    "listeners": [{"name": "a", "address": "127.0.0.1:0", "upstream": "u"}],
    "upstreams": [{"name": "u", "endpoints": ["127.0.0.1:1"]}],
}

def read(**keys):
    document = document_of({**SMALL, **keys})
    values = convert(document)
    make_absolute(values, pathlib.Path("/folder"))
    config = build(document, values)
    if config is not None:
        assert from_wire(json.loads(json.dumps(to_wire(config)))) == config
    return config, [f"{fault.key} {fault.reason}" for fault in document.faults]
"""
MANUAL_TESTS = """
import runpy
examples = runpy.run_path("tests/deploy/test_examples.py")
examples["test_every_field_of_the_model_is_in_the_manual_and_nothing_else"]()
examples["test_the_manual_states_a_range_for_every_number_and_for_nothing_else"]()
examples["test_the_manual_says_of_what_can_be_changed_at_run_time_that_it_can_and_of_nothing_else"]()
for path in examples["FIELDS"]:
    examples["test_a_field_is_explained_and_its_default_is_true"](path)
for path in examples["RANGED"]:
    examples["test_the_range_that_the_manual_states_is_the_one_of_the_code"](path)
for path in examples["WORDED"]:
    examples["test_the_words_that_the_manual_states_are_those_that_are_taken"](path)
"""


def test_a_key_is_a_field_of_the_model_and_a_place_in_the_manual(copy: Path) -> None:
    assert row("a key of the configuration") == (2, [MODEL, MANUAL]) == (len(FLAT), list(FLAT))
    change(copy, MODEL, *FLAT[MODEL])
    script = """
config, faults = read(drain={"grace": "1500ms"})
assert (config.drain.grace_ms, faults) == (1500, []), faults
config, faults = read(drain={"grace": "3s"})
assert faults == ["drain.grace must be from 1ms to 2s"], faults
"""
    done = ask(copy, CONFIGURED + script)
    assert done.returncode == 0, done.stderr
    forgotten = ask(copy, MANUAL_TESTS)
    assert "AssertionError" in forgotten.stderr, "the manual is not held against the model"
    change(copy, MANUAL, *FLAT[MANUAL])
    done = ask(copy, MANUAL_TESTS)
    assert done.returncode == 0, done.stderr


def test_a_section_needs_no_file_more(copy: Path) -> None:
    model = copy / MODEL
    text = model.read_text()
    before = "@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)\nclass AdminConfig:"
    assert text.count(before) == 1
    text = text.replace(before, f"{ADDED_SECTION.strip()}\n\n\n{before}")
    last = "    drain: Annotated["
    assert text.count(last) == 1
    model.write_text(text.replace(last, f'    added: Annotated[AddedConfig | None, Key("added")] = None\n{last}'))
    script = """
config, faults = read(added={"file": "a.pem", "parts": ["x", "y"], "size": "2KiB"})
assert (config.added.file, config.added.parts, config.added.size, faults) == ("/folder/a.pem", ("x", "y"), 2048, []), faults
config, faults = read(added={"size": 1})
assert faults == ["added.size must be from 1KiB to 1MiB", "added.file is required"], faults
assert read()[0].added is None
"""
    done = ask(copy, CONFIGURED + script)
    assert done.returncode == 0, done.stderr
    section = "\n# Added. Default: none.\nadded:\n  # Added. Required.\n  file: a\n  # Added. Default: [].\n  parts: []\n"
    (copy / MANUAL).write_text((copy / MANUAL).read_text() + section + "  # Added. Range: 1KiB to 1MiB. Default: 1KiB.\n  size: 1KiB\n")
    done = ask(copy, MANUAL_TESTS)
    assert done.returncode == 0, done.stderr


def test_a_field_of_which_nothing_is_said_does_not_pass(copy: Path) -> None:
    change(copy, MODEL, FLAT[MODEL][0], "    grace_ms: int = 5\n")
    done = ask(copy, CONFIGURED + "read(drain={})")
    assert "TypeError: DrainConfig.grace_ms has 0 Keys, not one" in done.stderr


CAUSE = {
    "proxy/cause.py": ('    HANDLER_CLOSED = "handler_closed"  # a handler asked for it\n', '    ADDED = "added"\n'),
    PROTO: ("  CAUSE_SESSION_EXPIRED = 24;\n", "  // Added.\n  CAUSE_ADDED = 25;\n"),
}
CLOSED = """
from control.service.convert import cause_name, channel_message
from proxy.cause import Cause
from proxy.cells import LISTENER_BLOCK
from proxy.relay.counters import ERROR_INDEX
from proxy.relay.ending import CLOSED_BY
from tests.fakes.plane import closed_row

assert Cause.ADDED in CLOSED_BY and ERROR_INDEX[Cause.ADDED] > 0
assert LISTENER_BLOCK.at("framegate.connection.closed", "added") == CLOSED_BY[Cause.ADDED]
assert cause_name(channel_message(closed_row("0-1-1", "added")).close.cause) == "added"
"""


@pytest.mark.slow
def test_a_close_cause_is_a_member_and_a_value_of_the_api(copy: Path) -> None:
    assert row("a close cause") == (3, list(CAUSE))
    shutil.copytree(ROOT / "tests" / "fakes", copy / "tests" / "fakes", ignore=shutil.ignore_patterns("__pycache__"))
    change(copy, "proxy/cause.py", *CAUSE["proxy/cause.py"])
    forgotten = ask(copy, CLOSED)
    assert "no value defined for name 'CAUSE_ADDED'" in forgotten.stderr, "the metrics have it; the API has not"
    change(copy, PROTO, *CAUSE[PROTO])
    done = ask(copy, "from control.gen.__main__ import ROOT, generate; generate(ROOT)" + CLOSED)
    assert done.returncode == 0, done.stderr


def words(section: str) -> list[str]:
    """What stands in backticks, in its order."""
    return re.findall(r"`([a-z_]+)`", section)


def test_the_causes_that_readme_lists_are_those_there_are() -> None:
    listed = re.search(r"^A connection ends for one of these causes: (.*?)\.$", README, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert words(listed[1]) == [cause.value for cause in Cause]


def test_the_mute_causes_that_readme_lists_are_those_there_are() -> None:
    listed = re.search(r"the set of causes that mute it is empty: (.*?)\. ", README, re.DOTALL)
    assert listed is not None
    assert set(words(listed[1])) == {name for name, _ in mute.CAUSES}


@pytest.mark.parametrize("kind", ["a key of the configuration", "a key of a tap rule", "an RPC", "a close cause", "a mute cause"])
def test_what_readme_says_one_touches_is_there_and_counted(kind: str) -> None:
    count, paths = row(kind)
    assert all((ROOT / path).exists() for path in paths), paths
    beside = {"a key of a tap rule": 2, "a close cause": 1, "a mute cause": 1}  # the two of every key; the list of causes, which is in README itself
    assert count == len(paths) + beside.get(kind, 0)
