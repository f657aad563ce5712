"""The processes of a demo: upstream, proxy and Spark; and questions to the tap's log and the tables."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from framegate.control.demo import certificates
from framegate.control.demo.processes import Child, ChildError
from framegate.control.demo.signals import signals_ignored
from framegate.control.demo.workspace import Workspace
from framegate.proxy.pipeline.session import remove_leftovers
from framegate.proxy.tap import log_reader
from framegate.proxy.tap.completeness import Verdict, verify
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.record import DIRECTIONS, FRAME_HEADER_BYTES

__all__ = ["LISTENER", "LogCount", "Serving", "Stage"]

LISTENER: Final = "demo"
"""The name of the proxy's one listener, and of the upstream's."""

_COMMAND: Final = (sys.executable, "-c", "import sys; from framegate.control.cli import main; sys.exit(main())")
# Spark for a minute: the quick compiler and the small collector leave the processors to the traffic. 121 MB of log took 24 s instead of 52 s
# from start to end on two busy cores.
_JAVA: Final = {"JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")}
_START_S: Final = 30.0
_SPARK_START_S: Final = 120.0
_STOP_S: Final = 40.0
_DRAIN_S: Final = 300.0
_POLL_S: Final = 0.1
# Of the log in one batch: some two seconds of the demo's load, so that the tables grow while the demo runs.
_BATCH_BYTES: Final = 32 << 20
_BYTES_PER_FRAME: Final = 400
_LEAST_BUDGET: Final = 4 << 30


class Serving(NamedTuple):
    """A proxy that serves: the port of its listener, ``host:port`` of its metrics, its control API's address."""

    port: int
    prometheus: str
    admin: str


@dataclasses.dataclass(slots=True)
class LogCount:
    """What a reader of the tap's log counted, by direction; ``lost`` frames are those that gaps account for."""

    frames: dict[str, int] = dataclasses.field(default_factory=lambda: {"request": 0, "response": 0})
    bytes: dict[str, int] = dataclasses.field(default_factory=lambda: {"request": 0, "response": 0})
    lost: int = 0

    @property
    def total(self) -> int:
        """Frames of both directions."""
        return sum(self.frames.values())


class Stage:
    """One run's processes and files; leaving the context ends every process, at once when an exception does.

    Args:
        workspace: the run's folder.
    """

    upstream: Child
    proxy: Child
    pipeline: Child

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.certificates = certificates.create(workspace.certificates)
        self.children: list[Child] = []

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
        """Start a child with a log of its name."""
        child = Child(name, command, self.workspace.logs / f"{name}.log", **options)
        self.children.append(child)
        return child

    def start_module(self, module: str, *arguments: str, **options: Any) -> Child:
        """Start one of our own modules as a process."""
        return self.start(module.rpartition(".")[2], [sys.executable, "-m", module, *arguments], **options)

    def start_framegate(self, name: str, path: Path, configuration: Mapping[str, Any]) -> Child:
        """Write the configuration and start ``framegate serve``; it prints ``serving`` when it does."""
        path.write_text(json.dumps(configuration, indent=2) + "\n")  # JSON is YAML
        return self.start(name, [*_COMMAND, "serve", "--config", str(path)])

    def start_upstream(self) -> int:
        """Start the framegate with the handler that answers every frame, and wait until it serves; its port."""
        self.upstream = self.start_framegate("upstream", self.workspace.upstream_configuration, self._upstream_configuration())
        return _port(self.upstream.wait_for_event("serving", _START_S))

    def stop_upstream(self) -> dict[str, Any]:
        """Stop it after the last client; what its handler counted.

        Raises:
            ChildError: it did not say so, or not whole.
        """
        self.upstream.terminate()
        row = self.upstream.wait_for_event("handler_output", _STOP_S)
        self._ended(self.upstream)
        counted: dict[str, Any] = json.loads(row["line"])
        return counted

    def start_proxy(self, upstream: str, *, protocol: str = "framed", expected_frames: int = 0, max_frame_bytes: int = 0, **listener: Any) -> Serving:
        """Start the proxy and wait until it serves.

        Args:
            upstream: its one endpoint.
            protocol: of the listener.
            expected_frames: in both directions together; the tap's budget holds them.
            max_frame_bytes: what the tap keeps of each frame's body; 0 keeps all.
            listener: more keys of the listener; ``tls=None`` for plaintext.
        """
        document = self._configuration(upstream, self._tap(expected_frames, max_frame_bytes), {"protocol": protocol, **listener})
        self.proxy = self.start_framegate("proxy", self.workspace.configuration, document)
        row = self.proxy.wait_for_event("serving", _START_S)
        return Serving(port=_port(row), prometheus=row["prometheus"], admin=self.workspace.admin)

    def stop_proxy(self) -> int:
        """Stop it as Kubernetes would; its exit code."""
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
        self.pipeline.wait_for_event("started", _SPARK_START_S)

    def wait_for_rows(self, frames: int, timeout_s: float) -> bool:
        """Wait until Spark's tables hold so many frames; whether they do.

        Raises:
            ChildError: Spark ended meanwhile.
        """
        return self._wait_for_pipeline(lambda: self.table_rows() >= frames, timeout_s)

    def drain_pipeline(self) -> None:
        """Let the job read what is left of the log, then stop it. What comes last in the log has no frames, but totals.

        Raises:
            ChildError: the job failed.
        """
        root = str(self.workspace.tap)
        size = sum(log_reader.end_offset(root, stream) for stream in log_reader.streams(root))
        self._wait_for_pipeline(lambda: sum(row["bytes"] for row in list(self.pipeline.rows) if row.get("event") == "batch") >= size, _DRAIN_S)
        self.pipeline.terminate()
        self._ended(self.pipeline)

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
        command = [sys.executable, "-m", "framegate.proxy.pipeline.views", str(self.workspace.tables)]
        query = self.start("query", command, environment=_JAVA)
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
        count, root, joiner = LogCount(), str(self.workspace.tap), log_reader.Joiner()
        for stream in log_reader.streams(root):
            for reference in log_reader.walk(root, stream):
                _count_block(log_reader.read_block(reference, joiner), count)
        return count

    def _wait_for_pipeline(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                return False
            if not self.pipeline.running:
                raise ChildError(f"the pipeline ended: {self.pipeline.tail()}")
            time.sleep(_POLL_S)
        return True

    def _ended(self, child: Child) -> None:
        if child.wait(_STOP_S) != 0:
            raise ChildError(f"{child.name} failed: {child.tail()}")

    def _tap(self, expected_frames: int, max_frame_bytes: int) -> dict[str, Any]:
        budget = max(_LEAST_BUDGET, 2 * _BYTES_PER_FRAME * expected_frames)
        rule = {"name": "all", "max_frame_bytes": max_frame_bytes, "on_full": "mute"}  # mute: a slow disk slows the load down and loses nothing
        return {"directory": str(self.workspace.tap), "budget": budget, "rules": [rule]}

    def _upstream_configuration(self) -> dict[str, Any]:
        return {
            "node": "upstream",
            "processors": 1,
            "admin": {"address": self.workspace.upstream_admin},
            "memory_pool": {"size": "64MiB"},
            "handlers": {"timeout": 0},
            "listeners": [
                {"name": LISTENER, "address": "127.0.0.1:0", "handler": "framegate.control.demo.upstream:Upstream", "max_receive_size": "8MiB"}
            ],
        }

    def _configuration(self, upstream: str, tap: dict[str, Any], listener: dict[str, Any]) -> dict[str, Any]:
        tls = {"certificate": str(self.certificates.server), "key": str(self.certificates.server_key)}
        made = {"name": LISTENER, "address": "127.0.0.1:0", "max_receive_size": "4MiB", "tls": tls, "upstream": "upstream", **listener}
        return {
            "node": "demo",
            "processors": 2,
            "admin": {"address": self.workspace.admin},
            "health": {"address": "127.0.0.1:0"},
            "memory_pool": {"size": "64MiB"},
            "listeners": [made],
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
