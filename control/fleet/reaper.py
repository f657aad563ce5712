"""Children that ended, all of them: as PID 1 the control process also inherits orphans, which must not stay as zombies."""

import asyncio
import os
import signal
from collections.abc import Callable

__all__ = ["Reaper"]


class Reaper:
    """Waits for every child on SIGCHLD and calls the watchers. Event loop only; one per process."""

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Call ``on_exit`` with the exit code of a child, negative for the signal that killed it. Call it in the same step that started the child."""
        self._watched[pid] = on_exit

    def reap(self) -> None:
        """Take every child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self._watched.pop(pid, None)
            if on_exit is not None:
                self._notify(on_exit, pid, os.waitstatus_to_exitcode(status))

    def _notify(self, on_exit: Callable[[int], None], pid: int, code: int) -> None:
        try:
            on_exit(code)
        except Exception as error:  # the other children that ended are still to be taken: SIGCHLD may not come again
            self._loop.call_exception_handler({"message": f"the watcher of the child {pid} failed at its end", "exception": error})

    def close(self) -> None:
        """Stop listening to SIGCHLD."""
        self._loop.remove_signal_handler(signal.SIGCHLD)
