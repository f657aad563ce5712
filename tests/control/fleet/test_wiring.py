"""Pairs of sockets between two processes: laid at once, later, or not at all."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from control.fleet import wiring as module
from control.fleet.child import Child
from control.fleet.wiring import Wiring
from proxy.server.link import Handover, receive_handover, send_handover


class Side:
    """What a wiring needs of a child, and the child's end of its hand-over socket."""

    def __init__(self, slot: int) -> None:
        self.slot, self.generation = slot, 7
        self.handover, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.handover.setblocking(False)
        self.theirs.setblocking(False)
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def child(self) -> Child:
        return cast(Child, self)

    def fill(self) -> int:
        """Let no more into the hand-over socket; how many are in it."""
        with open(os.devnull) as nothing:
            count = 0
            while send_handover(self.handover, Handover(1, 1, "a", "x" * 1000), nothing.fileno()):
                count += 1
        return count

    def empty(self, count: int) -> None:
        """Take so many out that lead nowhere."""
        for _ in range(count):
            found = receive_handover(self.theirs)
            assert found is not None
            os.close(found[1])

    def take(self) -> tuple[Handover, socket.socket]:
        found = receive_handover(self.theirs)
        assert found is not None
        return found[0], socket.socket(fileno=found[1])

    def close(self) -> None:
        self.handover.close()
        self.theirs.close()


def run(scenario: Callable[[Wiring, Side, Side], Awaitable[None]]) -> None:
    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        wiring, one, other = Wiring(), Side(3), Side(5)
        try:
            async with asyncio.timeout(10):
                await scenario(wiring, one, other)
        finally:
            wiring.close()
            one.close()
            other.close()
        assert len(os.listdir("/proc/self/fd")) == before
        assert wiring.waiting == 0

    asyncio.run(main())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_each_side_gets_an_end_and_the_others_name() -> None:
    async def scenario(wiring: Wiring, one: Side, other: Side) -> None:
        wiring.join(one.child, other.child)
        assert wiring.waiting == 0
        (said, mine), (told, theirs) = one.take(), other.take()
        assert (said.listener, said.peer, said.family) == ("@handler", "5.7", socket.AF_UNIX)
        assert (told.listener, told.peer, told.family) == ("@handler", "3.7", socket.AF_UNIX)
        mine.sendall(b"x")
        assert theirs.recv(5) == b"x"
        mine.close()
        assert theirs.recv(5) == b""  # nobody else has the other end
        theirs.close()

    run(scenario)


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_queue_is_tried_again(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)

    async def scenario(wiring: Wiring, one: Side, other: Side) -> None:
        busy = (one, other)[full]
        count = busy.fill()
        wiring.join(one.child, other.child)
        assert wiring.waiting == 1
        await asyncio.sleep(0.01)
        assert wiring.waiting == 1
        busy.empty(count)
        await until(lambda: wiring.waiting == 0)
        mine, theirs = one.take()[1], other.take()[1]
        mine.sendall(b"x")
        assert theirs.recv(5) == b"x"
        mine.close()
        theirs.close()

    run(scenario)


def test_with_no_descriptor_to_be_had_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    refused = 0

    def refuse(*arguments: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused < 4:
            raise OSError(errno.EMFILE, "too many")
        return socket.socketpair(*arguments)

    async def scenario(wiring: Wiring, one: Side, other: Side) -> None:
        monkeypatch.setattr(module, "socket", SimpleNamespace(socketpair=refuse, AF_UNIX=socket.AF_UNIX, SOCK_STREAM=socket.SOCK_STREAM))
        wiring.join(one.child, other.child)
        assert wiring.waiting == 1
        await until(lambda: wiring.waiting == 0)
        assert refused == 4
        one.take()[1].close()
        other.take()[1].close()

    run(scenario)


@pytest.mark.parametrize("gone", [0, 1])
def test_with_a_side_that_is_gone_it_is_given_up_and_the_other_sees_the_end(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)

    async def scenario(wiring: Wiring, one: Side, other: Side) -> None:
        sides = [one, other]
        dead = sides.pop(gone)
        dead.theirs.close()  # it is dead, and not reaped
        wiring.join(one.child, other.child)
        assert wiring.waiting == 1
        dead.ended.set_result(-9)
        await until(lambda: wiring.waiting == 0)
        if gone == 1:
            end = sides[0].take()[1]
            assert end.recv(5) == b""
            end.close()
        wiring.join(one.child, other.child)  # and one that is reaped is not tried at all
        assert wiring.waiting == 0
        assert receive_handover(sides[0].theirs) is None

    run(scenario)


def test_a_wiring_that_is_closed_gives_back_what_it_holds() -> None:
    async def scenario(wiring: Wiring, one: Side, other: Side) -> None:
        other.fill()
        wiring.join(one.child, other.child)
        assert wiring.waiting == 1
        wiring.close()
        end = one.take()[1]
        assert end.recv(5) == b""
        end.close()

    run(scenario)
