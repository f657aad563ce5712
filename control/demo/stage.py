"""What every demo stands on: certificates, the proxy, the tap, the pipeline, and questions to its tables."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from control.demo import certificates
from control.demo.processes import Child, ChildError
from control.demo.workspace import Workspace
from proxy.tap import log_reader
from proxy.tap.record import DIRECTIONS, FRAME_HEADER_BYTES

__all__ = ["LISTENER", "LogCount", "Serving", "Stage"]

LISTENER: Final = "demo"
"""The name of the proxy's one listener."""

_COMMAND: Final = (sys.executable, "-c", "import sys; from control.cli import main; sys.exit(main())")
# Spark for a minute: the quick compiler and the small collector leave the processors to the traffic. 121 MB of log took 24 s instead of 52 s
# from start to end on two busy cores.
_JAVA: Final = {"JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")}
_START_S: Final = 30.0
_SPARK_START_S: Final = 120.0
_STOP_S: Final = 40.0
_DRAIN_S: Final = 300.0
_BYTES_PER_FRAME: Final = 400
_LEAST_BUDGET: Final = 4 << 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A proxy that serves: the port of its listener, ``host:port`` of its metrics, its control plane's address."""

    port: int
    prometheus: str
    admin: str


@dataclasses.dataclass(slots=True)
class LogCount:
    """What a reader of the tap's log counted, by direction; ``lost`` frames are those that gaps account for."""

    frames: dict[str, int]
    bytes: dict[str, int]
    lost: int = 0


class Stage:
    """One run's processes and files; leaving the context ends every process.

    Args:
        workspace: where everything lies.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.certificates = certificates.create(workspace.certificates)
        self.children: list[Child] = []
        self.proxy: Child | None = None
        self.pipeline: Child | None = None

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in reversed(self.children):
            if child.running:
                child.terminate()
        for child in reversed(self.children):
            child.wait(5.0)
        self.workspace.release()

    def start(self, name: str, command: list[str], **options: Any) -> Child:
        """Start a child whose log is named after it."""
        child = Child(name, command, self.workspace.logs / f"{name}.log", **options)
        self.children.append(child)
        return child

    def start_module(self, module: str, *arguments: str, **options: Any) -> Child:
        """Start one of our own modules as a process."""
        return self.start(module.rpartition(".")[2], [sys.executable, "-m", module, *arguments], **options)

    def start_proxy(self, upstream: str, *, protocol: str = "framed", expected_frames: int = 0, **listener: Any) -> Serving:
        """Start ``framegate serve`` and wait until it serves.

        Args:
            upstream: its one endpoint.
            protocol: of the listener.
            expected_frames: in both directions together; the tap's budget holds them.
            listener: more keys of the listener; ``tls=None`` for plaintext.
        """
        budget = max(_LEAST_BUDGET, 2 * _BYTES_PER_FRAME * expected_frames)
        document = self._configuration(upstream, protocol, budget, listener)
        self.workspace.configuration.write_text(json.dumps(document, indent=2) + "\n")  # JSON is YAML
        self.proxy = self.start("proxy", [*_COMMAND, "serve", "--config", str(self.workspace.configuration)])
        row = self.proxy.wait_for_event("serving", _START_S)
        return Serving(port=int(row["listeners"][LISTENER].rpartition(":")[2]), prometheus=row["prometheus"], admin=self.workspace.admin)

    def stop_proxy(self) -> int:
        """Stop it as Kubernetes would; its exit code."""
        assert self.proxy is not None, "start_proxy comes first"
        self.proxy.terminate()
        return self.proxy.wait(_STOP_S)

    def start_pipeline(self) -> None:
        """Start ``framegate pipeline run`` on the tap's log and wait until Spark is up; it follows the log until it is stopped."""
        self.pipeline = self.start("pipeline", self._pipeline_command(), environment=_JAVA)
        self.pipeline.wait_for_event("started", _SPARK_START_S)

    def drain_pipeline(self) -> None:
        """Stop the running job, then let one with available-now semantics take what is left.

        Raises:
            ChildError: the job failed.
        """
        assert self.pipeline is not None, "start_pipeline comes first"
        self.pipeline.terminate()
        self.pipeline.wait(_STOP_S)
        self.take_what_is_left()

    def take_what_is_left(self) -> None:
        """Run the job with available-now semantics to its end.

        Raises:
            ChildError: the job failed.
        """
        job = self.start("pipeline-drain", [*self._pipeline_command(), "--available-now"], environment=_JAVA)
        if job.wait(_DRAIN_S) != 0:
            raise ChildError(f"the pipeline failed: {job.tail()}")

    def table_rows(self) -> int:
        """Rows of the table ``frames`` published so far."""
        try:
            progress = json.loads((self.workspace.tables / "_progress.json").read_text())
        except FileNotFoundError:
            return 0
        return int(progress["total"]["frames"])

    def ask_tables(self, statements: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        """Rows of SELECT statements over the tables.

        Raises:
            ChildError: Spark failed.
        """
        with (self.workspace.logs / "query.log").open("ab") as log:
            done = subprocess.run(
                [sys.executable, "-m", "proxy.pipeline.query", str(self.workspace.tables)],
                input=json.dumps(statements).encode(),
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **_JAVA},
                timeout=_DRAIN_S,
                check=False,
            )
        if done.returncode != 0:
            raise ChildError(f"Spark SQL failed; see {self.workspace.logs / 'query.log'}")
        answers: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
        return answers

    def count_log(self) -> LogCount:
        """Read the whole log, verify its checksums, and count frames by walking over their sizes."""
        count = LogCount(frames={"request": 0, "response": 0}, bytes={"request": 0, "response": 0})
        root = str(self.workspace.tap)
        for stream in log_reader.streams(root):
            for reference in log_reader.walk(root, stream):
                _count_block(log_reader.read_block(reference), count)
        return count

    def _pipeline_command(self) -> list[str]:
        return [*_COMMAND, "pipeline", "run", "--source", str(self.workspace.tap), "--output", str(self.workspace.tables)]

    def _configuration(self, upstream: str, protocol: str, budget: int, listener: dict[str, Any]) -> dict[str, Any]:
        made = self.certificates
        return {
            "node": "demo",
            "processors": 2,
            "admin": {"address": self.workspace.admin},
            "health": {"address": "127.0.0.1:0"},
            "memory_pool": {"size": "64MiB"},
            "listeners": [
                {
                    "name": LISTENER,
                    "address": "127.0.0.1:0",
                    "protocol": protocol,
                    "max_receive_size": "4MiB",
                    "tls": {"certificate": str(made.server), "key": str(made.server_key)},
                    "upstream": "upstream",
                    **listener,
                }
            ],
            "upstreams": [{"name": "upstream", "endpoints": [upstream]}],
            # mute: a slow disk slows the load down and loses nothing
            "tap": {"directory": str(self.workspace.tap), "budget": budget, "rules": [{"name": "all", "on_full": "mute"}]},
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}},
            "drain": {"timeout": "10s"},
        }


def _count_block(block: log_reader.LogBlock, count: LogCount) -> None:
    for row in block.rows:
        data = block.chunk_data(row)
        position = 0
        frames = 0
        while position < len(data):
            position += FRAME_HEADER_BYTES + int.from_bytes(data[position : position + FRAME_HEADER_BYTES], "big")
            frames += 1
        direction = DIRECTIONS[row.direction]
        count.frames[direction] += frames
        count.bytes[direction] += len(data)
    count.lost += sum(gap.frames for gap in block.gaps())
