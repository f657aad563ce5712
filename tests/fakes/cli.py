"""The command line against a real service over a fake plane, which runs on a thread of its own."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Final

import grpc
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.proxy.config.model import TapConfig, TapRule
from tests.fakes.plane import FakePlane
from tests.fakes.serving import serving

ROOT: Final = Path(__file__).parents[2]
TAP: Final = TapConfig(directory="/nowhere", rules=(TapRule(name="all"),))
VERBS: Final = (
    ("status",),
    ("drain", "--no-wait"),
    ("channels", "list"),
    ("channels", "list", "--closed"),
    ("channels", "describe", "0-1-7"),
    ("channels", "mute", "--filter", "listener=kafka", "--reason", "x"),
    ("channels", "unmute", "--filter", "listener=kafka"),
    ("channels", "close", "--filter", "listener=kafka"),
    ("channels", "throttle", "--filter", "listener=kafka", "--request-rate", "1MiB", "--standing"),
    ("channels", "actions"),
    ("config", "show"),
    ("config", "save", "-"),
    ("handlers", "list"),
    ("kafka-rules", "get", "--listener", "kafka"),
    ("kafka-rules", "set", "--listener", "kafka", "--report-only"),
    ("limits", "get"),
    ("limits", "get", "--listener", "kafka"),
    ("limits", "get", "--node"),
    ("limits", "set", "--listener", "kafka", "--max-receive-size", "1MiB"),
    ("limits", "set", "--node", "--connections", "5"),
    ("limits", "set", "--network", "10.0.0.0/8", "--access", "deny"),
    ("pool", "get"),
    ("pool", "set", "--size", "512MiB"),
    ("pool", "set", "--processors", "1"),
    ("listeners", "list"),
    ("upstreams", "list"),
    ("certificates", "list"),
    ("certificates", "reload"),
    ("taps", "list"),
    ("taps", "add", "new", "--before", "all"),
    ("taps", "set", "all", "--capture", "hash"),
    ("taps", "remove", "all", "--dry-run"),
    ("users", "list", "--listener", "kafka"),
    ("log", "get"),
    ("log", "set", "--level", "warning"),
    ("log", "set", "--event", "closed=off"),
)  # every command that asks the control plane, but for changes of users, which print nothing; some need ``TAP``


# Words before a command for which writing to a file fails, as on a full disk. A function as ``preexec_fn`` would run beside gRPC's threads.
NO_FILE_GROWS: Final = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh")


def start_cli(*words: str, **options: Any) -> "subprocess.Popen[str]":
    """A command as a process of its own; ``environment`` comes on top of ours, ``before`` are words in front of the command."""
    environment = {**os.environ, **options.pop("environment", {})}
    before = options.pop("before", ())
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*before, sys.executable, "-m", "framegate.control.cli", *words], cwd=ROOT, text=True, env=environment, **pipes)


def run_cli(*words: str, **options: Any) -> tuple[int, str, str]:
    """Exit code, standard output (empty when it went elsewhere) and standard error of a command in a process of its own."""
    with start_cli(*words, **options) as process:
        out, err = process.communicate(timeout=30)
        return process.returncode, out or "", err or ""


class Answering(grpc.GenericRpcHandler):
    """A server that fails every call with ``code``, or lets it wait when that is OK. ``arrived`` is set by each."""

    def __init__(self) -> None:
        self.code = grpc.StatusCode.OK
        self.arrived = threading.Event()
        self.ended = threading.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":

        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.arrived.set()
            if self.code is not grpc.StatusCode.OK:
                context.abort(self.code, f"this is {self.code.name}")
            self.ended.wait(30)
            return b""

        return grpc.unary_unary_rpc_method_handler(call)


@contextlib.contextmanager
def answering(address: str) -> Iterator[Answering]:
    """Such a server at an address, for the length of a block."""
    handler = Answering()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(address)
    server.start()
    try:
        yield handler
    finally:
        handler.ended.set()
        server.stop(0).wait(10)


class Cli:
    """Runs commands. Attributes: ``plane``, ``address``."""

    def __init__(self, plane: FakePlane, address: str) -> None:
        self.plane = plane
        self.address = address

    def __call__(self, *words: str) -> Result:
        """Run a command, with FRAMEGATE_ADDRESS set."""
        return CliRunner(env={"FRAMEGATE_ADDRESS": self.address, "COLUMNS": "200"}).invoke(main, words)

    def json(self, *words: str) -> Any:
        """Run a command that must be good, for its JSON."""
        result = self(*words, "--output", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@contextlib.contextmanager
def served(tap: TapConfig | None = None) -> Iterator[Cli]:
    ready, done = threading.Event(), asyncio.Event()
    found: list[Cli] = []
    loop = asyncio.new_event_loop()

    async def body() -> None:
        async with serving(tap=tap) as at_hand:
            found.append(Cli(at_hand.plane, at_hand.service.address))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(body(),))
    thread.start()
    try:
        assert ready.wait(10), "the service did not start"
        yield found[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()
