"""proxy.network.frame_exchange: one frame at a time, its own bound, and everything booked comes back."""

from collections.abc import Iterator

import pytest

from proxy.errors import AuthenticationError, InternalError, TransportError, WrongProtocolError
from proxy.network.frame_exchange import MAX_FRAME, TransportFrames
from proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, MemoryPool
from tests.fakes.clock import FakeClock
from tests.fakes.transport import MemoryTransport, memory_transports


class Desk:
    """One exchange, the peer's transport, and the pool."""

    def __init__(self, capacity: int = 1 << 20, split: int | None = None) -> None:
        self.pool = MemoryPool(1 << 20, FakeClock().now_ns)
        self.ours, self.peer = memory_transports(capacity, split)
        self.frames = TransportFrames(self.ours, self.pool.common, "downstream")


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.frames.close()
    desk.frames.close()
    assert desk.pool.used == desk.frames.booked == 0


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def receive(desk: Desk, times: int = 100_000) -> bytes | None:
    for _ in range(times):
        body = desk.frames.receive()
        if body is not None:
            return body
    return None


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1000, 300_000, MAX_FRAME])
@pytest.mark.parametrize("split", [None, 7, 1000])
def test_a_frame_is_read_to_its_last_byte_and_not_beyond(size: int, split: int | None) -> None:
    desk = Desk(split=split)
    desk.peer.write(framed(b"x" * size) + framed(b"second") + b"rest")
    assert receive(desk) == b"x" * size
    assert desk.pool.used == 4 + size + PIECE_OVERHEAD, "who took it may keep it until it answers"
    assert receive(desk) == b"second"
    assert desk.pool.used == 10 + PIECE_OVERHEAD
    assert desk.frames.send(b"answer")
    assert desk.pool.used == 0
    assert desk.ours.inbound.take(100) == b"rest"[: split or 100]
    assert desk.frames.received == 2


def test_what_has_come_is_booked_and_given_back(desk: Desk) -> None:
    desk.peer.write(framed(b"x" * 100)[:50])
    assert desk.frames.receive() is None
    assert desk.frames.receive() is None
    assert desk.frames.booked == desk.pool.used == desk.pool.begun == 50 + PIECE_OVERHEAD
    desk.peer.write(framed(b"x" * 100)[50:53])
    assert desk.frames.receive() is None
    assert desk.pool.used == 53 + PIECE_OVERHEAD


@pytest.mark.parametrize(
    ("bound", "size", "fits"), [(10, 10, True), (10, 11, False), (0, 0, True), (0, 1, False), (10, -1, False), (10, -(1 << 31), False)]
)
def test_the_bound_is_judged_before_a_byte_of_the_body_is_read(desk: Desk, bound: int, size: int, fits: bool) -> None:
    desk.frames.max_size = bound
    desk.peer.write(size.to_bytes(4, "big", signed=True) + b"x" * 11)
    if fits:
        assert desk.frames.receive() == b"x" * size
        return
    with pytest.raises(AuthenticationError, match=f"frame of {size} bytes"):
        desk.frames.receive()
    assert len(desk.ours.inbound) == 11


def test_another_protocol_is_named_of_the_first_frame_only(desk: Desk) -> None:
    desk.peer.write(framed(b"a") + b"GET /")
    assert desk.frames.receive() == b"a"
    with pytest.raises(AuthenticationError):
        desk.frames.receive()
    other = Desk()
    other.peer.write(b"GET /")
    with pytest.raises(WrongProtocolError, match="HTTP"):
        other.frames.receive()
    other.frames.close()


def test_the_end_is_told_for_ever(desk: Desk) -> None:
    desk.peer.write(framed(b"abc")[:5])
    desk.peer.shut_write()
    for _ in range(2):
        assert desk.frames.receive() is None
    assert desk.frames.ended


@pytest.mark.parametrize("begun", [0, 30])
def test_while_memory_is_short_a_body_is_read_when_it_is_there_to_the_end(desk: Desk, begun: int) -> None:
    data = framed(b"x" * 100)
    desk.peer.write(data[: 4 + begun])
    assert desk.frames.receive() is None
    used = desk.pool.used
    desk.pool.common.charge(BEGUN, desk.pool.size)
    desk.peer.write(data[4 + begun : 100])
    assert (desk.frames.receive(), desk.frames.awaits_memory, desk.frames.booked) == (None, True, used)
    desk.peer.write(data[100:])
    assert (desk.frames.receive(), desk.frames.awaits_memory) == (b"x" * 100, False)
    desk.pool.common.release(BEGUN, desk.pool.size)


def test_who_reads_out_does_not_wait_for_memory(desk: Desk) -> None:
    desk.pool.common.charge(BEGUN, desk.pool.size)
    desk.peer.write(framed(b"abc")[:6])
    desk.peer.shut_write()
    assert desk.frames.receive() is None
    assert not desk.frames.ended
    desk.frames.reads_out = True
    assert desk.frames.receive() is None
    assert desk.frames.ended
    desk.frames.close()
    desk.pool.common.release(BEGUN, desk.pool.size)


@pytest.mark.parametrize("capacity", [1, 3, 4, 5, 50, 1000])
def test_what_the_socket_does_not_take_is_pending_and_booked(capacity: int) -> None:
    desk = Desk(capacity)
    data = framed(b"y" * 100)
    out = desk.frames.send(b"y" * 100)
    got = desk.peer.read(1000) or b""
    if out:
        assert (got, desk.pool.used) == (data, 0)
        return
    assert desk.frames.is_sending
    assert desk.frames.booked == desk.pool.used == desk.pool.pending > 0
    with pytest.raises(InternalError, match="one frame"):
        desk.frames.send(b"z")
    while not desk.frames.flush():
        got += desk.peer.read(1000) or b""
    assert got + (desk.peer.read(1000) or b"") == data
    assert (desk.frames.is_sending, desk.pool.used) == (False, 0)


def test_closing_gives_a_pending_frame_up() -> None:
    desk = Desk(10)
    desk.frames.send(b"y" * 100)
    desk.peer.write(framed(b"abc")[:5])
    desk.frames.receive()
    desk.frames.close()
    assert (desk.pool.used, desk.frames.is_sending) == (0, False)


def test_what_has_come_can_be_thrown_away(desk: Desk) -> None:
    desk.peer.write(framed(b"abc") * 1000)
    desk.frames.receive()
    desk.frames.discard_input()
    assert len(desk.ours.inbound) == 0


def test_no_more_is_thrown_away_than_a_bound() -> None:
    class Endless(MemoryTransport):
        def read(self, size: int) -> bytes:
            self.wire_received += size
            return b"x" * size

    ours, _ = memory_transports()
    transport = Endless(ours.inbound, ours.outbound)
    TransportFrames(transport, MemoryPool(1 << 20, FakeClock().now_ns).common, "upstream").discard_input()
    assert transport.wire_received == MAX_FRAME


def test_an_error_of_the_network_is_the_networks(desk: Desk) -> None:
    desk.ours.reset = True
    with pytest.raises(TransportError):
        desk.frames.receive()
    with pytest.raises(TransportError):
        desk.frames.send(b"x")
