"""How runs pass (rules 2 to 4), over loopback and a real selector. Each test ends with the pool whole and every gauge zero."""

from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.network import mute
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.pairing import MAX_OPEN
from framegate.proxy.server.pair_rows import open_row
from tests.fakes.kafka_frames import answer, request
from tests.fakes.tap_read import read_frames
from tests.fakes.world import frame
from tests.proxy.relay.conftest import assert_nothing_to_read, open_pair, passes, tapping

# Rule 2: passing on.


def test_runs_pass_both_ways_in_order_and_upstreams_only_see_whole_frames(world):
    client, upstream, pair = world.pair()
    frames = b"".join(frame(bytes([index]) * index) for index in range(200))
    passes(world, client, upstream, frames)
    passes(world, upstream, client, frames)
    world.selector.settle()
    row = open_row(pair, 0)
    assert (row["frames"], row["state"]) == ({"request": 200, "response": 200}, "open")
    whole, begun = frame(b"whole"), frame(b"begun")
    client.sendall(whole + begun[:-1])
    assert world.read(upstream, len(whole)) == whole
    world.poll()
    assert_nothing_to_read(upstream)
    client.sendall(begun[-1:])
    assert world.read(upstream, len(begun)) == begun


def test_every_run_of_each_direction_is_measured_where_it_goes(world):
    client, upstream, pair = world.pair()
    times = pair.route.counters
    for count in range(3):
        passes(world, client, upstream, frame(b"request"))
        world.poll()
        assert (times.upstream.forwards.count, times.downstream.forwards.count) == (count + 1, count)
        passes(world, upstream, client, frame(b"x"))
    at = [LISTENER_BLOCK.at("framegate.frame.forward.duration", direction) for direction in ("request", "response")]
    assert [times.upstream.forwards.offset, times.downstream.forwards.offset] == at


def test_a_source_is_muted_for_peer_while_a_send_is_pending_and_the_other_direction_goes_on(world):
    client, upstream, pair = world.pair()
    world.fill(client)
    source = pair.client.channel
    assert source.mute_causes == mute.PEER
    assert pair.upstream.channel.pending_send > 0
    passes(world, upstream, client, frame(b"answer"))
    before = source.frames_received
    while source.mute_causes:
        world.read(upstream, 4096)
    world.until(lambda: source.frames_received > before or not source.mute_causes)
    client.close()
    world.ended(upstream)
    upstream.close()


def test_too_many_open_requests_mute_the_client_until_half_are_answered(make):
    world, client, upstream, pair = open_pair(make("kafka", limit=1 << 24))
    one = request(1, 4, 0)
    total = MAX_OPEN + 1
    data = b"".join(request(1, 4, index) for index in range(total))
    client.setblocking(True)
    client.sendall(data[: len(data) // 2])
    world.read(upstream, len(data) // 2 // len(one) * len(one))
    client.sendall(data[len(data) // 2 :])
    world.until(lambda: pair.pairing.full)
    world.poll()
    assert pair.client.channel.mute_causes == mute.PEER
    answers = b"".join(answer(index) for index in range(total))
    part = len(answer(0)) * (MAX_OPEN // 2)
    upstream.sendall(answers[:part])
    world.read(client, part)
    world.poll()
    assert pair.client.channel.mute_causes == mute.PEER
    upstream.sendall(answers[part:])
    world.read(client, len(answers) - part)
    world.until(lambda: pair.pairing.open == 0)
    assert pair.client.channel.mute_causes == 0


def test_a_run_has_the_time_when_it_was_read_not_that_of_its_poll(make, tmp_path) -> None:
    """An answer can come within the poll that passed its request on; with the poll's time its latency was 0."""
    tapped = tapping(tmp_path)
    world, writer = make(**tapped), tapped["writer"]

    def tick() -> int:
        world.clock.ns += 1000
        return world.clock.ns

    world.clock.now_ns = tick
    world.selector = Selector(world.clock, world.pool)
    world.relay.pairs.attach(world.selector)
    client, pair = world.client()
    world.until(lambda: pair.state.value == "open")
    world.sockets.append(world.server.accept()[0])
    client.sendall(frame(b"a"))
    world.until(lambda: writer.frames_matched_request == 1)
    writer.flush_and_close(1000)
    (found,) = read_frames(str(tmp_path))
    assert found.capture_ns > world.selector.now_ns
