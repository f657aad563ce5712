"""framegate.proxy.network.frame_exchange: one frame at a time, its own bound, and everything booked comes back."""

from collections.abc import Iterator

import pytest

from framegate.proxy.errors import AuthenticationError, InternalError, TransportError, WrongProtocolError
from framegate.proxy.network.frame_exchange import MAX_FRAME, TransportFrames
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, MemoryPool
from tests.fakes.authenticator import framed
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.transport import MemoryTransport, memory_transports


class ExchangeBench:
    """One exchange, the peer's transport, and the pool."""

    def __init__(self, capacity: int = 1 << 20, split: int | None = None) -> None:
        self.pool = MemoryPool(1 << 20, FakeClock().now_ns)
        self.ours, self.peer = memory_transports(capacity, split)
        self.frames = TransportFrames(self.ours, self.pool.common, "downstream")


@pytest.fixture
def bench() -> Iterator[ExchangeBench]:
    bench = ExchangeBench()
    yield bench
    bench.frames.close()
    bench.frames.close()
    assert bench.pool.used == bench.frames.booked == 0


def receive(bench: ExchangeBench, times: int = 100_000) -> bytes | None:
    for _ in range(times):
        body = bench.frames.receive()
        if body is not None:
            return body
    return None


@each_of("size", [0, 1, 3, 4, 5, 1000, 300_000, MAX_FRAME])
@each_of("split", [None, 7, 1000])
def test_a_frame_is_read_to_its_last_byte_and_not_beyond(size: int, split: int | None) -> None:
    bench = ExchangeBench(split=split)
    bench.peer.write(framed(b"x" * size) + framed(b"second") + b"rest")
    assert receive(bench) == b"x" * size
    assert bench.pool.used == 4 + size + PIECE_OVERHEAD, "who took it may keep it until it answers"
    assert receive(bench) == b"second"
    assert bench.pool.used == 10 + PIECE_OVERHEAD
    assert bench.frames.send(b"answer")
    assert bench.pool.used == 0
    assert bench.ours.inbound.take(100) == b"rest"[: split or 100]
    assert bench.frames.received == 2


def test_what_has_come_is_booked_and_given_back(bench: ExchangeBench) -> None:
    bench.peer.write(framed(b"x" * 100)[:50])
    assert bench.frames.receive() is None
    assert bench.frames.receive() is None
    assert bench.frames.booked == bench.pool.used == bench.pool.begun == 50 + PIECE_OVERHEAD
    bench.peer.write(framed(b"x" * 100)[50:53])
    assert bench.frames.receive() is None
    assert bench.pool.used == 53 + PIECE_OVERHEAD


@pytest.mark.parametrize(
    ("bound", "size", "fits"), [(10, 10, True), (10, 11, False), (0, 0, True), (0, 1, False), (10, -1, False), (10, -(1 << 31), False)]
)
def test_the_bound_is_judged_before_a_byte_of_the_body_is_read(bench: ExchangeBench, bound: int, size: int, fits: bool) -> None:
    bench.frames.max_size = bound
    bench.peer.write(size.to_bytes(4, "big", signed=True) + b"x" * 11)
    if fits:
        assert bench.frames.receive() == b"x" * size
        return
    with pytest.raises(AuthenticationError, match=f"frame of {size} bytes"):
        bench.frames.receive()
    assert len(bench.ours.inbound) == 11


def test_another_protocol_is_named_of_the_first_frame_only(bench: ExchangeBench) -> None:
    bench.peer.write(framed(b"a") + b"GET /")
    assert bench.frames.receive() == b"a"
    with pytest.raises(AuthenticationError):
        bench.frames.receive()
    other = ExchangeBench()
    other.peer.write(b"GET /")
    with pytest.raises(WrongProtocolError, match="HTTP"):
        other.frames.receive()
    other.frames.close()


def test_the_end_is_told_for_ever(bench: ExchangeBench) -> None:
    bench.peer.write(framed(b"abc")[:5])
    bench.peer.shut_write()
    for _ in range(2):
        assert bench.frames.receive() is None
    assert bench.frames.ended


@pytest.mark.parametrize("begun", [0, 30])
def test_while_memory_is_short_a_body_is_read_when_it_is_there_to_the_end(bench: ExchangeBench, begun: int) -> None:
    data = framed(b"x" * 100)
    bench.peer.write(data[: 4 + begun])
    assert bench.frames.receive() is None
    used = bench.pool.used
    bench.pool.common.charge(BEGUN, bench.pool.size)
    bench.peer.write(data[4 + begun : 100])
    assert (bench.frames.receive(), bench.frames.awaits_memory, bench.frames.booked) == (None, True, used)
    bench.peer.write(data[100:])
    assert (bench.frames.receive(), bench.frames.awaits_memory) == (b"x" * 100, False)
    bench.pool.common.release(BEGUN, bench.pool.size)


def test_reading_out_does_not_wait_for_memory(bench: ExchangeBench) -> None:
    bench.pool.common.charge(BEGUN, bench.pool.size)
    bench.peer.write(framed(b"abc")[:6])
    bench.peer.shut_write()
    assert bench.frames.receive() is None
    assert not bench.frames.ended
    bench.frames.reads_out = True
    assert bench.frames.receive() is None
    assert bench.frames.ended
    bench.frames.close()
    bench.pool.common.release(BEGUN, bench.pool.size)


@each_of("capacity", [1, 3, 4, 5, 50, 1000])
def test_what_the_socket_does_not_take_is_pending_and_booked(capacity: int) -> None:
    bench = ExchangeBench(capacity)
    data = framed(b"y" * 100)
    out = bench.frames.send(b"y" * 100)
    got = bench.peer.read(1000) or b""
    if out:
        assert (got, bench.pool.used) == (data, 0)
        return
    assert bench.frames.is_sending
    assert bench.frames.booked == bench.pool.used == bench.pool.pending > 0
    with pytest.raises(InternalError, match="one frame"):
        bench.frames.send(b"z")
    while not bench.frames.flush():
        got += bench.peer.read(1000) or b""
    assert got + (bench.peer.read(1000) or b"") == data
    assert (bench.frames.is_sending, bench.pool.used) == (False, 0)


def test_closing_gives_a_pending_frame_up() -> None:
    bench = ExchangeBench(10)
    bench.frames.send(b"y" * 100)
    bench.peer.write(framed(b"abc")[:5])
    bench.frames.receive()
    bench.frames.close()
    assert (bench.pool.used, bench.frames.is_sending) == (0, False)


def test_what_has_come_can_be_thrown_away(bench: ExchangeBench) -> None:
    bench.peer.write(framed(b"abc") * 1000)
    bench.frames.receive()
    bench.frames.discard_input()
    assert len(bench.ours.inbound) == 0


def test_no_more_is_thrown_away_than_a_bound() -> None:
    class Endless(MemoryTransport):
        def read(self, size: int) -> bytes:
            self.wire_received += size
            return b"x" * size

    ours, _ = memory_transports()
    transport = Endless(ours.inbound, ours.outbound)
    TransportFrames(transport, MemoryPool(1 << 20, FakeClock().now_ns).common, "upstream").discard_input()
    assert transport.wire_received == MAX_FRAME


def test_an_error_of_the_network_is_the_networks(bench: ExchangeBench) -> None:
    bench.ours.reset = True
    with pytest.raises(TransportError):
        bench.frames.receive()
    with pytest.raises(TransportError):
        bench.frames.send(b"x")
