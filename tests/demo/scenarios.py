"""What goes wrong, one after another: each is made for as long as a block lasts, and ends with it."""

import contextlib
import dataclasses
import os
import signal
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from tests.demo.environment import MIB, PARTNERS, Environment
from tests.fakes.small_disk import fill

__all__ = ["SCENARIOS", "Scenario"]

_PAUSE_S: Final = 0.2
_SLOW_CLIENTS: Final = 3
_HOLDERS: Final = 8
_HELD: Final = 700 * 1024
_LARGE: Final = 64 * 1024
_JOIN_S: Final = 15.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of scenario.

    Attributes:
        name: of its pictures.
        title: what is done.
        words: what the first dashboard must say of it.
        explained: the dashboard that says why.
        going: the scenario itself, for the length of a block.
        needs_disk: it fills the tap's disk.
        lasts: there is something to see for as long as it goes on; otherwise only at once.
    """

    name: str
    title: str
    words: str
    explained: str
    going: Callable[[Environment], AbstractContextManager[None]]
    needs_disk: bool = False
    lasts: bool = True


@contextlib.contextmanager
def _again_and_again(step: Callable[[threading.Event], None], count: int = 1) -> Iterator[None]:
    """Call a step on threads until the block ends. What it is refused, or cut off from, is what was wanted."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                step(over)
            over.wait(_PAUSE_S)

    threads = [threading.Thread(target=run, name=f"scenario-{number}", daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(_JOIN_S)


def _slow_consumer(at: Environment) -> AbstractContextManager[None]:
    """Clients that send, and do not read a byte of what is answered."""

    def send(over: threading.Event) -> None:
        with at.connect() as connection:
            connection.settimeout(_PAUSE_S)
            data = struct.pack(">i", _LARGE) + bytes(_LARGE)
            position = 0
            while not over.is_set():
                with contextlib.suppress(TimeoutError, ssl.SSLWantWriteError):
                    position = (position + connection.send(data[position:])) % len(data)

    return _again_and_again(send, _SLOW_CLIENTS)


def _oversized_frames(at: Environment) -> AbstractContextManager[None]:
    """Frames of 5 MiB, where 4 are allowed."""

    def send(_over: threading.Event) -> None:
        with at.connect() as connection:
            connection.sendall(struct.pack(">i", 5 * MIB) + bytes(1024))
            connection.recv(1)

    return _again_and_again(send)


def _wrong_certificate(at: Environment) -> AbstractContextManager[None]:
    """Clients whose certificate comes from an authority that nobody knows."""

    def send(_over: threading.Event) -> None:
        with at.connect(PARTNERS, stranger=True) as connection:
            connection.recv(1)  # with TLS 1.3 the refusal comes behind the handshake

    return _again_and_again(send)


@contextlib.contextmanager
def _pool_exhausted(at: Environment) -> Iterator[None]:
    """A pool of 1 MiB for each processor, and clients that begin frames of 1 MiB and stop."""
    steering = at.steering
    limit, pool = steering.limit(), steering.pool()

    def hold(over: threading.Event) -> None:
        with at.connect() as connection:
            connection.sendall(struct.pack(">i", MIB - 16) + bytes(_HELD))
            connection.settimeout(_PAUSE_S)
            while not over.is_set():
                try:
                    if not connection.recv(1):
                        return  # evicted, as who holds what others wait for
                except TimeoutError:
                    continue

    steering.set_limit(MIB)  # first: each share must hold the largest frame
    try:
        steering.set_pool_size(len(pool.shares) * MIB)
        with _again_and_again(hold, _HOLDERS):
            yield
    finally:
        steering.set_pool_size(pool.size_bytes)
        steering.set_limit(limit)


@contextlib.contextmanager
def _full_tap(at: Environment) -> Iterator[None]:
    """The tap's disk has no byte left, again and again: framegate itself makes room by its budget."""
    assert at.tap_disk is not None, "needs_disk"
    filler = at.tap_disk / "filler"
    try:
        with _again_and_again(lambda _over: fill(filler)):
            yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def _killed_processor(at: Environment) -> Iterator[None]:
    """SIGKILL, as the kernel sends it when memory is short."""
    os.kill(at.steering.processor_pids()[0], signal.SIGKILL)
    yield


SCENARIOS: Final = (
    Scenario(
        name="slow-consumer",
        title=f"{_SLOW_CLIENTS} clients send and never read",
        words="Peers do not take what is sent to them",
        explained="hurts",
        going=_slow_consumer,
    ),
    Scenario(
        name="oversized-frames",
        title="frames of 5 MiB, where 4 MiB are allowed",
        words="Frames are refused",
        explained="hurts",
        going=_oversized_frames,
    ),
    Scenario(
        name="wrong-certificate",
        title="clients with a certificate of an unknown authority",
        words="Clients fail at the TLS handshake",
        explained="identity",
        going=_wrong_certificate,
    ),
    Scenario(
        name="pool-exhausted",
        title="clients that hold all of a small memory pool",
        words="Clients wait for memory",
        explained="hurts",
        going=_pool_exhausted,
    ),
    Scenario(name="full-tap", title="the tap's disk is full", words="The tap loses frames", explained="tap", going=_full_tap, needs_disk=True),
    Scenario(
        name="killed-processor",
        title="a processor is killed",
        words="A processor was started again",
        explained="control",
        going=_killed_processor,
        lasts=False,
    ),
)
