"""Peers that send, stop, read, end and break in any order, over real sockets: what the page on memory promises holds after every poll."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.fakes.crowd import KIB, MIB, Couple, Crowd
from tests.fakes.peer import Peer
from tests.fakes.world import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.extended]  # every step moves bytes through real sockets

SIZES = (4, 100, 64 * KIB, SMALL, SMALL + 1, 300 * KIB, 700 * KIB, MIB)
SPEEDS = (0, 0, 1, 4 * KIB, 100 * KIB, MIB)
BUFFER = 16 * KIB
NUMBERS = st.integers(0, 6).map(lambda number: -number)  # the youngest live couples


class Orders(RuleBasedStateMachine):
    """Some couples over one pool of 1 to 4 MiB. A couple that a peer of slowed down, or ended, may be closed; no other may."""

    def __init__(self) -> None:
        super().__init__()
        self.crowd: Crowd | None = None
        self.honest: set[int] = set()
        self.joined = 0

    @initialize(requests=st.booleans(), answers=st.booleans(), held=st.sampled_from([0, MIB, 2 * MIB]), side=st.booleans())
    def begin(self, requests: bool, answers: bool, held: int, side: bool) -> None:
        """Some couples, after others that hold so much, because one peer of each does not read."""
        self.crowd = Crowd(pool=2 * MIB, limit=MIB, answer_limit=MIB, cut_requests=requests, cut_answers=answers, half_close_s=1, stall_s=30)
        while self.crowd.pool.used < held * 3 // 4:
            couple = self.crowd.join(buffer=BUFFER)
            couple.peers[side].reads = 0
            couple.peers[not side].give(*[SMALL] * 6)
            self.crowd.turn(10)
        self.crowd.resize(MIB + 4)
        for _ in range(3):
            self.join(BUFFER)

    @property
    def world(self) -> Crowd:
        assert self.crowd is not None
        return self.crowd

    def is_live(self, couple: Couple) -> bool:
        return self.world.row_of(couple) is None and not any(peer.ended for peer in couple.peers)

    def pick(self, number: int) -> Couple | None:
        live = [couple for couple in self.world.couples if self.is_live(couple)]
        return live[number % len(live)] if live else None

    @precondition(lambda self: self.joined < 12)  # of what the kernel's timing cannot change: hypothesis wants the same choices when it comes again
    @rule(buffer=st.sampled_from([0, BUFFER]))
    def join(self, buffer: int) -> None:
        self.joined += 1
        self.honest.add(self.world.join(buffer=buffer).id)

    @rule(number=NUMBERS, upstream=st.booleans(), sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
    def send(self, number: int, upstream: bool, sizes: list[int]) -> None:
        couple = self.pick(number)
        if couple is not None:
            peer = couple.peers[upstream]
            if len(peer.given) < 8 * MIB:
                peer.give(*sizes)
        self.world.turn()

    @rule(number=NUMBERS, upstream=st.booleans(), size=st.sampled_from([64 * KIB, SMALL, MIB]))
    def flood(self, number: int, upstream: bool, size: int) -> None:
        """Much, towards somebody who does not read."""
        couple = self.pick(number)
        if couple is not None and len(couple.peers[upstream].given) < 8 * MIB:
            self.honest.discard(couple.id)
            couple.peers[not upstream].reads = 0
            couple.peers[upstream].give(*[size] * (2 * MIB // size))
        self.world.turn(3)

    @rule(number=NUMBERS, upstream=st.booleans(), sends=st.sampled_from(SPEEDS), reads=st.sampled_from(SPEEDS))
    def slow_down(self, number: int, upstream: bool, sends: int, reads: int) -> None:
        couple = self.pick(number)
        if couple is not None:
            self.honest.discard(couple.id)
            peer = couple.peers[upstream]
            peer.sends, peer.reads = sends, reads
        self.world.turn(2)

    @rule(number=NUMBERS)
    def recover(self, number: int) -> None:
        couple = self.pick(number)
        if couple is not None:
            for peer in couple.peers:
                peer.sends = peer.reads = MIB
        self.world.turn(2)

    @rule(number=NUMBERS, upstream=st.booleans(), rst=st.booleans())
    def close(self, number: int, upstream: bool, rst: bool) -> None:
        couple = self.pick(number)
        if couple is not None:
            self.honest.discard(couple.id)
            peer: Peer = couple.peers[upstream]
            if rst:
                peer.reset()
            else:
                peer.close()
        self.world.turn(2)

    @rule(turns=st.integers(1, 10))
    def go_on(self, turns: int) -> None:
        self.world.turn(turns)

    @rule(seconds=st.sampled_from([0.06, 0.3, 1.5, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds, step_ms=50)

    @rule(size=st.sampled_from([MIB + 4, 2 * MIB, 4 * MIB]))
    def resize(self, size: int) -> None:
        self.world.resize(size)
        self.world.turn()

    @invariant()
    def who_does_its_part_is_not_closed(self) -> None:
        if self.crowd is not None:
            assert not [row for row in self.crowd.rows if row["id"] in self.honest]

    def teardown(self) -> None:
        """Who is left does its part: all of it arrives, in seconds; and then nothing is held."""
        if self.crowd is None:
            return
        world = self.crowd
        try:
            for couple in world.couples:
                if not self.is_live(couple):
                    couple.client.close()
                    couple.upstream.close()
                for peer in couple.peers:
                    peer.sends = peer.reads = MIB
            world.settle(lambda: all(couple.done for couple in world.couples if self.is_live(couple)), turns=4000, step_ns=1_000_000)
            self.who_does_its_part_is_not_closed()
            for couple in world.couples:
                couple.client.close()
                couple.upstream.close()
            world.pass_time(4, step_ms=100)
            assert len(world.rows) == len(world.couples)
            assert world.pool.used == 0
            assert world.pool.waiting == 0
        finally:
            world.close()


def test_whatever_the_order() -> None:
    run_state_machine_as_test(
        Orders,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
        ),
    )
