"""The demo's folder: all files of one run. They stay after the end."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES

__all__ = ["Workspace", "WorkspaceError"]

_MARKER: Final = ".framegate-demo"


class WorkspaceError(Exception):
    """The folder cannot be used; the message is one line."""


class Workspace:
    """A folder that only this demo uses; the files of the run before are removed.

    Args:
        directory: new, empty or an earlier demo's; None: ``NAME-<uid>`` in the folder for temporary files.
        name: of that folder; each kind of demo has its own.

    Attributes:
        configuration, upstream_configuration: files of the proxy and of the upstream.
        admin, upstream_admin: addresses of their control APIs: in the folder, or elsewhere when the path is too long for a Unix socket.

    Raises:
        WorkspaceError: the folder cannot be written or holds other files, or another demo uses it.
    """

    def __init__(self, directory: Path | None = None, name: str = "framegate-demo") -> None:
        self.root = (directory or Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}").resolve()
        self.configuration, self.upstream_configuration = self.root / "framegate.yaml", self.root / "upstream.yaml"
        self.certificates, self.tap, self.tables, self.logs = (self.root / part for part in ("certificates", "tap", "tables", "logs"))
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
            raise WorkspaceError(f"{self.root} holds something else; name a new folder with --directory")
        lock = marker.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise WorkspaceError(f"another demo runs in {self.root}; name a new folder with --directory") from None
        return lock


def _short_socket(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"framegate-demo-{os.getpid()}-{name}.sock"
