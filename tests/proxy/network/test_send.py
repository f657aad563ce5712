"""framegate.proxy.network.send: the rest of a run goes out in order, and its bookings come back piece by piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, MemoryPool
from framegate.proxy.network.run import Buffer
from framegate.proxy.network.send import Send
from tests.fakes.clock import FakeClock
from tests.fakes.reached import bytes_reached
from tests.fakes.transport import memory_transports


@pytest.fixture
def pool() -> MemoryPool:
    return MemoryPool(1 << 20, FakeClock().now_ns)


def test_a_send_is_done_when_everything_was_taken(pool: MemoryPool) -> None:
    send = Send(pool.common)
    transport, _ = memory_transports(capacity=64)
    send.begin([b"\0\0\0\x80", b"x" * 128], 4, 1, 0)
    assert (send.active, send.remaining, send.frames, send.booked) == (True, 128, 1, 128 + PIECE_OVERHEAD)
    for left in (64, 0):
        assert send.write_to(transport) == 64
        assert send.remaining == left
        transport.outbound.take(64)
    assert send.write_to(transport) == 0
    assert send.active
    send.finish()
    send.finish()
    assert (send.active, pool.used) == (False, 0)


def test_a_second_send_is_a_mistake(pool: MemoryPool) -> None:
    send = Send(pool.common)
    send.begin([b"x"], 0, 1, 0)
    with pytest.raises(AssertionError):
        send.begin([b"y"], 0, 1, 0)


@pytest.mark.parametrize("lease", [0, 50, 1000])
def test_a_lease_becomes_the_sends_and_its_surplus_goes_back(pool: MemoryPool, lease: int) -> None:
    send = Send(pool.common)
    pool.common.charge(BEGUN, lease)
    send.begin([b"x" * 60, b"y" * 40], 70, 1, lease)
    assert send.booked == pool.used == 40 + PIECE_OVERHEAD  # of y 30 are left, and all of it is in memory
    send.advance(10)
    assert send.booked == pool.used == 40 + PIECE_OVERHEAD
    send.advance(1)
    assert send.booked == pool.used == 19 + PIECE_OVERHEAD  # less than half: a copy
    send.finish()
    assert (pool.used, pool.pending) == (0, 0)


def test_pieces_are_not_copied_and_a_small_rest_lets_a_large_piece_go(pool: MemoryPool) -> None:
    send = Send(pool.common)
    piece = b"x" * 1000
    send.begin([piece], 500, 1, 0)
    assert isinstance(send._pieces[0], memoryview)
    send.advance(1)
    assert isinstance(send._pieces[0], bytes)
    assert len(send._pieces[0]) == send.remaining == 499


@given(st.lists(st.integers(0, 300), min_size=1, max_size=100), st.integers(1, 200), st.data())
def test_whatever_the_socket_takes_the_order_is_kept_and_nothing_stays_booked(sizes: list[int], capacity: int, data: st.DataObject) -> None:
    pool = MemoryPool(1 << 20, FakeClock().now_ns)
    pieces: list[Buffer] = [bytes([index]) * size for index, size in enumerate(sizes)]
    whole = b"".join(pieces)
    taken = data.draw(st.integers(0, len(whole)))
    send = Send(pool.common)
    send.begin(list(pieces), taken, 1, 0)
    transport, peer = memory_transports(capacity=capacity)
    seen = whole[:taken]
    while send.remaining:
        send.write_to(transport)
        seen += peer.inbound.take(1 << 20) or b""
        assert send.booked == pool.used == pool.pending
        assert send.booked >= send.remaining
    assert seen == whole
    send.finish()
    assert pool.used == 0


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=20), st.data())
def test_what_a_send_holds_is_booked(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    pool = MemoryPool(1 << 20, FakeClock().now_ns)
    pieces: list[Buffer] = [memoryview(b"x" * max(size, whole))[:size] for size, whole in sizes]
    send = Send(pool.common)
    send.begin(pieces, data.draw(st.integers(0, sum(size for size, _ in sizes))), 1, 0)
    while send.remaining:
        assert bytes_reached(send) <= send.booked == pool.used
        send.advance(data.draw(st.integers(1, int(send.remaining))))
    send.finish()


@pytest.mark.parametrize("lease", [0, 50, 1000])
def test_further_runs_are_booked_and_go_out_behind_the_first(pool: MemoryPool, lease: int) -> None:
    send = Send(pool.common)
    transport, _ = memory_transports(capacity=1000)
    send.begin([b"x" * 60], 0, 1, 0)
    pool.common.charge(BEGUN, lease)
    send.add([b"y" * 40, b"z" * 50], 2, lease)
    assert (send.remaining, send.frames, send.booked, pool.used) == (150, 3, 150 + 3 * PIECE_OVERHEAD, 150 + 3 * PIECE_OVERHEAD)
    assert send.write_to(transport) == 150
    assert bytes(transport.outbound.take(150)) == b"x" * 60 + b"y" * 40 + b"z" * 50
    send.finish()
    assert (send.frames, pool.used, pool.pending) == (0, 0, 0)
