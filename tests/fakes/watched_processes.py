"""What the command lines and environments of processes said, those that lived only for a moment included."""

import contextlib
import threading
from pathlib import Path
from typing import Self

_PAUSE_S = 0.002


class WatchedProcesses:
    """A context manager: looks at a process, and at all that come from it, again and again.

    Attributes:
        seen: what was found, by pid and file.
    """

    def __init__(self, pid: int) -> None:
        self.seen: dict[tuple[int, str], set[bytes]] = {}
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def commands(self) -> set[str]:
        return {data.replace(b"\0", b" ").decode() for (_, name), found in self.seen.items() if name == "cmdline" for data in found}

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._look(self._pid)

    def _look(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            for name in ("cmdline", "environ"):
                self.seen.setdefault((pid, name), set()).add(Path(f"/proc/{pid}/{name}").read_bytes())
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    self._look(int(child))

    def __enter__(self) -> Self:
        self._look(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
