"""The kinds of memory pool: what each promises, in a pool, and over sockets."""

import gc

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import BEGUN, PENDING, PIECE_OVERHEAD, TLS, MemoryPool
from framegate.proxy.network.pool_kinds import LeakFindingAccount, LeakFindingPool, LentRun, UnboundedPool, make_pool
from framegate.proxy.network.receive import Receive, ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.network.send import Send
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.network import frame, net_bench

MIB = 1 << 20


def test_a_pool_is_of_the_kind_that_was_asked_for() -> None:
    now_ns = FakeClock().now_ns
    for kind, made in (("bounded", MemoryPool), ("unbounded", UnboundedPool), ("leak_finding", LeakFindingPool)):
        pool = make_pool(kind, MIB, now_ns)
        assert (type(pool), pool.size) == (made, MIB)
        with pytest.raises(ValueError, match="a pool of"):
            make_pool(kind, 0, now_ns)
    with pytest.raises(ValueError, match="no kind of memory pool is called greedy"):
        make_pool("greedy", MIB, now_ns)


@each_of("size", [1 << 16, 1 << 40])
def test_an_unbounded_pool_counts_and_is_never_short(size: int) -> None:
    """However much more than its size is held, of whatever kind, and whatever is guaranteed to listeners."""
    pool = make_pool("unbounded", size, FakeClock().now_ns)
    accounts = (pool.account(60), pool.account(40), pool.common)
    for account in accounts:
        for kind in (BEGUN, PENDING, TLS):
            account.charge(kind, 3 * size)
    assert (pool.used, pool.begun, pool.pending, pool.tls, pool.most_used) == (27 * size, 9 * size, 9 * size, 9 * size, 27 * size)
    assert not any(account.is_short(answers=answers) for account in accounts for answers in (False, True))
    pool.resize(size // 2)
    assert not accounts[0].is_short(answers=False)
    for account in accounts:
        for kind in (BEGUN, PENDING, TLS):
            account.release(kind, 3 * size)
    assert (pool.used, pool.unspent, pool.shortages) == (0, 0, 0)


BOOKED = 10 + PIECE_OVERHEAD


class Bench:
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
def bench() -> Bench:
    return Bench()


def release(account: object, run: Run) -> None:
    """As ``Channel.discard``."""
    assert isinstance(account, LeakFindingAccount)
    lease, run.lease = run.lease, 0
    account.release(BEGUN, int(lease), run)


def test_releases_of_everything_are_no_leaks(bench: Bench) -> None:
    run = bench.lent()
    assert isinstance(run, LentRun)
    assert b"".join(run.pieces()) == frame(20)
    release(bench.account, run)
    run = bench.lent()
    bench.send.begin(run.pieces(), 3, 1, int(run.lease), run)
    run.lease = 0
    del run
    assert (bench.pool.begun, bench.pool.pending) == (0, bench.send.booked)
    bench.send.advance(21)
    bench.send.finish()
    bench.send.finish()
    bench.receive.feed(frame(20)[:10])
    assert bench.receive.drop() == 10
    assert bench.receive.drop() == 0
    bench.pool.check_released(bench.receive)
    assert (bench.pool.found, bench.pool.used) == ([], 0)


def test_a_lease_that_is_given_back_twice(bench: Bench) -> None:
    run = bench.lent()
    release(bench.account, run)
    run.lease = BOOKED
    release(bench.account, run)
    assert bench.found() == f"a run of Receive of channel 7 gives back {BOOKED} bytes of its lease again"


def test_a_lease_that_is_sent_and_given_back(bench: Bench) -> None:
    """The pending send has it; what it holds is not touched."""
    run = bench.lent()
    bench.send.begin(run.pieces(), 0, 1, int(run.lease), run)
    held = int(bench.send.booked)
    release(bench.account, run)  # the lease was not set to 0
    assert bench.pool.used == bench.pool.pending == held
    bench.send.finish()
    assert "again" in bench.found()


def test_a_lease_that_another_run_takes_over_unseen(bench: Bench) -> None:
    """As runs are joined: whoever has it then gives it back, once."""
    run = bench.lent()
    joined = Run(None, 0, b"joined", 0, 6, 1, int(run.lease))
    run.lease = 0
    del run
    gc.collect()
    assert bench.pool.found == []
    release(bench.account, joined)
    assert (bench.pool.found, bench.pool.used) == ([], 0)
    joined.lease = BOOKED
    release(bench.account, joined)
    assert bench.found() == f"somebody gives back {BOOKED} bytes (begun), and has 0: twice, or what is another's"


def test_a_lease_that_has_grown(bench: Bench) -> None:
    """As a frame's that waits for a handler: it is given back whole, or told whole."""
    run = bench.lent()
    bench.account.charge(BEGUN, 30)
    run.lease += 30
    release(bench.account, run)
    assert (bench.pool.found, bench.pool.used) == ([], 0)
    run = bench.lent()
    bench.account.charge(BEGUN, 30)
    run.lease += 30
    del run
    gc.collect()
    assert f"its lease of {BOOKED + 30} bytes" in bench.found()


@each_of(("kind", "name"), [(TLS, "tls"), (PENDING, "pending")], fresh={"bench": Bench})
def test_bytes_of_a_holder_that_are_given_back_twice_or_as_another_kind(bench: Bench, kind: int, name: str) -> None:
    bench.account.charge(TLS, 5, bench.send)
    bench.account.charge(TLS, 7, bench.receive)
    if kind == TLS:
        bench.account.release(TLS, 5, bench.send)
    bench.account.release(kind, 5, bench.send)
    if kind != TLS:
        bench.account.release(TLS, 5, bench.send)
    assert bench.pool.tls == 7
    bench.account.release(TLS, 7, bench.receive)
    assert bench.found() == f"Send of channel 7 gives back 5 bytes ({name}), and has 0: twice, or what is another's"


def test_a_lease_that_goes_to_another_listeners_account(bench: Bench) -> None:
    release(bench.other, bench.lent())
    assert bench.found() == f"LentRun gives back {BOOKED} bytes (begun) to another account than it has them of"


def test_a_lease_that_another_listener_sends(bench: Bench) -> None:
    run = bench.lent()
    theirs = Send(bench.other)
    theirs.begin(run.pieces(), 0, 1, int(run.lease), run)
    run.lease = 0
    assert (bench.account.used, bench.other.used) == (0, theirs.booked)
    theirs.finish()
    assert "of another account" in bench.found()


def test_a_holder_that_books_at_two_accounts(bench: Bench) -> None:
    bench.account.charge(PENDING, 5, bench.send)
    bench.other.charge(PENDING, 5, bench.send)
    assert bench.pool.found == ["Send of channel 7 books 5 bytes (pending) at a second account"]


def test_a_run_that_is_dropped_with_its_lease(bench: Bench) -> None:
    run = bench.lent()
    del run
    gc.collect()
    assert bench.found() == f"a run of Receive of channel 7 is gone with its lease of {BOOKED} bytes: 1 frames, 24 bytes"


def test_a_run_that_is_dropped_when_another_has_its_lease(bench: Bench) -> None:
    """As a run that is re-framed: the one that is sent has it."""
    run = bench.lent()
    sent = run.give_lease(Run(None, 0, b"again", 0, 5, 1, 0))
    assert (sent.data, sent.lease, run.lease) == (b"again", BOOKED, 0)
    del run
    assert bench.pool.found == []
    del sent
    gc.collect()
    assert "is gone with its lease" in bench.found()


def test_a_channel_that_keeps_something_when_it_is_closed(bench: Bench) -> None:
    bench.receive.feed(frame(20)[:10])
    bench.pool.check_released(bench.receive)
    assert bench.found() == f"Receive of channel 7 has {BOOKED} bytes (begun) when it is closed"
    bench.pool.check_released(bench.receive)  # it is closed once, and asked for it no more


def test_no_more_than_a_hundred_texts_are_kept(bench: Bench) -> None:
    for _ in range(105):
        bench.account.release(PENDING, 1, bench.send)
    assert (bench.pool.count, len(bench.pool.found)) == (105, 100)


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


def test_a_run_is_lent_only_where_something_is_booked(bench: Bench) -> None:
    bench.receive.feed(frame(1))
    assert type(bench.receive.feed(frame(3) + frame(5))) is Run
