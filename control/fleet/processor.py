"""One processor process: how it is started, what its sockets are, how it ends. Who decides that is ``control.fleet.supervisor``."""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import proxy
from control.errors import StartError, UnavailableError
from control.fleet.link import Link
from control.fleet.reaper import Reaper
from control.fleet.slot_cells import SlotCells
from control.logs import RowLog
from proxy.network.connection_id import COUNTER_BITS, GENERATION_BITS, make_connection_id
from proxy.server.link import Handover
from proxy.server.messages import ErrorReply, StartMessage, StopCommand
from proxy.server.protocol import Message, MessageError, Request, read_ready

__all__ = ["COMMAND", "Given", "Processor"]

R = TypeVar("R")
COMMAND: Final = (sys.executable, "-P", "-m", "proxy.server")
READY_TIMEOUT_S: Final = 20.0
REQUEST_MS: Final = 5_000
"""How long an answer to a question may take: a processor looks at what it is asked within 50 ms of traffic."""
LINK_LOST_S: Final = 6.0
"""A processor that has lost its link delivers what it has, flushes its tap and exits within 5 s."""
_OUTPUT_LINE_BYTES: Final = 4096
_HANDOVER_BUFFER: Final = 64 * 1024
# glibc's: with its defaults a large read is mapped anew, or the top of the heap given back and faulted in again, with each frame. In one run:
# 64 KiB frames 0.92 (plain) and 0.95 (TLS) of the defaults' processor time, 1 MB 0.96 and 0.98, small ones the same. A user's own setting wins.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


_PASSED: Final = frozenset(
    {
        "GLIBC_TUNABLES",
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "OPENSSL_CONF",
        "OPENSSL_ENGINES",
        "OPENSSL_MODULES",
        "PATH",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
    }
)
"""What the interpreter, the C library and OpenSSL may need, besides everything that begins with one of ``_PASSED_FAMILIES``."""
_PASSED_FAMILIES: Final = ("LC_", "MALLOC_", "PYTHON")
_ALSO_PASSED: Final = "FRAMEGATE_PROCESSOR_ENV"
"""Names of further variables, with commas between them."""


def _environment() -> dict[str, str]:
    """What a processor needs of ours, and the allocator's settings: tokens and the like, which a container may have been given, are not for the
    processes that read what strangers send. A package that lies outside site-packages (a checkout) is named, since ``-P`` leaves the current
    folder out of the path.
    """
    also = {name.strip() for name in os.environ.get(_ALSO_PASSED, "").split(",")}
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_FAMILIES) or name in also}
    environment = {**_ALLOCATOR, **passed}
    root = pathlib.Path(proxy.__file__).resolve().parent.parent
    if not {"site-packages", "dist-packages"} & set(root.parts):
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


class Given(NamedTuple):
    """A connection that a processor was given, and the id under which it is listed there."""

    handover: Handover
    number: int


class Processor:
    """One process in one slot.

    Args:
        inherited: descriptors that it keeps as long as it lives, and knows nothing of.

    Attributes:
        slot, generation: who it is.
        pid: of the process.
        handover: our end of the hand-over socket.
        link: our end of the command socket.
        ended: becomes the exit code once the process is reaped.
        kill_reason: why control killed it; empty otherwise.
        ready: it said that it is; from then on its heart beats.
        modules: hot module names and files, as the process reported.
        open: connections handed over and not reported closed, by ``accepted_ns``; None for one that was reported before it was booked.

    Raises:
        OSError: the process, or what connects it with us, cannot be made; nothing of it is left.
    """

    def __init__(
        self,
        slot: int,
        generation: int,
        cells: SlotCells,
        reaper: Reaper,
        log: RowLog,
        on_notice: Callable[["Processor", Message], None],
        command: Sequence[str] = COMMAND,
        inherited: Sequence[int] = (),
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.kill_reason = ""
        self.ready = False
        self.modules: dict[str, str] = {}
        self.open: dict[int, Given | None] = {}
        self._given = 0
        self._log = log
        self._on_notice = on_notice
        self._output = b""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._ready: asyncio.Future[Message] = self._loop.create_future()
        with contextlib.ExitStack() as undo:
            self.handover, their_handover = map(undo.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            commands, their_commands = map(undo.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
            self.handover.setblocking(False)
            self.handover.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _HANDOVER_BUFFER)
            self._popen = self._spawn(command, their_handover.fileno(), their_commands.fileno(), cells.descriptor, inherited)
            self.pid = self._popen.pid
            reaper.watch(self.pid, self._reaped)
            undo.callback(self.kill, "died")
            assert self._popen.stdout is not None, "the process was started with a pipe"
            self._pipe = undo.enter_context(self._popen.stdout)
            os.set_blocking(self._pipe.fileno(), False)
            self._loop.add_reader(self._pipe.fileno(), self._read_output)
            undo.callback(self._loop.remove_reader, self._pipe.fileno())
            self.link = Link(commands, self._notice, self._link_ended)
            undo.pop_all()
        their_handover.close()
        their_commands.close()

    def _spawn(self, command: Sequence[str], handover: int, commands: int, cells: int, inherited: Sequence[int]) -> "subprocess.Popen[bytes]":
        numbers = {"--slot": self.slot, "--handover-fd": handover, "--command-fd": commands, "--cells-fd": cells}
        arguments = [text for name, number in numbers.items() for text in (name, str(number))]
        with open(os.devnull, "rb") as nothing:  # ours: with DEVNULL, Python up to 3.11 loses a descriptor when there is none for the pipe
            return subprocess.Popen(
                [*command, *arguments],
                stdin=nothing,
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=subprocess.STDOUT,
                pass_fds=(handover, commands, cells, *inherited),
                env=_environment(),
                process_group=0,
            )

    async def start(self, message: StartMessage) -> None:
        """Send ``start`` and wait until the process is ready.

        Raises:
            StartError: it said ``failed``, ended, was silent for 20 s, or speaks another version of the link.
        """
        self.link.post(message)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.wait((self._ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            raise self._start_error(f"was not ready within {READY_TIMEOUT_S:.0f} s") from error
        if not self._ready.done():
            raise self._start_error(f"ended with code {self.ended.result()} before it was ready")
        answer = self._ready.result()
        if answer["type"] == "failed":
            raise self._start_error(f"could not start: {answer.get('error', '')}")
        try:
            self.modules = read_ready(answer)["modules"]
        except MessageError as error:
            raise self._start_error(f"could not start: {error}") from error
        self.ready = True

    def _start_error(self, text: str) -> StartError:
        return StartError(f"processor {self.slot} {text}", reason="PROCESSOR_START_FAILED", slot=str(self.slot))

    def book(self, handover: Handover) -> Given:
        """Book a connection that was handed over. The n-th has the counter n in its id: the processor counts them in the same order."""
        self._given = self._given + 1 & (1 << COUNTER_BITS) - 1
        number = make_connection_id(self.slot, self.generation & (1 << GENERATION_BITS) - 1, self._given)
        given = Given(handover, number)
        if self.open.setdefault(handover.accepted_ns, given) is None:
            del self.open[handover.accepted_ns]
        return given

    def unbook(self, accepted_ns: int) -> None:
        """Take a connection off the books that ended; it may come before the connection is booked."""
        if self.open.pop(accepted_ns, None) is None:  # the acceptor's thread has handed it over, and has not come to saying so
            self.open[accepted_ns] = None

    def kill(self, reason: str) -> None:
        """SIGKILL; ``reason`` is the word for the metric. The first reason stays."""
        if not self.ended.done():
            self.kill_reason = self.kill_reason or reason
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self, timeout_s: float) -> None:
        """Ask it to flush and exit; killed when it takes longer. Returns when it is reaped."""
        self.link.post(StopCommand(type="stop"))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self.ended)
        except TimeoutError:
            self._log.write("processor_killed", level="warning", slot=self.slot, pid=self.pid, reason=f"did not stop within {timeout_s:g} s")
            self.kill("stop")
            await self.ended

    def close(self) -> None:
        """Give sockets and the pipe back; after the process ended."""
        assert self.ended.done(), "a processor that runs keeps its sockets"
        self.link.close()
        self.handover.close()
        self._loop.remove_reader(self._pipe.fileno())
        self._read_output()
        self._pipe.close()
        if self._output:
            self._print(self._output)

    def _reaped(self, code: int) -> None:
        self._popen.returncode = code
        if not self.ended.done():
            self.ended.set_result(code)

    def _notice(self, message: Message) -> None:
        if message["type"] in ("ready", "failed") and not self._ready.done():
            self._ready.set_result(message)
            return
        self._on_notice(self, message)

    def _link_ended(self, reason: str) -> None:
        """A processor without a link cannot be steered; it ends by itself, or is made to."""
        self._loop.call_later(LINK_LOST_S, self._kill_if_running, reason)

    def _kill_if_running(self, reason: str) -> None:
        if not self.ended.done():
            self._log.write("processor_killed", level="error", slot=self.slot, pid=self.pid, reason=f"its link {reason}")
            self.kill("died")

    def _read_output(self) -> None:
        if self._pipe.closed:
            return
        try:
            data = os.read(self._pipe.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._pipe.fileno())
            return
        *lines, self._output = (self._output + data).split(b"\n")
        for line in lines:
            self._print(line)
        self._output = self._output[-_OUTPUT_LINE_BYTES:]

    def _print(self, line: bytes) -> None:
        text = line[:_OUTPUT_LINE_BYTES].decode("utf-8", "replace")
        self._log.write("processor_output", level="error", slot=self.slot, pid=self.pid, line=text)

    async def request(self, request: Request[R], timeout_ms: int) -> R:
        """Ask over the link; see ``Link.request``. An ``error`` answer raises UnavailableError."""
        answer = await self.link.request(request, timeout_ms)
        if cast(Message, answer)["type"] == "error":
            raise UnavailableError(f"processor {self.slot}: {cast(ErrorReply, answer)['error']}", reason="PROCESSOR_FAILED")
        return cast(R, answer)
