"""A whole ``framegate serve`` as a process of its own, as a test sees it: its rows, its metrics, its API, its connections."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from framegate.control.v1 import channel_service_pb2 as channels_pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.proxy.server.link import complete
from tests.fakes.log import row_fault
from tests.fakes.upstream import ask, peer_name
from tests.fakes.waiting import until

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]
SHIPPER = b"framegate.proxy.tap.shipping"


def child_pids(pid: int, thread: int | str = "*") -> list[int]:
    """The children of a process, or of one of its threads."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob(f"{thread}/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += children.read_text().split()
    return [int(child) for child in found]


def processor_pids(control_pid: int) -> list[int]:
    """The processors, and handler processes, that a control process started."""
    others = (b"framegate.control.rotation.questions", SHIPPER)
    return [pid for pid in child_pids(control_pid, control_pid) if not any(other in _command(pid) for other in others)]


def shipper_pid(control_pid: int) -> int | None:
    return next((pid for pid in child_pids(control_pid) if SHIPPER in _command(pid)), None)


def _command(pid: int) -> bytes:
    """Empty: it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def config_before(endpoint: str, **listener: Any) -> Row:
    """One plaintext listener ``plain`` before the upstream ``echo``."""
    return {
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1MiB", **listener}],
        "upstreams": [{"name": "echo", "endpoints": [endpoint]}],
    }


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def run_cli(*words: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    """A command of ``framegate``; ``text`` is its standard input."""
    command = [sys.executable, "-m", "framegate.control.cli", *words]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=30, check=False)


class Framegate:
    """``framegate serve`` over a configuration given as the file's keys; what is not given gets values that make tests short."""

    def __init__(
        self, folder: Path, config: Row, *, environment: dict[str, str] | None = None, wait: bool = True, prefix: tuple[str, ...] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder  # of the configuration; relative paths start there
        self.config = {
            "node": "test",
            "processors": 1,
            "admin": {"address": "unix:admin.sock"},
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}},
            "drain": {"timeout": "2s", "quiet": "50ms"},
            **config,
        }
        path = folder / "framegate.yaml"
        path.write_text(json.dumps(self.config, indent=1))
        self.rows: list[Row] = []  # everything it printed so far; who leaves the block asserts that each is as the log's schema says
        self._clients: list[socket.socket] = []
        self._connected: dict[str, int] = {}  # how many rows there were when a client connected, by its address
        self._odd: dict[str, Row] = {}  # by what is wrong with them
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "framegate.control.cli", "serve", "--config", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self.errors = ""
        self._readers = [threading.Thread(target=self._read_rows), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()
        self.serving: Row = {}
        if wait:
            self.serving = self.wait_row(lambda row: row["event"] == "serving", timeout=20)

    # --- what it says ----------------------------------------------------------------------------------------------------------

    def _read_rows(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            row = json.loads(line)
            if fault := row_fault(row):
                self._odd.setdefault(fault, row)
            if row["event"] in ("opened", "access", "closed"):
                complete(row["event"], row)
            with self._changed:
                self.rows.append(row)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def wait_row(self, matches: Callable[[Row], bool], timeout: float = 10.0, *, since: int = 0) -> Row:
        """The first row that matches, or the failure with everything that was printed. ``since``: rows that are not looked at."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for row in self.rows[since:]:
                    if matches(row):
                        return row
                left = deadline - time.monotonic()
                ended = self.process.poll() is not None and not self._readers[0].is_alive()
                if left <= 0 or ended:
                    printed = "\n".join(json.dumps(row) for row in self.rows)
                    raise AssertionError(f"no such row within {timeout} s; it printed\n{printed}\n{self.errors}")
                self._changed.wait(min(left, 0.2))

    def events(self, name: str) -> list[Row]:
        return [row for row in self.rows if row["event"] == name]

    def closed_row(self, client: socket.socket | str, timeout: float = 10.0) -> Row:
        """The row of a client's connection once it is closed."""
        peer = client if isinstance(client, str) else peer_name(client)
        return self.wait_row(lambda row: row["event"] == "closed" and row["peer"] == peer, timeout, since=self._connected.get(peer, 0))

    def ended_row(self, client: socket.socket) -> Row:
        """The same of a client that has read its end: it ends its own side, for which the connection would wait a second."""
        assert client.recv(1) == b"", "the stream goes on"
        with contextlib.suppress(OSError):  # the connection may be gone as a whole
            client.shutdown(socket.SHUT_WR)
        return self.closed_row(client)

    # --- the API and the metrics -----------------------------------------------------------------------------------------------

    def api(self) -> grpc.Channel:
        """A new client channel of the admin socket; close it."""
        return grpc.insecure_channel(self.serving["admin"])

    def channels(self) -> dict[str, channels_pb2.Channel]:
        """The open channels, by peer."""
        with self.api() as channel:
            answer = ChannelServiceStub(channel).ListChannels(channels_pb2.ListChannelsRequest(), timeout=30)
        return {item.peer_address: item for item in answer.channels}

    def closed_cause(self, identifier: str) -> str:
        """The cause of a closed connection as the API tells it; empty when it does not know it."""
        with self.api() as channel:
            answer = ChannelServiceStub(channel).ListClosedChannels(channels_pb2.ListClosedChannelsRequest(page_size=1000), timeout=10)
        causes = {item.id: channels_pb2.Cause.Name(item.close.cause) for item in answer.channels}
        return causes.get(identifier, "").removeprefix("CAUSE_").lower()

    def metrics(self) -> dict[str, float]:
        """Prometheus' samples: name with labels as written, and value."""
        with urllib.request.urlopen(f"http://{self.serving['prometheus']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(value for key, value in self.metrics().items() if key.partition("{")[0] == name and all(label in key for label in wanted))

    def cli(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_cli(*arguments, "--address", self.serving["admin"])

    def json(self, *arguments: str) -> Any:
        """What a command of ``framegate`` against it prints as JSON; it must be good."""
        done = self.cli(*arguments, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    # --- connections and processes ---------------------------------------------------------------------------------------------

    def reload(self) -> str:
        """SIGHUP; what it did to the configuration, in the words of the row."""
        before = len(self.events("reloaded"))
        self.process.send_signal(signal.SIGHUP)
        until(lambda: len(self.events("reloaded")) > before, "it is not reloaded", 20)
        return str(self.events("reloaded")[-1]["configuration"])

    def address(self, listener: str) -> tuple[str, int]:
        host, _, port = self.serving["listeners"][listener].rpartition(":")
        return host.strip("[]"), int(port)

    def connect(self, listener: str, tls: ssl.SSLContext | None = None, timeout: float = 10.0) -> socket.socket:
        """A client's socket, after the handshake when ``tls`` is given; it is closed at the end of the block at the latest."""
        sock = socket.create_connection(self.address(listener), timeout=timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connected[peer_name(sock)] = len(self.rows)  # an earlier client may have had the same port
        self._clients.append(sock if tls is None else tls.wrap_socket(sock, server_hostname="localhost"))
        return self._clients[-1]

    @property
    def processors(self) -> list[int]:
        """Pids of the processors that are ready."""
        return processor_pids(self.process.pid)

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 15.0) -> int:
        """The exit code, and the pipes read to their end."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            for reader in self._readers:
                reader.join(10)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # which wakes a thread that sends or receives
            client.close()
        self.stop()
        assert kind is not None or not self._odd, f"rows that deploy/log.schema.json does not know: {self._odd}"


class Witness:
    """A second connection whose numbered frames go round all the time; leaving the block checks that they kept arriving, in order, whole."""

    def __init__(self, proxy: Framegate, listener: str, tls: ssl.SSLContext | None = None, size: int = 100) -> None:
        self.sock = proxy.connect(listener, tls)
        self.count = 0
        self._size = size
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                body = self.count.to_bytes(8, "big") * (self._size // 8)
                assert ask(self.sock, body) == body, "another frame came back"
                self.count += 1
                time.sleep(0.001)
        except Exception as error:
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def check(self) -> None:
        """Frames still arrive now."""
        before = self.count
        until(lambda: self.count >= before + 3 or self._failure, "the other connection's frames stand still", 5)
        assert self._failure is None, repr(self._failure)

    def stop(self) -> None:
        """Send no more; what was sent has come back, once checked."""
        self.check()
        self._stop.set()
        self._thread.join(10)
        assert self._failure is None, repr(self._failure)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and not self._stop.is_set():
                self.check()
        finally:
            self._stop.set()
            self._thread.join(10)
            self.sock.close()
