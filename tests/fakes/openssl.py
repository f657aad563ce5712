"""``openssl s_client`` and ``s_server`` as peers: somebody else's TLS, with its own options, alerts and errors."""

import contextlib
import dataclasses
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

HAS_OPENSSL = shutil.which("openssl") is not None
SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Said:
    """What it printed: the data of the peer, with what it says itself when it was not asked to be quiet; and its errors."""

    data: bytes
    errors: str

    @property
    def alert(self) -> str:
        """OpenSSL's words for the alert that it was sent; empty when there was none."""
        found = re.search(r":((?:tlsv1|tlsv13|sslv3) (?:alert )?[a-z ]+):", self.errors)
        return "" if found is None else found[1].partition(" alert ")[2] or found[1].partition(" ")[2]


def s_client(address: tuple[str, int], *options: str, steps: tuple[tuple[bytes, bytes], ...], quiet: bool = True) -> Said:
    """Connect, and for each step send the first and read until the second was seen, or the peer has gone; then go away. ``quiet``: nothing that is
    sent is a command, and nothing but the peer's data is printed; else errors stand among it.
    """
    command = ["openssl", "s_client", "-connect", "{}:{}".format(*address), *(["-quiet"] if quiet else []), *options]
    errors_to = subprocess.PIPE if quiet else subprocess.STDOUT
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors_to)
    assert process.stdin is not None
    data = b""
    for send, wanted in steps:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(send)
            process.stdin.flush()
        data += read_until(process, wanted)
    if process.poll() is None:
        process.terminate()
    rest, errors = process.communicate(timeout=SECONDS)
    return Said(data + rest, (errors or data + rest).decode("latin-1"))


def read_until(process: "subprocess.Popen[bytes]", wanted: bytes) -> bytes:
    """What it prints until these bytes were among it, or it ends."""
    assert process.stdout is not None
    data = b""
    end = time.monotonic() + SECONDS
    while wanted not in data:
        assert time.monotonic() < end, f"it did not come: {data[-500:]!r}"
        if select.select([process.stdout], [], [], 0.1)[0]:
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                break
            data += piece
    return data


class Server:
    """A running ``s_server`` that prints what it is sent, and sends what it is given."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str) -> None:
        self.process = process
        self.address = address

    def receive(self, wanted: bytes) -> bytes:
        return read_until(self.process, wanted)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()


@contextlib.contextmanager
def s_server(certificate: tuple[str, str], *options: str) -> Iterator[Server]:
    """Serve on a free port of the loopback."""
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", certificate[0], "-key", certificate[1], *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        said = read_until(process, b"ACCEPT 127.0.0.1:")
        while not re.search(rb"ACCEPT 127\.0\.0\.1:(\d+)\s", said):
            said += read_until(process, b"\n")
        found = re.search(rb"ACCEPT (127\.0\.0\.1:\d+)\s", said)
        assert found is not None
        yield Server(process, found[1].decode())
    finally:
        process.kill()
        process.communicate()
