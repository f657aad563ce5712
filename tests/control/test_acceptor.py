import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.acceptor import Acceptor, Listening, Target
from control.errors import StartError
from control.meters import Meters
from proxy.config.model import ListenerConfig
from proxy.server.link import receive_handover
from tests.fakes.fleet import MemoryLog


def listening(address: str = "127.0.0.1:0", **changes: Any) -> Listening:
    return Listening(ListenerConfig(name="a", address=address, upstream="u", **changes))


class Rig:
    """An acceptor and the far ends of two hand-over sockets."""

    def __init__(self, bound: Listening, targets: int = 2) -> None:
        self.listening = bound
        self.log = MemoryLog()
        self.meters = Meters()
        self.acceptor = Acceptor([bound], self.meters, self.log)
        self.pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(targets)]
        for ours, theirs in self.pairs:
            ours.setblocking(False)
            theirs.setblocking(False)
        self.acceptor.set_targets([Target(slot, ours, slot + 1) for slot, (ours, _) in enumerate(self.pairs)])
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        host, _, port = self.listening.address.rpartition(":")
        client = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
        self.clients.append(client)
        return client

    def take(self, slot: int) -> Any:
        """The next connection that a slot gets: its facts."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            received = receive_handover(self.pairs[slot][1])
            if received is not None:
                os.close(received[1])
                return received[0]
            time.sleep(0.002)
        raise AssertionError(f"slot {slot} got nothing")

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


def test_a_dead_or_full_processor_is_passed_over(rig: Rig) -> None:
    rig.pairs[0][1].close()
    for _ in range(3):
        rig.connect()
        rig.take(1)


def test_when_every_queue_is_full_the_acceptor_waits_and_meters_the_time(rig: Rig) -> None:
    for ours, _ in rig.pairs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for _ in range(40):
        rig.connect()
    deadline = time.monotonic() + 5
    while rig.meters.value("accept.blocked.time", "a") == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert rig.meters.value("accept.blocked.time", "a") > 0
    taken = 0
    while taken < 40 and time.monotonic() < deadline:
        for _, theirs in rig.pairs:
            received = receive_handover(theirs)
            if received is not None:
                os.close(received[1])
                taken += 1
    assert taken == 40
    assert rig.listening.handed == 40


def test_without_any_processor_a_connection_waits_for_one(rig: Rig) -> None:
    targets = [Target(slot, ours, slot + 1) for slot, (ours, _) in enumerate(rig.pairs)]
    rig.acceptor.set_targets([])
    rig.connect()
    time.sleep(0.02)
    assert rig.listening.handed == 0
    rig.acceptor.set_targets(targets)
    rig.take(0)


def test_a_connection_above_the_limit_is_refused_counted_and_logged() -> None:
    rig = Rig(listening(max_connections=1))
    rig.acceptor.start()
    rig.connect()
    rig.take(0)
    assert rig.connect().recv(1) == b""
    assert rig.meters.value("connection.rejected", "a", "max_connections") == 1
    assert [row["cause"] for row in rig.log.events("rejected")] == ["limit"]
    rig.listening.closed += 1
    rig.connect()
    rig.take(1)
    rig.close()


def test_stop_refuses_clients_and_ends_the_thread_even_while_it_waits(rig: Rig) -> None:
    rig.acceptor.set_targets([])
    waiting = rig.connect()
    time.sleep(0.02)
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
    assert caught.value.facts["address"] == first.address
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
    with pytest.raises(StartError, match="no socket lies there"):
        listening(f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "precious"
