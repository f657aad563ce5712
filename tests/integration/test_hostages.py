"""Attacks on memory against whole processes: few bytes, and clients that hold memory in every way; ``tests/proxy/relay/test_circle.py`` has more."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.demo.certificates import Certificates
from tests.fakes.framegate import Framegate, resident_bytes
from tests.fakes.upstream import ScriptedUpstream, ask, frame, read_frame

pytestmark = pytest.mark.slow

KIB = 1024
MIB = 1024 * KIB
BLOCK = bytes(range(256)) * 256  # 64 KiB


@pytest.fixture(params=["plain", pytest.param("tls", marks=pytest.mark.extended)])
def start(request: pytest.FixtureRequest, made: Certificates, tmp_path: Path) -> Iterator["Start"]:
    """Starts one framegate before one upstream, with TLS towards clients or without."""
    with contextlib.ExitStack() as stack:

        def build(script: Callable[[socket.socket], None], pool: str | None, **listener: Any) -> Setting:
            upstream = stack.enter_context(ScriptedUpstream(script))
            row = {"name": "l", "address": "127.0.0.1:0", "upstream": "u", **listener}
            context = None
            if request.param == "tls":
                row["tls"] = {"certificate": str(made.server), "key": str(made.server_key)}
                context = ssl.create_default_context(cafile=str(made.ca))
            limit = {"max_receive_size": row["max_receive_size"]} if "max_receive_size" in row else {}
            config: dict[str, Any] = {"listeners": [row], "upstreams": [{"name": "u", "endpoints": [upstream.address], **limit}]}
            if pool is not None:
                config["memory_pool"] = {"size": pool}
            return Setting(stack.enter_context(Framegate(tmp_path / "framegate", config)), context)

        yield build


class Setting:
    """A running framegate, and connections that are closed with it."""

    def __init__(self, proxy: Framegate, context: ssl.SSLContext | None) -> None:
        self.proxy = proxy
        self._context = context

    def connect(self) -> socket.socket:
        return self.proxy.connect("l", self._context, timeout=20)

    def resident(self) -> int:
        (pid,) = self.proxy.processors
        return resident_bytes(pid)

    @property
    def closed(self) -> list[str]:
        return [f"{row['cause']}: {row['detail']}" for row in self.proxy.events("closed")]


Start = Callable[..., Setting]


def round_trip(sock: socket.socket, body: bytes) -> float:
    """Seconds that a frame takes there and back."""
    before = time.monotonic()
    assert ask(sock, body) == body
    return time.monotonic() - before


def send_some(sock: socket.socket, data: bytes) -> None:
    """As much as the kernel and the proxy take at once."""
    sock.settimeout(0)
    with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
        left = memoryview(data)
        while left:
            left = left[sock.send(left[:16384]) :]


def script_of_hostages(sock: socket.socket) -> None:
    """An upstream that does as a frame's first byte says: sends it back; floods the client with answers; or reads nothing more."""
    while True:
        body = read_frame(sock)
        if body[:1] == b"F":
            for _ in range(40):
                sock.sendall(frame(BLOCK))
        elif body[:1] == b"D":
            threading.Event().wait(30)
        else:
            sock.sendall(frame(body))


KINDS: tuple[bytes, ...] = (
    struct.pack(">i", 2 * MIB),  # silent after the header of the largest frame there may be
    frame(BLOCK)[: 60 * KIB],  # silent after 60 KiB of a small frame
    frame(BLOCK * 10)[: 300 * KIB],  # silent within a large one
    frame(b"F"),  # never reads its answers
    frame(b"D") + frame(BLOCK) * 8,  # its upstream never reads
)


def test_hostages_of_every_kind_do_not_delay_small_frames_nor_take_more_than_the_pool(start: Start) -> None:
    """Three hundred, a pool of 4 MiB. A hundred bytes and 64 KiB pass meanwhile, and memory stays within the pool and what is stated. It takes some
    seconds: three hundred connections, half of the time with a handshake each.
    """
    setting = start(script_of_hostages, "4MiB", max_receive_size="2MiB")
    good = setting.connect()
    hostages = [setting.connect() for _ in range(300)]
    for sock in hostages:
        round_trip(sock, b"E")
    round_trip(good, b"E" + BLOCK)
    idle = setting.resident()
    for index, sock in enumerate(hostages):
        send_some(sock, KINDS[index % len(KINDS)])
    slowest, highest = 0.0, 0
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        slowest = max(slowest, round_trip(good, b"E" * 100), round_trip(good, b"E" + BLOCK[1:]))
        highest = max(highest, setting.resident())
    bound = 4 * MIB + 2 * (2 * MIB + 4) + 256 * KIB + 301 * 17 * KIB * (setting.proxy.config["listeners"][0].get("tls") is not None)
    assert slowest < 2, setting.closed
    assert highest - idle <= bound * 5 // 4 + 2 * MIB, f"{(highest - idle) / MIB:.1f} MiB above idle"
    new = setting.connect()
    assert round_trip(new, b"E" + BLOCK) < 2
