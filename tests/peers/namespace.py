"""A network and mount namespace for clients, in which they reach this machine at one address only."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

HOST: Final = "198.51.100.1"
"""This machine, as clients in the namespace see it, at one end of a pair of virtual interfaces. Addresses like this one are for examples."""
_THERE: Final = "198.51.100.2"


class Namespace:
    """The namespace, for the length of a block. In it, ``/etc/hosts`` has other names, and only clients listen on loopback addresses. ``folder``: for
    the file. ``names``: of ``HOST``.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._hosts = folder / "hosts"
        self._hosts.write_text(f"127.0.0.1 localhost\n{HOST} {' '.join(names)}\n")
        self._near, self._far = f"fg{os.getpid()}", f"fc{os.getpid()}"
        self.prefix: tuple[str, ...] = ()  # the command before that of a client

    @staticmethod
    def lacks() -> str:
        """What is missing for it; empty: nothing."""
        missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
        if os.geteuid() != 0 or missing:
            return f"a namespace for clients needs {' and '.join(missing) or 'root'}"
        done = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, text=True, check=False)
        return f"a namespace for clients: {done.stderr.strip()}" if done.returncode else ""

    def failed_connects(self) -> int:
        """Attempts in it to connect that nobody accepted, as the system counts: of clients, these are attempts to reach a broker itself."""
        names, values = (line.split() for line in Path(f"/proc/{self._holder.pid}/net/snmp").read_text().splitlines() if line.startswith("Tcp:"))
        return int(dict(zip(names, values, strict=True))["AttemptFails"])

    def __enter__(self) -> Self:
        inside = f"mount --bind {self._hosts} /etc/hosts && echo ready && exec cat"
        self._holder = subprocess.Popen(["unshare", "-n", "-m", "sh", "-c", inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.prefix = ("nsenter", "-t", str(self._holder.pid), "-n", "-m")
        try:
            assert self._holder.stdout is not None
            assert self._holder.stdout.readline() == b"ready\n", "the namespace was not made"
            for words in (
                f"ip link add {self._near} type veth peer name {self._far} netns {self._holder.pid}",
                f"ip address add {HOST}/30 dev {self._near}",
                f"ip link set {self._near} up",
                f"{' '.join(self.prefix)} ip link set lo up",
                f"{' '.join(self.prefix)} ip address add {_THERE}/30 dev {self._far}",
                f"{' '.join(self.prefix)} ip link set {self._far} up",
            ):
                subprocess.run(words.split(), check=True, capture_output=True, text=True)
        except (AssertionError, subprocess.CalledProcessError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._holder.communicate()  # its end, and that of its interface and of the other end
