"""The kinds of memory pool: what each promises, in a pool, and over sockets."""

import gc

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network.admission_slots import AdmissionSlot
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import BEGUN, PENDING, PIECE_OVERHEAD, TLS, MemoryPool
from framegate.proxy.network.pool_kinds import LeakFindingAccount, LeakFindingPool, LentRun, UnboundedPool, make_pool
from framegate.proxy.network.receive import Receive, ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.network.send import Send
from framegate.proxy.network.stats import SideStats
from tests.fakes.admission_slots import Owner
from tests.fakes.clock import FakeClock
from tests.fakes.network import frame, net_bench

MIB = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize(("kind", "made"), [("bounded", MemoryPool), ("unbounded", UnboundedPool), ("leak_finding", LeakFindingPool)])
def test_a_pool_is_of_the_kind_that_was_asked_for(clock: FakeClock, kind: str, made: type) -> None:
    pool = make_pool(kind, MIB, clock.now_ns)
    assert type(pool) is made
    assert pool.size == MIB
    for size in (0, -1):
        with pytest.raises(ValueError, match="a pool of"):
            make_pool(kind, size, clock.now_ns)


def test_no_other_kind_is_made(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="no kind of memory pool is called greedy"):
        make_pool("greedy", MIB, clock.now_ns)


@pytest.mark.parametrize("size", [1 << 16, 1 << 40])
def test_an_unbounded_pool_counts_and_is_never_short(clock: FakeClock, size: int) -> None:
    """However much more than its size is held, of whatever kind, and whatever listeners were to be guaranteed."""
    pool = make_pool("unbounded", size, clock.now_ns)
    first, second = pool.account(60), pool.account(40)
    held = 0
    for account in (first, second, pool.common):
        for kind in (BEGUN, PENDING, TLS):
            account.charge(kind, 3 * size)
            held += 3 * size
    assert (pool.used, pool.begun, pool.pending, pool.tls, pool.most_used) == (held, held // 3, held // 3, held // 3, held)
    for account in (first, second, pool.common):
        assert not account.is_short(answers=False)
        assert not account.is_short(answers=True)
    pool.resize(size // 2)
    assert not first.is_short(answers=False)
    for account in (first, second, pool.common):
        for kind in (BEGUN, PENDING, TLS):
            account.release(kind, 3 * size)
    assert (pool.used, pool.unspent, pool.shortages) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["bounded", "leak_finding"])
def test_the_other_kinds_are_short_from_the_same_byte_on(clock: FakeClock, kind: str) -> None:
    pool = make_pool(kind, 16 * MIB, clock.now_ns)
    pool.set_largest(MIB, 0)
    pool.common.charge(PENDING, int(pool.line) - 1)
    assert not pool.common.is_short(answers=False)
    pool.common.charge(PENDING, 1)
    assert pool.common.is_short(answers=False)
    pool.common.charge(PENDING, int(pool.size - pool.line) - 1)
    assert not pool.common.is_short(answers=True)
    pool.common.charge(PENDING, 1)
    assert pool.common.is_short(answers=True)
    pool.common.charge(PENDING, 4 * MIB)
    assert not AdmissionSlot(pool.requests, Owner(), MIB).ask(MIB)


BOOKED = 10 + PIECE_OVERHEAD


class AuthSource:
    """A pool with two listeners, and one receive and one send of the first, called ``channel 7``."""

    def __init__(self) -> None:
        self.pool = LeakFindingPool(1 << 20, FakeClock().now_ns)
        self.account, self.other = self.pool.account(0), self.pool.account(0)
        self.receive = Receive(self.account, ReceiveLimit(-1), SideStats())
        self.send = Send(self.account)
        self.pool.watch("channel 7", self.receive, self.send)

    def lent(self) -> Run:
        """A run with a lease, of a frame that came in two reads."""
        assert self.receive.feed(frame(20)[:10]) is None
        run = self.receive.feed(frame(20)[10:])
        assert run is not None
        assert run.lease == self.pool.used == BOOKED
        return run

    def found(self) -> str:
        """The only thing that was found; nothing is booked now."""
        (text,) = self.pool.found
        assert (self.pool.count, self.pool.used, self.pool.begun, self.pool.pending, self.pool.tls) == (1, 0, 0, 0, 0)
        assert (self.account.used, self.other.used) == (0, 0)
        return text


@pytest.fixture
def auth_source() -> AuthSource:
    return AuthSource()


def release(account: object, run: Run) -> None:
    """As ``Channel.discard``."""
    assert isinstance(account, LeakFindingAccount)
    lease, run.lease = run.lease, 0
    account.release(BEGUN, int(lease), run)


def test_who_gives_everything_back_is_not_told_of(auth_source: AuthSource) -> None:
    run = auth_source.lent()
    assert isinstance(run, LentRun)
    assert b"".join(run.pieces()) == frame(20)
    release(auth_source.account, run)
    run = auth_source.lent()
    auth_source.send.begin(run.pieces(), 3, 1, int(run.lease), run)
    run.lease = 0
    del run
    assert (auth_source.pool.begun, auth_source.pool.pending) == (0, auth_source.send.booked)
    auth_source.send.advance(21)
    auth_source.send.finish()
    auth_source.send.finish()
    auth_source.receive.feed(frame(20)[:10])
    assert auth_source.receive.drop() == 10
    assert auth_source.receive.drop() == 0
    auth_source.pool.check_released(auth_source.receive)
    assert (auth_source.pool.found, auth_source.pool.used) == ([], 0)


def test_a_lease_that_is_given_back_twice(auth_source: AuthSource) -> None:
    run = auth_source.lent()
    release(auth_source.account, run)
    run.lease = BOOKED
    release(auth_source.account, run)
    assert auth_source.found() == f"a run of Receive of channel 7 gives back {BOOKED} bytes of its lease again"


def test_a_lease_that_is_sent_and_given_back(auth_source: AuthSource) -> None:
    """The pending send has it; what it holds is not touched."""
    run = auth_source.lent()
    auth_source.send.begin(run.pieces(), 0, 1, int(run.lease), run)
    held = int(auth_source.send.booked)
    release(auth_source.account, run)  # the lease was not set to 0
    assert auth_source.pool.used == auth_source.pool.pending == held
    auth_source.send.finish()
    assert "again" in auth_source.found()


def test_a_lease_that_another_run_takes_over_unseen(auth_source: AuthSource) -> None:
    """As runs are joined: whoever has it then gives it back, once."""
    run = auth_source.lent()
    joined = Run(None, 0, b"joined", 0, 6, 1, int(run.lease))
    run.lease = 0
    del run
    gc.collect()
    assert auth_source.pool.found == []
    release(auth_source.account, joined)
    assert (auth_source.pool.found, auth_source.pool.used) == ([], 0)
    joined.lease = BOOKED
    release(auth_source.account, joined)
    assert auth_source.found() == f"somebody gives back {BOOKED} bytes (begun), and has 0: twice, or what is another's"


def test_a_lease_that_has_grown(auth_source: AuthSource) -> None:
    """As a frame's that waits for a handler: it is given back whole, or told whole."""
    run = auth_source.lent()
    auth_source.account.charge(BEGUN, 30)
    run.lease += 30
    release(auth_source.account, run)
    assert (auth_source.pool.found, auth_source.pool.used) == ([], 0)
    run = auth_source.lent()
    auth_source.account.charge(BEGUN, 30)
    run.lease += 30
    del run
    gc.collect()
    assert f"its lease of {BOOKED + 30} bytes" in auth_source.found()


def test_bytes_of_a_holder_that_are_given_back_twice(auth_source: AuthSource) -> None:
    auth_source.account.charge(TLS, 5, auth_source.send)
    auth_source.account.charge(TLS, 7, auth_source.receive)
    auth_source.account.release(TLS, 5, auth_source.send)
    auth_source.account.release(TLS, 5, auth_source.send)
    assert auth_source.pool.tls == 7
    auth_source.account.release(TLS, 7, auth_source.receive)
    assert auth_source.found() == "Send of channel 7 gives back 5 bytes (tls), and has 0: twice, or what is another's"


def test_bytes_that_are_given_back_as_another_kind(auth_source: AuthSource) -> None:
    auth_source.account.charge(TLS, 5, auth_source.send)
    auth_source.account.release(PENDING, 5, auth_source.send)
    auth_source.account.release(TLS, 5, auth_source.send)
    assert auth_source.found() == "Send of channel 7 gives back 5 bytes (pending), and has 0: twice, or what is another's"


def test_a_lease_that_goes_to_another_listeners_account(auth_source: AuthSource) -> None:
    release(auth_source.other, auth_source.lent())
    assert auth_source.found() == f"LentRun gives back {BOOKED} bytes (begun) to another account than it has them of"


def test_a_lease_that_another_listener_sends(auth_source: AuthSource) -> None:
    run = auth_source.lent()
    theirs = Send(auth_source.other)
    theirs.begin(run.pieces(), 0, 1, int(run.lease), run)
    run.lease = 0
    assert (auth_source.account.used, auth_source.other.used) == (0, theirs.booked)
    theirs.finish()
    assert "of another account" in auth_source.found()


def test_a_holder_that_books_at_two_accounts(auth_source: AuthSource) -> None:
    auth_source.account.charge(PENDING, 5, auth_source.send)
    auth_source.other.charge(PENDING, 5, auth_source.send)
    assert auth_source.pool.found == ["Send of channel 7 books 5 bytes (pending) at a second account"]


def test_a_run_that_is_dropped_with_its_lease(auth_source: AuthSource) -> None:
    run = auth_source.lent()
    del run
    gc.collect()
    assert auth_source.found() == f"a run of Receive of channel 7 is gone with its lease of {BOOKED} bytes: 1 frames, 24 bytes"


def test_a_run_that_is_dropped_when_another_has_its_lease(auth_source: AuthSource) -> None:
    """As a run that is re-framed: the one that is sent has it."""
    run = auth_source.lent()
    sent = run.give_lease(Run(None, 0, b"again", 0, 5, 1, 0))
    assert (sent.data, sent.lease, run.lease) == (b"again", BOOKED, 0)
    del run
    assert auth_source.pool.found == []
    del sent
    gc.collect()
    assert "is gone with its lease" in auth_source.found()


def test_a_channel_that_keeps_something_when_it_is_closed(auth_source: AuthSource) -> None:
    auth_source.receive.feed(frame(20)[:10])
    auth_source.pool.check_released(auth_source.receive)
    assert auth_source.found() == f"Receive of channel 7 has {BOOKED} bytes (begun) when it is closed"
    auth_source.pool.check_released(auth_source.receive)  # it is closed once, and asked for it no more


def test_no_more_than_a_hundred_texts_are_kept(auth_source: AuthSource) -> None:
    for _ in range(105):
        auth_source.account.release(PENDING, 1, auth_source.send)
    assert (auth_source.pool.count, len(auth_source.pool.found)) == (105, 100)


def test_a_fault_of_the_pool_is_told_where_faults_are() -> None:
    """Over sockets: a listener that forgets a run of a frame that came in two reads. Traffic goes on."""
    with net_bench(kind="leak_finding") as bench:
        bench.faults = 1
        channel, peer = bench.ready_pair()
        received, dropped = bench.listener.received, []

        def receive(channel: Channel, run: Run) -> None:
            if dropped:
                received(channel, run)
            else:
                dropped.append(run.size)

        bench.listener.received = receive  # type: ignore[method-assign]
        for _ in range(2):
            peer.send(frame(20)[:10])
            bench.poll()
            peer.send(frame(20)[10:])
            bench.poll()
        assert (bench.listener.frames[channel], channel.frames_received) == (1, 2)
        (fault,) = bench.selector.faults.take()
        assert (fault.place, fault.times) == ("pool", 1)
        assert fault.error == f"a run of Receive of downstream channel 1 is gone with its lease of {BOOKED} bytes: 1 frames, 24 bytes"
        assert bench.pool.used == 0
        bench.leaks = [fault.error]


def test_a_connection_is_looked_at_when_it_is_closed() -> None:
    with net_bench(kind="leak_finding") as bench:
        channel, peer = bench.ready_pair()
        bench.pool.common.charge(TLS, 5, channel.read_half.receive)
        peer.close()
        bench.poll_until(lambda: "end_of_stream" in bench.listener.words())
        assert bench.pool.used == 5
        channel.close(Cause.ADMIN)
        bench.poll()
        (fault,) = bench.selector.faults.take()
        assert fault[:3] == ("pool", 1, "Receive of downstream channel 1 has 5 bytes (tls) when it is closed")
        assert bench.pool.used == 0
        bench.leaks, bench.faults = [fault.error], 1


def test_a_run_is_lent_only_where_something_is_booked(auth_source: AuthSource) -> None:
    auth_source.receive.feed(frame(1))
    assert type(auth_source.receive.feed(frame(3) + frame(5))) is Run
