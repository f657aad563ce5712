import os
import random
import socket
from collections.abc import Iterator

import pytest

from framegate.control.accept.delayed_close import DelayedClose


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
