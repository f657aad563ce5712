"""Pairs of sockets between two processes: laid at once, later, or not at all."""

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from framegate.control.fleet import wiring as module
from framegate.control.fleet.child import Child
from framegate.control.fleet.wiring import Rejoined, Wiring
from framegate.proxy.server.link import Handover, receive_handovers, send_handovers
from tests.fakes.fleet import until
from tests.fakes.scenario import run_by


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
            while send_handovers(self.handover, [Handover(1, 1, "a", "x" * 1000)], [nothing.fileno()]):
                count += 1
        return count

    def empty(self, count: int) -> None:
        """Take so many out that lead nowhere."""
        for _ in range(count):
            ((_, descriptor),) = receive_handovers(self.theirs)
            os.close(descriptor)

    def take(self) -> tuple[Handover, socket.socket]:
        ((handover, descriptor),) = receive_handovers(self.theirs)
        return handover, socket.socket(fileno=descriptor)

    def close(self) -> None:
        self.handover.close()
        self.theirs.close()


class Watched(Wiring):
    def __init__(self) -> None:
        self.rejoined: list[Rejoined] = []
        super().__init__(self.rejoined.append)


def run(scenario: Callable[[Watched, Side, Side], Awaitable[None]]) -> None:
    async def main() -> None:
        gc.collect()  # what tests before left open is not to go in between
        before = len(os.listdir("/proc/self/fd"))
        wiring, one, other = Watched(), Side(3), Side(5)
        try:
            async with asyncio.timeout(10):
                await scenario(wiring, one, other)
        finally:
            wiring.close()
            one.close()
            other.close()
        assert len(os.listdir("/proc/self/fd")) <= before
        assert (wiring.waiting, wiring.joined) == (0, 0)

    asyncio.run(main())


@run_by(run)
async def test_each_side_gets_an_end_and_the_others_name(wiring: Watched, one: Side, other: Side) -> None:
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


@pytest.mark.parametrize("full", [0, 1])
@patch.object(module, "_AGAIN_S", 0.001)
@run_by(run)
async def test_a_full_queue_is_tried_again(wiring: Watched, one: Side, other: Side, *, full: int) -> None:
    busy = (one, other)[full]
    count = busy.fill()
    wiring.join(one.child, other.child)
    assert wiring.waiting == 1
    await asyncio.sleep(0.01)
    assert wiring.waiting == 1
    busy.empty(count)
    await until(lambda: wiring.waiting == 0)
    are_joined(one, other)


def test_with_no_descriptor_to_be_had_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    refused = 0

    def refuse(*arguments: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused < 4:
            raise OSError(errno.EMFILE, "too many")
        return socket.socketpair(*arguments)

    async def scenario(wiring: Watched, one: Side, other: Side) -> None:
        monkeypatch.setattr(module, "socket", SimpleNamespace(socketpair=refuse, AF_UNIX=socket.AF_UNIX, SOCK_STREAM=socket.SOCK_STREAM))
        wiring.join(one.child, other.child)
        assert wiring.waiting == 1
        await until(lambda: wiring.waiting == 0)
        assert refused == 4
        are_joined(one, other)

    run(scenario)


@pytest.mark.parametrize("gone", [0, 1])
@patch.object(module, "_AGAIN_S", 0.001)
@run_by(run)
async def test_with_a_side_that_is_gone_it_is_given_up_and_the_other_sees_the_end(wiring: Watched, one: Side, other: Side, *, gone: int) -> None:
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
    assert receive_handovers(sides[0].theirs) == []


@run_by(run)
async def test_a_wiring_that_is_closed_closes_the_ends_that_it_has(wiring: Watched, one: Side, other: Side) -> None:
    other.fill()
    wiring.join(one.child, other.child)
    assert wiring.waiting == 1
    wiring.close()
    end = one.take()[1]
    assert end.recv(5) == b""
    end.close()


# Pairs that break.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    monkeypatch.setattr("framegate.control.fleet.process_slot._BACKOFF_FIRST_S", 0.001)


def are_joined(one: Side, other: Side) -> int:
    """Whether both were given the ends of one pair, and no more; its number."""
    (said, mine), (told, theirs) = one.take(), other.take()
    with mine, theirs:
        assert said.accepted_ns == told.accepted_ns
        mine.sendall(b"x")
        assert theirs.recv(5) == b"x"
    assert receive_handovers(one.theirs) == []
    assert receive_handovers(other.theirs) == []
    return said.accepted_ns


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("who", [(0,), (1,), (0, 1), (1, 0), (0, 0)])
@run_by(run)
async def test_a_pair_that_broke_is_replaced_once_whichever_process_reports_it(
    wiring: Watched, one: Side, other: Side, *, who: tuple[int, ...]
) -> None:
    wiring.join(one.child, other.child)
    number = are_joined(one, other)
    assert wiring.rejoined == []
    sides = (one, other)
    for side in who:
        wiring.parted(sides[side].child, number, f"said by {side}")
    assert wiring.waiting == 1
    await until(lambda: wiring.rejoined)
    assert are_joined(one, other) > number
    (told,) = wiring.rejoined
    assert (told.one, told.other, told.error) == (one.child, other.child, "; ".join(dict.fromkeys(f"said by {side}" for side in who)))
    assert 0.001 <= told.apart_s < 5
    for side in who:
        wiring.parted(sides[side].child, number, "late")  # of a pair that there is another for
    assert (wiring.waiting, wiring.joined) == (0, 1)


@pytest.mark.usefixtures("quick")
@run_by(run)
async def test_a_reason_that_only_one_process_knows_is_reported(wiring: Watched, one: Side, other: Side) -> None:
    wiring.join(one.child, other.child)
    wiring.parted(one.child, are_joined(one, other), "")
    await until(lambda: wiring.rejoined)
    number = are_joined(one, other)
    wiring.parted(one.child, number, "")
    wiring.parted(other.child, number, "no such record")
    await until(lambda: len(wiring.rejoined) == 2)
    assert [told.error for told in wiring.rejoined] == ["its socket was closed", "no such record"]
    are_joined(one, other)


@pytest.mark.usefixtures("quick")
@run_by(run)
async def test_reports_about_unknown_pairs_and_pairs_of_others_change_nothing(wiring: Watched, one: Side, other: Side) -> None:
    wiring.join(one.child, other.child)
    number = are_joined(one, other)
    stranger = Side(7)
    wiring.parted(stranger.child, number, "not its own")
    wiring.parted(one.child, number + 1, "there is none")
    stranger.close()
    assert wiring.waiting == 0


@run_by(run)
async def test_pauses_grow_while_pairs_break_and_are_short_again_after_one_that_lasted(wiring: Watched, one: Side, other: Side) -> None:
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    loop.time = lambda: now_s  # type: ignore[method-assign]
    again = wiring._go_on
    pauses = []
    wiring.join(one.child, other.child)
    for lasted_s in (0.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 11.0, 0.0):
        number = are_joined(one, other)
        now_s += lasted_s
        wiring.parted(one.child, number, "again")
        assert wiring._again is not None
        pauses.append(wiring._again.when() - now_s)
        now_s = wiring._again.when() - 0.01
        again()
        assert wiring.waiting == 1
        now_s = wiring._again.when()
        again()
        assert wiring.waiting == 0
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.1, 0.2])
    assert [round(told.apart_s, 3) for told in wiring.rejoined] == pytest.approx(pauses)
    are_joined(one, other)


@pytest.mark.usefixtures("quick")
@run_by(run)
async def test_a_pair_that_is_lost_before_both_have_it_is_begun_anew(wiring: Watched, one: Side, other: Side) -> None:
    """The first had no descriptor for its end while the other's queue was full: the rest of that pair is not sent any more."""

    count = other.fill()
    wiring.join(one.child, other.child)
    handover, end = one.take()
    end.close()
    wiring.parted(one.child, handover.accepted_ns, "no descriptor")
    assert wiring.waiting == 1
    other.empty(count)
    await until(lambda: wiring.rejoined)
    assert are_joined(one, other) > handover.accepted_ns
    assert wiring.joined == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("gone", [0, 1])
@run_by(run)
async def test_a_process_that_died_gets_no_other_pair(wiring: Watched, one: Side, other: Side, *, gone: int) -> None:
    """Its death is an end of file for the other, which says so."""

    wiring.join(one.child, other.child)
    number = are_joined(one, other)
    sides = [one, other]
    dead = sides.pop(gone)
    wiring.parted(sides[0].child, number, "")
    dead.ended.set_result(-9)
    await until(lambda: wiring.waiting == 0)
    assert (wiring.joined, wiring.rejoined) == (0, [])
    assert receive_handovers(sides[0].theirs) == []


@run_by(run)
async def test_pairs_of_processes_that_ended_are_removed_with_the_next_join(wiring: Watched, one: Side, other: Side) -> None:
    for _ in range(5):
        next_one = Side(5)
        wiring.join(one.child, next_one.child)
        are_joined(one, next_one)
        assert wiring.joined == 1
        next_one.close()
        next_one.ended.set_result(-9)


@run_by(run)
async def test_a_wiring_that_is_closed_makes_no_more_pairs(wiring: Watched, one: Side, other: Side) -> None:
    wiring.join(one.child, other.child)
    number = are_joined(one, other)
    wiring.parted(one.child, number, "broken")
    wiring.close()
    wiring.parted(other.child, number, "broken")
    assert (wiring.waiting, wiring.joined, wiring._again) == (0, 0, None)
