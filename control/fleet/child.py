"""One process that control starts: its environment, its sockets, what it prints, its end. Processors and handler processes are such.

It has two sockets: over ``handover`` (SOCK_SEQPACKET) it is given descriptors, over ``link`` it is told what to do, and says how it fares
(``framegate.proxy.server.link``).
"""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from framegate import proxy
from framegate.control.errors import StartError
from framegate.control.fleet.link import Link
from framegate.control.fleet.reaper import Reaper
from framegate.control.logs import RowLog
from framegate.proxy.server.messages import PlainCommand
from framegate.proxy.server.protocol import Message

__all__ = ["Child", "ChildKind", "SpawnOptions", "child_environment"]

LINK_LOST_S: Final = 6.0
"""One that has lost its link delivers what it has (a processor flushes its tap, too) and exits within 5 s."""
_OUTPUT_LINE_BYTES: Final = 4096
_OUTPUT_ROWS: Final = 500
"""Of what one process prints, a second."""
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


class ChildKind(NamedTuple):
    """What sort of a process it is.

    Attributes:
        word: begins the names of its rows, as in ``processor_died``.
        name: what people call it; the number of its slot follows.
        failed: ``StartError.reason`` when it cannot be started.
        ready_s: how long it may take until it is ready.
        environment: the variable that names further variables which it gets, with commas between them.
        output_level: of the rows of what it prints: a processor has nothing to print, but for the last words of an interpreter.
    """

    word: str
    name: str
    failed: str
    ready_s: float
    environment: str
    output_level: str = "error"

    def start_error(self, slot: int, text: str) -> StartError:
        """It did not come up."""
        return StartError(f"{self.name} {slot} {text}", reason=self.failed, slot=str(slot))


class SpawnOptions(NamedTuple):
    """What every child of a kind is started with.

    Attributes:
        command: the program; options with numbers follow.
        inherited: descriptors that it keeps as long as it lives, and knows nothing of.
    """

    kind: ChildKind
    command: Sequence[str]
    reaper: Reaper
    log: RowLog
    inherited: Sequence[int] = ()


def child_environment(also_passed: str) -> dict[str, str]:
    """What a child needs of ours, and the allocator's settings: tokens and the like, which a container may have been given, are not for the
    processes that read what strangers send. A package that lies outside site-packages (a checkout) is named, since ``-P`` leaves the current
    folder out of the path. ``also_passed``: the variable that names further ones, with commas between them.
    """
    also = {name.strip() for name in os.environ.get(also_passed, "").split(",")}
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_FAMILIES) or name in also}
    environment = {**_ALLOCATOR, **passed}
    root = pathlib.Path(proxy.__file__).parents[2]
    if not {"site-packages", "dist-packages"} & set(root.parts):
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


class Child:
    """One process in one slot.

    Args:
        hiring: what it has in common with others of its kind.
        descriptors: what else it gets, by the option that tells it the number.
        on_notice: gets what it says unasked, once it has said that it is ready, or failed.

    Attributes:
        slot, generation: its identity.
        pid: of the process.
        handover: our end of the hand-over socket.
        link: our end of the command socket.
        ended: becomes the exit code once the process is reaped.
        kill_reason: why control killed it; empty otherwise.
        ready: it said that it is.

    Raises:
        OSError: the process, or what connects it with us, cannot be made; nothing of it is left.
    """

    def __init__(
        self, slot: int, generation: int, spawn_options: SpawnOptions, descriptors: Mapping[str, int], on_notice: Callable[[Message], None]
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.kill_reason = ""
        self.ready = False
        self._kind = spawn_options.kind
        self._log = spawn_options.log
        self._on_notice = on_notice
        self._output = b""
        self._printed = 0  # in this second
        self._unprinted = (0, b"")  # lines without a row, and the last of them
        self._second: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._ready: asyncio.Future[Message] = self._loop.create_future()
        with contextlib.ExitStack() as undo:
            self.handover, their_handover = map(undo.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            commands, their_commands = map(undo.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
            self.handover.setblocking(False)
            self.handover.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _HANDOVER_BUFFER)
            self._popen = self._spawn(
                spawn_options, {"--handover-fd": their_handover.fileno(), "--command-fd": their_commands.fileno(), **descriptors}
            )
            self.pid = self._popen.pid
            spawn_options.reaper.watch(self.pid, self._reaped)
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

    def _spawn(self, spawn_options: SpawnOptions, descriptors: Mapping[str, int]) -> "subprocess.Popen[bytes]":
        numbers = {"--slot": self.slot, **descriptors}
        arguments = [text for name, number in numbers.items() for text in (name, str(number))]
        with open(os.devnull, "rb") as nothing:  # ours: with DEVNULL, Python up to 3.11 loses a descriptor when there is none for the pipe
            return subprocess.Popen(
                [*spawn_options.command, *arguments],
                stdin=nothing,
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=subprocess.STDOUT,
                pass_fds=(*descriptors.values(), *spawn_options.inherited),
                env=child_environment(spawn_options.kind.environment),
                process_group=0,
            )

    async def first_words(self, message: Mapping[str, object]) -> Message:
        """Send ``start`` and wait for the answer, which is not judged.

        Raises:
            StartError: it said ``failed``, ended, or was silent for too long.
        """
        self.link.post(message)
        try:
            async with asyncio.timeout(self._kind.ready_s):
                await asyncio.wait((self._ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            raise self.start_error(f"was not ready within {self._kind.ready_s:.0f} s") from error
        if not self._ready.done():
            raise self.start_error(f"ended with code {self.ended.result()} before it was ready")
        answer = self._ready.result()
        if answer["type"] == "failed":
            raise self.start_error(f"could not start: {answer.get('error', '')}")
        return answer

    def start_error(self, text: str) -> StartError:
        """See ``ChildKind.start_error``."""
        return self._kind.start_error(self.slot, text)

    def kill(self, reason: str) -> None:
        """SIGKILL; ``reason`` is the word for the metric. The first reason stays."""
        if not self.ended.done():
            self.kill_reason = self.kill_reason or reason
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self, timeout_s: float) -> None:
        """Ask it to end what it does and exit; killed when it takes longer. Returns when it is reaped."""
        self.link.post(PlainCommand(type="stop"))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self.ended)
        except TimeoutError:
            self.log("killed", level="warning", reason=f"did not stop within {timeout_s:g} s")
            self.kill("stop")
            await self.ended

    def close(self) -> None:
        """Give sockets and the pipe back; after the process ended."""
        assert self.ended.done(), "a process that runs keeps its sockets"
        self.link.close()
        self.handover.close()
        self._loop.remove_reader(self._pipe.fileno())
        self._read_output()
        self._pipe.close()
        if self._output:
            self._print(self._output)
        if self._second is not None:
            self._second.cancel()
            self._end_second()

    def log(self, event: str, *, level: str = "info", **fields: object) -> None:
        """A row about it, ``processor_ready`` and the like."""
        self._log.write(f"{self._kind.word}_{event}", level=level, slot=self.slot, pid=self.pid, **fields)

    def _reaped(self, code: int) -> None:
        self._popen.returncode = code
        if not self.ended.done():
            self.ended.set_result(code)

    def _notice(self, message: Message) -> None:
        if message["type"] in ("ready", "failed") and not self._ready.done():
            self._ready.set_result(message)
            return
        self._on_notice(message)

    def _link_ended(self, reason: str) -> None:
        """One without a link cannot be steered; it ends by itself, or is made to."""
        self._loop.call_later(LINK_LOST_S, self._kill_if_running, reason)

    def _kill_if_running(self, reason: str) -> None:
        if not self.ended.done():
            self.log("killed", level="error", reason=f"its link {reason}")
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
        """A row of a line, while there are not too many; of the others the last, and their number, when the second is over."""
        if self._second is None:
            self._second = self._loop.call_later(1.0, self._end_second)
        if self._printed < _OUTPUT_ROWS:
            self._printed += 1
            self._log_line(line)
        else:
            self._unprinted = self._unprinted[0] + 1, line

    def _end_second(self) -> None:
        self._second = None
        count, last = self._unprinted
        self._printed, self._unprinted = 0, (0, b"")
        if count:
            self._log_line(last, suppressed=count - 1)

    def _log_line(self, line: bytes, **fields: int) -> None:
        self.log("output", level=self._kind.output_level, line=line[:_OUTPUT_LINE_BYTES].decode("utf-8", "replace"), **fields)
