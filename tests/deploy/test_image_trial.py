"""The trial of an image: what does not come back as it was sent, writes where it must not, or ends badly, is told; and nothing is left running.

An engine stands in whose containers are processes of this machine: the trial itself is the real one.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import deploying
from tests.fakes.cases import each_of

image_trial = deploying.module("image_trial")

# Forwards bytes between the listener and the upstream of the configuration, and ends on SIGTERM with the code it was told.
CONTAINER = """
import os, re, signal, socket, sys, threading
folder, fault = sys.argv[1:]
listener, upstream = map(int, re.findall(r"127.0.0.1:([0-9]+)", open(folder + "/framegate.yaml").read()))
open(folder + "/pid", "w").write(str(os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: os._exit(3 if fault == "dirty" else 0))
if fault == "dies":
    print("no such key: listners")
    sys.exit(2)
def pump(source, target):
    while data := source.recv(65536):
        target.sendall(data[:-1] + bytes([data[-1] + 1 & 255]) if fault == "changes" else data)
    target.close()
server = socket.create_server(("127.0.0.1", listener))
while True:
    client = server.accept()[0]
    there = socket.create_connection(("127.0.0.1", upstream))
    for pair in ((client, there), (there, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


class LocalEngine:
    """An engine whose containers are processes of this machine."""

    def __init__(self, fault: str = "", told: str = "framegate 0.1.0 (compiled)") -> None:
        self.fault, self.told, self.folder, self.removed = fault, told, "", False

    def run_command(self, image: str, *options: str, words: tuple[str, ...] = ()) -> list[str]:
        if words:
            return ["echo", self.told]
        self.folder = options[options.index("--volume") + 1].partition(":")[0]
        return [sys.executable, "-c", CONTAINER, self.folder, self.fault]

    def command(self, *words: str) -> list[str]:
        pid = f"$(cat {self.folder}/pid)"
        script = {
            "exec": "false" if self.fault == "no admin" else "true",
            "diff": "echo A /opt/new" if self.fault == "writes" else "echo C /etc",
            "stop": f"kill -TERM {pid}",
            "rm": f"kill -KILL {pid} || true",
        }[words[0]]
        self.removed = self.removed or words[0] == "rm"
        return ["sh", "-c", script]


def ended(engine: LocalEngine) -> bool:
    return engine.removed and not os.path.exists(engine.folder)


def test_a_frame_comes_back_and_nothing_is_left() -> None:
    engine = LocalEngine()
    seen = image_trial.try_sidecar(engine, "image", "0.1.0")
    assert seen.version == "framegate 0.1.0 (compiled)"
    assert 0 < seen.seconds < image_trial.START_S
    assert ended(engine)


@each_of(
    ("fault", "told"),
    [
        ("dies", r"ended with 2 before it took a frame(.|\n)*no such key: listners"),
        ("changes", "came back as another one"),
        ("no admin", "framegate status in the container ended with 1"),
        ("writes", "wrote outside its volumes: A /opt/new"),
        ("dirty", "after SIGTERM the container ended with 3, not 0"),
    ],
)
def test_every_failure_is_reported_and_the_container_removed(fault: str, told: str) -> None:
    engine = LocalEngine(fault)
    with pytest.raises(image_trial.TrialError, match=told):
        image_trial.try_frame(engine, "image")
    assert ended(engine)


def test_a_container_that_never_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_trial, "START_S", 0.2)
    process = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(image_trial.TrialError, match=r"no answer to a frame within 0\.2 s"):
            image_trial.first_answer(process, image_trial.free_port())
    finally:
        process.kill()
        process.wait()


def test_an_interrupted_trial_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = LocalEngine()
    engine.folder = str(tmp_path)
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(container: "subprocess.Popen[bytes]", _port: int) -> bytes:
        started.append(container)
        while not (tmp_path / "pid").exists():
            assert container.poll() is None
        raise KeyboardInterrupt

    monkeypatch.setattr(image_trial, "first_answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        image_trial.in_container(
            engine, ["sh", "-c", f"echo $$ > {tmp_path}/half; mv {tmp_path}/half {tmp_path}/pid; exec sleep 60"], "name", 1, tmp_path
        )
    assert engine.removed
    assert started[0].returncode == -signal.SIGKILL


@each_of("told", ["framegate 0.1.0 (pure)", "framegate 9 (compiled)", ""])
def test_another_version_or_a_plain_build_is_refused(told: str) -> None:
    with pytest.raises(image_trial.TrialError, match="--version"):
        image_trial.try_version(LocalEngine(told=told), "image", "0.1.0")
