"""framegate.proxy.network.lanes: frames that C passes on. What a user sees is the same without it; ``served`` says whether a lane is open."""

import select
import socket
import struct

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.framing import SIZE_BOUNDS, SIZE_BUCKETS
from framegate.proxy.network.lanes import HAS_FAST_PATH
from framegate.proxy.relay import ending
from tests.fakes.cases import each_of
from tests.fakes.crowd import MIB
from tests.fakes.lanes import PARTLY_TAKEN, give_partly_taken, opened, served
from tests.fakes.world import frame
from tests.proxy.relay.conftest import finish, passes, send_all

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")


def test_a_lane_opens_with_the_second_run_and_over_tls_with_the_second_answer(make_plain, make_secure):
    world = make_plain("framed")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"ask"))
    assert not served(world, pair.client)
    passes(world, client, upstream, frame(b"ask"))
    assert served(world, pair.client)
    world = make_secure("framed")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"ask"))
    passes(world, client, upstream, frame(b"ask"))
    passes(world, upstream, client, frame(b"answer"))
    assert not served(world, pair.client)
    assert pair.upstream.channel.transport.native is not None
    passes(world, upstream, client, frame(b"answer"))
    assert served(world, pair.client)
    assert served(world, pair.upstream)


def test_all_counts_are_those_of_python(make_either):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    bounds = SIZE_BOUNDS[: 5 if pair.client.channel.transport.is_plain else 3]  # of TLS, as long as a frame is one record
    sizes = [0, 1, *(bound + more for bound in bounds for more in (-1, 0, 1))]
    for size in sizes:
        world.clock.ns += 1
        passes(world, client, upstream, frame(bytes(size)))
        assert served(world, pair.client), size
    total = sum(sizes) + 4 * len(sizes) + 14
    world.selector.settle()
    asked, sent = pair.client.channel, pair.upstream.channel
    assert (asked.frames_received, asked.bytes_received, sent.write_half.frames_sent, sent.write_half.bytes_sent) == (len(sizes) + 2, total) * 2
    assert asked.last_active_ns == sent.last_active_ns == world.clock.ns
    wire = asked.transport.wire_received, sent.write_half.wire_sent
    assert wire == (total, total) if asked.transport.is_plain else min(wire) > total + 22 * len(sizes)
    stats, out = asked.options.stats, sent.options.stats
    assert (stats.frames_received, stats.bytes_received, out.frames_sent, out.bytes_sent) == (len(sizes) + 2, total) * 2
    assert (stats.reads, out.writes, sum(stats.frame_sizes)) == (len(sizes) + 2,) * 3
    assert out.forwards.count == len(sizes) + 2 or world.selector._timed is not None
    counted = [
        sum(size <= bound and (index == 0 or size > SIZE_BOUNDS[index - 1]) for size in [3, 3, *sizes]) for index, bound in enumerate(SIZE_BOUNDS)
    ]
    assert list(stats.frame_sizes) == [*counted, *[0] * (SIZE_BUCKETS - len(counted))]
    finish(world, client, upstream)
    assert (world.row["frames"], world.row["bytes"]["request"]) == ({"request": len(sizes) + 2, "response": 2}, total)


def test_runs_of_all_lanes_are_measured_in_their_poll(make_either):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    forwards = pair.upstream.channel.options.stats.forwards
    world.poll()
    before = forwards.count
    client.sendall(frame(b"a"))
    world.read(upstream, 5)
    world.poll()
    assert forwards.count == before + 1


def test_a_lane_that_hands_over_often_opens_after_more_and_more_runs(make_plain):
    world = make_plain("framed")
    client, upstream, pair = opened(world)
    counts = []
    for _ in range(4):
        send_all(world, client, frame(bytes(300_000)))
        assert world.read(upstream, 300_004) == frame(bytes(300_000))
        runs = 1
        while not served(world, pair.client):
            passes(world, client, upstream, frame(b"x"))
            runs += 1
        counts.append(runs)
    assert counts == [2, 4, 8, 16]


@each_of("given", (b"\xff\xff\xff\xff", struct.pack(">i", 1 << 20) + b"x"))
@each_of("before", (b"", frame(b"good")))
def test_a_frame_that_is_refused_is_refused_after_the_whole_ones_before_it(make_either, before: bytes, given: bytes):
    world = make_either("framed", limit=1000)
    client, upstream, _ = opened(world)
    client.sendall(before + given)
    assert world.ended(upstream) == before
    finish(world, client, upstream)
    cause = Cause.NEGATIVE_SIZE if given[0] == 0xFF else Cause.FRAME_TOO_LARGE
    assert (world.row["cause"], world.row["frames"]["request"]) == (cause.name.lower(), 2 + bool(before))


def test_an_event_that_a_poll_left_closes_a_lane_that_was_opened_since(make_either):
    """Else C would send what comes next before the bytes that Python has."""
    world = make_either("framed")
    client, upstream, pair = opened(world)
    channel = pair.client.channel
    client.sendall(frame(b"part")[:6])
    world.selector._left.append((channel, int(channel.fd), select.EPOLLIN))
    world.selector.poll(0)
    assert channel.staged == 6
    assert not served(world, pair.client)
    client.sendall(frame(b"part")[6:])
    assert world.read(upstream, 8) == frame(b"part")


def test_what_the_peer_does_not_take_waits_in_python_and_no_byte_is_lost(make_either):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    sent = b""
    client.setblocking(False)
    for number in range(10_000):
        piece = frame(number.to_bytes(4, "big") * 500)
        try:
            done = client.send(piece)
        except BlockingIOError:
            break
        sent += piece[:done]
        world.selector.poll(0)
        if done < len(piece):
            break
    assert pair.client.channel.mute_causes == mute.PEER
    assert not served(world, pair.client)
    assert pair.upstream.channel.pending_send != 0
    rest = len(sent) - len(sent) // 2004 * 2004
    client.setblocking(True)
    assert world.read(upstream, len(sent) - rest) == sent[: len(sent) - rest]
    world.until(lambda: pair.upstream.channel.pending_send == 0 and pair.client.channel.mute_causes == 0)
    world.selector.settle()
    assert pair.client.channel.frames_received - 2 == pair.upstream.channel.write_half.frames_sent - 2 == len(sent) // 2004


@each_of("reported", (False, True))
@each_of("sizes", PARTLY_TAKEN)
def test_what_comes_with_frames_that_the_peer_does_not_take_is_sent_behind_them(make_crowd, sizes: tuple[int, ...], reported: bool):
    give_partly_taken(make_crowd(cut_requests=True, limit=MIB), sizes, reported=reported)


@each_of("end", ("client", "upstream"))
def test_the_end_of_a_stream_goes_to_python(make_either, end: str):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    ends, other = (client, upstream) if end == "client" else (upstream, client)
    ends.sendall(frame(b"last"))
    ends.shutdown(socket.SHUT_WR)
    assert world.ended(other) == frame(b"last")
    assert not served(world, pair.client)
    assert not served(world, pair.upstream)
    passes(world, other, ends, frame(b"after"))
    finish(world, client, upstream)
    assert world.row["frames"] == ({"request": 3, "response": 3})


@each_of("code", ("read", "write"))
def test_a_reset_between_the_wait_and_the_call_is_told_with_its_error(make_either, code: str):
    """C gets an error that the socket reports only once."""
    world = make_either("framed")
    client, upstream, pair = opened(world)
    reset = struct.pack("ii", 1, 0)
    if code == "read":
        client.sendall(frame(b"x"))
        channel = pair.client.channel
        channel.take_over(b"", -1, 0, 104, None)
    else:
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        upstream.close()
        client.sendall(frame(b"x"))
    finish(world, client, upstream)
    assert world.row["cause"] in ("peer_reset", "upstream_reset", "upstream_closed")
    assert world.row["side"] == ("downstream" if code == "read" else "upstream")


@each_of("cause", (mute.ADMIN, mute.DRAIN, mute.THROTTLE))
def test_a_mute_closes_the_lanes_at_once(make_either, cause: int):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    pair.client.channel.mute(cause)
    assert not served(world, pair.client)
    assert not served(world, pair.upstream)
    client.sendall(frame(b"held"))
    world.poll()
    world.selector.settle()
    assert pair.client.channel.frames_received == 2
    pair.client.channel.unmute(cause)
    assert world.read(upstream, 8) == frame(b"held")


def test_frames_reach_a_channel_that_is_muted_and_whose_peer_has_ended(make_either):
    """It has no interest in events, but its lane takes what comes from the other side."""
    world = make_either("framed")
    client, upstream, pair = opened(world)
    pair.upstream.channel.mute(mute.ADMIN)
    upstream.shutdown(socket.SHUT_WR)
    for number in range(5):
        passes(world, client, upstream, frame(b"more"))
        assert served(world, pair.client), number
    assert not served(world, pair.upstream)
    world.selector.settle()
    assert pair.upstream.channel.write_half.frames_sent == 7


def test_a_smaller_limit_holds_for_the_next_frame(make_either):
    world = make_either("framed", limit=1000)
    client, upstream, _ = opened(world)
    passes(world, client, upstream, frame(bytes(500)))
    world.selector.close_lanes()  # as control's command does
    world.limit.value = 499
    client.sendall(frame(bytes(500)))
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert world.row["cause"] == "frame_too_large"


def test_the_end_of_a_pair_and_the_reuse_of_its_descriptors_leave_no_lane(make_either):
    world = make_either("framed")
    for number in range(5):
        client, _upstream, pair = opened(world)
        ending.abort(pair, Cause.ADMIN, "", "internal")
        client.sendall(frame(b"late"))
        world.until(lambda number=number: len(world.rows) == number + 1)
        assert world.rows[-1]["frames"] == {"request": 2, "response": 2}


def test_memory_that_is_short_leaves_all_to_python_until_it_is_not(make_either):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    pool = world.pool
    held = pool.line - pool.used
    pool.common.charge(0, held)
    passes(world, client, upstream, frame(b"x" * 100))
    assert not served(world, pair.client)
    assert pair.client.channel.read_half.low_memory is not None
    pool.common.release(0, held)
    for _ in range(2):
        passes(world, client, upstream, frame(b"x"))
    assert served(world, pair.client)


def test_a_lane_stays_closed_while_something_is_left_of_a_shortage(make_plain):
    world = make_plain("framed")
    client, upstream, pair = opened(world)
    reads, pool = pair.client.channel.read_half, world.pool
    held = pool.line - pool.used
    pool.common.charge(0, held)
    client.sendall(frame(b"whole") + frame(bytes(1000))[:500])
    assert world.read(upstream, 9) == frame(b"whole")
    world.until(lambda: reads.low_memory is not None and reads.low_memory.is_awaiting)
    passes(world, upstream, client, frame(b"answer"))  # which would open the lanes of both directions
    assert not served(world, pair.client)
    pool.common.release(0, held)
    client.sendall(frame(bytes(1000))[500:])
    assert world.read(upstream, 1004) == frame(bytes(1000))
    passes(world, client, upstream, frame(b"x"))
    assert served(world, pair.client)


def test_a_client_that_only_moves_frames_by_a_lane_is_not_idle(make_either):
    world = make_either("framed", idle_s=10)
    client, upstream, pair = opened(world)
    for _ in range(5):
        world.pass_time(6)
        passes(world, client, upstream, frame(b"x"))
    assert pair.state.value == "open"
    world.pass_time(11)
    finish(world, client, upstream)
    assert world.row["cause"] == "idle"
