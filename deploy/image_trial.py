"""Tries an image: ``--version`` in a container, then a frame through a container with the limits of Kubernetes' ``restricted``.

The upstream and the client are threads of this process, on the loopback address; the container uses the host's network. The container is removed
in any case.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_engine import Engine

START_S = 30
STEP_S = 60
RETRY_S = 0.01
BODY = bytes(range(256)) * 64
CONFIGURATION = """\
node: trial
processors: 1
admin: {{address: "unix:/run/framegate/admin.sock"}}
memory_pool: {{size: 64MiB}}
listeners: [{{name: trial, address: "127.0.0.1:{listener}", upstream: echo, max_receive_size: 1MiB}}]
upstreams: [{{name: echo, endpoints: ["127.0.0.1:{upstream}"]}}]
"""


class TrialError(Exception):
    """What failed, in a sentence, with the container's output."""


@dataclass(frozen=True)
class Result:
    """The result of a trial.

    Args:
        version: the output of ``--version``.
        seconds: from the engine's command until the last answer; for the sidecar until the first frame came back.
    """

    version: str
    seconds: float


class Echo(socketserver.ThreadingTCPServer):
    """An upstream that sends back every byte."""

    daemon_threads = True

    class Handler(socketserver.BaseRequestHandler):
        """One connection."""

        def handle(self) -> None:
            while data := self.request.recv(65536):
                self.request.sendall(data)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)


def said(command: list[str], what: str) -> str:
    """The output of a command, stdout and stderr. Raises TrialError: it failed, or took longer than a minute."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=STEP_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"{what}: no end within {STEP_S} s") from error
    if done.returncode != 0:
        raise TrialError(f"{what} ended with {done.returncode}: {done.stdout.strip()[-2000:]}")
    return done.stdout.strip()


def free_port() -> int:
    """A free port of the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def exchange(port: int, body: bytes, seconds: float) -> bytes:
    """Send one frame, and read one. Raises OSError: there is no listener, or the connection ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        client.sendall(struct.pack(">i", len(body)) + body)
        with client.makefile("rb") as stream:
            header = stream.read(4)
            if len(header) < 4:
                raise ConnectionResetError("closed before an answer")
            return stream.read(int(struct.unpack(">i", header)[0]))


def first_answer(container: subprocess.Popen[bytes], port: int) -> bytes:
    """Send a frame until there is an answer. Raises TrialError: the container ended, or no answer came in time."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return exchange(port, BODY, START_S)
        except OSError as error:
            if container.poll() is not None:
                raise TrialError(f"the container ended with {container.returncode} before it took a frame") from error
            if time.monotonic() > deadline:
                raise TrialError(f"no answer to a frame within {START_S} s: {error}") from error
            time.sleep(RETRY_S)


def try_version(engine: Engine, image: str, version: str) -> str:
    """Run ``framegate --version`` in a container; it must have the version and a compiled build."""
    text = said(engine.run_command(image, "--rm", "--network", "none", words=("--version",)), "framegate --version in a container")
    if version not in text or "compiled" not in text:
        raise TrialError(f"framegate --version in a container said {text!r}, not {version} and a compiled build")
    return text


def try_frame(engine: Engine, image: str) -> float:
    """Send a frame through a container; returns the seconds until the first answer. Raises TrialError: the frame came back changed, the admin socket
    did not answer, the container wrote outside its volumes, or it ended with an error.
    """
    name = f"framegate-trial-{os.getpid()}"
    listener = free_port()
    with tempfile.TemporaryDirectory(prefix="framegate-trial-") as folder, Echo() as upstream:
        threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            configuration = Path(folder) / "framegate.yaml"
            configuration.write_text(CONFIGURATION.format(listener=listener, upstream=upstream.server_address[1]))
            Path(folder).chmod(0o755)
            configuration.chmod(0o644)
            # podman mounts a tmpfs over /run and /tmp by default; U: it belongs to the container's user.
            options = ["--name", name, "--network", "host", "--read-only-tmpfs=false", "--tmpfs", "/run/framegate:mode=0700,U"]
            options += ["--volume", f"{folder}:/etc/framegate:ro", "--cpus", "1", "--memory", "256m"]
            return in_container(engine, engine.run_command(image, *options), name, listener, Path(folder))
        finally:
            upstream.shutdown()


def in_container(engine: Engine, command: list[str], name: str, listener: int, folder: Path) -> float:
    """The part of ``try_frame`` while the container runs."""
    with (folder / "log").open("wb") as log:
        started = time.monotonic()
        container = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            answer = first_answer(container, listener)
            seconds = time.monotonic() - started
            if answer != BODY:
                raise TrialError(f"a frame of {len(BODY)} bytes came back as another one, of {len(answer)} bytes")
            said(engine.command("exec", name, "/opt/framegate/bin/framegate", "status"), "framegate status in the container")
            written = said(engine.command("diff", name), "asking what the container wrote")
            changed = [line for line in written.splitlines() if not any(place in line for place in ENGINES_OWN)]
            if changed:
                raise TrialError("the container wrote outside its volumes: " + ", ".join(changed[:10]))
            said(engine.command("stop", "--time", "20", name), "stopping the container")
            if container.wait(START_S) != 0:
                raise TrialError(f"after SIGTERM the container ended with {container.returncode}, not 0")
        except TrialError as error:
            raise TrialError(f"{error}\n{(folder / 'log').read_text(errors='replace')[-3000:]}") from error
        finally:
            subprocess.run(engine.command("rm", "--force", name), stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=STEP_S, check=False)
            container.wait(STEP_S)
    return seconds


# Mount points that engines create in a container's root.
ENGINES_OWN = ("/etc", "/run", "/dev", "/proc", "/sys", "/tmp", "/var/tmp")


def try_sidecar(engine: Engine, image: str, version: str) -> Result:
    """Try the sidecar's image."""
    return Result(try_version(engine, image, version), try_frame(engine, image))


def try_spark(engine: Engine, image: str, version: str) -> Result:
    """Try the Spark image: framegate and Spark print their versions, as a user without rights, on a read-only root."""
    started = time.monotonic()
    text = try_version(engine, image, version)
    options = ["--rm", "--network", "none", "--entrypoint", "/opt/framegate/bin/spark-submit"]
    spark = said(engine.run_command(image, *options, words=("--version",)), "spark-submit --version in a container")
    if "version" not in spark:
        raise TrialError(f"spark-submit --version in a container said {spark!r}")
    said(engine.run_command(image, "--rm", "--network", "none", words=("pipeline", "run", "--help")), "framegate pipeline run --help in a container")
    return Result(text, time.monotonic() - started)
