"""framegate.proxy.network.stall_evictor: who loses a turn, and who is closed, by the clock; real channels over real sockets."""

import re
import socket
from collections.abc import Callable, Iterator

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.admission_slots import FIRST_PORTION
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PENDING
from framegate.proxy.network.stall_evictor import CHECK_NS, CHECKS, MOVE_ALL_S, PATIENCE_NS, WINDOW_NS
from tests.fakes.clock import MS
from tests.fakes.network import NetBench, frame, net_bench, run_of
from tests.proxy.network.conftest import fill

MIB = 1 << 20
POOL = 4 * MIB
LARGE = 3 * MIB // 2
FIRST_CHECK = CHECK_NS  # at everybody, after somebody began to wait
JUDGED = FIRST_CHECK + WINDOW_NS


class Bench:
    """A pool of 4 MiB of which ``filler`` bytes wait for somebody's socket."""

    def __init__(self, net: NetBench) -> None:
        self.net = net
        self.filler = 0
        self.began_ns = net.clock.now
        net.pool.set_largest(LARGE + 4, 0)

    def fill(self, size: int) -> None:
        """Have so much be used, all told."""
        more = size - int(self.net.pool.used)
        self.filler += more
        if more >= 0:
            self.net.pool.common.charge(PENDING, more)
        else:
            self.net.pool.common.release(PENDING, -more)

    def large(self, sent: int = FIRST_PORTION + 4) -> tuple[Channel, socket.socket]:
        """A channel whose peer has sent the beginning of a large frame, and stopped."""
        channel, peer = self.net.ready_pair(tcp=True)
        peer.sendall(frame(LARGE)[:sent])
        self.net.poll_until(lambda: channel.read_half.begun_bytes == sent or channel.mute_causes == mute.MEMORY)
        return channel, peer

    def waiting(self) -> Channel:
        """A channel that begins to wait for memory now."""
        channel, _ = self.large()
        assert channel.mute_causes == mute.MEMORY
        self.began_ns = self.net.clock.now
        return channel

    def contend(self, used: int) -> tuple[Channel, socket.socket, Channel]:
        """A channel that holds the beginning of a large frame, its peer, and a channel that begins to wait, while so much of the pool is used."""
        self.fill(used)
        return *self.large(), self.waiting()

    def more(self, channel: Channel, peer: socket.socket, size: int) -> None:
        seen = int(channel.read_half.bytes_arrived)
        peer.sendall(b"x" * size)
        wait = self.until if size > FIRST_PORTION else self.net.poll_until
        wait(lambda: channel.read_half.bytes_arrived == seen + size)

    def until(self, done: Callable[[], object]) -> None:
        """Poll until then; the clock goes a little, for a socket that says too early that it is readable."""
        start = self.net.clock.now

        def step() -> object:
            if self.net.clock.now < start + CHECK_NS - 5 * MS:
                self.net.clock.advance_ms(0.5)
            return done()

        self.net.poll_until(step)

    def pass_to(self, after_ns: int) -> None:
        """Let the clock go on, look by look, until so long after the last channel began to wait."""
        end_ns = self.began_ns + after_ns
        while self.net.clock.now < end_ns:
            self.net.clock.now = min(self.net.clock.now + CHECK_NS // 2, end_ns)
            self.net.poll(2)

    def end(self) -> None:
        self.net.pool.common.release(PENDING, self.filler)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with net_bench(pool=POOL) as net:
        made = Bench(net)
        try:
            yield made
        finally:
            made.end()


# Turns.


def test_a_frame_that_does_not_move_loses_its_slot_after_one_check(bench):
    bench.fill(POOL - 100_000)
    first, _ = bench.large()
    assert first.mute_causes == 0
    second = bench.waiting()
    slots = bench.net.pool.requests
    bench.pass_to(CHECK_NS)
    assert len(slots.admitted) == 1, "it has moved since the last look"
    bench.pass_to(2 * CHECK_NS - 1)
    assert second.mute_causes == mute.MEMORY
    bench.pass_to(2 * CHECK_NS)
    assert second.mute_causes == 0
    assert first.is_open


def test_a_frame_that_moves_keeps_its_slot_and_the_reserve_only_at_a_tenth_of_it_each_second(bench):
    first, peer, second = bench.contend(POOL - 1000)
    each = (LARGE + 4) // (MOVE_ALL_S * 1000 // (CHECK_NS // MS))
    for look in range(1, 5):
        bench.pass_to(look * CHECK_NS)
        bench.more(first, peer, each + 1)
    assert len(bench.net.pool.requests.admitted) == 1
    bench.pass_to(5 * CHECK_NS)
    assert len(bench.net.pool.requests.admitted) == 1
    bench.more(first, peer, each - 1)
    bench.pass_to(6 * CHECK_NS)
    assert bench.net.pool.requests.admitted == []
    assert second.mute_causes == mute.MEMORY, "what the first holds beyond the pool keeps the reserve with it"


def test_a_frame_with_the_reserve_needs_twice_the_portion_for_another_slot_and_then_goes_on_first(bench):
    first, peer, second = bench.contend(POOL - 1000)
    bench.pass_to(2 * CHECK_NS)
    assert bench.net.pool.requests.admitted == []
    bench.more(first, peer, 2 * FIRST_PORTION - 1)
    assert (bench.net.pool.requests.admitted, first.staged) == ([], FIRST_PORTION + 4)
    bench.more(first, peer, 1)
    bench.until(lambda: first.staged == 3 * FIRST_PORTION + 4)
    assert (first.mute_causes, second.mute_causes) == (0, mute.MEMORY)
    first.close(Cause.ADMIN)
    assert second.mute_causes == 0


@pytest.mark.parametrize(("cause", "held_up"), [(mute.TAP, True), (mute.PEER, True), (mute.ADMIN, False), (mute.DRAIN, False)])
def test_a_frame_that_we_mute_loses_its_slot_though_bytes_wait(bench, cause, held_up):
    """An operator's mute lets a frame begun finish: it keeps nobody from reading it."""
    first, peer, second = bench.contend(POOL - 200_000)
    slot = bench.net.pool.requests.admitted[0]
    assert not slot.owner.is_blocked()
    first.mute(cause)
    assert slot.owner.is_blocked() is held_up
    peer.sendall(b"x" * 100_000)
    bench.net.poll(5)
    bench.pass_to(CHECK_NS)
    assert slot.is_in
    if not held_up:
        bench.more(first, peer, 60_000)
    bench.pass_to(2 * CHECK_NS)
    assert slot.is_in is not held_up
    assert (second.mute_causes == 0) is held_up
    first.unmute(cause)


def test_a_frame_that_we_mute_gives_up_the_reserve(bench):
    """It holds something beyond the pool, and cannot go on: the others do not wait for it."""
    first, _, second = bench.contend(POOL - 1000)
    first.mute(mute.TAP)
    bench.pass_to(2 * CHECK_NS)
    assert (bench.net.pool.requests.reserved, second.mute_causes) == (None, mute.MEMORY)
    bench.fill(POOL)
    assert second.mute_causes == 0
    first.unmute(mute.TAP)


# Closing.


@pytest.mark.parametrize(("late_ns", "closed"), [(-1, False), (0, True)])
def test_a_frame_begun_that_stands_still_is_closed_when_its_window_is_over(bench, late_ns, closed):
    first, _, second = bench.contend(POOL - 1000)
    bench.pass_to(JUDGED + late_ns)
    assert first.is_open is not closed
    assert (second.mute_causes == 0) is closed
    assert bench.net.pool.evicted == closed
    if closed:
        assert first.close_cause is Cause.RECEIVE_STALLED
        assert re.search(r"^\d+ bytes of the memory pool held and 0 moved in 2000 ms, while others waited for memory", first.detail)


@pytest.mark.parametrize(("less", "closed"), [(1, True), (0, False)])
def test_a_tenth_of_what_is_held_a_second_is_enough(bench, less, closed):
    """It lies in the kernel, too little for a turn; what has arrived counts."""
    first, peer, _ = bench.contend(POOL - 1000)
    bench.pass_to(2 * CHECK_NS)
    asked = int(first.read_half.receive.booked) * (WINDOW_NS // MS) // (MOVE_ALL_S * 1000)
    bench.more(first, peer, asked - less)
    bench.pass_to(JUDGED)
    assert first.is_open is not closed


def test_the_worst_is_closed_first_and_no_more_than_give_room(bench):
    small, large = bench.large(300_000)[0], bench.large(MIB)[0]
    moving, peer = bench.large(MIB)
    bench.fill(POOL + 1)
    waiting, *_ = [bench.waiting() for _ in range(4)]
    bench.pass_to(FIRST_CHECK)
    bench.more(moving, peer, 50_000)
    bench.pass_to(JUDGED)
    assert [channel.is_open for channel in (small, large, moving)] == [True, False, True]
    assert (bench.net.pool.evicted, waiting.mute_causes) == (1, 0)
    assert bench.net.pool.waiting > 0, "more wait, but they wait for each other"


def test_all_that_are_too_slow_are_closed_when_that_is_not_enough(bench):
    held = [bench.large(200_000 + index)[0] for index in range(3)]
    bench.fill(POOL + 4 * MIB)
    bench.waiting()
    bench.pass_to(JUDGED)
    assert [channel.is_open for channel in held] == [False] * 3


def test_no_slot_is_revoked_and_no_channel_closed_while_no_frame_waits(bench):
    bench.fill(POOL - 100_000)
    held, _ = bench.large()
    slots = bench.net.pool.requests
    slot = slots.admitted[0]
    bench.pass_to(10 * WINDOW_NS)
    assert slots.admitted == [slot]
    bench.fill(POOL + 1)
    waiting = bench.waiting()
    bench.pass_to(WINDOW_NS // 2)
    waiting.close(Cause.ADMIN)
    bench.pass_to(11 * WINDOW_NS)
    assert (held.is_open, bench.net.pool.evicted) == (True, 0)


def test_no_channel_is_closed_for_one_that_waits_for_less_than_the_patience(bench):
    """The window of the channel that holds memory is over, but the one that waited then is gone, and another waits now."""
    held, _ = bench.large(MIB)
    bench.fill(POOL + 1)
    first = bench.waiting()
    bench.pass_to(WINDOW_NS // 2)
    second = bench.waiting()
    first.close(Cause.ADMIN)
    for after_ns in (JUDGED - WINDOW_NS // 2, PATIENCE_NS):
        bench.pass_to(after_ns)
        assert held.is_open
    bench.pass_to(PATIENCE_NS + CHECKS * CHECK_NS)
    assert not held.is_open
    assert second.mute_causes == 0


def test_a_channel_that_waits_is_not_closed_for_what_it_holds(bench):
    first, peer, _ = bench.contend(POOL - 300_000)
    bench.pass_to(2 * CHECK_NS)
    bench.fill(2 * POOL)
    peer.sendall(b"x" * 2 * FIRST_PORTION)
    bench.until(lambda: first.mute_causes == mute.MEMORY)
    bench.pass_to(6 * WINDOW_NS)
    assert first.is_open


# Sends.


def stuck(bench: Bench) -> tuple[Channel, socket.socket]:
    """A channel whose peer does not read, with a pending send."""
    channel, peer = bench.net.ready_pair(tcp=True)
    while channel.send(run_of(bytes(MIB))):
        pass
    return channel, peer


def test_a_pending_send_that_stands_still_is_closed(bench):
    channel, _ = stuck(bench)
    bench.fill(POOL + 300_000)
    bench.waiting()
    bench.pass_to(JUDGED - 1)
    assert channel.is_open
    bench.pass_to(JUDGED)
    assert (channel.is_open, channel.close_cause) == (False, Cause.SEND_STALLED)


def test_a_pending_send_that_moves_is_let_be(bench):
    channel, peer = stuck(bench)
    bench.fill(POOL + 300_000)
    bench.waiting()
    bench.pass_to(FIRST_CHECK)
    taken = 0
    while taken < MIB:
        taken += len(peer.recv(MIB))
    bench.net.poll_until(lambda: channel.write_half.wire_taken > MIB // 2)
    bench.pass_to(JUDGED)
    assert channel.is_open


@pytest.mark.parametrize(("held", "closed"), [(0, False), (1000, True)])
def test_a_peer_that_does_not_read_is_closed_for_what_waits_for_its_room(bench, held, closed):
    """It has no pending send: nothing is sent to it while memory is short, but something is held for it."""
    channel, _ = bench.net.ready_pair(tcp=True)
    fill(bench.net, channel)
    channel.want_room(held)
    bench.fill(POOL + 300_000)
    bench.waiting()
    bench.pass_to(JUDGED)
    assert channel.is_open is not closed
    assert channel.close_cause is (Cause.SEND_STALLED if closed else None)
