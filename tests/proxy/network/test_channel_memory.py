"""framegate.proxy.network.channel: small frames pass though memory is short, large ones take turns, and those above the limit pass in pieces."""

import contextlib
import threading
from collections.abc import Iterator

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.low_memory_reader import SMALL
from framegate.proxy.network.memory_pool import PENDING
from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench

# Memory.


@contextlib.contextmanager
def short_bench(pool: int = 1 << 20) -> Iterator[NetBench]:
    """A bench whose pool is used up by somebody."""
    with net_bench(pool=pool) as net:
        net.pool.common.charge(PENDING, pool)
        try:
            yield net
        finally:
            net.pool.common.release(PENDING, pool)


@each_of("size", [0, 1, 100, 65_532, SMALL - 4])
def test_a_small_frame_that_is_here_passes_though_nothing_is_left(size: int) -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        sender = threading.Thread(target=peer.sendall, args=(frame(size) * 2,))
        sender.start()
        net.poll_until(lambda: channel.frames_received == 2, step_ms=1)
        assert (channel.mute_causes, net.pool.begun, net.listener.data[channel]) == (0, 0, frame(size) * 2)
        sender.join()


@each_of("size", [100, 65_532])
def test_the_beginning_of_a_small_frame_stays_in_the_kernel(size: int) -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(3) + frame(size)[:-1])
        net.poll(10)
        assert (channel.frames_received, net.pool.begun, channel.mute_causes, channel.read_half.is_receiving) == (1, 0, 0, True)
        assert channel.read_half.begun_bytes == 4 + size - 1
        peer.send(b"x")
        net.poll_until(lambda: channel.frames_received == 2, step_ms=1)
        assert net.listener.data[channel] == frame(3) + frame(size)
        peer.send(frame(1))
        net.poll_until(lambda: channel.frames_received == 3, step_ms=1)


def test_a_large_frame_takes_its_turn_and_goes_on_when_there_is_room() -> None:
    with net_bench(pool=1 << 20) as net:
        net.pool.set_largest(400_000, 0)
        net.pool.common.charge(PENDING, 1 << 21)
        channel, peer = net.ready_pair(tcp=True)
        sender = threading.Thread(target=peer.sendall, args=(frame(390_000),))
        sender.start()
        net.poll_until(lambda: channel.mute_causes == mute.MEMORY, step_ms=1)
        assert (net.pool.waiting, net.pool.refused, channel.frames_received) == (1, 1, 0)
        assert net.pool.begun < 256
        net.pool.common.release(PENDING, (1 << 20) + 1000)
        net.poll_until(lambda: channel.frames_received == 1, step_ms=1)
        assert (channel.mute_causes, net.pool.waiting, net.pool.begun) == (0, 0, 0)
        net.pool.common.release(PENDING, (1 << 20) - 1000)
        sender.join()


def test_closing_a_channel_that_waits_for_its_turn_leaves_nobody_waiting() -> None:
    with net_bench(pool=1 << 20) as net:
        net.pool.common.charge(PENDING, 1 << 21)
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(400_000)[:100_000])
        net.poll_until(lambda: channel.mute_causes == mute.MEMORY, step_ms=1)
        channel.close(Cause.ADMIN)
        assert net.pool.waiting == 0
        net.pool.common.release(PENDING, 1 << 21)


# Cut through.


@each_of(("size", "pieces"), [(1023, False), (1024, False), (1025, True)], fresh={"net": net_bench})
def test_frames_above_the_limit_pass_as_they_come(net: NetBench, size: int, pieces: bool) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    parts: list[int] = []
    net.listener.on_run = lambda _, run: parts.append(run.part)
    data = frame(size - 4)
    for part in (data[:100], data[100:900], data[900:]):
        peer.send(part)
        net.poll(2)
    assert parts == ([PART | PART_FIRST, PART, PART | PART_LAST] if pieces else [0])
    assert (net.listener.data[channel], channel.frames_received, net.pool.used) == (data, 1, 0)


def test_whole_frames_before_and_behind_a_frame_in_pieces(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    runs: list[tuple[int, int]] = []
    net.listener.on_run = lambda _, run: runs.append((run.part, run.frames))
    data = frame(10) + frame(20) + frame(2000) + frame(30)
    peer.send(data[:100])
    net.poll(3)
    assert runs == [(0, 2), (PART | PART_FIRST, 0)]
    peer.send(data[100:])
    net.poll(3)
    assert runs[2:] == [(PART | PART_LAST, 1), (0, 1)]
    assert (net.listener.data[channel], channel.frames_received) == (data, 4)


def test_a_stream_that_ends_within_a_frame_in_pieces_says_so(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    peer.send(frame(2000)[:500])
    net.poll()
    peer.close()
    net.poll(2)
    assert (channel.read_half.cut_short_at, channel.lost_bytes, net.stats.cut_short, net.stats.refused_incomplete) == (500, 0, 1, 1)


def test_an_operators_mute_waits_for_the_end_of_a_frame_in_pieces(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    peer.send(frame(2000)[:500])
    net.poll()
    assert not channel.mute(mute.ADMIN)
    peer.send(frame(2000)[500:] + frame(1))
    net.poll(3)
    assert (channel.frames_received, channel.mute_in_force) == (1, True)
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 2
