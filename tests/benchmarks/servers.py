"""The servers that a handler of framegate is compared with: a plain asyncio server that frames by itself, and the same on uvloop."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from candidates import Candidate, Place, UnavailableError

__all__ = ["AsyncioProtocol", "AsyncioStreams", "UvloopProtocol", "UvloopStreams"]

PROGRAM = Path(__file__).with_name("echoing.py")


class AsyncioStreams(Candidate):
    """With streams: two awaits for a frame, one for its answer."""

    name = "asyncio"
    words: tuple[str, ...] = ("streams",)

    @classmethod
    def version(cls, place: Place) -> str:
        return f"{platform.python_implementation()} {platform.python_version()}"

    @classmethod
    def python(cls, place: Place) -> str:
        """The interpreter that runs it."""
        return sys.executable

    def launch(self) -> None:
        if self.load.downstream_tls:
            raise UnavailableError("the echo servers are compared in plaintext")
        self._run([self.python(self.place), "-I", str(PROGRAM), *self.words])

    def wait(self) -> None:
        self.port = int(self.process.wait_for_row("port")["port"])


class AsyncioProtocol(AsyncioStreams):
    """With a protocol: all frames of a read at once."""

    name = "asyncio-protocol"
    words = ("protocol",)


class UvloopStreams(AsyncioStreams):
    """Streams on uvloop."""

    name = "uvloop"
    words = ("streams", "--uvloop")

    @classmethod
    def version(cls, place: Place) -> str:
        code = "import uvloop; print(uvloop.__version__)"
        done = subprocess.run([cls.python(place), "-I", "-c", code], capture_output=True, text=True, check=True)
        return f"{done.stdout.strip()}, {super().version(place)}"

    @classmethod
    def python(cls, place: Place) -> str:
        """Of an environment with uvloop in the cache, made on first use."""
        environment = place.cache / f"uvloop-{platform.python_version()}"
        python = environment / "bin" / "python"
        if not (environment / "complete").exists():
            for command in ([sys.executable, "-m", "venv", str(environment)], [str(python), "-m", "pip", "install", "-q", "uvloop"]):
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if done.returncode != 0:
                    raise UnavailableError(f"uvloop could not be installed: {done.stdout[-300:]}")
            (environment / "complete").touch()
        return str(python)


class UvloopProtocol(UvloopStreams):
    """A protocol on uvloop."""

    name = "uvloop-protocol"
    words = ("protocol", "--uvloop")
