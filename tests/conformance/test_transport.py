"""What a channel relies on, of a transport: plaintext, TLS from both sides, and the one in memory."""

import dataclasses
import errno
from collections.abc import Callable
from typing import Final

import pytest

from framegate.proxy.errors import TransportError
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.plaintext import PlaintextTransport
from framegate.proxy.network.tls import TlsTransport
from framegate.proxy.network.tls_wire import BioPair
from framegate.proxy.network.transport import DONE, Transport
from tests.fakes.clock import FakeClock
from tests.fakes.conformance import Kind
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import MemorySocket, MemoryTransport, Wire, as_socket, memory_sockets, memory_transports

INTERFACE: Final = Transport


@dataclasses.dataclass
class Pair:
    """Two connected transports, ours and the peer's, and what is below ours."""

    ours: Transport
    peer: Transport
    outbound: Wire  # the wire that ours writes to
    inbound: Wire  # the wire that ours reads from
    pool: MemoryPool
    below: MemorySocket | None = None  # our socket, when there is one

    def shake(self) -> None:
        for _ in range(10_000):
            if (self.ours.handshake(), self.peer.handshake()) == (DONE, DONE):
                break
        else:
            raise AssertionError("the handshake does not come to an end")
        drain(self.ours)
        drain(self.peer)

    def reset(self) -> None:
        if self.below is None:
            self.ours.reset = True  # type: ignore[attr-defined]
        else:
            self.below.errors["recv"].append(errno.ECONNRESET)
            self.below.errors["send"].append(errno.ECONNRESET)


def drain(transport: Transport) -> bytes:
    data = b""
    while piece := transport.read(65536):
        data += piece
    return data


def make_memory(world: TlsWorld, capacity: int, split: int | None) -> Pair:
    ours, peer = memory_transports(capacity, split)
    return Pair(ours, peer, ours.outbound, ours.inbound, MemoryPool(1 << 30, FakeClock().now_ns))


def make_plain(world: TlsWorld, capacity: int, split: int | None) -> Pair:
    ours, peer = memory_sockets(capacity, split)
    pool = MemoryPool(1 << 30, FakeClock().now_ns)
    return Pair(PlaintextTransport(as_socket(ours)), PlaintextTransport(as_socket(peer)), ours.outbound, ours.inbound, pool, ours)


def make_tls(version: str, *, server: bool) -> Callable[[TlsWorld, int, int | None], Pair]:
    def make(world: TlsWorld, capacity: int, split: int | None) -> Pair:
        ours, peer = memory_sockets(capacity, split)
        pool = MemoryPool(1 << 30, FakeClock().now_ns)
        here, there = world.server_settings(), world.client_settings(version=version)
        if not server:
            here, there = there, here
        bios = BioPair()
        ends = TlsTransport(as_socket(ours), here, pool.common, bios), TlsTransport(as_socket(peer), there, pool.common, bios)
        return Pair(*ends, ours.outbound, ours.inbound, pool, ours)

    return make


KINDS: Final = {
    "memory": Kind(MemoryTransport, make_memory),
    "plaintext": Kind(PlaintextTransport, make_plain),
    "tls12-server": Kind(TlsTransport, make_tls("1.2", server=True)),
    "tls12-client": Kind(TlsTransport, make_tls("1.2", server=False)),
    "tls13-server": Kind(TlsTransport, make_tls("1.3", server=True)),
    "tls13-client": Kind(TlsTransport, make_tls("1.3", server=False)),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Callable[..., Pair]:
    """Makes a pair whose handshake is done; teardown asserts that closing both gives everything back."""
    made: list[Pair] = []

    def build(capacity: int = 1 << 20, split: int | None = None) -> Pair:
        pair: Pair = KINDS[request.param].make(tls_world, capacity, split)
        pair.shake()
        made.append(pair)
        return pair

    yield build
    for pair in made:
        for transport in (pair.ours, pair.peer):
            transport.close()
            transport.close()
            assert transport.pending_write == 0
        assert pair.pool.used == 0


def test_nothing_to_read_is_none(make: Callable[..., Pair]) -> None:
    pair = make()
    assert pair.ours.read(100) is None
    assert not pair.ours.has_buffered()


def test_bytes_arrive_in_order_whatever_the_pieces(make: Callable[..., Pair]) -> None:
    pair = make()
    assert pair.ours.write(b"one") == 3
    assert pair.ours.write(memoryview(b"xtwox")[1:4]) == 3
    assert pair.ours.write_gather([b"three", memoryview(b"four"), b"", b"five"]) == 13
    assert drain(pair.peer) == b"onetwothreefourfive"
    assert pair.peer.write(b"back") == 4
    assert drain(pair.ours) == b"back"
    assert pair.ours.wire_sent >= 19
    assert pair.ours.wire_received >= 4


def test_a_read_gives_no_more_than_was_asked_for_and_nothing_is_lost(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.peer.write(b"0123456789")
    pieces = [pair.ours.read(4), pair.ours.read(1), pair.ours.read(4), pair.ours.read(4)]
    assert pieces == [b"0123", b"4", b"5678", b"9"]
    assert pair.ours.read(4) is None


def test_bytes_that_no_socket_will_announce_are_announced(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.peer.write(b"x" * 100)
    assert pair.ours.read(4) == b"xxxx"
    left = drain(pair.ours) if pair.ours.has_buffered() or len(pair.inbound) else b""
    assert len(left) == 96
    assert not pair.ours.has_buffered()


def test_bytes_split_everywhere_come_together(make: Callable[..., Pair]) -> None:
    pair = make(split=1)
    pair.peer.write(b"hello")
    seen = b""
    for _ in range(3000):
        seen += pair.ours.read(100) or b""
    assert seen == b"hello"


def test_a_full_wire_takes_part_and_the_rest_goes_later(make: Callable[..., Pair]) -> None:
    pair = make(capacity=40_000)
    data = bytes(range(256)) * 1000
    sent, seen = 0, b""
    for _ in range(200):
        if sent < len(data):
            sent += pair.ours.write(memoryview(data)[sent:])
        else:
            pair.ours.flush()
        assert pair.pool.used >= pair.ours.pending_write
        seen += drain(pair.peer)
        if seen == data:
            break
    assert seen == data
    assert pair.ours.flush()
    assert (pair.ours.pending_write, pair.pool.used) == (0, 0)


def test_a_wire_that_takes_nothing_is_no_error(make: Callable[..., Pair]) -> None:
    pair = make(capacity=20_000)
    while pair.ours.pending_write == 0 and pair.ours.write(b"x" * 1000):
        pass
    assert pair.ours.write(b"y") == 0
    assert pair.ours.write_gather([b"y", b"z"]) == 0


# While memory is short: a look before a read.


def gather(transport: Transport, size: int) -> bytes:
    """So many bytes, by as many reads as it takes."""
    data = b""
    for _ in range(10 * size + 100):
        if len(data) == size:
            break
        data += transport.read(size - len(data)) or b""
    return data


def test_what_is_obtainable_can_be_read_and_asking_takes_nothing_away(make: Callable[..., Pair]) -> None:
    pair = make()
    assert pair.ours.obtainable(1) == 0
    for size in (1, 100, 16_384, 16_385, 70_000):
        pair.peer.write(bytes(size - 1))
        assert pair.ours.obtainable(size) < size, "one is not there"
        assert pair.ours.obtainable(size) == pair.ours.obtainable(size)
        pair.peer.write(b"x")
        assert pair.ours.obtainable(size) >= size
        assert gather(pair.ours, size) == bytes(size - 1) + b"x"
        assert pair.ours.obtainable(1) == 0


def test_what_was_begun_to_be_read_is_obtainable(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.peer.write(bytes(40_000))
    for taken in (1, 499, 10_000, 29_000):
        assert len(gather(pair.ours, taken)) == taken
    assert pair.ours.obtainable(500) >= 500
    assert pair.ours.obtainable(501) <= 500
    assert len(gather(pair.ours, 500)) == 500


def test_no_more_than_what_is_missing_is_waited_for(make: Callable[..., Pair]) -> None:
    """Else the last bytes would never be noticed; and when so much is there as was said, the wait ends sooner or later."""
    for size in (2, 5000, 40_000):
        pair = make()
        pair.peer.write(bytes(size - 1))
        assert pair.ours.obtainable(size) < size
        least = pair.ours.least(size)
        assert least > len(pair.inbound), "what lies there is not enough"
        pair.peer.write(b"x")
        assert len(pair.inbound) >= least
        assert pair.ours.obtainable(size) >= size
        gather(pair.ours, size)


def test_bytes_that_come_one_by_one_are_obtainable_with_the_last(make: Callable[..., Pair]) -> None:
    pair = make(split=None)
    pair.peer.write(bytes(300))
    whole = pair.inbound.take(1 << 20) or b""
    for index in range(len(whole)):
        assert pair.ours.obtainable(300) < 300
        assert pair.ours.least(300) > len(pair.inbound)
        pair.inbound.put(whole[index : index + 1])
    assert pair.ours.obtainable(300) >= 300
    assert gather(pair.ours, 300) == bytes(300)


def test_what_was_read_ahead_is_read_first_and_once(make: Callable[..., Pair]) -> None:
    pair = make()
    assert pair.ours.read_ahead(10) == b""
    pair.peer.write(b"0123456789")
    assert (pair.ours.read_ahead(4), pair.ours.read_ahead(100)) == (b"0123", b"0123456789")
    assert pair.ours.obtainable(10) >= 10
    assert (pair.ours.read(3), pair.ours.read_ahead(100)) == (b"012", b"3456789")
    pair.peer.write(b"abc")
    assert gather(pair.ours, 10) == b"3456789abc"
    assert pair.ours.read_ahead(10) == b""
    pair.peer.shut_write()
    assert pair.ours.read_ahead(10) == b""
    assert pair.ours.read(10) == b""


def test_a_look_is_at_the_first_bytes_and_leaves_them(make: Callable[..., Pair]) -> None:
    pair = make()
    if not pair.ours.is_plain:
        with pytest.raises(NotImplementedError):
            pair.ours.peek(1)
        return
    assert pair.ours.peek(10) == b""
    pair.peer.write(b"0123456789")
    assert (pair.ours.peek(4), pair.ours.peek(100)) == (b"0123", b"0123456789")
    assert pair.ours.read(100) == b"0123456789"
    pair.peer.shut_write()
    assert pair.ours.peek(10) == b""


def test_a_look_does_not_swallow_an_error_of_the_network(make: Callable[..., Pair]) -> None:
    """A socket tells it once: the read behind the look would see a stream that has ended."""

    def look(transport: Transport, *, peek: bool) -> None:
        if peek:
            transport.peek(10)
        else:
            transport.obtainable(10)
        transport.read(10)

    for peek in (False, True):
        pair = make()
        pair.reset()
        with pytest.raises(TransportError) as caught:
            look(pair.ours, peek=peek and pair.ours.is_plain)
        assert caught.value.errno == errno.ECONNRESET


def test_the_end_comes_after_the_bytes_and_stays(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.peer.write(b"last")
    assert pair.peer.shut_write()
    assert pair.ours.read(100) == b"last"
    assert pair.ours.read(100) == b""
    assert pair.ours.read(100) == b""
    assert pair.ours.clean_end


def test_one_direction_ends_and_the_other_goes_on(make: Callable[..., Pair]) -> None:
    pair = make()
    assert pair.ours.shut_write()
    assert drain(pair.peer) == b""
    for index in range(3):
        assert pair.peer.write(b"answer%d" % index) == 7
        assert pair.ours.read(100) == b"answer%d" % index
    assert pair.peer.shut_write()
    assert pair.ours.read(100) == b""


def test_an_error_of_the_network_is_told_as_such(make: Callable[..., Pair]) -> None:
    for call in (lambda t: t.read(10), lambda t: t.write(b"x"), lambda t: t.write_gather([b"x", b"y"])):
        pair = make()
        pair.reset()
        with pytest.raises(TransportError) as caught:
            call(pair.ours)
        assert caught.value.errno == errno.ECONNRESET


def test_a_megabyte_each_way_at_once(make: Callable[..., Pair]) -> None:
    pair = make(capacity=100_000, split=30_000)
    data = bytes(range(256)) * 4096
    sides = [(pair.ours, pair.peer), (pair.peer, pair.ours)]
    sent, seen = [0, 0], [b"", b""]
    for _ in range(400):
        for index, (writer, reader) in enumerate(sides):
            if sent[index] < len(data):
                sent[index] += writer.write(memoryview(data)[sent[index] : sent[index] + 70_000])
            else:
                writer.flush()
            seen[index] += reader.read(131_072) or b""
        if seen == [data, data]:
            break
    assert seen == [data, data]
