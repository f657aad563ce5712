"""What a channel relies on, of its sink: the leg of a pair that is open, and the one that writes down what it is told."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from proxy.cause import Cause
from proxy.network.channel import Channel
from proxy.network.channel_sink import ChannelSink, PipeTarget
from proxy.network.memory_pool import MemoryPool
from proxy.network.mute import PEER
from proxy.relay.bucket import Bucket
from proxy.relay.leg import RelayLeg
from tests.fakes.conformance import Kind
from tests.fakes.limited import MeteredSink, metered
from tests.fakes.network import RecorderSink, frame, net_bench
from tests.fakes.world import World

INTERFACE: Final = ChannelSink


class Given(NamedTuple):
    """A sink, its channel, which is ready, and the world around: ``closed`` says how often the sink told of its end."""

    sink: ChannelSink
    channel: Channel
    send: Callable[[bytes], None]
    until: Callable[[Callable[[], object]], None]
    closed: Callable[[], int]
    pool: MemoryPool


def recorder() -> Iterator[Given]:
    with net_bench() as bench:
        channel, peer = bench.ready_pair()
        sink = channel.sink
        yield Given(sink, channel, peer.sendall, bench.poll_until, lambda: bench.listener.words(channel).count("closed"), bench.pool)


def leg(*, client: bool) -> Callable[[], Iterator[Given]]:
    def made() -> Iterator[Given]:
        world = World()
        near, far, pair = world.pair()
        sink, peer = (pair.client, near) if client else (pair.upstream, far)
        assert sink.channel is not None, "the pair is open"
        yield Given(sink, sink.channel, peer.sendall, world.until, lambda: int(sink.gone), world.pool)
        world.close()

    return made


def metered_sink() -> Iterator[Given]:
    with net_bench() as bench:
        meter, peer = metered(bench, [Bucket(bench.selector, 1_000_000_000, 1_000_000, frames=False)])
        sink, channel = meter.channel.sink, meter.channel
        yield Given(sink, channel, peer.sendall, bench.poll_until, lambda: bench.listener.words(channel).count("closed"), bench.pool)


KINDS: Final = {
    "recorder under a quota": Kind(MeteredSink, metered_sink),
    "recorder": Kind(RecorderSink, recorder),
    "leg of the client": Kind(RelayLeg, leg(client=True)),
    "leg of the upstream": Kind(RelayLeg, leg(client=False)),
}


@pytest.fixture(params=KINDS)
def given(request: pytest.FixtureRequest) -> Iterator[Given]:
    yield from KINDS[request.param].make()


def test_the_kinds_are_what_they_are_called(given: Given, request: pytest.FixtureRequest) -> None:
    assert isinstance(given.sink, KINDS[request.node.callspec.params["given"]].of)


def test_it_takes_whole_frames_and_their_memory_comes_back(given: Given) -> None:
    given.send(frame(3) + frame(0) + frame(70_000))
    given.until(lambda: given.channel.frames_received == 3)
    given.until(lambda: given.pool.used == 0)
    given.send(frame(5)[:6])
    given.until(lambda: given.channel.bytes_received > 70_000 + 3 * 4 + 3)
    given.channel.close(Cause.ADMIN)
    given.until(lambda: given.closed() == 1 and given.pool.used == 0)


def test_it_says_how_much_room_there_is_where_its_runs_go(given: Given) -> None:
    room, nothing_waits = given.sink.room_for()
    assert room > 0
    assert nothing_waits is True
    assert given.sink.may_read() is True


def test_to_wait_for_room_is_to_mute_the_channel_until_there_is_some(given: Given) -> None:
    given.sink.wait_for_room()
    assert given.channel.mute_causes & PEER
    assert given.channel.mute_in_force
    given.channel.unmute(PEER)
    given.send(frame(3))
    given.until(lambda: given.channel.frames_received == 1)


def test_pieces_go_to_where_a_pipe_can_be_sent_or_are_received(given: Given) -> None:
    target = given.sink.passes_to()
    assert target is None or isinstance(target, PipeTarget)


@pytest.mark.parametrize("cause", [Cause.ADMIN, Cause.IDLE, Cause.INTERNAL])
def test_its_end_is_told_once_whoever_closes_and_how_often(given: Given, cause: Cause) -> None:
    given.channel.close(cause)
    given.channel.close(Cause.LIMIT)
    assert given.closed() == 0, "not from within the call"
    given.until(lambda: given.closed() == 1)
    assert given.channel.close_cause == cause
