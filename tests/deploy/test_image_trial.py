"""The trial of an image: what does not come back as it was sent, writes where it must not, or ends badly, is told; and nothing is left running.

An engine stands in whose containers are processes of this machine: the trial itself is the real one.
"""

import os
import sys

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


@each_of("told", ["framegate 0.1.0 (pure)", "framegate 9 (compiled)", ""])
def test_another_version_or_a_plain_build_is_refused(told: str) -> None:
    with pytest.raises(image_trial.TrialError, match="--version"):
        image_trial.try_version(LocalEngine(told=told), "image", "0.1.0")
