"""The files of a demo, its processes (upstream, proxy and Spark), and questions to the tap's log and the tables."""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from framegate.control.demo import certificates
from framegate.control.demo.processes import Child, ChildError, signals_ignored
from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES
from framegate.proxy.pipeline.session import remove_leftovers
from framegate.proxy.tap import log_reader
from framegate.proxy.tap.record import DIRECTIONS, FRAME_HEADER_BYTES

LISTENER: Final = "demo"  # the name of the proxy's one listener, and of the upstream's

COMMAND: Final = (sys.executable, "-c", "import sys; from framegate.control.cli import main; sys.exit(main())")
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
_MARKER: Final = ".framegate-demo"


class WorkspaceError(Exception):
    """The folder cannot be used; the message is one line."""


class Workspace:
    """A folder that only this demo uses; the files of the run before are removed. ``directory``: new, empty or an earlier demo's; None:
    ``NAME-<uid>`` in the folder for temporary files. Raises WorkspaceError: the folder cannot be written or holds other files, or another demo uses
    it.
    """

    def __init__(self, directory: Path | None = None, name: str = "framegate-demo") -> None:
        self.root = (directory or Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}").resolve()
        # files of the proxy and of the upstream
        self.configuration, self.upstream_configuration = self.root / "framegate.yaml", self.root / "upstream.yaml"
        self.certificates, self.tap, self.tables, self.logs = (self.root / part for part in ("certificates", "tap", "tables", "logs"))
        # addresses of their control APIs: in the folder, or elsewhere when the path is too long for a Unix socket
        self.admin, self.upstream_admin = (f"unix:{self._socket(part)}" for part in ("admin", "upstream"))
        try:
            self._lock = self._take()
            try:
                self._empty()
            except OSError:
                self._lock.close()
                raise
        except OSError as error:
            raise WorkspaceError(f"{self.root} cannot be used: {error.strerror}") from error

    def release(self) -> None:
        """Let the next demo use the folder."""
        for name in ("admin", "upstream"):
            _short_socket(name).unlink(missing_ok=True)  # a proxy that was killed left it
        self._lock.close()

    def _socket(self, name: str) -> Path:
        inside = self.root / f"{name}.sock"
        return inside if len(os.fsencode(inside)) <= MAX_UNIX_PATH_BYTES else _short_socket(name)

    def _empty(self) -> None:
        for name in ("certificates", "tap", "tables", "logs", "kafka"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.root / name)
        for path in (self.logs, self.tap):
            path.mkdir()

    def _take(self) -> IO[str]:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker = self.root / _MARKER
        if not marker.exists() and any(self.root.iterdir()):
            raise WorkspaceError(f"{self.root}: the folder is not empty and is not from an earlier demo; name a new folder with --directory")
        lock = marker.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise WorkspaceError(f"another demo runs in {self.root}; name a new folder with --directory") from None
        return lock


class Serving(NamedTuple):
    """A proxy that serves: the port of its listener, ``host:port`` of its metrics, its control API's address."""

    port: int
    prometheus: str
    admin: str


@dataclasses.dataclass(slots=True)
class LogCount:
    """The frames and bytes in the tap's log, by direction; ``lost`` frames are those that gaps account for."""

    frames: dict[str, int] = dataclasses.field(default_factory=lambda: {"request": 0, "response": 0})
    bytes: dict[str, int] = dataclasses.field(default_factory=lambda: {"request": 0, "response": 0})
    lost: int = 0

    @property
    def total(self) -> int:
        return sum(self.frames.values())


class Stage:
    """One run's processes and files. Leaving the context ends every process, at once after an exception."""

    upstream: Child
    proxy: Child
    pipeline: Child

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.certificates = certificates.create(workspace.certificates)
        self.children: list[Child] = []

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
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
        child = Child(name, command, self.workspace.logs / f"{name}.log", **options)
        self.children.append(child)
        return child

    def start_module(self, module: str, *arguments: str, **options: Any) -> Child:
        return self.start(module.rpartition(".")[2], [sys.executable, "-m", module, *arguments], **options)

    def start_framegate(self, name: str, path: Path, configuration: Mapping[str, Any]) -> Child:
        """Write the configuration and start ``framegate serve``, which prints the row ``serving``."""
        path.write_text(json.dumps(configuration, indent=2) + "\n")  # JSON is YAML
        return self.start(name, [*COMMAND, "serve", "--config", str(path)])

    def start_upstream(self) -> int:
        """Start the framegate with the handler that answers every frame, and wait until it serves; its port."""
        self.upstream = self.start_framegate("upstream", self.workspace.upstream_configuration, self.upstream_configuration())
        return _port(self.upstream.wait_for_event("serving", _START_S))

    def stop_upstream(self) -> dict[str, Any]:
        """Stop it after the last client; what its handler counted. Raises ChildError: it did not print the counts, or failed."""
        self.upstream.terminate()
        row = self.upstream.wait_for_event("handler_output", _STOP_S)
        self._ended(self.upstream)
        counted: dict[str, Any] = json.loads(row["line"])
        return counted

    def start_proxy(
        self, upstream: str | dict[str, Any], *, protocol: str = "framed", expected_frames: int = 0, max_frame_bytes: int = 0, **listener: Any
    ) -> Serving:
        """Start the proxy and wait until it serves.

        Args:
            protocol, listener: keys of the listener; ``tls=None`` for plaintext.
            expected_frames: in both directions together; the tap's budget holds them.
            max_frame_bytes: what the tap keeps of each frame's body; 0 keeps all.
        """
        document = self.configuration(upstream, self._tap(expected_frames, max_frame_bytes), {"protocol": protocol, **listener})
        self.proxy = self.start_framegate("proxy", self.workspace.configuration, document)
        row = self.proxy.wait_for_event("serving", _START_S)
        return Serving(port=_port(row), prometheus=row["prometheus"], admin=self.workspace.admin)

    def stop_proxy(self) -> int:
        """Stop it as Kubernetes does; its exit code."""
        self.proxy.terminate()
        return self.proxy.wait(_STOP_S)

    def start_pipeline(self) -> None:
        """Start ``framegate pipeline run``, which follows the tap's log until it is stopped. Spark starts within seconds."""
        bounds = ["--max-bytes-per-trigger", str(_BATCH_BYTES)]
        command = [*COMMAND, "pipeline", "run", "--source", str(self.workspace.tap), "--output", str(self.workspace.tables), *bounds]
        self.pipeline = self.start("pipeline", command, environment=_JAVA)

    def wait_for_spark(self) -> None:
        """Wait until Spark's query runs. Raises ChildError: it does not."""
        self.pipeline.wait_for_event("started", _SPARK_START_S)

    def wait_for_rows(self, frames: int, timeout_s: float) -> bool:
        """Wait until Spark's tables have so many frames; whether they do. Raises ChildError: Spark ended meanwhile."""
        return self._wait_for_pipeline(lambda: self.table_rows() >= frames, timeout_s)

    def drain_pipeline(self) -> None:
        """Let the job read the rest of the log, whose last rows are totals, then stop it. Raises ChildError: the job failed."""
        root = str(self.workspace.tap)
        size = sum(log_reader.end_offset(root, stream) for stream in log_reader.streams(root))
        self._wait_for_pipeline(lambda: sum(row["bytes"] for row in list(self.pipeline.rows) if row.get("event") == "batch") >= size, _DRAIN_S)
        self.pipeline.terminate()
        self._ended(self.pipeline)

    def table_rows(self) -> int:
        """Rows of the table ``frames`` so far."""
        return max((row["total"]["frames"] for row in list(self.pipeline.rows) if row.get("event") == "batch"), default=0)

    def ask_tables(self, statements: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        """Rows of SELECT statements over the tables. Raises ChildError: Spark failed."""
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
        """Read the whole log with its checksums, and count the frames by their sizes."""
        count, root, joiner = LogCount(), str(self.workspace.tap), log_reader.Joiner()
        for stream in log_reader.streams(root):
            for reference in log_reader.walk(root, stream):
                block = log_reader.read_block(reference, joiner)
                for row in block.rows:
                    data, direction, position = block.chunk_data(row), DIRECTIONS[row.direction], 0
                    while position < len(data):
                        position += FRAME_HEADER_BYTES + int.from_bytes(data[position : position + FRAME_HEADER_BYTES], "big")
                        count.frames[direction] += 1
                    count.bytes[direction] += len(data)
                count.lost += sum(gap.frames for gap in block.gaps())
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

    def upstream_configuration(self) -> dict[str, Any]:
        handler = {"handler": "framegate.control.demo.load:Upstream", "max_receive_size": "8MiB"}
        return {
            "node": "upstream",
            "processors": 1,
            "admin": {"address": self.workspace.upstream_admin},
            "memory_pool": {"size": "64MiB"},
            "handlers": {"timeout": 0},
            "listeners": [{"name": LISTENER, "address": "127.0.0.1:0", **handler}],
        }

    def configuration(self, upstream: str | dict[str, Any], tap: dict[str, Any], listener: dict[str, Any]) -> dict[str, Any]:
        """Of the proxy: its upstream, as of ``start_proxy``, its tap, and keys of its listener."""
        tls = {"certificate": str(self.certificates.server), "key": str(self.certificates.server_key)}
        made = {"name": LISTENER, "address": "127.0.0.1:0", "max_receive_size": "4MiB", "tls": tls, "upstream": "upstream", **listener}
        return {
            "node": "demo",
            "processors": 2,
            "admin": {"address": self.workspace.admin},
            "health": {"address": "127.0.0.1:0"},
            "memory_pool": {"size": "64MiB"},
            "listeners": [made],
            "upstreams": [{"name": "upstream", **({"endpoints": [upstream]} if isinstance(upstream, str) else upstream)}],
            "tap": tap,
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}},
            "drain": {"timeout": "10s"},
        }


def _port(serving: Mapping[str, Any]) -> int:
    return int(serving["listeners"][LISTENER].rpartition(":")[2])


def _short_socket(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"framegate-demo-{os.getpid()}-{name}.sock"
