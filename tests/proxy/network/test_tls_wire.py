"""framegate.proxy.network.tls_wire: the socket's side; with a TLS connection above it in test_tls.py."""

import contextlib
import dataclasses
import random
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from framegate.proxy.errors import TransportError
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.tls import TlsTransport
from framegate.proxy.network.tls_wire import BioPair
from framegate.proxy.network.transport import DONE, ENDED
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import MemorySocket, as_socket, memory_sockets


@dataclasses.dataclass
class End:
    """One end of a connection whose both ends use the same pair of BIOs as all others."""

    name: bytes
    transport: TlsTransport
    below: MemorySocket
    sent: bytes = b""
    got: bytes = b""
    ready: bool = False
    over: str = ""

    def step(self, chooser: random.Random) -> None:
        """One thing that the channel of this end might do next."""
        if self.over:
            return
        try:
            if not self.ready:
                code = self.transport.handshake()
                self.ready = code == DONE
                self.over = "gone" if code == ENDED else ""
            elif chooser.random() < 0.5:
                data = self.transport.read(chooser.choice((1, 100, 4096, 1 << 18)))
                self.got += data or b""
                self.over = "end" if data == b"" else ""
            elif self.transport.flush():
                data = self.name * chooser.choice((1, 20, 3000, 12000))
                self.sent += data[: self.transport.write(data)]
        except TransportError as error:
            self.over = str(error)


class Crowd:
    """Connections over one pair; ends are named, and say nothing but their name."""

    def __init__(self, world: TlsWorld, seed: int) -> None:
        self.chooser = random.Random(seed)
        self.bios = BioPair()
        self.pool = MemoryPool(1 << 30, FakeClock().now_ns)
        self.settings = [
            (world.server_settings(), world.client_settings()),
            (world.server_settings(), world.client_settings(version="1.2")),
            (world.server_settings(client_auth="required"), world.client_settings(identity=world.client)),
            (world.server_settings(client_auth="required"), world.client_settings()),
            (world.server_settings(), world.client_settings(name="elsewhere")),
        ]
        self.links: list[tuple[End, End]] = []

    def connect(self) -> tuple[End, End]:
        number = len(self.links)
        below = memory_sockets(self.chooser.choice((5_000, 1 << 20)), self.chooser.choice((None, 7, 1000)))
        settings = self.chooser.choice(self.settings[:3] if number % 3 else self.settings)
        server, client = (self._end(b"<%s %d>" % (role, number), *item) for role, *item in zip((b"server", b"client"), below, settings, strict=True))
        self.links.append((server, client))
        return server, client

    def _end(self, name: bytes, below: MemorySocket, settings: TlsSettings) -> End:
        return End(name, TlsTransport(as_socket(below), settings, self.pool.common, self.bios), below)

    def assert_nothing_is_left(self) -> None:
        assert not self.bios.is_fed
        assert self.bios._outgoing.pending == 0

    def assert_nobody_got_anothers(self) -> None:
        for server, client in self.links:
            assert client.sent.startswith(server.got)
            assert server.sent.startswith(client.got)


def spoil(end: End, chooser: random.Random) -> None:
    """What a bad peer or network does to one connection."""
    what = chooser.randrange(5)
    if what < 3:
        garbage = (b"\x17\x03\x03\x00\x40" + b"x" * 64, b"\x16\x03\x03\xff\xff" + b"x" * 64, chooser.randbytes(100))
        with contextlib.suppress(BlockingIOError):
            end.below.send(garbage[what])
    elif what == 3:
        end.transport.close()
        end.over = "closed"
        end.below.close()
    elif end.ready:
        with contextlib.suppress(TransportError):
            end.transport.shut_write()
        end.over = "shut"


@each_of("seed", range(12))
def test_connections_in_every_state_share_a_pair_and_get_only_their_own(tls_world: TlsWorld, seed: int) -> None:
    crowd = Crowd(tls_world, seed)
    chooser = crowd.chooser
    spoiled: set[int] = set()
    for _ in range(2000):
        if len(crowd.links) < 20 and chooser.random() < 0.05:
            crowd.connect()
        if crowd.links:
            number = chooser.randrange(len(crowd.links))
            end = chooser.choice(crowd.links[number])
            end.step(chooser)
            if number % 2 and chooser.random() < 0.02:
                spoil(end, chooser)
                spoiled.add(number)
            crowd.assert_nothing_is_left()
    crowd.assert_nobody_got_anothers()
    for number, ends in enumerate(crowd.links):
        for end in ends:
            assert number in spoiled or not end.over or "certificate" in end.over.lower(), "a connection fails for its own reasons only"
            end.transport.close()
    assert crowd.pool.used == 0
    assert len([end for ends in crowd.links for end in ends if end.got]) > 5, "the seed lets nobody speak"


class Failing:
    """Fails in the middle of a call as no peer makes it fail: what it was fed stays unread, what it wrote stays behind."""

    fails = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _fail(self) -> None:
        if Failing.fails:
            raise MemoryError

    def do_handshake(self) -> None:
        try:
            self._inner.do_handshake()
        finally:
            self._fail()

    def read(self, size: int) -> Any:
        self._fail()
        return self._inner.read(size)

    def write(self, data: object) -> Any:
        count = self._inner.write(data)
        self._fail()
        return count

    def shutdown(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._inner.shutdown()
        self._fail()


class FailingObject(ssl.SSLObject):
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, Failing(value) if name == "_sslobj" else value)


def repeat(call: Callable[[], object]) -> None:
    """Until it raises: the wire may split the bytes everywhere."""
    for _ in range(2000):
        call()


@pytest.mark.parametrize("call", ["handshake", "read", "write", "write_gather", "shut_write", "close"])
def test_whatever_is_raised_within_a_call_leaves_nothing_to_the_next(tls_world: TlsWorld, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(tls_world, 2)
    crowd.settings = [(tls_world.server_settings(), tls_world.client_settings())]
    crowd.settings[0][0].context.sslobject_class = FailingObject
    (server, client), (other, other_client) = crowd.connect(), crowd.connect()
    for _ in range(2000):
        for end in (other, other_client) if call == "handshake" else (server, client, other, other_client):
            if not end.ready:
                end.step(crowd.chooser)
    client.transport.handshake() if call == "handshake" else client.transport.write(b"never read")
    calls = {
        "handshake": server.transport.handshake,
        "read": lambda: server.transport.read(100),
        "write": lambda: server.transport.write(b"half"),
        "write_gather": lambda: server.transport.write_gather([b"half", b"whole"]),
        "shut_write": server.transport.shut_write,
        "close": server.transport.close,
    }
    monkeypatch.setattr(Failing, "fails", True)
    with pytest.raises(MemoryError):
        repeat(calls[call])
    monkeypatch.undo()
    crowd.assert_nothing_is_left()
    assert other.transport.write(b"mine") == 4
    for _ in range(2000):
        other_client.got += other_client.transport.read(100) or b""
    assert other_client.got == b"mine"


def test_bytes_left_in_the_bios_are_dropped_for_the_next_connection() -> None:
    bios = BioPair()
    bios.lend()
    bios.feed(b"of one")
    bios._outgoing.write(b"of one")
    bios.lend()
    assert not bios.is_fed
    bios.feed(b"of the next")
    assert bios.give_back() == (b"", b"of the next")
