"""framegate.proxy.network.fast_path: what C hands over and counts, without a selector. Lanes of pairs are in tests/proxy/relay/test_lanes.py."""

import errno
import re
import select
import socket
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.network import tls, tls_connection, tls_record
from framegate.proxy.network.framing import SIZE_BUCKETS
from framegate.proxy.network.lanes import HAS_FAST_PATH
from framegate.proxy.network.selector import MAX_EVENTS
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.transport import MAX_READ
from tests.fakes.world import frame, reset

if HAS_FAST_PATH:
    from framegate.proxy.network.fast_path import FastPath, Lane, Side

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")


SOURCES = Path(__file__).resolve().parents[3] / "proxy" / "network"
ALSO_IN_C = {
    "fast_path.c": {"READ_SIZE": MAX_READ, "EVENTS": MAX_EVENTS, "BUCKETS": SIZE_BUCKETS},
    "tls_connection.h": {
        "SMALL_READ": tls.SMALL_READ, "AHEAD": tls.AHEAD, "LONGEST": tls_record.LONGEST,
        "BUFFERED": tls_connection.BUFFERED, "NOTIFIED": tls_connection.NOTIFIED, "FIN": tls_connection.FIN,
        "FAILED": tls_connection.FAILED, "WRITTEN": tls_connection.WRITTEN,
    },
}  # fmt: skip


class Wires:
    """A fast path with a lane each way between two connections: ``near`` and ``far`` are the peers' ends."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.path = FastPath(self.epoll.fileno())
        self.stats = SideStats()
        (self.near, ours), (self.far, others) = socket.socketpair(), connected()
        self.ours = (ours, others)
        self.lanes = [Lane(sock.fileno(), Side(self.stats), None, 100) for sock in self.ours]
        for sock, lane in zip(self.ours, self.lanes, strict=True):
            sock.setblocking(False)
            self.epoll.register(sock.fileno(), select.EPOLLIN)
            self.path.add(lane)

    def open(self, number: int = 0, before_send: Callable[[bytes, int], bool] | None = None) -> None:
        self.path.open(self.lanes[number], self.lanes[1 - number], 100, before_send)

    def run(self, *, opened: bool = True) -> Any:
        return self.path.run(1, 1 << 62, opened)

    def close(self) -> None:
        for sock in (self.near, self.far, *self.ours):
            sock.close()
        self.epoll.close()


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


def test_an_error_of_a_socket_is_handed_over_with_its_number(wires):
    wires.open(1)
    wires.far.sendall(b"x")
    wires.path.wait(1000)
    wires.ours[1].recv(1)
    reset(wires.far)
    wires.far.close()
    assert wires.run() == ([], [(wires.ours[1].fileno(), b"", -1, 0, errno.ECONNRESET, None)], None)


def test_an_error_of_a_write_is_handed_over_with_the_frames(wires):
    wires.open()
    wires.epoll.unregister(wires.ours[1].fileno())
    reset(wires.far)
    wires.far.close()
    wires.near.sendall(frame(b"a") + frame(b"b") + b"\0")
    wires.path.wait(1000)
    fd = wires.ours[0].fileno()
    assert wires.run() == ([], [(fd, frame(b"a") + frame(b"b"), 0, 2, errno.ECONNRESET, None), (fd, b"\0", -1, 0, 0, None)], None)
    assert wires.run() == ([], None, None)
    assert wires.path.take_channels() == [(fd, 2, 10, 0, 0, 11, 0, 1)]
    assert wires.path.take_sides() == [(wires.stats, 0, 2, 10, 0, 0, 0, [2, *[0] * 11])]
    assert (wires.path.take_channels(), wires.path.take_sides()) == ([], [])


def test_an_event_of_a_closed_lane_and_what_is_after_the_budget_are_left_to_the_caller(wires):
    fd = wires.ours[0].fileno()
    for close in (wires.path.close_all, wires.lanes[0].close, wires.lanes[1].close, lambda: wires.path.remove(wires.lanes[0])):
        wires.open()
        assert wires.path.served(wires.lanes[0]) == (wires.ours[1].fileno(), 100)
        wires.open(1)
        close()
        wires.near.sendall(frame(b"a"))
        wires.path.wait(1000)
        assert (wires.path.served(wires.lanes[0]), wires.run()) == (None, ([(fd, select.EPOLLIN)], None, None))
        wires.ours[0].recv(100)
    wires.path.add(wires.lanes[0])
    wires.open()
    wires.near.sendall(frame(b"a"))
    wires.path.wait(1000)
    assert wires.run(opened=False) == ([(fd, select.EPOLLIN)], None, None)
    assert wires.path.served(wires.lanes[0]) is None


def test_a_lane_that_goes_takes_that_to_it_along(wires):
    """Also where only the other direction is open: its peer's descriptor may be another connection's by now."""
    for number in (0, 1):
        wires.open()
        wires.path.remove(wires.lanes[number])
        assert wires.path.served(wires.lanes[0]) is None
        wires.path.add(wires.lanes[number])
    wires.open()
    del wires.lanes[1:]
    wires.path.add(type(wires.lanes[0])(wires.ours[1].fileno(), Side(wires.stats), None, 0))
    assert wires.path.served(wires.lanes[0]) is None


def test_the_beginning_of_a_frame_is_kept_up_to_the_longest_one_and_given_once(wires):
    fd = wires.ours[0].fileno()
    wires.open()
    for body, kept in ((96, True), (97, False)):  # with the header, 100 is the longest
        part = frame(bytes(body))[:20]
        wires.near.sendall(part)
        wires.path.wait(1000)
        assert wires.run() == ([], None if kept else [(fd, part, -1, 0, 0, None)], None)
        assert wires.lanes[0].close() == (part if kept else None)
        assert wires.lanes[0].close() is None
        wires.open()
    assert wires.path.keep(wires.lanes[0], frame(b"begun")[:6])
    assert wires.path.take_begun() == [(fd, frame(b"begun")[:6])]
    assert wires.path.served(wires.lanes[0]) is None
    assert wires.path.take_begun() == []


def test_the_rest_of_a_frame_whose_beginning_was_given_completes_it(wires):
    wires.open()
    assert wires.path.keep(wires.lanes[0], frame(b"one")[:5])
    wires.near.sendall(frame(b"one")[5:] + frame(b"two"))
    wires.path.wait(1000)
    assert wires.run() == ([], None, [(wires.stats, 1)])
    assert wires.far.recv(100) == frame(b"one") + frame(b"two")


def test_a_function_has_whole_frames_before_they_are_sent(wires):
    fd = wires.ours[0].fileno()
    seen = []

    def look(data: bytes, frames: int) -> bool:
        with pytest.raises(BlockingIOError):
            wires.far.recv(100, socket.MSG_DONTWAIT)
        seen.append((data, frames))
        return len(seen) < 2

    wires.open(before_send=look)
    wires.near.sendall(frame(b"one") + frame(b"two") + frame(b"three")[:6])
    wires.path.wait(1000)
    assert wires.run() == ([], None, [(wires.stats, 1)])
    assert wires.far.recv(100) == frame(b"one") + frame(b"two")
    wires.near.sendall(frame(b"three")[6:])
    wires.path.wait(1000)
    assert wires.run() == ([], [(fd, frame(b"three"), 0, 1, 0, None)], None)
    assert seen == [(frame(b"one") + frame(b"two"), 2), (frame(b"three"), 1)]
    assert wires.path.served(wires.lanes[0]) is None


def test_a_lane_that_is_closed_forgets_the_function(wires):
    class Looker:
        def look(self, _data: bytes, _frames: int) -> bool:
            return True

    for close in (wires.lanes[0].close, wires.lanes[1].close, lambda: wires.path.remove(wires.lanes[0]), lambda: wires.open()):
        looker = Looker()
        gone = weakref.ref(looker)
        wires.open(before_send=looker.look)
        del looker
        assert gone() is not None
        close()
        assert gone() is None
        wires.path.add(wires.lanes[0])


def test_wrong_arguments_are_refused(wires):
    assert not wires.path.keep(wires.lanes[0], frame(bytes(101)))
    for begun in (b"", bytes(MAX_READ + 1)):
        with pytest.raises(ValueError, match="bytes of a begun frame"):
            wires.path.keep(wires.lanes[0], begun)
    for arguments in ((), (1, b"x"), (wires.lanes[0], "x"), (wires.lanes[0], bytearray(1))):
        with pytest.raises(TypeError):
            wires.path.keep(*arguments)
    with pytest.raises(ValueError, match="longer than the buffer"):
        Lane(0, Side(None), None, MAX_READ + 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a lane to itself"):
        wires.path.open(wires.lanes[0], wires.lanes[0], 1, None)
    for call in (wires.path.add, wires.path.remove, wires.path.served):
        with pytest.raises(TypeError, match="a Lane is needed"):
            call(1)
    for arguments in ((), (1, 2, 3, None), (*wires.lanes, 1), (*wires.lanes, "x", None)):
        with pytest.raises(TypeError):
            wires.path.open(*arguments)
    for arguments in ((), (1, 2), ("x", 2, True)):
        with pytest.raises(TypeError):
            wires.path.run(*arguments)
    with pytest.raises(TypeError):
        wires.path.wait("x")


@pytest.mark.parametrize("file", ALSO_IN_C)
def test_constants_are_the_same_in_c_and_python(file: str) -> None:
    source = (SOURCES / file).read_text()
    found = {name: re.findall(rf"\b{name} = (\d+)(?: \* (\d+))?\b", source) for name in ALSO_IN_C[file]}
    assert {name: [int(number) * int(factor or 1) for number, factor in values] for name, values in found.items()} == {
        name: [value] for name, value in ALSO_IN_C[file].items()
    }
