"""framegate's own passwords and tokens for upstreams. Each file is read again each time it is needed, so that it may be renewed at any time."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Final

from framegate.control.files import FileError, read_file

MAX_SECRET: Final = 65536  # bytes of a file
PATIENCE_S: Final = 2.0  # The time to read a file. Logins wait as long; Kafka's clients wait for 10 s and more.


class SecretError(Exception):
    """A file without a usable secret. The message has nothing of its contents."""


@dataclasses.dataclass(slots=True)
class _Reading:
    """One file that is being read."""

    deadline: float = dataclasses.field(default_factory=lambda: time.monotonic() + PATIENCE_S)  # of the read, on the monotonic clock
    done: threading.Event = dataclasses.field(default_factory=threading.Event)  # set when the file has been read
    found: bytes | FileError = dataclasses.field(default=b"", repr=False)  # the contents, or why they cannot be read


class Secrets:
    """The secrets of upstreams, by the name of the credential. Any thread. A file system may not respond. So each file is read in a thread of its
    own, one read at a time. A caller waits for it for ``PATIENCE_S`` at most; while an overdue read has not ended, later callers fail at once.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files: Final = dict(files)
        self._lock: Final = threading.Lock()
        self._readings: Final[dict[str, _Reading]] = {}

    def read(self, name: str) -> str:
        """The secret: what is in the file, without the end of its line. Raises SecretError: there is none."""
        path = self._files.get(name)
        if path is None:
            raise SecretError(f"there is no credential {name!r}")
        reading = self._reading(path)
        if not reading.done.wait(max(reading.deadline - time.monotonic(), 0)):
            raise SecretError(f"{path} cannot be read: it does not come within {PATIENCE_S:g} s")
        if isinstance(reading.found, FileError):
            raise SecretError(str(reading.found)) from None
        try:
            text = reading.found.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise SecretError(f"{path} is not UTF-8") from None
        if not text or not text.isprintable():
            raise SecretError(f"{path} holds no secret in one line")
        return text

    def _reading(self, path: str) -> _Reading:
        with self._lock:
            found = self._readings.get(path)
            if found is None:
                found = self._readings[path] = _Reading()
                threading.Thread(target=self._read, args=(path, found), name="framegate-secret", daemon=True).start()
            return found

    def _read(self, path: str, reading: _Reading) -> None:
        try:
            reading.found = read_file(path, MAX_SECRET)
        except FileError as error:
            error.__traceback__ = None
            reading.found = error
        finally:
            with self._lock:
                del self._readings[path]
            reading.done.set()
