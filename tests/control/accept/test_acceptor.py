import asyncio
import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.accept import acceptor as module
from framegate.control.accept.acceptor import Acceptor, Target
from framegate.control.accept.listening import Listening
from framegate.control.errors import StartError
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ListenerConfig
from framegate.proxy.server.link import receive_handovers
from tests.fakes.cases import each_of
from tests.fakes.fleet import MemoryLog, fleet
from tests.fakes.fleet import until as until_in_loop
from tests.fakes.waiting import until

MORE = 160  # Connections, than both hand-over sockets hold when they are as small as the kernel makes them: seven messages of ten


def listening(address: str = "127.0.0.1:0", **changes: Any) -> Listening:
    return Listening(ListenerConfig(name="a", address=address, upstream="u", **changes))


class Rig:
    """An acceptor and the far ends of two hand-over sockets."""

    def __init__(self, bound: Listening, targets: int = 2) -> None:
        self.listening = bound
        self.log = MemoryLog()
        self.meters = Meters()
        self.task_monitor = TaskMonitor(self.log, self.meters)
        self.acceptor = Acceptor([bound], self.meters, self.log, self.task_monitor)
        self.pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(targets)]
        for ours, theirs in self.pairs:
            ours.setblocking(False)
            theirs.setblocking(False)
        self.acceptor.set_targets([Target(slot, ours, slot + 1) for slot, (ours, _) in enumerate(self.pairs)])
        self.clients: list[socket.socket] = []
        self._received: list[list[Any]] = [[] for _ in range(targets)]

    def connect(self) -> socket.socket:
        if self.listening.family == socket.AF_UNIX:
            return self.connect_as(b"")
        host, _, port = self.listening.address.rpartition(":")
        client = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
        self.clients.append(client)
        return client

    def connect_as(self, name: bytes) -> socket.socket:
        """A client of a Unix listener, bound to a name unless that is empty."""
        client = socket.socket(socket.AF_UNIX)
        self.clients.append(client)
        client.settimeout(5)
        if name:
            client.bind(name)
        client.connect(self.listening.address.removeprefix("unix:"))
        return client

    def take(self, slot: int) -> Any:
        """The next connection that a slot gets: its facts."""
        until(lambda: self.receive(slot) or self._received[slot], f"slot {slot} got nothing")
        return self._received[slot].pop(0)

    def receive(self, slot: int) -> int:
        """Be the processor for one message: how many connections came with it."""
        received = receive_handovers(self.pairs[slot][1])
        for handover, descriptor in received:
            os.close(descriptor)
            self._received[slot].append(handover)
        return len(received)

    def close(self) -> None:
        self.acceptor.stop()
        self.acceptor.close()
        for sock in (*self.clients, *(end for pair in self.pairs for end in pair)):
            sock.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(listening())
    made.acceptor.start()
    yield made
    made.close()


def test_connections_go_round_the_processors_with_their_facts(rig: Rig) -> None:
    for number in range(4):
        client = rig.connect()
        handover = rig.take(number % 2)
        assert handover.listener == "a"
        assert handover.peer == "{}:{}".format(*client.getsockname())
        assert handover.family == socket.AF_INET
        assert abs(handover.accepted_ns - time.monotonic_ns()) < 5e9
    assert rig.listening.handed == rig.listening.open == 4
    assert [item.token for item in rig.acceptor.handed] == [1, 2, 1, 2]


@pytest.mark.parametrize(("refused", "policy"), [(False, os.SCHED_BATCH), (True, os.SCHED_OTHER)])
def test_the_thread_interrupts_no_processor_if_that_is_allowed(monkeypatch: pytest.MonkeyPatch, refused: bool, policy: int) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    if refused:
        monkeypatch.setattr(module.os, "sched_setscheduler", refuse)
    rig = Rig(listening())
    try:
        rig.acceptor.start()
        rig.connect()
        rig.take(0)
        thread = next(item for item in threading.enumerate() if item.name == "framegate-acceptor")
        assert os.sched_getscheduler(thread.native_id or 0) == policy
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        rig.close()


def test_a_dead_or_full_processor_is_passed_over(rig: Rig) -> None:
    rig.pairs[0][1].close()
    for _ in range(3):
        rig.connect()
        rig.take(1)


def test_when_every_queue_is_full_the_acceptor_waits_and_meters_the_time(rig: Rig) -> None:
    """Number 171: the bound is the hand-over socket's."""
    for ours, _ in rig.pairs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for _ in range(MORE):
        rig.connect()
    until(lambda: rig.meters.value("accept.blocked.time", "a") > 0)
    taken = 0
    while taken < MORE:
        taken += until(lambda: rig.receive(0) + rig.receive(1), f"{taken} were handed over")
    assert taken == MORE
    assert rig.listening.handed == MORE


def test_connections_that_came_together_go_round_in_messages_of_ten_at_most(rig: Rig) -> None:
    """They come in the order in which they were accepted, and are booked in that in which each processor gets them."""
    rig.acceptor.set_targets([])
    clients = [rig.connect()]
    until(lambda: rig.meters.value("accept.blocked.time", "a") > 0)
    clients += [rig.connect() for _ in range(24)]
    rig.acceptor.set_targets([Target(slot, ours, slot + 1) for slot, (ours, _) in enumerate(rig.pairs)])
    until(lambda: rig.listening.handed == 25)
    sizes = [list(iter(lambda slot=slot: rig.receive(slot), 0)) for slot in range(2)]  # type: ignore[misc]
    assert sizes == [[1, 5, 5, 2], [5, 5, 2]]
    names = ["{}:{}".format(*client.getsockname()) for client in clients]
    first, second = ([handover.peer for handover in got] for got in rig._received)
    assert (first, second) == (names[::2], names[1::2])
    booked: dict[int, list[str]] = {1: [], 2: []}
    for token, handover in rig.acceptor.handed:
        booked[token].append(handover.peer)
    assert booked == {1: first, 2: second}
    accepted = [handover.accepted_ns for got in rig._received for handover in got]
    assert len(set(accepted)) == 25


def test_without_any_processor_a_connection_waits_for_one(rig: Rig) -> None:
    targets = [Target(slot, ours, slot + 1) for slot, (ours, _) in enumerate(rig.pairs)]
    rig.acceptor.set_targets([])
    rig.connect()
    until(lambda: rig.meters.value("accept.blocked.time", "a") > 0)
    assert rig.listening.handed == 0
    rig.acceptor.set_targets(targets)
    rig.take(0)


def test_stop_refuses_clients_and_ends_the_thread_even_while_it_waits(rig: Rig) -> None:
    """Numbers 172 and 178."""
    rig.acceptor.set_targets([])
    waiting = rig.connect()
    until(lambda: rig.meters.value("accept.blocked.time", "a") > 0)
    rig.acceptor.stop()
    assert waiting.recv(1) == b""
    assert not any(thread.name == "framegate-acceptor" for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        rig.connect()
    assert not rig.listening.accepting


def test_ipv4_clients_of_an_ipv6_listener_are_shown_as_ipv4() -> None:
    rig = Rig(listening("[::]:0"))
    rig.acceptor.start()
    port = int(rig.listening.address.rpartition(":")[2])
    rig.clients.append(socket.create_connection(("127.0.0.1", port)))
    assert rig.take(0).peer == "{}:{}".format(*rig.clients[-1].getsockname())
    rig.clients.append(socket.create_connection(("::1", port)))
    assert rig.take(1).peer == "[{}]:{}".format(*rig.clients[-1].getsockname()[:2])
    rig.close()


def test_a_taken_port_is_refused_with_the_listeners_name() -> None:
    first = listening()
    first.listen()
    with pytest.raises(StartError, match="listener a cannot bind") as caught:
        listening(first.address)
    assert caught.value.metadata["address"] == first.address
    first.close()


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(StartError, match="listener a cannot bind"):
        listening("no-such-host.invalid:1")


def test_a_stale_unix_socket_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    bound = listening(f"unix:{path}")
    assert bound.address == f"unix:{path}"
    bound.close()
    assert not path.exists()


def test_a_living_unix_socket_and_a_file_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="another process listens"):
            listening(f"unix:{path}")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StartError, match="not a socket exists at this path"):
        listening(f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_unix_client_may_be_bound_to_any_name(tmp_path: Path) -> None:
    rig = Rig(listening(f"unix:{tmp_path}/l"))
    rig.acceptor.start()
    folder = os.fsencode(tmp_path)
    names = {
        folder + b"/\xff\xfe": rf"unix:{tmp_path}/\xff\xfe",
        b"\0" + folder + b"/x": f"unix:@{tmp_path}/x",
        b"\0" + folder + b"/\xff\n": rf"unix:@{tmp_path}/\xff\n",
        folder + b"/a b": f"unix:{tmp_path}/a b",
        b"": "unix:",
    }
    for index, (name, shown) in enumerate(names.items()):
        rig.connect_as(name)
        assert rig.take(index % 2).peer == shown
    assert rig.log.rows == []
    rig.close()


def test_an_exception_costs_the_connection_at_hand_and_is_logged_and_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number 176."""
    sound = module.send_handovers

    def broken(sock: socket.socket, handovers: Any, descriptors: Any) -> bool:
        monkeypatch.setattr(module, "send_handovers", sound)
        raise ValueError("our bug")

    monkeypatch.setattr(module, "send_handovers", broken)
    victim = rig.connect()
    assert victim.recv(1) == b""
    rig.connect()
    rig.take(0)
    (row,) = rig.log.events("task_failed")
    assert (row["task"], row["error"]) == ("acceptor", "ValueError('our bug')")
    assert rig.meters.value("task.failures", "acceptor") == 1
    assert rig.listening.open == 1
    quotas = rig.acceptor._admission._quotas
    assert (quotas.open(), quotas.of_address("127.0.0.1")) == (1, 1)


def test_it_moves_while_it_waits_for_a_processor(rig: Rig) -> None:
    rig.acceptor.set_targets([])
    rig.connect()
    until(lambda: rig.meters.value("accept.blocked.time", "a") > 0)
    before = rig.task_monitor._jobs[0]._heartbeat_ns
    until(lambda: rig.task_monitor._jobs[0]._heartbeat_ns > before)


def test_without_descriptors_clients_wait_in_the_backlog_and_are_served_later(rig: Rig) -> None:
    clients = [rig.connect(), rig.connect()]
    assert rig.take(0).peer == "{}:{}".format(*clients[0].getsockname())
    assert rig.take(1).peer == "{}:{}".format(*clients[1].getsockname())
    client = socket.socket()
    rig.clients.append(client)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(client.fileno())
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    host, _, port = rig.listening.address.rpartition(":")
    try:
        client.connect((host, int(port)))
        until(lambda: rig.meters.value("accept.errors", "a", "EMFILE") > 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert rig.take(0).peer == "{}:{}".format(*client.getsockname())
    (row,) = rig.log.events("accept_failed")
    assert (row["listener"], row["error"]) == ("a", "Too many open files")


class Failing(socket.socket):
    """Accepts, but before that fails with each of ``errors``."""

    errors: list[int]

    def _accept(self) -> Any:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super()._accept()


@each_of("number", [errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EINVAL])
def test_what_cannot_be_accepted_now_is_tried_again_after_a_pause(number: int) -> None:
    bound = listening()
    bound.sock = Failing(fileno=bound.sock.detach())
    bound.sock.errors = [number] * 4
    rig = Rig(bound)
    rig.acceptor.start()
    began = time.monotonic()
    rig.connect()
    rig.take(0)
    assert time.monotonic() - began > 0.1, "four pauses of 50 ms, of which one may be cut short by the news of the start"
    kind = errno.errorcode[number] if number != errno.EINVAL else "other"
    assert rig.meters.value("accept.errors", "a", kind) == 4
    assert [row["error"] for row in rig.log.events("accept_failed")] == [os.strerror(number)]
    rig.close()


def test_connections_that_were_aborted_are_counted_and_the_next_is_tried_at_once() -> None:
    bound = listening()
    bound.sock = Failing(fileno=bound.sock.detach())
    bound.sock.errors = [errno.ECONNABORTED] * 30
    rig = Rig(bound)
    rig.acceptor.start()
    rig.connect()
    rig.take(0)
    assert rig.meters.value("accept.errors", "a", "ECONNABORTED") == 30
    assert rig.log.rows == []
    rig.close()


def test_when_too_many_descriptors_are_on_their_way_it_waits_without_spinning(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = module.send_handovers
    calls: list[Any] = []

    def short(sock: socket.socket, handovers: Any, descriptors: Any) -> bool:
        calls.append(descriptors)
        if len(calls) <= 6:  # three rounds over both processors
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
        return sound(sock, handovers, descriptors)

    monkeypatch.setattr(module, "send_handovers", short)
    began = time.monotonic()
    rig.connect()
    rig.take(0)
    assert time.monotonic() - began > 0.09
    assert len(calls) == 7
    assert rig.meters.value("accept.blocked.time", "a") > 0.09
    assert [row["error"] for row in rig.log.events("hand_over_failed")] == ["Too many references: cannot splice"]


def test_a_processor_that_is_closed_while_it_is_waited_for_harms_nobody(rig: Rig) -> None:
    for ours, _ in rig.pairs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for _ in range(MORE):
        rig.connect()
    until(lambda: rig.meters.value("accept.blocked.time", "a") > 0)
    rig.pairs[0][0].close()

    def all_handed() -> bool:
        rig.receive(1)
        return rig.listening.handed == MORE

    until(all_handed)
    assert rig.meters.value("task.failures", "acceptor") == 0


def test_liveness_goes_when_the_thread_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STANDS_S", 0.2)
    monkeypatch.setattr(module, "_BEAT_S", 0.02)

    async def main() -> None:
        async with fleet(1) as made:
            assert made.steering.state.health().alive
            made.acceptor._epoll.close()
            await until_in_loop(lambda: not made.steering.state.health().alive)
            assert made.task_monitor.stalled == ["acceptor"]
            await made.steering.drain.run(0)  # which ends the thread: nobody waits for it any more
            assert made.steering.state.health().alive

    asyncio.run(main())


def broker_ports(rig: Rig, *nodes: int) -> dict[int, tuple[str, int]]:
    for node in nodes:
        rig.acceptor.add_broker("a", node, 0)
    return {node: (rig.listening.address.rpartition(":")[0], rig.listening.brokers[node].port) for node in nodes}


def test_connections_to_a_brokers_port_carry_its_node_id_and_count_for_it_and_for_the_listener(rig: Rig) -> None:
    ports = broker_ports(rig, 0, 7)
    for address in ports.values():
        rig.clients.append(socket.create_connection(address, timeout=5))
        until(lambda: rig.listening.handed == len(rig.clients))
    rig.connect()
    until(lambda: rig.listening.handed == 3)
    assert sorted(item.handover.broker for item in rig.acceptor.handed) == [-1, 0, 7]
    assert {node: count.open for node, count in rig.listening.counts.items()} == {-1: 1, 0: 1, 7: 1}
    rig.acceptor.gave_back("a", "127.0.0.1:1", 7)
    rig.acceptor.gave_back("a", "127.0.0.1:1", 99)
    assert ({node: count.open for node, count in rig.listening.counts.items()}, rig.listening.open) == ({-1: 0, 0: 1, 7: 0}, 1)


def test_a_brokers_port_is_bound_as_its_listener_is_and_one_in_use_is_an_error(rig: Rig) -> None:
    ports = broker_ports(rig, 1)
    assert rig.listening.brokers[1].address.startswith("127.0.0.1:")
    before = dict(rig.listening.brokers)
    with pytest.raises(StartError, match="listener a cannot bind"):
        rig.acceptor.add_broker("a", 2, ports[1][1])
    assert (rig.listening.brokers, set(rig.listening.counts)) == (before, {-1, 1})
    rig.acceptor.stop()
    with pytest.raises(StartError, match="takes no connections any more"):
        rig.acceptor.add_broker("a", 2, 0)
    for address in ports.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)


def test_a_removed_port_is_closed_by_the_thread_its_count_stays_and_others_go_on(rig: Rig) -> None:
    ports = broker_ports(rig, 1, 2)
    rig.clients.append(socket.create_connection(ports[1], timeout=5))
    until(lambda: rig.listening.handed == 1)
    opened = rig.listening.brokers[1]
    rig.acceptor.remove_broker("a", 1)
    rig.acceptor.remove_broker("a", 1)
    until(lambda: opened.sock.fileno() < 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(ports[1], timeout=5)
    rig.listening.forget(1)
    assert rig.listening.counts[1].open == 1, "a connection is left"
    rig.acceptor.add_broker("a", 1, ports[1][1])
    for address in ports.values():
        rig.clients.append(socket.create_connection(address, timeout=5))
    until(lambda: rig.listening.handed == 3)
    assert rig.listening.counts[1].open == 2
    assert rig.log.rows == []
    assert rig.meters.value("accept.errors", "a", "other") == 0


def test_ports_come_and_go_many_times_while_clients_connect(rig: Rig) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        node = number % 5
        rig.acceptor.add_broker("a", node, 0)
        if number % 10 == 0:
            with socket.create_connection(("127.0.0.1", rig.listening.brokers[node].port), timeout=5):
                pass
            while rig.receive(0) or rig.receive(1):
                pass
        opened = rig.listening.brokers[node]
        rig.acceptor.remove_broker("a", node)
        until(lambda opened=opened: opened.sock.fileno() < 0)  # type: ignore[misc]
    until(lambda: not rig.receive(0) and not rig.receive(1) and len(os.listdir("/proc/self/fd")) <= before)
    assert [row for row in rig.log.rows if row["event"] == "task_failed"] == []
