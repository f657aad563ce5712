"""What a bucket relies on, of who waits for its tokens: the meter of a channel, and the reader that has frames of the test's."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from proxy.relay.bucket import Bucket, Waiter
from proxy.relay.throttle import Meter
from tests.fakes.clock import FakeClock
from tests.fakes.conformance import Kind
from tests.fakes.limited import metered
from tests.fakes.network import NetBench, frame, net_bench
from tests.fakes.readers import Reader

INTERFACE: Final = Waiter
RATE: Final = 1000


class Given(NamedTuple):
    """Two that share a bucket, each with 100 frames of 104 bytes to read, and how to let them."""

    waiters: list[Waiter]
    bucket: Bucket
    clock: FakeClock
    read: Callable[[], None]


def share(net: NetBench, make: Callable[[Bucket], Waiter], read: Callable[[list[Waiter]], None]) -> Given:
    bucket = Bucket(net.selector, RATE, 1_000_000, frames=False)
    waiters = [make(bucket), make(bucket)]
    return Given(waiters, bucket, net.clock, lambda: read(waiters))


def meters() -> Iterator[Given]:
    with net_bench() as net:

        def make(bucket: Bucket) -> Waiter:
            meter, peer = metered(net, [bucket])
            peer.sendall(frame(100) * 100)
            return meter

        yield share(net, make, lambda waiters: net.poll(3))


def readers() -> Iterator[Given]:
    with net_bench() as net:

        def read(waiters: list[Waiter]) -> None:
            for _ in range(3):
                for waiter in waiters:
                    assert isinstance(waiter, Reader)
                    waiter.read(net.clock.now)
                net.poll()

        yield share(net, lambda bucket: Reader([bucket], [104] * 100), read)


KINDS: Final = {"meter": Kind(Meter, meters), "reader": Kind(Reader, readers)}


@pytest.fixture(params=KINDS)
def given(request: pytest.FixtureRequest) -> Iterator[Given]:
    yield from KINDS[request.param].make()


def test_who_is_let_in_reads_and_pays_and_waits_again(given: Given) -> None:
    given.read()
    start = int(given.bucket.passed)
    assert given.bucket.waiting == 2
    for _ in range(400):
        given.clock.advance_ms(5)
        given.read()
    assert 0.95 * 2 * RATE - 2 * 104 <= given.bucket.passed - start <= 1.05 * 2 * RATE + 2 * 104
    assert given.bucket.waiting >= 1


def test_a_bucket_that_holds_nobody_up_any_more_has_all_read(given: Given) -> None:
    given.read()
    given.bucket.set_rate(0, 1)
    for _ in range(200):
        given.read()
    assert (given.bucket.passed, given.bucket.waiting) == (2 * 100 * 104, 0)
