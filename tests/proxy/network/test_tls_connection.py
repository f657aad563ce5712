"""framegate.proxy.network.tls_connection: a transport over a real socket, when C has its connection. What is the same without C is in test_tls."""

import contextlib
import ctypes
import os
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest

from framegate.proxy.errors import TlsError, TransportError
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.tls import AHEAD, TlsTransport
from framegate.proxy.network.tls_connection import BUFFERED, IS_NATIVE, WRITTEN
from framegate.proxy.network.tls_wire import BioPair
from framegate.proxy.network.transport import DONE
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.tls import TlsWorld

if IS_NATIVE:
    from framegate.proxy.network.fast_path import Lane, Side, TlsConnection

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="the data path is not compiled, or Python's OpenSSL is not a library of its own")


class Both:
    """A server's and a client's transport over a pair of sockets, that C has."""

    def __init__(self, world: TlsWorld, version: str) -> None:
        self.pool = MemoryPool(1 << 30, FakeClock().now_ns)
        self.socks = socket.socketpair()
        for sock in self.socks:
            sock.setblocking(False)
        bios = BioPair()
        server, client = world.server_settings(), world.client_settings(version=version)
        self.server, self.client = (
            TlsTransport(sock, settings, self.pool.common, bios) for sock, settings in zip(self.socks, (server, client), strict=True)
        )
        while (self.server.handshake(), self.client.handshake()) != (DONE, DONE):
            pass
        assert (self.server.native, self.client.native) == (None, None)
        for one, other in ((self.client, self.server), (self.server, self.client)):
            one.write(b"x")
            assert other.read(100) == b"x"
        assert None not in (self.server.native, self.client.native)

    def close(self) -> None:
        for transport in (self.server, self.client):
            transport.close()
            transport.close()
        for sock in self.socks:
            sock.close()
        assert self.pool.used == 0


@pytest.fixture(params=["1.2", "1.3"])
def both(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Iterator[Both]:
    made = Both(tls_world, request.param)
    yield made
    made.close()


def openssl_of(transport: TlsTransport) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """OpenSSL, and its connection, for calls that Python does not have."""
    pointer = ctypes.c_void_p.from_address(id(transport._object) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
    return ctypes.CDLL(ssl._ssl.__file__), pointer  # type: ignore[attr-defined]


def read_all(transport: TlsTransport, total: int, size: int) -> bytes:
    """So many bytes, in reads of ``size`` at most. A read of a part of a record returns none."""
    data = b""
    for _ in range(3 * total):
        piece = transport.read(size) or b""
        assert len(piece) <= size
        data += piece
        if len(data) == total:
            break
    return data


@each_of("size", (1, 9, 10, 11, 447, 448, 16_383, 16_384, 16_385, 40_000))
def test_reads_of_any_size_give_every_byte_once(both: Both, size: int) -> None:
    data = bytes(range(250)) * (160 if size > 400 else 1)
    for position in range(0, len(data), 10_000):
        assert both.client.write(data[position : position + 10_000]) == len(data[position : position + 10_000])
    assert read_all(both.server, len(data), size) == data
    assert not both.server.has_buffered()
    assert both.server.wire_received == both.client.wire_sent


def test_a_rest_of_a_record_is_announced_and_read_without_the_socket(both: Both) -> None:
    both.client.write(b"0123456789")
    assert both.server.read(4) == b"0123"
    native = both.server.native
    assert native is not None
    assert both.server.has_buffered()
    assert native.flags == BUFFERED
    assert (both.server.obtainable(6), both.server.obtainable(3)) == (6, 6)
    assert not both.server.shut_write(), "an end would read what waits"
    assert both.server.read(100) == b"456789"
    assert (both.server.has_buffered(), both.server.read(100)) == (False, None)


def test_what_is_obtainable_counts_what_c_holds_and_what_the_socket_has(both: Both) -> None:
    both.client.write(b"a" * 1000)
    both.client.write(b"b" * 1000)
    native = both.server.native
    assert native is not None
    assert both.server.read(1500) == b"a" * 1000, "one read of the socket: a record and a part of the next"
    assert 0 < len(native.held) < 1000
    assert both.server.obtainable(1000) == 1000
    assert both.server.read(2000) == b"b" * 1000
    assert native.held == b""


def test_an_end_or_a_failure_that_nobody_took_is_obtainable(tls_world: TlsWorld) -> None:
    """The fast path has read it, and memory is short by now: a reader that waited for more bytes would wait for ever."""
    for wire in (b"", b"\x17\x03\x03\x00\x20" + bytes(32)):
        both = Both(tls_world, "1.3")
        native = both.server.native
        assert native is not None
        if wire:
            both.socks[1].send(wire)
        else:
            both.client.shut_write()
        assert native.read(100)[0] == b""
        assert (both.server.obtainable(1000), both.server.has_buffered()) == (1000, True)
        with pytest.raises(TlsError, match="bad_record_mac") if wire else contextlib.nullcontext():
            assert both.server.read(100) == b""
        both.close()


def test_a_write_takes_so_much_ahead_and_what_the_socket_does_not_take_is_booked(both: Both) -> None:
    data = bytes(1 << 20)
    assert both.server.write(data) == AHEAD
    waiting = both.server.pending_write
    assert waiting > 0
    assert both.pool.used == both.server.booked >= waiting
    assert both.server.write(data) == 0
    assert both.server.write_gather([data, data]) == 0
    got = 0
    while got < AHEAD:
        got += len(both.client.read(AHEAD) or b"")
        both.server.flush()
    assert (got, both.server.pending_write, both.server.booked) == (AHEAD, 0, 0)


@each_of("sizes", ((1, 2, 3), (8192, 8192), (8192, 8193), (0, 0), (5,), (100_000, 200_000), (1, 2, 16_381, 3, 50_000, 4), (0, 16_385)))
def test_small_pieces_are_one_record(both: Both, sizes: tuple[int, ...]) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = b"".join(pieces)[:AHEAD]
    before = both.client.wire_sent
    assert both.client.write_gather([memoryview(piece) if number else piece for number, piece in enumerate(pieces)]) == len(data)
    sent = both.client.wire_sent + both.client.pending_write - before
    if 0 < len(data) <= 16_384:
        assert sent < len(data) + 50
    got = b""
    while len(got) < len(data):
        got += both.server.read(AHEAD) or b""
        both.client.flush()
    assert got == data


def test_an_end_without_close_notify_is_no_clean_one(both: Both) -> None:
    both.client.write(b"last")
    both.socks[1].shutdown(socket.SHUT_WR)
    assert (both.server.read(100), both.server.read(100), both.server.clean_end) == (b"last", b"", False)
    assert not both.server.has_buffered()


def test_close_notify_ends_one_direction(both: Both) -> None:
    assert both.client.shut_write()
    assert both.client.shut_write()
    assert (both.server.read(100), both.server.read(100), both.server.clean_end) == (b"", b"", True)
    both.server.write(b"late")
    assert both.client.read(100) == b"late"


def test_a_changed_record_is_an_error_that_the_peer_is_told(both: Both) -> None:
    both.client.write(b"good")
    both.socks[1].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert both.server.read(100) == b"good"
    for _ in range(2):
        with pytest.raises(TlsError, match="a record of the client was changed on its way") as found:
            both.server.read(100)
        assert found.value.reason == "decryption_failed_or_bad_record_mac"
    with pytest.raises(TlsError, match="bad_record_mac"):
        both.client.read(100)


def test_what_other_calls_of_openssl_left_is_not_taken_for_this_connections(tls_world: TlsWorld) -> None:
    """An error, and bytes; a record that holds no data makes OpenSSL want more, which it tells from an error by that."""
    both = Both(tls_world, "1.3")
    openssl, pointer = openssl_of(both.client)
    assert openssl.SSL_key_update(pointer, 0) == 1
    assert both.client.write(b"after") == 5
    record = both.socks[0].recv(1000)
    both.socks[1].send(record[: -5 - 22])
    openssl.ERR_new()
    openssl.ERR_set_error(20, 1, None)
    assert both.server.read(100) is None
    both.socks[1].send(record[-5 - 22 :])
    assert both.server.read(100) == b"after"
    other = Both(tls_world, "1.3")
    both.client._object.write(b"left")
    other.client.write(b"mine")
    assert other.server.read(100) == b"mine"
    both.client._object.write(b"left")
    third = Both(tls_world, "1.3")
    third.server.write(b"mine")
    assert third.client.read(100) == b"mine"
    for each in (both, other, third):
        each.close()


@each_of("end", (lambda server: server.write(b"x"), TlsTransport.shut_write, TlsTransport.close))
def test_a_warning_of_openssl_that_nobody_took_leaves_before_the_next_record(tls_world: TlsWorld, end: Callable[[TlsTransport], object]) -> None:
    """The fast path has read a request to renegotiate, and Python writes before it handles the event. Both records are numbered."""
    both = Both(tls_world, "1.2")
    native = both.server.native
    assert native is not None
    openssl, pointer = openssl_of(both.client)
    openssl.SSL_clear_options(pointer, ctypes.c_uint64(ssl.OP_NO_RENEGOTIATION))
    assert openssl.SSL_renegotiate(pointer) == 1
    taken, _, hello, _ = both.client.native.write([b"x"])
    assert (taken, both.socks[1].send(hello)) == (-1, len(hello))
    assert native.read(100)[::2] == (b"", WRITTEN)
    end(both.server)
    assert native.flags == 0
    wire = both.socks[1].recv(1000)
    assert (wire[0], wire[3:5]) == (0x15, b"\0\x1a"), "an alert"
    numbers = [int.from_bytes(wire[at : at + 8], "big") for at in (5, 31 + 5)]  # explicit nonces of AES-GCM
    assert numbers[1] == numbers[0] + 1
    both.close()


def test_an_error_of_the_socket_is_told_with_its_number(both: Both) -> None:
    both.socks[1].close()
    with pytest.raises(TransportError, match="write failed: Broken pipe") as found:
        both.server.write(b"x")
    assert found.value.errno == 32


def test_a_closed_transport_does_not_read_the_descriptor_that_another_connection_has(both: Both) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        number = both.socks[0].fileno()
        both.server.close()
        both.socks[0].close()
        os.dup2(ours.fileno(), number)
        other.send(b"another's")
        with pytest.raises(TransportError, match="Bad file descriptor"):
            both.server.read(100)
        os.close(number)
        assert ours.recv(100) == b"another's"


def test_wrong_arguments_are_refused(both: Both, tls_world: TlsWorld) -> None:
    native = both.server.native
    assert native is not None
    for size in (0, -1):
        with pytest.raises(ValueError, match="a read of"):
            native.read(size)
    with pytest.raises(TypeError, match="a list"):
        native.write((b"x",))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        native.write([b"x", "y"])  # type: ignore[list-item]
    assert native.write([]) == (0, 0, None, 0)
    numbers = memoryview(bytes(2 * 16_384)).cast("Q")
    assert native.write([numbers, b"x"])[0] == numbers.nbytes + 1
    with pytest.raises(TypeError, match="a TlsConnection or None"):
        Lane(0, Side(None), "x", 0)  # type: ignore[arg-type]
    context = tls_world.client_settings().context
    over_socket = context.wrap_socket(socket.socket(), server_hostname="localhost", do_handshake_on_connect=False)
    for given in (object(), context, over_socket, context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")):
        with pytest.raises((ValueError, AttributeError)):
            TlsConnection(given, 0, b"")
    over_socket.close()
