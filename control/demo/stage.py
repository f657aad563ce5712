"""What every demo stands on: certificates, the proxy, the tap, the pipeline, and questions to its tables."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from control.demo import certificates
from control.demo.processes import Child, ChildError
from control.demo.signals import signals_ignored
from control.demo.workspace import Workspace
from proxy.pipeline.session import remove_leftovers
from proxy.tap import log_reader
from proxy.tap.completeness import Verdict, verify
from proxy.tap.log_block import LogBlock
from proxy.tap.record import DIRECTIONS, FRAME_HEADER_BYTES

__all__ = ["LISTENER", "LogCount", "Serving", "Stage"]

LISTENER: Final = "demo"
"""The name of the proxy's one listener, and of the upstream's."""

_COMMAND: Final = (sys.executable, "-c", "import sys; from control.cli import main; sys.exit(main())")
# Spark for a minute: the quick compiler and the small collector leave the processors to the traffic. 121 MB of log took 24 s instead of 52 s
# from start to end on two busy cores.
_JAVA: Final = {"JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")}
_START_S: Final = 30.0
_SPARK_START_S: Final = 120.0
_STOP_S: Final = 40.0
_DRAIN_S: Final = 300.0
_POLL_S: Final = 0.1
# Of the log in one batch: some two seconds of the demo's load, so that the tables grow while somebody watches.
_BATCH_BYTES: Final = 32 << 20
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

    @property
    def total(self) -> int:
        """Frames of both directions."""
        return sum(self.frames.values())


class Stage:
    """One run's processes and files; leaving the context ends every process, at once when an exception does.

    Args:
        workspace: where everything lies.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.certificates = certificates.create(workspace.certificates)
        self.children: list[Child] = []
        self.upstream: Child | None = None
        self.proxy: Child | None = None
        self.pipeline: Child | None = None

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with signals_ignored():
            for child in reversed(self.children):
                child.terminate()
            for child in reversed(self.children):
                if error is None:
                    child.wait(5.0)
                else:
                    child.end_at_once()
            remove_leftovers()  # Spark's, when it had to be killed
            self.workspace.release()

    def start(self, name: str, command: list[str], **options: Any) -> Child:
        """Start a child whose log is named after it."""
        child = Child(name, command, self.workspace.logs / f"{name}.log", **options)
        self.children.append(child)
        return child

    def start_module(self, module: str, *arguments: str, **options: Any) -> Child:
        """Start one of our own modules as a process."""
        return self.start(module.rpartition(".")[2], [sys.executable, "-m", module, *arguments], **options)

    def start_upstream(self) -> int:
        """Start the framegate whose handler answers every frame, and wait until it serves; its port."""
        self.workspace.upstream_configuration.write_text(json.dumps(self._upstream_configuration(), indent=2) + "\n")
        self.upstream = self.start_framegate("upstream", self.workspace.upstream_configuration)
        return _port(self.upstream.wait_for_event("serving", _START_S))

    def stop_upstream(self) -> dict[str, Any]:
        """Stop it once nobody sends any more; what its handler counted.

        Raises:
            ChildError: it did not say so, or not whole.
        """
        assert self.upstream is not None, "start_upstream comes first"
        self.upstream.terminate()
        row = self.upstream.wait_for_event("handler_output", _STOP_S)
        if self.upstream.wait(_STOP_S) != 0:
            raise ChildError(f"the upstream failed: {self.upstream.tail()}")
        counted: dict[str, Any] = json.loads(row["line"])
        return counted

    def start_proxy(self, upstream: str, *, protocol: str = "framed", expected_frames: int = 0, max_frame_bytes: int = 0, **listener: Any) -> Serving:
        """Start ``framegate serve`` and wait until it serves.

        Args:
            upstream: its one endpoint.
            protocol: of the listener.
            expected_frames: in both directions together; the tap's budget holds them.
            max_frame_bytes: what the tap keeps of each frame's body; 0 keeps all.
            listener: more keys of the listener; ``tls=None`` for plaintext.
        """
        document = self._configuration(upstream, protocol, self._tap(expected_frames, max_frame_bytes), listener)
        self.workspace.configuration.write_text(json.dumps(document, indent=2) + "\n")  # JSON is YAML
        self.proxy = self.start_framegate("proxy", self.workspace.configuration)
        row = self.proxy.wait_for_event("serving", _START_S)
        return Serving(port=_port(row), prometheus=row["prometheus"], admin=self.workspace.admin)

    def start_framegate(self, name: str, configuration: Path) -> Child:
        """Start ``framegate serve``; it says ``serving`` when it does."""
        return self.start(name, [*_COMMAND, "serve", "--config", str(configuration)])

    def stop_proxy(self) -> int:
        """Stop it as Kubernetes would; its exit code."""
        assert self.proxy is not None, "start_proxy comes first"
        self.proxy.terminate()
        return self.proxy.wait(_STOP_S)

    def start_pipeline(self) -> None:
        """Start ``framegate pipeline run`` on the tap's log; it follows the log until it is stopped. Spark takes seconds to come up."""
        bounds = ["--max-bytes-per-trigger", str(_BATCH_BYTES)]
        command = [*_COMMAND, "pipeline", "run", "--source", str(self.workspace.tap), "--output", str(self.workspace.tables), *bounds]
        self.pipeline = self.start("pipeline", command, environment=_JAVA)

    def wait_for_spark(self) -> None:
        """Wait until Spark is up and its query runs.

        Raises:
            ChildError: it is not.
        """
        assert self.pipeline is not None, "start_pipeline comes first"
        self.pipeline.wait_for_event("started", _SPARK_START_S)

    def wait_for_rows(self, frames: int, timeout_s: float) -> bool:
        """Wait until Spark's tables hold so many frames; whether they do.

        Raises:
            ChildError: a process ended meanwhile that should not.
        """
        assert self.pipeline is not None, "start_pipeline comes first"
        deadline = time.monotonic() + timeout_s
        while self.table_rows() < frames:
            if time.monotonic() > deadline:
                return False
            if not self.pipeline.running:
                raise ChildError(f"the pipeline ended: {self.pipeline.tail()}")
            time.sleep(_POLL_S)
        return True

    def drain_pipeline(self, frames: int) -> None:
        """Let the job take what is left of the log, then stop it.

        Args:
            frames: in the log.

        Raises:
            ChildError: the job failed.
        """
        assert self.pipeline is not None, "start_pipeline comes first"
        root = str(self.workspace.tap)
        ends = sum(log_reader.end_offset(root, stream) for stream in log_reader.streams(root))
        if self.wait_for_rows(frames, _DRAIN_S):
            self._wait_for_bytes(ends, _DRAIN_S)
        self.pipeline.terminate()
        if self.pipeline.wait(_STOP_S) != 0:
            raise ChildError(f"the pipeline failed: {self.pipeline.tail()}")

    def _wait_for_bytes(self, size: int, timeout_s: float) -> None:
        """Wait until the job's batches have so many bytes of log: what comes last has no frames, but totals."""
        assert self.pipeline is not None, "start_pipeline comes first"
        deadline = time.monotonic() + timeout_s
        while sum(row["bytes"] for row in list(self.pipeline.rows) if row.get("event") == "batch") < size and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def verify_log(self) -> Verdict:
        """What the log says of itself; the proxy has ended."""
        return verify(str(self.workspace.tap))

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
        query = self.start_module("proxy.pipeline.query", str(self.workspace.tables), environment=_JAVA)
        query.send(dict(statements))
        query.close_input()
        try:
            return query.wait_for(lambda row: row.keys() == statements.keys(), _DRAIN_S)
        except ChildError as error:
            raise ChildError(f"Spark SQL failed; see {query.log}") from error
        finally:
            query.wait(_STOP_S)

    def count_log(self) -> LogCount:
        """Read the whole log, verify its checksums, and count frames by walking over their sizes."""
        count = LogCount(frames={"request": 0, "response": 0}, bytes={"request": 0, "response": 0})
        root = str(self.workspace.tap)
        joiner = log_reader.Joiner()
        for stream in log_reader.streams(root):
            for reference in log_reader.walk(root, stream):
                _count_block(log_reader.read_block(reference, joiner), count)
        return count

    def _tap(self, expected_frames: int, max_frame_bytes: int) -> dict[str, Any]:
        budget = max(_LEAST_BUDGET, 2 * _BYTES_PER_FRAME * expected_frames)
        rule = {"name": "all", "max_frame_bytes": max_frame_bytes, "on_full": "mute"}  # mute: a slow disk slows the load down and loses nothing
        return {"directory": str(self.workspace.tap), "budget": budget, "rules": [rule]}

    def _upstream_configuration(self) -> dict[str, Any]:
        listener = {"name": LISTENER, "address": "127.0.0.1:0", "handler": "control.demo.upstream:Upstream", "max_receive_size": "8MiB"}
        return {
            "node": "upstream",
            "processors": 1,
            "admin": {"address": self.workspace.upstream_admin},
            "memory_pool": {"size": "64MiB"},
            "handlers": {"timeout": 0},
            "listeners": [listener],
        }

    def _configuration(self, upstream: str, protocol: str, tap: dict[str, Any], listener: dict[str, Any]) -> dict[str, Any]:
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
            "tap": tap,
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}},
            "drain": {"timeout": "10s"},
        }


def _port(serving: Mapping[str, Any]) -> int:
    """That of the one listener."""
    return int(serving["listeners"][LISTENER].rpartition(":")[2])


def _count_block(block: LogBlock, count: LogCount) -> None:
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
