"""framegate.control.accept.admission, through the acceptor's thread and real sockets; numbers are those of the reference's list."""

import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from framegate.control.accept import acceptor
from framegate.control.accept.acceptor import Acceptor, Target
from framegate.control.accept.admission import DelayedClose
from framegate.control.accept.listening import Listening
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.limits import UNLIMITED, LimitOverride, LimitsConfig, RateLimits, limits_in_force
from framegate.proxy.config.model import ListenerConfig
from framegate.proxy.server.link import Handover, receive_handovers
from tests.fakes.fleet import MemoryLog

SECOND = 1_000_000_000


class Gate:
    """An acceptor with several listeners, one processor's end of the hand-over, and a stepped clock for the quotas."""

    def __init__(self, limits: LimitsConfig, address: str = "127.0.0.1:0", **listeners: RateLimits) -> None:
        self.limits = limits
        self.now_ns = 50 * SECOND
        self.meters = Meters()
        self.log = MemoryLog()
        self.given = listeners or {"a": UNLIMITED}
        self.listenings = {
            name: Listening(ListenerConfig(name=name, address=address, upstream="u", backlog=4096, limits=given))
            for name, given in self.given.items()
        }
        task_monitor = TaskMonitor(self.log, self.meters)
        self.acceptor = Acceptor(list(self.listenings.values()), self.meters, self.log, task_monitor, limits, lambda: self.now_ns)
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.acceptor.set_targets([Target(0, self.ours, 1)])
        self.clients: list[socket.socket] = []
        self.served: list[tuple[Handover, int]] = []
        self.acceptor.start()

    def connect(self, listener: str = "a", source: str = "127.0.0.1", count: int = 1) -> list[socket.socket]:
        """Clients from an address, which do not wait."""
        made = []
        address = self.listenings[listener].address
        host, _, port = address.rpartition(":")
        for _ in range(count):
            client = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET)
            client.bind((source, 0))
            client.settimeout(5)
            client.connect((source if host == "[::]" else host, int(port)))
            made.append(client)
        self.clients += made
        return made

    def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        """Wait for what the acceptor's thread will do, taking what it hands over."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come to that"
            self.take()
            select.select([self.theirs], [], [], 0.002)

    def take(self) -> None:
        while received := receive_handovers(self.theirs):
            self.served += received

    def has(self, count: int, listener: str | None = None) -> bool:
        """Whether so many have been served, and exactly so many, of a listener or all."""
        return sum(listener in (None, handover.listener) for handover, _ in self.served) == count

    def end(self, index: int = 0) -> None:
        """A connection that is served ends, as its processor says."""
        handover, descriptor = self.served.pop(index)
        os.close(descriptor)
        self.acceptor.gave_back(handover.listener, handover.peer, handover.broker)

    def step(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)
        self.acceptor._notify()

    def change(self, limits: LimitsConfig, **listeners: RateLimits) -> None:
        self.limits, self.given = limits, {**self.given, **listeners}
        self.acceptor.set_limits(limits_in_force(limits, self.given))

    def settled(self) -> None:
        """Wait until the thread has looked at everything once more."""
        heartbeat = self.acceptor._job
        assert heartbeat is not None
        for _ in range(2):
            before = heartbeat._heartbeat_ns
            self.acceptor._notify()
            self.until(lambda before=before: heartbeat._heartbeat_ns > before)  # type: ignore[misc]

    def waited(self, listener: str, reason: str) -> float:
        return self.meters.value("accept.limited.time", listener, reason)

    def close(self) -> None:
        self.acceptor.stop()
        self.acceptor.close()
        self.take()
        for _, descriptor in self.served:
            os.close(descriptor)
        for sock in (*self.clients, self.ours, self.theirs):
            sock.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gate]]:
    monkeypatch.setattr(acceptor, "_BEAT_S", 60.0)  # nobody is saved by the next look
    made: list[Gate] = []

    def make(limits: LimitsConfig, address: str = "127.0.0.1:0", **listeners: RateLimits) -> Gate:
        made.append(Gate(limits, address, **listeners))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert all(one.meters.value("task.failures", "acceptor") == 0 for one in made)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    return False


def end_of(client: socket.socket) -> bytes:
    client.settimeout(5)
    return client.recv(1)


Make = Callable[..., Gate]


def test_one_more_than_an_address_may_have_sees_the_end_at_once_and_a_close_makes_room(gate: Make) -> None:
    """Number 182."""
    made = gate(LimitsConfig(per_address=RateLimits(connections=2)), a=UNLIMITED, b=UNLIMITED)
    made.connect("a")
    made.connect("b")
    made.until(lambda: made.has(2))
    refused = made.connect("a") + made.connect("b")
    assert [end_of(client) for client in refused] == [b"", b""]
    made.connect("a", "127.0.0.2", 2)
    made.until(lambda: made.has(4))
    assert made.meters.value("connection.rejected", "a", "address_connections") == 1
    (row, _) = made.log.events("rejected")
    peer = "{}:{}".format(*refused[0].getsockname())
    assert row["peer"] == peer
    assert (row["listener"], row["reason"], row["key"], row["cause"]) == ("a", "address_connections", "limits.per_address.connections", "limit")
    made.end()
    made.connect("b")
    made.until(lambda: made.has(4))
    assert end_of(made.connect("b")[0]) == b""
    assert sum(item.handed for item in made.listenings.values()) == 5, "who is refused was never handed over, and never counted"


def test_what_is_refused_within_a_second_is_in_a_second_row_when_it_is_over(gate: Make) -> None:
    """Nobody has to come for it: an attack that ends within the second is told whole."""
    made = gate(LimitsConfig(per_address=RateLimits(connections=1)))
    made.connect()
    made.until(lambda: made.has(1))
    refused = made.connect(count=5)
    assert [end_of(client) for client in refused] == [b""] * 5
    made.until(lambda: made.meters.value("connection.rejected", "a", "address_connections") == 5)
    assert [row["count"] for row in made.log.events("rejected")] == [1]
    made.step(0.99)
    made.settled()
    assert len(made.log.events("rejected")) == 1
    made.step(0.01)
    made.until(lambda: len(made.log.events("rejected")) == 2)
    first, second = made.log.events("rejected")
    assert (first["peer"], second["peer"]) == tuple("{}:{}".format(*refused[index].getsockname()) for index in (0, 4)), "the last that came"
    assert {key: second[key] for key in ("listener", "reason", "key", "cause", "level", "count")} == {
        "listener": "a", "reason": "address_connections", "key": "limits.per_address.connections", "cause": "limit", "level": "warning", "count": 4,
    }  # fmt: skip
    made.step(60)
    made.settled()
    assert len(made.log.events("rejected")) == 2, "there is nothing left to tell"


def test_what_was_refused_last_is_told_at_the_end_within_its_second_too(gate: Make) -> None:
    made = gate(LimitsConfig(per_address=RateLimits(connections=1)), a=UNLIMITED, b=UNLIMITED)
    made.connect()
    made.until(lambda: made.has(1))
    for client in made.connect("a", count=3) + made.connect("b", count=2):
        assert end_of(client) == b""
    made.until(lambda: made.meters.value("connection.rejected", "b", "address_connections") == 2)
    made.until(lambda: made.meters.value("connection.rejected", "a", "address_connections") == 3)
    made.acceptor.stop()
    made.acceptor._admission.close()
    assert sorted((row["listener"], row["count"]) for row in made.log.events("rejected")) == [("a", 1), ("a", 2), ("b", 1), ("b", 1)]


def test_at_the_nodes_limit_others_wait_without_being_refused_and_the_protected_listener_goes_on(gate: Make) -> None:
    """Numbers 185 and 186."""
    made = gate(LimitsConfig(connections=3, protected_listener="b"), a=UNLIMITED, b=UNLIMITED)
    clients = made.connect("a", count=5)
    made.until(lambda: made.has(3))
    made.connect("b", count=4)
    made.until(lambda: made.has(4, "b"))
    made.settled()
    assert made.has(3, "a")
    assert all(is_open(client) for client in clients)
    made.step(2)
    made.settled()
    assert made.waited("a", "node_connections") == pytest.approx(2)
    assert made.waited("b", "node_connections") == 0
    for _ in range(4):  # 7 are open, and with the fourth 3
        made.end(next(index for index, (handover, _) in enumerate(made.served) if handover.listener == "b"))
        made.settled()
        assert made.has(3, "a")
    made.end()
    made.until(lambda: made.has(3, "a"))
    made.end()
    made.until(lambda: made.has(3, "a"))
    assert made.meters.value("connection.rejected", "a", "address_connections") == 0
    (row,) = [row for row in made.log.events("accept_waits") if row["count"] == 1][:1]
    assert (row["listener"], row["reason"], row["key"]) == ("a", "node_connections", "limits.connections")
    made.until(lambda: made.acceptor.listeners["a"].handed == 5)


def test_the_thread_sleeps_as_long_as_a_rate_asks_and_then_goes_on() -> None:
    made = Gate(LimitsConfig(connection_rate=20))
    made.acceptor._admission._clock = time.monotonic_ns  # type: ignore[misc]
    began = time.monotonic()
    made.connect(count=25)
    made.until(lambda: made.has(25))
    assert 0.2 < time.monotonic() - began < 2
    made.close()


def test_an_address_that_comes_too_often_is_kept_waiting_for_nothing_and_closed_when_its_delay_is_over(gate: Make) -> None:
    """Numbers 189 and 190."""
    made = gate(LimitsConfig(connection_rate=10, per_address=RateLimits(connection_rate=2)))
    made.connect(count=2)
    made.until(lambda: made.has(2))
    refused = made.connect(count=5)
    for client in refused:
        client.sendall(b"never read")
    made.until(lambda: made.meters.value("connection.rejected", "a", "address_connection_rate") == 5)
    made.connect(source="127.0.0.2", count=2)
    made.until(lambda: made.has(4))
    assert all(is_open(client) for client in refused)
    assert len(made.acceptor._admission.delayed_close) == 5
    made.step(0.49)
    made.settled()
    assert all(is_open(client) for client in refused)
    made.step(0.01)
    made.until(lambda: len(made.acceptor._admission.delayed_close) == 0)
    for client in refused:
        with contextlib.suppress(ConnectionResetError):  # what it sent was never read
            assert end_of(client) == b""
    assert made.has(4)
    assert made.listenings["a"].handed == 4
    made.connect()
    made.until(lambda: made.has(5))
    (row,) = made.log.events("rejected")
    assert (row["key"], row["count"]) == ("limits.per_address.connection_rate", 1)


def test_a_stop_closes_those_that_wait_and_those_that_are_parked(gate: Make) -> None:
    """Number 178."""
    made = gate(LimitsConfig(per_address=RateLimits(connection_rate=1)), a=RateLimits(connections=1))
    made.connect()
    made.until(lambda: made.has(1))
    (waiting,) = made.connect()
    made.settled()
    made.change(LimitsConfig(per_address=RateLimits(connection_rate=1)), a=UNLIMITED)
    made.until(lambda: len(made.acceptor._admission.delayed_close) == 1)
    made.change(LimitsConfig(connections=1))
    (other,) = made.connect(source="127.0.0.2")
    made.settled()
    assert is_open(waiting)
    made.acceptor.stop()
    made.acceptor._admission.close()
    assert end_of(waiting) == b""
    with contextlib.suppress(ConnectionResetError):
        assert end_of(other) == b""


def test_changes_are_for_the_next_connection_and_wake_who_waits(gate: Make) -> None:
    """Number 192."""
    made = gate(LimitsConfig(connections=2))
    made.connect(count=10)
    made.until(lambda: made.has(2))
    made.change(LimitsConfig(connections=4))
    made.until(lambda: made.has(4))
    made.change(LimitsConfig(connections=1))
    made.settled()
    assert made.has(4), "nobody is closed by the acceptor"
    for _ in range(3):
        made.end()
        made.settled()
    assert made.has(1)
    made.end()
    made.until(lambda: made.has(1))
    made.change(LimitsConfig(), a=RateLimits(connections=3))
    made.until(lambda: made.has(3))
    made.change(LimitsConfig(per_address=RateLimits(connections=3)), a=UNLIMITED)
    made.until(lambda: made.meters.value("connection.rejected", "a", "address_connections") == 3)
    made.change(LimitsConfig())
    made.connect(count=5)
    made.until(lambda: made.has(8))


def test_a_client_that_gave_up_while_it_waited_costs_nothing(gate: Make) -> None:
    made = gate(LimitsConfig(connections=1))
    made.connect()
    made.until(lambda: made.has(1))
    for client in made.connect(count=3):
        client.close()
    made.connect()
    made.settled()
    for served in range(4):
        made.end()
        made.until(lambda: made.has(1))
        made.until(lambda served=served: made.listenings["a"].handed == served + 2)  # type: ignore[misc]


def test_ipv4_is_ipv4_on_an_ipv6_socket_and_ipv6_is_counted_by_its_64(gate: Make) -> None:
    made = gate(LimitsConfig(per_address=RateLimits(connections=1), overrides=(LimitOverride(network="::/64", connections=2),)), "[::]:0")
    made.connect(source="127.0.0.1")
    made.connect(source="::1", count=2)
    made.until(lambda: made.has(3))
    assert end_of(made.connect(source="127.0.0.1")[0]) == b""
    assert end_of(made.connect(source="::1")[0]) == b""
    assert {handover.peer.rpartition(":")[0] for handover, _ in made.served} == {"127.0.0.1", "[::1]"}


@pytest.mark.slow
def test_nobody_waits_for_ever_and_listeners_take_turns_under_a_limit_that_moves(gate: Make) -> None:
    made = gate(LimitsConfig(connections=10), a=UNLIMITED, b=UNLIMITED, c=RateLimits(connections=3))
    for listener in "abc":
        made.connect(listener, count=300)
    order = []
    while len(order) < 900:
        made.until(lambda: bool(made.served))
        order.append(made.served[0][0].listener)
        made.end()
        if len(order) % 100 == 0:
            made.change(LimitsConfig(connections=(10, 5, 20, 2)[len(order) // 100 % 4]))
        assert len(made.served) <= 20
    assert sorted(order) == ["a"] * 300 + ["b"] * 300 + ["c"] * 300
    assert {listener: order[:60].count(listener) >= 12 for listener in "abc"} == dict.fromkeys("abc", True)
    made.settled()
    assert made.acceptor._admission._quotas.open() == 0


@pytest.fixture
def sockets() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(20)]
    yield made
    for sock in (end for pair in made for end in pair):
        sock.close()


def ended(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_nearest_end_comes_first_whatever_came_before(sockets: list[tuple[socket.socket, socket.socket]]) -> None:
    """Number 190, and the regret 25: a heap with the latest end first would keep all until that."""
    delayed_close = DelayedClose()
    order = list(enumerate(sockets))
    random.Random(7).shuffle(order)
    for due, (ours, _) in order:
        assert delayed_close.add(ours.detach(), due)
    for now in range(20):
        assert delayed_close.next_ns == now
        delayed_close.close_due(now)
        assert [ended(theirs) for _, theirs in sockets] == [True] * (now + 1) + [False] * (19 - now)
    assert (len(delayed_close), delayed_close.next_ns) == (0, None)


def test_there_is_a_bound_and_then_the_socket_stays_its_owners(sockets: list[tuple[socket.socket, socket.socket]]) -> None:
    delayed_close = DelayedClose(most=3)
    assert [delayed_close.add(os.dup(ours.fileno()), 5) for ours, _ in sockets[:5]] == [True, True, True, False, False]
    assert len(delayed_close) == 3
    delayed_close.close_due(5)
    assert delayed_close.add(os.dup(sockets[0][0].fileno()), 5)
    delayed_close.close()
    assert len(delayed_close) == 0


def test_a_descriptor_that_cannot_be_closed_keeps_no_other_open(sockets: list[tuple[socket.socket, socket.socket]]) -> None:
    delayed_close = DelayedClose()
    broken = os.dup(sockets[0][0].fileno())
    os.close(broken)
    delayed_close.add(broken, 1)
    delayed_close.add(sockets[1][0].detach(), 2)
    delayed_close.close_due(2)
    assert ended(sockets[1][1])


def test_ports_of_brokers_share_the_quota_of_their_listener_and_wait_in_turn(gate: Callable[..., Gate]) -> None:
    made = gate(LimitsConfig(), a=RateLimits(connections=2), b=UNLIMITED)
    for node in (1, 2):
        made.acceptor.add_broker("a", node, 0)

    def connect(node: int, count: int) -> None:
        host, _, port = made.listenings["a"].brokers[node].address.rpartition(":")
        made.clients += [socket.create_connection((host, int(port)), timeout=5) for _ in range(count)]

    connect(1, 2)
    made.until(lambda: made.has(2))
    connect(1, 3)
    connect(2, 3)
    made.connect("a", count=3)
    made.settled()
    assert made.has(2), "no port lets in more than the listener may have"
    made.connect("b")
    made.until(lambda: made.has(1, "b"))
    served = []
    for count in range(1, 7):
        made.end(next(index for index, (handover, _) in enumerate(made.served) if handover.listener == "a"))
        made.until(lambda: made.has(2, "a"))
        served.append(made.served[-1][0].broker)
        made.settled()
        assert made.has(2, "a"), f"after {count}"
    assert {served.count(node) for node in (-1, 1, 2)} == {2}, f"each port has its turn: {served}"
    made.acceptor.remove_broker("a", 1)
    made.settled()
    while made.listenings["a"].open:
        made.until(lambda: any(handover.listener == "a" for handover, _ in made.served))
        made.end(next(index for index, (handover, _) in enumerate(made.served) if handover.listener == "a"))
        made.settled()
    assert made.has(0, "a"), "who waited at the port that is gone is refused"
