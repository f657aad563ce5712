import os
import random
import socket
from collections.abc import Iterator

import pytest

from control.intake.parked import Parked


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
    parked = Parked()
    order = list(enumerate(sockets))
    random.Random(7).shuffle(order)
    for due, (ours, _) in order:
        assert parked.add(ours.detach(), due)
    for now in range(20):
        assert parked.next_ns == now
        parked.close_due(now)
        assert [ended(theirs) for _, theirs in sockets] == [True] * (now + 1) + [False] * (19 - now)
    assert (len(parked), parked.next_ns) == (0, None)


def test_there_is_a_bound_and_then_the_socket_stays_its_owners(sockets: list[tuple[socket.socket, socket.socket]]) -> None:
    parked = Parked(most=3)
    assert [parked.add(os.dup(ours.fileno()), 5) for ours, _ in sockets[:5]] == [True, True, True, False, False]
    assert len(parked) == 3
    parked.close_due(5)
    assert parked.add(os.dup(sockets[0][0].fileno()), 5)
    parked.close()
    assert len(parked) == 0


def test_a_descriptor_that_cannot_be_closed_keeps_no_other_open(sockets: list[tuple[socket.socket, socket.socket]]) -> None:
    parked = Parked()
    broken = os.dup(sockets[0][0].fileno())
    os.close(broken)
    parked.add(broken, 1)
    parked.add(sockets[1][0].detach(), 2)
    parked.close_due(2)
    assert ended(sockets[1][1])
