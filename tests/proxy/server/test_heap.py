"""framegate.proxy.server.heap: what was freed goes back to the system, once, when it is not needed for a while."""

import ctypes
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from framegate.control.fleet.child import _ALLOCATOR
from framegate.proxy.config.model import MIB, ListenerConfig, MemoryPoolConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.server.heap import LEAST_BYTES, LEAST_CHANNELS, Heap, HighWater, find_trim
from tests.fakes.cases import each_of
from tests.fakes.server import ServerProcess, echo_bytes
from tests.fakes.upstream import ScriptedUpstream, read_exactly
from tests.fakes.waiting import until

GLIBC = hasattr(ctypes.CDLL(None), "malloc_trim")
needs_glibc = pytest.mark.skipif(not GLIBC, reason="no malloc_trim in this C library")


@each_of(
    ("values", "expected"),
    [
        ([0, 0, 0], []),
        ([100, 0, 0, 0, 0], [2]),  # not at once, and once
        ([100, 0, 100, 0, 100, 0], []),  # it is needed again and again
        ([100, 91, 91, 91], []),  # less than `least`
        ([1000, 900, 900, 900], []),  # less than an eighth
        ([1000, 870, 870, 870], [2]),
        ([100, 0, 0, 50, 0, 0, 0], [2, 5]),  # it rises anew
        ([100, 80, 60, 40, 20, 0, 0, 0], [2, 3, 4, 5, 6]),  # a slow fall
        ([10, 20, 30, 40], []),
    ],
)
def test_a_fall_is_found_once_when_it_lasts(values: list[int], expected: list[int]) -> None:
    water = HighWater(10)
    assert [index for index, value in enumerate(values) if water.has_fallen(value)] == expected


def test_the_heap_is_trimmed_when_bytes_or_channels_are_gone() -> None:
    trimmed: list[bool] = []
    found: list[bool] = []

    def find() -> Callable[[], object]:
        found.append(True)
        return lambda: trimmed.append(True)

    heap = Heap(find)
    for held, channels, expected in [
        (0, 0, 0),
        (LEAST_BYTES, 10, 0),
        (0, 10, 0),
        (0, 10, 1),
        (LEAST_BYTES - 1, 10, 1),
        (0, 10, 1),
        (0, LEAST_CHANNELS, 1),
        (0, 0, 1),
        (0, 0, 2),
        (0, 0, 2),
    ]:
        heap.look(held, channels)
        assert (heap.trims, len(trimmed)) == (expected, expected)
    assert len(found) == 1


def test_a_system_that_cannot_trim_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    heap = Heap(lambda: asked.append(True))
    for held in (LEAST_BYTES, 0, 0) * 3:
        heap.look(held, 0)
    assert (heap.trims, len(asked)) == (3, 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert find_trim() is None, "another C library"
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert find_trim() is None, "a Python without ctypes"


PROGRAM = """
from framegate.proxy.server.heap import find_trim
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
blocks, pins = [], []
for _ in range(1600):
    blocks.append(bytes(20_000))
    pins.append(bytes(1_000))
full = resident()
del blocks
freed = resident()
find_trim()()
print(full - freed, freed - resident())
"""


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As control sets it for processors."""
    for name, value in _ALLOCATOR.items():
        monkeypatch.setenv(name, value)


@needs_glibc
@pytest.mark.usefixtures("allocator")
def test_what_is_free_between_what_is_not_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    freed, trimmed = map(int, done.stdout.split())
    assert freed < 2 * MIB
    assert trimmed > 20 * MIB


@pytest.fixture
def process(allocator: None) -> Iterator[ServerProcess]:
    echo = ScriptedUpstream(echo_bytes)
    config = ProxyConfig(
        node="n",
        listeners=(ListenerConfig(name="plain", address="0.0.0.0:0", upstream="u", max_receive_size=16 * MIB),),
        upstreams=(UpstreamConfig(name="u", endpoints=(f"127.0.0.1:{echo.port}",)),),
        memory_pool=MemoryPoolConfig(size=64 * MIB),
    )
    process = ServerProcess(config)
    yield process
    process.close()
    echo.close()


def resident(process: ServerProcess) -> int:
    with open(f"/proc/{process.popen.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.slow
@needs_glibc
def test_a_processor_is_small_again_after_a_burst(process: ServerProcess) -> None:
    """Half of many frames is there, so that all of it is held; then the rest comes, and everything passes."""
    size = 8 * MIB
    clients: list[socket.socket] = [process.connect() for _ in range(4)]
    for client in clients:  # so that what a connection costs is no part of it
        client.sendall(b"\0\0\0\1x")
        read_exactly(client, 5)
    idle = resident(process)
    for client in clients:
        client.sendall(size.to_bytes(4, "big") + bytes(size - 1))
    until(lambda: resident(process) - idle > 4 * (size - MIB))
    time.sleep(0.1)  # whatever would come on top of it
    assert resident(process) - idle <= 1.25 * 4 * size
    for client in clients:
        client.sendall(b"x")
    for client in clients:
        read_exactly(client, 4 + size)
    until(lambda: resident(process) - idle < 2 * MIB)
