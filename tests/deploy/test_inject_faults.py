"""The worked example of a fault injector: what each fault does, whom it meets, the file it watches; and in a handler process of its own."""

import asyncio
import importlib.util
import json
import logging
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.handler import CLOSE, DROP, PASS, Context, Replace, Verdict
from tests.fakes.configuration import load
from tests.fakes.handler_process import HandlerProcess

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "handlers"


def example_of(name: str) -> Any:
    """The module of an example, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Lines(logging.Handler):
    """The messages of a log, which are JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    @property
    def found(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


example = example_of("inject_faults")
FRAME = b"a frame of some bytes"


class World:
    """A fault injector with a file, clocks and a log of the test's."""

    def __init__(self, folder: Path, name: str = "faults.json") -> None:
        self.path = folder / name
        self.now = 100.0
        self.wall = 1_000_000.0
        self.lines = Lines()
        log = logging.Logger("test")
        log.addHandler(self.lines)
        self.faults = example.InjectFaults(self.path, monotonic=lambda: self.now, wall=lambda: self.wall, log=log)

    def write(self, text: str) -> None:
        """The file, as an editor writes it: another inode in its place."""
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        os.utime(beside, (self.wall, self.wall))
        beside.replace(self.path)
        self.now += 1.0

    def rule(self, **rule: object) -> None:
        self.write(json.dumps({"rules": [{"name": "r", **rule}]}))

    def meet(self, frame: bytes = FRAME, **context: object) -> Verdict:
        verdict: Verdict = asyncio.run(self.faults.handle(frame, Context(has_upstream=True, **context)))  # type: ignore[arg-type]
        return verdict

    def met(self, count: int = 400, **context: object) -> list[int]:
        """Which of so many frames of a connection meet a fault."""

        async def main() -> list[int]:
            contexts = [Context(sequence=index, **context) for index in range(count)]  # type: ignore[arg-type]
            return [each.sequence for each in contexts if await self.faults.handle(FRAME, each) is not PASS]

        return asyncio.run(main())


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# What the faults do.


def test_without_a_file_everything_passes_and_nothing_is_logged(world):
    world.faults.start()
    assert world.meet() is PASS
    assert world.lines.found == []


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ({"fault": "drop"}, DROP),
        ({"fault": "close"}, CLOSE),
        ({"fault": "truncate"}, Replace(b"")),
        ({"fault": "truncate", "keep": 5}, Replace(FRAME[:5])),
        ({"fault": "truncate", "keep": 500}, Replace(FRAME)),
    ],
)
def test_each_fault(world, rule, verdict):
    world.rule(**rule)
    assert world.meet() == verdict


@pytest.mark.parametrize("count", [1, 3, 21, 1000])
def test_as_many_bytes_as_the_rule_says_are_corrupted_and_the_same_ones_each_time(world, count):
    world.rule(fault="corrupt", bytes=count)
    first = world.meet().frame
    assert sum(ours != theirs for ours, theirs in zip(FRAME, first, strict=True)) == min(count, len(FRAME))
    assert world.meet().frame == first
    assert count >= len(FRAME) or world.meet(sequence=1).frame != first
    assert world.meet(b"").frame == b""


def test_delays_add_up_and_the_first_other_fault_decides(world, monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(example.asyncio, "sleep", sleep)
    delay = {"fault": "delay", "seconds": 0.25}
    rules = [{"name": "a", **delay}, {"name": "b", **delay}, {"name": "c", "fault": "drop"}, {"name": "d", **delay}, {"name": "e", "fault": "close"}]
    world.write(json.dumps({"rules": rules}))
    assert world.meet() is DROP
    assert slept == [0.5]
    world.write(json.dumps({"rules": rules[:1]}))
    assert world.meet() is PASS
    assert slept == [0.5, 0.25]


# Whom they meet.


@pytest.mark.parametrize(
    ("match", "fits", "fits_not"),
    [
        ({"listeners": ["a", "b"]}, [{"listener": "b"}], [{"listener": "c"}]),
        ({"directions": ["response"]}, [{"direction": "response"}], [{"direction": "request"}]),
        ({"principals": ["User:app-*", "x"]}, [{"principal": "User:app-1"}, {"principal": "x"}], [{"principal": "user:app-1"}, {"principal": ""}]),
        (
            {"networks": ["10.0.0.0/8", "fd00::/8"]},
            [{"peer": "10.1.2.3:9"}, {"peer": "[fd00::1]:9"}],
            [{"peer": "11.1.2.3:9"}, {"peer": "[fe80::1]:9"}, {"peer": "unix:"}, {"peer": "unix:@10.1.2.3:4"}, {"peer": ""}],
        ),
        ({"size": {"min": 3, "max": 4}}, [{"frame": b"abc"}, {"frame": b"abcd"}], [{"frame": b"ab"}, {"frame": b"abcde"}]),
        ({"size": {"max": 0}}, [{"frame": b""}], [{"frame": b"a"}]),
        ({"prefix": "00 12"}, [{"frame": b"\x00\x12x"}], [{"frame": b"\x00"}, {"frame": b"x\x00\x12"}]),
        ({"regex": "or[dt]er-[0-9]+"}, [{"frame": b"\xff order-7"}], [{"frame": b"order-x"}]),
        ({"regex": "ü"}, [{"frame": "für".encode()}], [{"frame": "für".encode("latin-1")}]),
        ({"regex": "z"}, [{"frame": b"x" * 65_535 + b"z"}], [{"frame": b"x" * 65_536 + b"z"}]),
        (
            {"listeners": ["a"], "prefix": "61"},
            [{"listener": "a", "frame": b"a"}],
            [{"listener": "a"[:0], "frame": b"a"}, {"listener": "a", "frame": b"b"}],
        ),
    ],
)
def test_each_matcher(world, match, fits, fits_not):
    world.rule(fault="drop", match=match)
    assert [world.meet(**context) for context in fits] == [DROP] * len(fits)
    assert [world.meet(**context) for context in fits_not] == [PASS] * len(fits_not)


def test_a_share_of_frames_depends_on_seed_name_and_position_alone(world, tmp_path):
    world.rule(fault="drop", share=0.25, seed=1)
    met = world.met()
    assert 70 <= len(met) <= 130
    assert world.met() == met
    assert world.met(connection="0-1-2") != met
    assert world.met(direction="response") != met
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other")
    other.rule(fault="drop", share=0.25, seed=1)
    assert other.met() == met  # another process
    world.rule(fault="drop", share=0.25, seed=2)
    assert world.met() != met
    world.write(json.dumps({"rules": [{"name": "s", "fault": "drop", "share": 0.25, "seed": 1}]}))
    assert world.met() != met
    world.rule(fault="drop", share=0.75, seed=1)
    assert set(met) < set(world.met())  # more of the same
    world.rule(fault="drop", share=0)
    assert world.met() == []


def test_a_rule_ends_with_its_time_counted_from_the_files_change(world):
    world.rule(fault="drop", ttl=60)
    world.wall += 59.9
    assert world.meet() is DROP
    world.wall += 0.2
    assert world.meet() is PASS
    world.rule(fault="drop", ttl=60)
    assert world.meet() is DROP


# The file.


def test_the_file_is_looked_at_once_a_second(world):
    world.rule(fault="drop")
    assert world.meet() is DROP
    world.path.unlink()
    world.now += 0.9
    assert world.meet() is DROP
    world.now += 0.1
    assert world.meet() is PASS
    assert [line["event"] for line in world.lines.found] == ["faults_changed", "faults_off"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "it cannot be read: Expecting"),
        ("[" * 100_000, "it cannot be read: "),
        ("[]", "it is to be an object with a list of rules, and nothing else"),
        ('{"rules": {}}', "it is to be an object with a list of rules"),
        ('{"rules": [], "more": 1}', "and nothing else"),
        ('{"rules": [5]}', "rules[0]: is to be an object"),
        ('{"rules": [{"name": "r"}]}', "rules[0]: a rule has a name and a fault"),
        ('{"rules": [{"name": "r", "fault": "burn"}]}', "rules[0].fault: is to be delay or drop or truncate or corrupt or close, not 'burn'"),
        ('{"rules": [{"name": "r", "fault": "delay"}]}', "rules[0].seconds: a delay has some"),
        ('{"rules": [{"name": "r", "fault": "drop", "shares": 1}]}', "rules[0].shares: there is no such key"),
        ('{"rules": [{"name": "r", "fault": "drop", "share": 1.1}]}', "rules[0].share: is to be a number from 0 to 1, not 1.1"),
        ('{"rules": [{"name": "r", "fault": "drop", "share": true}]}', "rules[0].share: is to be a number"),
        ('{"rules": [{"name": "r", "fault": "drop", "share": NaN}]}', "rules[0].share: is to be a number"),
        ('{"rules": [{"name": "r", "fault": "truncate", "keep": 1.5}]}', "rules[0].keep: is to be a whole number"),
        ('{"rules": [{"name": "r", "fault": "drop", "match": {"regex": "("}}]}', "rules[0].match.regex: '(' is no regular expression"),
        ('{"rules": [{"name": "r", "fault": "drop", "match": {"prefix": "0"}}]}', "rules[0].match.prefix: non-hexadecimal"),
        (
            '{"rules": [{"name": "r", "fault": "drop", "match": {"networks": ["10.0.0.1/8"]}}]}',
            "rules[0].match.networks: 10.0.0.1/8 has host bits set",
        ),
        ('{"rules": [{"name": "r", "fault": "drop", "match": {"directions": ["up"]}}]}', "rules[0].match.directions: is to be request or response"),
        ('{"rules": [{"name": "r", "fault": "drop", "match": {"listeners": []}}]}', "rules[0].match.listeners: is to be a list with something in it"),
        ('{"rules": [{"name": "r", "fault": "drop", "match": {"size": {"least": 1}}}]}', "rules[0].match.size.least: there is no such key"),
        ('{"rules": [{"name": "r", "fault": "drop"}, {"name": "r", "fault": "close"}]}', "the name r is there twice"),
    ],
)
def test_an_invalid_file_is_logged_once_and_changes_nothing(world, text, wrong):
    world.rule(fault="drop")
    assert world.meet() is DROP
    world.write(text)
    for _ in range(3):
        assert world.meet() is DROP
        world.now += 1
    (line,) = world.lines.found[1:]
    assert (line["event"], line["in_force"], line["file"]) == ("faults_unusable", ["r"], str(world.path))
    assert wrong in line["error"]
    world.rule(fault="close")
    assert world.meet() is CLOSE
    assert world.lines.found[-1]["event"] == "faults_changed"


def test_yaml_is_read_too(tmp_path):
    world = World(tmp_path, "faults.yaml")
    text = example.__doc__.partition("::\n\n")[2].partition("\n\nThe rules are looked at")[0]
    world.write("\n".join(line.removeprefix("    ") for line in text.splitlines()))
    world.faults.start()
    assert [rule.name for rule in world.faults.rules] == ["slow-answers", "cut", "flip"]
    world.write("rules: [\n")
    assert world.meet().frame == FRAME[:10]
    assert world.lines.found[-1]["event"] == "faults_unusable"


def test_it_runs_in_a_handler_process_and_is_switched_while_it_does(tmp_path, monkeypatch):
    path = tmp_path / "faults.yaml"
    path.write_text("rules: [{name: cut, fault: truncate, keep: 2}]\n")
    monkeypatch.setenv("FRAMEGATE_FAULTS", str(path))
    with HandlerProcess(stderr=subprocess.PIPE) as process:
        process.serve({"in": "inject_faults:faults"}, [FOLDER])
        assert process.process.stderr is not None
        assert json.loads(process.process.stderr.readline())["in_force"] == ["cut"]
        processor = process.processor()
        processor.hello()
        processor.open(1, upstream=True)
        processor.request(1, 0, FRAME)
        assert processor.reply()[:6] == ("frame", "request", 0, 1, 0, FRAME[:2])
        path.unlink()
        sequence, until = 1, time.monotonic() + 10
        action = "frame"
        while action == "frame" and time.monotonic() < until:
            processor.request(1, sequence, FRAME)
            action = processor.reply().action
            sequence += 1
        assert action == "pass"


@pytest.mark.parametrize(("name", "handler"), [("inject_faults", "faults"), ("mask_field", "requests")])
def test_the_configuration_of_an_example_is_valid(name, handler):
    config = load(FOLDER / f"{name}.yaml")
    (listener,) = config.listeners
    assert (listener.handler, listener.upstream) == (f"{name}:{handler}", "service")
    assert [Path(folder) for folder in config.handlers.path] == [FOLDER]
