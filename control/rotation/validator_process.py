"""The validator process (``framegate.control.rotation.questions``): starting one takes a third of a second, asking it again milliseconds.

The first question starts it, and it is asked one question at a time. It ends by itself when it was not asked for a minute; one that hangs or has
grown is killed. The next question starts another. Questions and answers are JSON behind four bytes of length, over a pair of sockets; it ends when
control has closed its own.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from framegate.control.configuration.cgroup import resident_memory
from framegate.control.fleet.child import Reaper, child_environment
from framegate.proxy.config.model import MIB

_COMMAND: Final = (sys.executable, "-P", "-m", "framegate.control.rotation.questions")
_PATIENCE_S: Final = 30.0
_KEPT: Final = 64 * MIB  # Resident memory of one that is asked again; at start it has 33 MiB, half of them the interpreter's and shared
_NOTHING: Final = ""  # Variables that are passed on to it beyond those that an interpreter needs


class ValidatorProcess:
    """Event loop only; one question at a time, others wait. ``patience_s``: for an answer, the start of the process included. ``kept``: bytes of
    resident memory above which it is not asked again.
    """

    def __init__(self, reaper: Reaper, command: Sequence[str] = _COMMAND, *, patience_s: float = _PATIENCE_S, kept: int = _KEPT) -> None:
        self._reaper: Final = reaper
        self._command: Final = tuple(command)
        self._patience_s: Final = patience_s
        self._kept: Final = kept
        self._running: _Running | None = None
        self._lock: Final = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process that will be asked next; None: there is none yet."""
        return None if self._running is None else self._running.pid

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """What ``framegate.control.rotation.questions.answer`` says to a question. Raises OSError: no process can be started; RuntimeError: it ended
        instead; it has said why on standard error; TimeoutError: it did not answer.
        """
        data = json.dumps(question).encode("ascii")
        async with self._lock:
            if self._running is not None:
                with contextlib.suppress(RuntimeError):  # it may have ended long ago: another one is asked
                    return await self._ask(data)
            return await self._ask(data)

    async def _ask(self, question: bytes) -> dict[str, Any]:
        running = self._running
        if running is None or running.ended.done():
            running = self._running = _Running(self._command, self._reaper)
        try:
            async with asyncio.timeout(self._patience_s):
                found = await running.ask(question)
        except BaseException:
            self._end(running)
            raise
        if resident_memory(running.pid) > self._kept:
            self._end(running)
        return found

    def _end(self, running: "_Running") -> None:
        running.kill()
        self._running = None

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            await running.ended


class _Running:
    """One process. ``ended`` becomes its exit code, once it is reaped."""

    def __init__(self, command: Sequence[str], reaper: Reaper) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self.ended: Final[asyncio.Future[int]] = self._loop.create_future()
        self._socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            self._socket.setblocking(False)
            end = theirs.fileno()
            self._child: Final = subprocess.Popen(list(command), stdin=end, stdout=end, env=child_environment(_NOTHING), process_group=0)
            self.pid: Final = self._child.pid
            reaper.watch(self.pid, self._reaped)
            undo.pop_all()

    def _reaped(self, code: int) -> None:
        self._child.returncode = code
        self._socket.close()
        self.ended.set_result(code)

    def kill(self) -> None:
        """Harmless when it has ended."""
        if not self.ended.done():
            self._child.kill()

    async def ask(self, question: bytes) -> dict[str, Any]:
        try:
            await self._loop.sock_sendall(self._socket, len(question).to_bytes(4, "big") + question)
            size = int.from_bytes(await self._exactly(4), "big")
            found: dict[str, Any] = json.loads(await self._exactly(size))
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the validator process ended with {await self.ended}") from error
        return found

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = await self._loop.sock_recv(self._socket, size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)
