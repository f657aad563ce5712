"""A child process of the control process: its environment, sockets, output and end. Processors and handler processes are child processes.

A child has two sockets: it receives descriptors over ``handover`` (SOCK_SEQPACKET), and exchanges messages over ``link``
(``framegate.proxy.server.link``).
"""

import abc
import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from framegate import proxy
from framegate.control.errors import StartError
from framegate.control.fleet.link import Link
from framegate.control.logs import RowLog
from framegate.proxy.server.messages import PlainCommand
from framegate.proxy.server.protocol import Message, MessageError

R = TypeVar("R")
FORCED: Final = "stop"  # The reason of ``Child.kill`` when the proxy or an operator ends a process that is still busy. Such an end is not a crash.
LINK_LOST_S: Final = 6.0  # a process whose link ended writes out its data (a processor also flushes its tap) and exits within 5 s
_OUTPUT_LINE_BYTES: Final = 4096
_OUTPUT_ROWS: Final = 500  # rows for the output of one process, per second
_HANDOVER_BUFFER: Final = 64 * 1024
# Settings of glibc. With its defaults each large frame maps memory anew, or returns the top of the heap and faults it in again. Measured processor
# time relative to the defaults: 64 KiB frames 0.92 (plain) and 0.95 (TLS), 1 MB 0.96 and 0.98, small frames 1. A user's own setting wins.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
_PASSED: Final = frozenset(
    ("GLIBC_TUNABLES", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "OPENSSL_CONF", "OPENSSL_ENGINES",
     "OPENSSL_MODULES", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ")
)  # fmt: skip
"""Variables that the interpreter, the C library and OpenSSL may need, besides those that begin with one of ``_PASSED_FAMILIES``."""
_PASSED_FAMILIES: Final = ("LC_", "MALLOC_", "PYTHON")


class Reaper:
    """Waits for every child on SIGCHLD and calls the watchers. As PID 1 the control process also inherits orphans, which must not stay as zombies.
    Event loop only; one per process.
    """

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Call ``on_exit`` with the exit code of a child, negative for the signal that killed it. Call it in the same step that started the child."""
        self._watched[pid] = on_exit

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self._watched.pop(pid, None)
            if on_exit is None:
                continue
            try:
                on_exit(os.waitstatus_to_exitcode(status))
            except Exception as error:  # go on: SIGCHLD may not come again for the other children that ended
                self._loop.call_exception_handler({"message": f"the watcher of the child {pid} failed at its end", "exception": error})

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)


class Heartbeat:
    """Counts looks in which a heartbeat has not moved. Looks are counted instead of time, so that time in which the control process did not run
    itself (stopped, or paused with the whole machine) does not count.
    """

    def __init__(self) -> None:
        self._last = 0
        self._looks = 0

    def look(self, heartbeat: int) -> int:
        """Returns the number of looks in a row, this one included, that found the same value as the look before."""
        self._looks = self._looks + 1 if heartbeat == self._last else 0
        self._last = heartbeat
        return self._looks


class ChildKind(NamedTuple):
    """The constants of one kind of process."""

    word: str  # the prefix of its rows, as in ``processor_died``
    name: str  # how messages call it; the number of its slot follows
    failed: str  # ``StartError.reason`` when it cannot be started
    ready_s: float  # the time limit for becoming ready
    environment: str  # the environment variable that names further variables to pass on, separated by commas
    restarts: str  # the counter of restarts, by reason
    reasons: tuple[str, ...]  # the values of the reason; others count as ``died``
    output_level: str = "error"  # the level of rows for its output. A processor prints only when the interpreter fails.
    lag: str = ""  # the counter of seconds for which its heartbeat stood still; empty: they are not counted

    def start_error(self, slot: int, text: str) -> StartError:
        return StartError(f"{self.name} {slot} {text}", reason=self.failed, slot=str(slot))


class SpawnOptions(NamedTuple):
    """How every child of a kind is started."""

    kind: ChildKind
    command: Sequence[str]  # the program; options with numbers follow
    reaper: Reaper
    log: RowLog
    inherited: Sequence[int] = ()  # descriptors that the child keeps open as long as it lives, without using them


def child_environment(also_passed: str) -> dict[str, str]:
    """The environment of a child: the variables that it needs, and the allocator's settings. Other variables may hold tokens, which processes that
    read the bytes of strangers must not have. A package outside site-packages (a checkout) is added to PYTHONPATH, since ``-P`` leaves the current
    folder out of the path. ``also_passed``: the variable that names further ones, separated by commas.
    """
    also = {name.strip() for name in os.environ.get(also_passed, "").split(",")}
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_FAMILIES) or name in also}
    environment = {**_ALLOCATOR, **passed}
    root = pathlib.Path(proxy.__file__).parents[2]
    if not {"site-packages", "dist-packages"} & set(root.parts):
        environment["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [environment.get("PYTHONPATH")])])
    return environment


class Child(abc.ABC):
    """One process in one slot.

    ``descriptors``: further descriptors for the child, by the option that passes the number. ``on_notice``: gets every message but answers and the
    first ``ready`` or ``failed``.

    Attributes:
        handover: our end of the hand-over socket.
        link: our end of the command socket.

    Raises OSError: the process or its sockets cannot be made; nothing of it is left.
    """

    def __init__(
        self, slot: int, generation: int, spawn_options: SpawnOptions, descriptors: Mapping[str, int], on_notice: Callable[[Message], None]
    ) -> None:
        # slot, generation: its identity
        self.slot = slot
        self.generation = generation
        self.kill_reason = ""  # why control killed it; empty otherwise
        self.ready = False  # it has reported that it is ready; its heartbeat is watched from then on
        self.heartbeat = Heartbeat()
        self._kind = spawn_options.kind
        self._log = spawn_options.log
        self._on_notice = on_notice
        self._output = b""
        self._printed = 0  # in this second
        self._unprinted = (0, b"")  # lines without a row, and the last of them
        self._second: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()  # becomes the exit code once the process is reaped
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

    @abc.abstractmethod
    def look(self) -> int:
        """Look at its heartbeat; see ``Heartbeat.look``."""

    async def first_answer(self, message: Mapping[str, object], read: Callable[[Message], R]) -> R:
        """Send ``start``, wait for the answer and read it. Raises StartError: the process answered ``failed``, ended, did not answer in time, or its
        answer cannot be read.
        """
        self.link.post(message)
        try:
            async with asyncio.timeout(self._kind.ready_s):
                await asyncio.wait((self._ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            raise self._start_error(f"was not ready within {self._kind.ready_s:.0f} s") from error
        if not self._ready.done():
            raise self._start_error(f"ended with code {self.ended.result()} before it was ready")
        answer = self._ready.result()
        if answer["type"] == "failed":
            raise self._start_error(f"could not start: {answer.get('error', '')}")
        try:
            found = read(answer)
        except MessageError as error:
            raise self._start_error(f"could not start: {error}") from error
        self.ready = True
        return found

    def _start_error(self, text: str) -> StartError:
        return self._kind.start_error(self.slot, text)

    def kill(self, reason: str) -> None:
        """SIGKILL; ``reason`` is the value of the metric. The first reason stays."""
        if not self.ended.done():
            self.kill_reason = self.kill_reason or reason
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self, timeout_s: float) -> None:
        """Ask it to exit, and kill it after ``timeout_s``. Returns when it is reaped."""
        self.link.post(PlainCommand(type="stop"))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self.ended)
        except TimeoutError:
            self.log("killed", level="warning", reason=f"did not stop within {timeout_s:g} s")
            self.kill(FORCED)
            await self.ended

    def close(self) -> None:
        """Close the sockets and the pipe; after the process ended."""
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
        """A process without a link cannot be controlled: it ends by itself, or is killed."""
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
        """Write a row for a line. Above the limit per second, count the lines, and write the last one when the second is over."""
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
