"""framegate.proxy.network.low_memory_reader: while memory is short nothing is held that need not be, nothing is lost, and nothing spins.

Over real sockets: what the kernel does with thresholds and room is part of it.
"""

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from framegate.proxy.network import socket_buffers
from framegate.proxy.network.admission_slots import FIRST_PORTION
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import LINES, VARINT, FixedHeaderFraming
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.low_memory_reader import (
    HEAD,
    PATIENCE,
    PIECE,
    SMALL,
    WAIT_A_WHILE,
    WAIT_FOR_BYTES,
    WAIT_FOR_ROOM,
    WAIT_FOR_SLOT,
    LowMemoryReader,
)
from framegate.proxy.network.memory_pool import BEGUN, PENDING, PIECE_OVERHEAD, MemoryPool
from framegate.proxy.network.plaintext import PlaintextTransport
from framegate.proxy.network.receive import NEVER_CUT, Receive, ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.transport import MAX_READ
from tests.fakes.admission_slots import Owner
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.network import frame, tcp_pair
from tests.proxy.conftest import builder

NO_LIMIT = 1 << 31
POOL = 1 << 20
SHORT = POOL - 100_000  # held by somebody: memory is short, and the reserve is free


class Bench:
    """One ``LowMemoryReader`` over a plaintext socket, and its peer."""

    def __init__(
        self, *, tcp: bool = True, cut_from: int = NEVER_CUT, used: int = SHORT, framing: Framing = INT32, onward: Framing | None = None
    ) -> None:
        self.sock, self.peer = tcp_pair() if tcp else socket.socketpair()
        self.sock.setblocking(False)
        self.pool = MemoryPool(POOL, FakeClock().now_ns)
        self.pool.set_largest(4 << 20, 0)
        self.pool.common.charge(PENDING, used)
        self.transport = PlaintextTransport(self.sock)
        self.receive = Receive(self.pool.common, ReceiveLimit(-1), SideStats(), cut_from, 0, framing, onward)
        self.low_memory = LowMemoryReader(self.sock, self.transport, self.receive, self.pool.requests, Owner())
        self.runs: list[Run] = []

    def send(self, data: bytes) -> None:
        """To the last byte, and wait until it lies in the socket."""
        before = int(socket_buffers.queued(self.sock))
        self.peer.sendall(data)
        for _ in range(5000):
            if socket_buffers.queued(self.sock) == before + len(data):
                return
            select.select([], [], [], 0.001)
        raise AssertionError("it does not arrive")

    def plan_read(self, room: int = NO_LIMIT, *, drained: bool = False) -> int:
        return int(self.low_memory.plan_read(room, drained=drained, readable=True))

    def read(self, size: int) -> Run | None:
        self.low_memory.before_read()
        data = self.transport.read(size)
        assert data, "there is something"
        run = self.receive.feed(data)
        if run is not None:
            self.runs.append(run)
            self.pool.common.release(BEGUN, run.lease)
            run.lease = 0
        self.low_memory.after_read(len(data), whole=run is not None)
        return run

    def close(self) -> None:
        self.sock.close()
        self.peer.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    with builder(Bench) as build:
        yield build


# One look.


def test_whole_frames_are_read_exactly_and_what_follows_stays(make):
    bench = make()
    bench.send(frame(100) * 3 + frame(100)[:50])
    assert bench.plan_read() == 3 * 104
    run = bench.read(3 * 104)
    assert (run.frames, bench.receive.staged) == (3, 0)
    assert (bench.plan_read(), bench.low_memory.threshold) == (WAIT_FOR_BYTES, 104)


@each_of(("room", "size"), [(0, WAIT_FOR_ROOM), (103, 104), (104, 104), (207, 104), (208, 208), (209, 208)])
def test_no_more_frames_are_read_than_there_is_room_for(make, room, size):
    bench = make()
    bench.send(frame(100) * 4)
    assert bench.plan_read(room) == size


@each_of(
    ("onward", "room", "size"),
    [(64, 0, WAIT_FOR_ROOM), (64, 63, 1), (64, 64, 1), (64, 640, 10), (64, 703, 10), (64, 64_000, 1000), (64, NO_LIMIT, 1000), (1, 1000, 1000)],
)
@each_of(("framing", "empty"), [(VARINT, b"\0"), (LINES, b"\n")])
def test_room_is_for_what_frames_become(make, framing, empty, onward, room, size):
    bench = make(framing=framing, onward=FixedHeaderFraming("header", header=onward, width=1))
    bench.send(empty * 1000)
    assert bench.plan_read(room) == size


@each_of(("room", "size"), [(101, 101), (150, 101), (163, 101), (164, 101), (165, 101), (100 + 11 * 64, 111)])
def test_a_frame_that_has_room_passes_though_short_ones_behind_it_have_not(make, room, size):
    bench = make(framing=VARINT, onward=FixedHeaderFraming("header", header=64))
    bench.send(b"\x64" + bytes(100) + bytes(1000))
    assert bench.plan_read(room) <= size
    assert bench.plan_read(room) >= 101


@each_of("body", [0, 1, 12, 1000, PIECE - 5, PIECE - 4, PIECE - 3, SMALL - 5, SMALL - 4])
def test_a_small_frame_stays_in_the_kernel_until_its_last_byte_is_there(make, body):
    bench = make()
    data = frame(body)
    bench.send(data[: min(1000, 3 + body)])
    if body:
        assert bench.plan_read() == WAIT_FOR_BYTES  # and so the kernel takes all of it
        bench.send(data[min(1000, 3 + body) : -1])
        assert bench.plan_read() in (WAIT_FOR_BYTES, WAIT_A_WHILE)
        assert bench.low_memory.threshold == 4 + body
        assert bench.low_memory.is_awaiting
        bench.send(b"x")
        assert bench.plan_read() == 4 + body
        assert bench.read(4 + body).frames == 1
        assert (bench.low_memory.threshold, bench.pool.begun) == (1, 0)
    else:
        assert bench.plan_read() == 3


@each_of("body", [SMALL - 3, SMALL, 1 << 20])
def test_one_byte_more_is_large_and_asks_for_a_turn(make, body):
    bench = make()
    bench.send(frame(body)[:FIRST_PORTION])
    assert bench.plan_read() == 4
    bench.read(4)
    assert bench.pool.begun == 4 + PIECE_OVERHEAD
    assert (bench.plan_read(), bench.low_memory.threshold) == (WAIT_FOR_BYTES, FIRST_PORTION)
    bench.send(b"x" * 4)
    size = bench.plan_read()
    assert size == min(body, MAX_READ)
    assert bench.low_memory.slot.is_in
    bench.read(size)
    assert bench.plan_read(0) == min(body - FIRST_PORTION, MAX_READ), "who is in needs no room"


@each_of("first", [1, 2, 3])
def test_a_header_in_parts_is_read_as_far_as_it_is_there_and_then_to_its_end(make, first):
    bench = make()
    data = frame(500)
    bench.send(data[:first])
    assert bench.plan_read() == first
    bench.read(first)
    bench.send(data[first:300])
    assert bench.plan_read() == 4 - first
    bench.read(4 - first)
    assert (bench.plan_read(), bench.low_memory.threshold) == (WAIT_FOR_BYTES, 500)
    bench.send(data[300:])
    assert bench.plan_read() == 500
    assert bench.read(500).size == 504


def test_a_fault_behind_whole_frames_and_before_any_is_read_like_a_beginning(make):
    bench = make()
    bench.send(frame(5) + b"\xff\xff\xff\xff" + b"x" * 100)
    assert bench.plan_read() == 9
    bench.read(9)
    assert bench.plan_read() == 4
    bench.read(4)
    assert bench.receive.fault != 0


def test_a_frame_that_waits_for_a_slot_waits_for_nothing_else(make):
    bench = make(used=POOL + 1)
    bench.send(frame(SMALL)[: FIRST_PORTION + 4])
    bench.read(bench.plan_read())
    assert bench.plan_read() == WAIT_FOR_SLOT
    assert (bench.low_memory.threshold, bench.low_memory.is_awaiting, bench.pool.waiting) == (1, False, 1)
    bench.low_memory.leave()
    assert (bench.low_memory.slot, bench.pool.waiting) == (None, 0)


def test_a_small_frame_that_is_larger_than_the_room_passes_in_pieces(make):
    bench = make()
    bench.send(frame(50_000))
    sizes = []
    for room in (10_000, 1, 5000, 0, 100_000):
        size = bench.plan_read(room)
        sizes.append(size)
        if size > 0:
            bench.read(size)
    assert sizes == [10_000, 1, 5000, WAIT_FOR_ROOM, 50_004 - 15_001]
    assert b"".join(piece for run in bench.runs for piece in run.pieces()) == frame(50_000)
    assert (sum(run.frames for run in bench.runs), bench.pool.begun, bench.receive.within) == (1, 0, False)


@each_of(("body", "room", "size"), [(HEAD - 4, 1, HEAD), (HEAD - 3, 1, HEAD), (HEAD - 3, HEAD, HEAD), (HEAD - 3, HEAD + 1, HEAD + 1)])
def test_no_frame_is_cut_that_is_no_longer_than_a_first_piece(make, body, room, size):
    """Else the one behind it would be, of which nobody knows that it will be whole."""
    bench = make()
    bench.send(frame(body) + frame(1000)[:500])
    assert bench.plan_read(room) == size
    run = bench.read(size)
    assert (run.part != 0) is (size < 4 + body)
    assert not bench.receive.within or bench.receive.cut


@each_of("room", [20_001, 20_003, 20_004])
def test_what_was_begun_before_goes_along_with_the_first_piece(make, room):
    bench = make()
    bench.receive.feed(frame(30_000)[:20_000])
    bench.send(frame(30_000)[20_000:])
    size = bench.plan_read(room)
    assert size == room - 20_000
    run = bench.read(size)
    assert run.size == room
    bench.read(bench.plan_read())
    assert b"".join(piece for run in bench.runs for piece in run.pieces()) == frame(30_000)


def test_a_frame_that_is_cut_through_needs_no_slot(make):
    bench = make(cut_from=SMALL, used=POOL + 1)
    bench.send(frame(1 << 20)[:8])
    bench.read(bench.plan_read())
    assert (bench.plan_read(), bench.low_memory.threshold) == (WAIT_FOR_BYTES, 8)
    bench.send(b"x" * 100)
    size = bench.plan_read()
    assert size == 8
    assert bench.read(size).size == 12
    assert (bench.plan_read(50), bench.plan_read(0), bench.plan_read()) == (50, WAIT_FOR_ROOM, PIECE)
    assert bench.pool.waiting == 0


# Sockets that do not tell.


def test_a_unix_socket_is_looked_at_again_and_taken_for_full_in_the_end(make):
    bench = make(tcp=False)
    bench.send(frame(5000)[:3000])
    assert [bench.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE
    assert bench.low_memory.is_awaiting
    bench.send(b"x")
    assert [bench.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE, "a byte more begins it anew"
    assert bench.plan_read() == 4
    bench.read(4)
    assert [bench.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE
    assert bench.plan_read() == 5000
    assert bench.low_memory.slot.is_in


def test_a_socket_that_is_readable_too_early_is_looked_at_by_the_clock(make):
    bench = make()
    bench.send(frame(5000)[:3000])
    assert bench.plan_read() == WAIT_FOR_BYTES
    assert [bench.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE, "it says readable, and it is not"
    assert bench.low_memory.plan_read(NO_LIMIT, drained=False, readable=False) == WAIT_FOR_BYTES


@each_of("tcp", [False, True])
def test_a_frame_that_becomes_whole_while_it_is_waited_for_is_read(make, tcp):
    bench = make(tcp=tcp)
    assert not bench.low_memory.cannot_proceed()
    bench.send(frame(5000)[:3000])
    assert bench.plan_read() == (WAIT_FOR_BYTES if tcp else WAIT_A_WHILE)
    assert bench.low_memory.cannot_proceed()
    bench.send(frame(5000)[3000:])
    assert bench.low_memory.cannot_proceed() is not tcp, "a threshold says whether it is whole"
    assert bench.plan_read() == 5004
    bench.read(5004)
    assert not bench.low_memory.is_awaiting
