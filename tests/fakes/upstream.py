"""Upstreams that behave as a test wants: each connection is served by one function on a thread of its own."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Self

Script = Callable[[socket.socket], None]


def frame(body: bytes) -> bytes:
    """A size header and its body."""
    return struct.pack(">i", len(body)) + body


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """So many bytes; EOFError when the peer ends before."""
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError(f"{len(data)} of {size} bytes came")
        data += chunk
    return bytes(data)


def read_to_end(sock: socket.socket) -> bytes:
    """All until the end of the stream."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def read_frame(sock: socket.socket) -> bytes:
    """The next frame's body; EOFError at the end."""
    return read_exactly(sock, struct.unpack(">i", read_exactly(sock, 4))[0])


def ask(sock: socket.socket, body: bytes) -> bytes:
    """Send a frame; the body of the next one that comes."""
    sock.sendall(frame(body))
    return read_frame(sock)


def peer_name(sock: socket.socket) -> str:
    """A client's own address, which rows and the API call its peer."""
    return "{}:{}".format(*sock.getsockname()[:2])


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses: bound, so that nobody else gets it, and not listening."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def echo(sock: socket.socket) -> None:
    """Sends every frame back; ends when the client ended."""
    while True:
        sock.sendall(frame(read_frame(sock)))


class ScriptedUpstream:
    """Listens on a free port of a loopback address; what a script raises about its socket ends that connection only."""

    def __init__(self, script: Script = echo, host: str = "127.0.0.1") -> None:
        self._script = script
        self._host = f"[{host}]" if ":" in host else host
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, EOFError):
            self._script(sock)
        self._open.discard(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
