"""The scenarios of the dashboards: each is a context manager that makes something go wrong for the length of its block."""

import contextlib
import os
import signal
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tests.demo.clients import repeating
from tests.demo.environment import MIB, PARTNERS, Environment
from tests.fakes.small_disk import fill

__all__ = ["SCENARIOS", "Scenario"]

_WAIT_S: Final = 0.2
_SLOW_CLIENTS: Final = 3
_HOLDERS: Final = 8
_HELD: Final = 700 * 1024
_LARGE: Final = 64 * 1024


class Scenario(NamedTuple):
    """One scenario.

    Attributes:
        name: part of its pictures' names.
        title: what is done.
        words: what the first dashboard must say.
        going: the scenario itself.
        needs_disk: it fills the tap's disk.
        lasts: it can be seen as long as it goes on; otherwise only at its beginning.
    """

    name: str
    title: str
    words: str
    going: Callable[[Environment], AbstractContextManager[None]]
    needs_disk: bool = False
    lasts: bool = True


def _slow_consumer(at: Environment) -> AbstractContextManager[None]:
    """Clients send, and do not read the answers."""

    def send(over: threading.Event) -> None:
        with at.connect() as connection:
            connection.settimeout(_WAIT_S)
            data = struct.pack(">i", _LARGE) + bytes(_LARGE)
            position = 0
            while not over.is_set():
                with contextlib.suppress(TimeoutError, ssl.SSLWantWriteError):
                    position = (position + connection.send(data[position:])) % len(data)

    return repeating(send, _SLOW_CLIENTS)


def _oversized_frames(at: Environment) -> AbstractContextManager[None]:
    def send(_over: threading.Event) -> None:
        with at.connect() as connection:
            connection.sendall(struct.pack(">i", 5 * MIB) + bytes(1024))
            connection.recv(1)

    return repeating(send)


def _wrong_certificate(at: Environment) -> AbstractContextManager[None]:
    def send(_over: threading.Event) -> None:
        with at.connect(PARTNERS, stranger=True) as connection:
            connection.recv(1)  # with TLS 1.3 the refusal comes after the handshake

    return repeating(send)


@contextlib.contextmanager
def _pool_exhausted(at: Environment) -> Iterator[None]:
    """Each processor has a pool of 1 MiB, and clients begin frames of 1 MiB and stop."""
    steering = at.steering
    limit, pool = steering.limit(), steering.pool()

    def hold(over: threading.Event) -> None:
        with at.connect() as connection:
            connection.sendall(struct.pack(">i", MIB - 16) + bytes(_HELD))
            connection.settimeout(_WAIT_S)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        return  # evicted, because other connections wait for the memory that it holds

    steering.set_limit(MIB)  # first: each share must hold the largest frame
    try:
        steering.set_pool_size(len(pool.shares) * MIB)
        with repeating(hold, _HOLDERS):
            yield
    finally:
        steering.set_pool_size(pool.size_bytes)
        steering.set_limit(limit)


@contextlib.contextmanager
def _full_tap(at: Environment) -> Iterator[None]:
    """The tap's disk is filled again and again, because framegate makes room by its budget."""
    assert at.tap_disk is not None, "the scenario is marked with needs_disk"
    filler = at.tap_disk / "filler"
    try:
        with repeating(lambda _over: fill(filler)):
            yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def _killed_processor(at: Environment) -> Iterator[None]:
    """A processor gets SIGKILL, as the kernel sends it when memory is short."""
    os.kill(at.steering.processor_pids()[0], signal.SIGKILL)
    yield


SCENARIOS: Final = (
    Scenario("slow-consumer", f"{_SLOW_CLIENTS} clients send and never read", "Peers do not take what is sent to them", _slow_consumer),
    Scenario("oversized-frames", "frames of 5 MiB, where 4 MiB are allowed", "Frames are refused", _oversized_frames),
    Scenario("wrong-certificate", "clients with a certificate of an unknown authority", "Clients fail at the TLS handshake", _wrong_certificate),
    Scenario("pool-exhausted", "clients that hold all of a small memory pool", "Clients wait for memory", _pool_exhausted),
    Scenario("full-tap", "the tap's disk is full", "The tap loses frames", _full_tap, needs_disk=True),
    Scenario("killed-processor", "a processor is killed", "A processor was started again", _killed_processor, lasts=False),
)
