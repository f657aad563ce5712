"""Quotas on pairs of real sockets, on a clock of the test's: each direction, whatever way the bytes go, and at the end."""

import contextlib
from collections.abc import Callable

from framegate.proxy.cause import Cause
from framegate.proxy.config.limits import UNLIMITED, LimitOverride, RateLimits
from framegate.proxy.network import mute
from framegate.proxy.network.framings import LINES
from framegate.proxy.relay import ending
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.throttle import REPLY, Throttle
from tests.fakes.cases import each_of
from tests.fakes.handled import MS, HandledWorld, channel_of
from tests.fakes.limited import Limited, limits
from tests.fakes.world import SECOND, World, frame, reset
from tests.proxy.relay.conftest import passes, with_client, with_process

Make = Callable[..., World]
REQUESTS = RateLimits(request_bytes_rate=1_000_000)
ANSWERS = RateLimits(response_bytes_rate=1_000_000)


def buckets_of(leg) -> list[tuple[int, bool]]:
    """The rates that hold for a leg, and whether each is of frames."""
    if leg.throttle is None or leg.throttle.meter is None:
        return []
    return [(int(bucket.rate), bucket.frames) for bucket in leg.throttle.meter.buckets]


@each_of("level", ["node", "listener", "address"])
@each_of("answers", [False, True])
def test_bytes_of_each_direction_are_kept_to_at_each_level(make: Make, level: str, answers: bool) -> None:
    limited = Limited(make())
    pair = limited.world.pair()[2]
    assert [(leg.throttle, leg.channel.gated) for leg in (pair.client, pair.upstream)] == 2 * [(None, False)], "without a quota nothing is held"
    limited.put(limits(**{level: ANSWERS if answers else REQUESTS}))
    limited.talk(1000, answers=answers)
    for _ in range(2):
        assert 950_000 <= limited.run(1) <= 1_050_000
    back = limited.talk(1000, answers=not answers)
    limited.run(0.05)
    assert back.received > 1_000_000, "the other direction is free"


@each_of("options", [{"cut_requests": True}, {"protocol": "kafka"}, {"framing": LINES, "upstream_framing": LINES}])
def test_whatever_way_the_bytes_go_they_are_paid_for(make: Make, options: dict[str, object]) -> None:
    limited = Limited(make(**options))
    limited.put(limits(node=REQUESTS))
    message = b"x" * 999 + b"\n" if "framing" in options else b""
    body = 300_000 if "cut_requests" in options else 1000
    if options.get("protocol") == "kafka":
        message = frame(b"\0\3\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"x" * 990)
    talker = limited.talk(body, message=message)
    total = limited.run(6)
    assert 0.95 * 6_000_000 - 2 * body <= total <= 1.05 * 6_000_000 + 2 * body
    meter = talker.pair.client.throttle.meter
    assert meter.buckets[0].passed == talker.pair.client.channel.bytes_received


@each_of(("body", "rate"), [(0, 200), (0, 50_000), (100, 1), (100, 20), (2_000, 700), (50_000, 30)])
def test_frames_are_kept_to(make: Make, body: int, rate: int) -> None:
    limited = Limited(make())
    limited.put(limits(listener=RateLimits(request_frames_rate=rate)))
    talker = limited.talk(body)
    seen = []
    for _ in range(3):
        before = int(talker.pair.client.channel.frames_received)
        limited.run(1)
        seen.append(int(talker.pair.client.channel.frames_received) - before)
    assert max(seen) <= max(1.05 * rate, rate + 1)
    assert sum(seen) >= 0.95 * 3 * rate - 1


def test_a_large_frame_behind_small_ones_is_read_in_few_reads(make: Make) -> None:
    """It is one frame of the quota: those before it do not say how much of it a read may take."""
    limited = Limited(make())
    limited.put(limits(listener=RateLimits(request_frames_rate=300)))
    talker = limited.talk(0, message=frame(bytes(23)) * 4 + frame(bytes(300_000)))
    reads = talker.pair.route.counters.downstream
    before = int(reads.reads)
    limited.run(0.5)
    assert talker.pair.client.channel.frames_received > 20
    assert int(reads.reads) - before < 3 * talker.pair.client.channel.frames_received


def test_while_memory_is_short_quotas_hold(make: Make) -> None:
    world = make(pool=1 << 21)
    limited = Limited(world)
    limited.put(limits(node=REQUESTS))
    limited.talk(1000)
    held = world.pool.common
    held.charge(0, 1 << 22)
    try:
        total = limited.run(2)
    finally:
        held.release(0, 1 << 22)
    assert 0.5 * 2_000_000 <= total <= 1.05 * 2_000_000, "reading with care takes its time, too"


def test_the_narrowest_of_several_quotas_holds(make: Make) -> None:
    limited = Limited(make())
    limited.put(
        limits(
            node=RateLimits(request_bytes_rate=900_000), listener=RateLimits(request_bytes_rate=500_000), address=RateLimits(request_frames_rate=100)
        )
    )
    few, many = limited.talk(400, peer="192.0.2.1:1"), limited.talk(8_000, peer="192.0.2.2:1")
    limited.run(1)
    before = few.received, many.received
    limited.run(4)
    assert 0.5 * 400 * 404 <= few.received - before[0] <= 1.05 * 400 * 404, "100 frames/s; each may wait for one of the other's"
    assert 0.95 * 2_000_000 <= few.received - before[0] + many.received - before[1] <= 1.05 * 2_000_000


# Changes.


def test_a_change_holds_for_open_pairs_at_once(make: Make) -> None:
    limited = Limited(make())
    talker = limited.talk(1000)
    limited.run(0.02)
    assert talker.received > 1_000_000
    limited.put(limits(node=REQUESTS))
    limited.run(0.1)
    assert 950_000 <= limited.run(1) <= 1_050_000
    limited.put(limits(node=RateLimits(request_bytes_rate=3_000_000)))
    assert 2_850_000 <= limited.run(1) <= 3_150_000
    limited.put(limits(node=RateLimits(request_bytes_rate=100_000)))
    assert limited.run(1) <= 110_000
    limited.put(
        limits(address=RateLimits(request_bytes_rate=100_000), overrides=(LimitOverride(network="192.0.2.0/24", request_bytes_rate=500_000),))
    )
    limited.run(0.1)
    assert 475_000 <= limited.run(1) <= 525_000
    limited.put(limits())
    before = talker.received
    limited.run(0.02)
    assert talker.received - before > 1_000_000
    channel = talker.pair.client.channel
    assert (channel.gated, channel.mute_causes & mute.THROTTLE, buckets_of(talker.pair.client)) == (False, 0, [])


def test_buckets_that_stay_stay_with_what_is_owed(make: Make) -> None:
    limited = Limited(make())
    limited.put(limits(node=REQUESTS))
    talker = limited.talk(900_000)
    limited.run(0.01)
    meter = talker.pair.client.throttle.meter
    assert meter.buckets[0].level < -800_000
    limited.put(limits(node=RateLimits(request_bytes_rate=1_000_001)))
    assert talker.pair.client.throttle.meter is meter
    assert meter.buckets[0].level < -800_000
    limited.put(limits(node=REQUESTS, listener=RateLimits(request_frames_rate=5)))
    assert buckets_of(talker.pair.client) == [(5, True), (1_000_000, False)]


# The end.


def test_what_was_read_is_paid_for_by_connections_that_end(make: Make) -> None:
    world = make()
    limited = Limited(world)
    limited.put(limits(node=RateLimits(request_bytes_rate=10_000_000)))
    for number in range(20):
        client, upstream, _ = world.pair()
        passes(world, client, upstream, frame(b"x" * 996))
        client.close()
        upstream.close()
        world.until(lambda count=number + 1: len(world.rows) == count)
    assert world.relay.pairs.quotas.buckets["node", "", "request_bytes"].passed == 20_000


@each_of("who", ["client", "upstream", "admin"])
def test_a_throttled_pair_ends_as_any_other(make: Make, who: str) -> None:
    world = make()
    limited = Limited(world)
    limited.put(limits(listener=REQUESTS, address=RateLimits(request_bytes_rate=50_000)))
    talker = limited.talk(30_000)
    other = limited.talk(30_000)
    limited.run(0.3)
    assert talker.pair.client.channel.mute_causes & mute.THROTTLE
    if who == "admin":
        ending.end(talker.pair, Cause.ADMIN, "", "internal")
    else:
        sock = talker.source if who == "client" else talker.sink
        reset(sock)
    limited.talkers.remove(talker)
    world.pass_time(3)
    world.until(lambda: talker.pair.state.value in ("closing", "closed"))
    world.pass_time(1.1)
    world.until(lambda: len(world.rows) == 1)
    assert talker.pair.client.throttle.meter is None
    before = other.received
    limited.run(2)
    assert other.received - before >= 60_000, "its place in the queue is free"


def test_a_throttle_that_a_handler_made_is_the_quotas_too_and_neither_ends_the_others(make: Make) -> None:
    limited = Limited(make())
    talker = limited.talk(5_000)
    throttle = talker.pair.client.throttle = Throttle(talker.pair.client.channel)
    limited.put(limits(listener=RateLimits(request_bytes_rate=10_000)))
    assert talker.pair.client.throttle is throttle
    limited.run(0.3)
    throttle.hold(REPLY)
    before = talker.received
    limited.run(3)
    assert talker.received - before <= 5_004, "the quota would have let more pass"
    limited.put(limits())
    assert throttle.holders == REPLY
    limited.put(limits(listener=RateLimits(request_bytes_rate=10_000)))
    throttle.let_go(REPLY)
    assert limited.run(2) >= 15_000


def test_an_address_has_buckets_while_it_has_connections_and_until_it_owes_nothing(make: Make) -> None:
    world = make()
    limited = Limited(world)
    quotas = world.relay.pairs.quotas
    limited.put(limits(address=RateLimits(request_bytes_rate=10_000, response_frames_rate=5)))
    for number in range(3):
        client, upstream, pair = world.pair(f"192.0.2.{number}:1")
        assert [len(buckets_of(pair.client)), len(buckets_of(pair.upstream))] == [1, 1]
        assert len(quotas._channels) == number + 1
    client.sendall(frame(b"x" * 19_996))
    assert world.read(upstream, 20_000)
    ending.end(pair, Cause.ADMIN, "", "internal")
    client.close()
    upstream.close()
    world.until(lambda: len(world.rows) == 1)
    assert len(quotas._channels) == 3, "it owes"
    _, _, pair = world.pair("192.0.2.2:9")
    assert pair.client.throttle.meter.buckets[0].level < -10_000, "who comes again has not paid by that"
    ending.end(pair, Cause.ADMIN, "", "internal")
    world.pass_time(1.1)
    assert len(world.rows) == 2
    assert len(quotas._channels) == 3
    world.pass_time(1)
    world.pass_time(0.2)
    assert len(quotas._channels) == 2
    assert UNLIMITED.connections == 0


@each_of("level", ["node", "listener", "address"])
def test_what_a_handler_answers_without_an_upstream_is_paid_for(make_handled: Callable[..., HandledWorld], level: str) -> None:
    """No upstream's channel is read for it: the client is not read until its answers are paid for."""
    world, process = with_process(make_handled())
    world.relay.pairs.quotas.set_limits(limits(**{level: RateLimits(response_bytes_rate=100_000)}))
    client, pair = world.served()
    client.setblocking(False)
    answered = 0
    for second in range(1, 4):
        until = world.clock.ns + SECOND
        while world.clock.ns < until:
            with contextlib.suppress(BlockingIOError):
                client.sendall(frame(b"?"))
            world.clock.ns += 2 * MS
            for _ in range(3):  # without a wait: what is on its way comes with the next step
                world.selector.poll(0)
            process.read()
            for asked in process.asked:
                process.under_way -= 1
                process.send(process.record(asked, wire.ANSWER, bytes(996)))
            process.asked.clear()
            with contextlib.suppress(BlockingIOError):
                while data := client.recv(1 << 20):
                    answered += len(data)
        assert 0.9 * 100_000 * second <= answered <= 1.05 * 100_000 * second + 1000
    world.relay.pairs.quotas.set_limits(limits())
    world.relay.follow_limits(pair)
    assert pair.client.throttle.answers is None
    assert channel_of(pair).mute_causes & mute.THROTTLE == 0


def test_what_a_handler_answers_beside_requests_that_are_limited(make_handled: Callable[..., HandledWorld]) -> None:
    """Two meters on one channel: each lets go of its own."""
    world, process, client, pair = with_client(make_handled())
    both = RateLimits(request_frames_rate=1, response_frames_rate=1)
    world.relay.pairs.quotas.set_limits(limits(listener=both))
    world.relay.follow_limits(pair)
    client.sendall(frame(b"1") + frame(b"2") + frame(b"3"))
    seen = []
    for _ in range(8):
        process.settle()
        seen.append(len(process.asked))
        for asked in process.asked:
            process.reply(asked, wire.ANSWER, b"x")
        process.asked.clear()
        world.pass_time(0.5)
    assert sum(seen) == 3
    assert max(seen) == 1
    ending.end(pair, Cause.ADMIN, "", "internal")
    world.poll(3)
    assert [bucket.waiting for bucket in world.relay.pairs.quotas.buckets.values()] == [0, 0]


def test_a_client_that_we_keep_back_is_not_idle(make: Make) -> None:
    """Neither while its own requests are paid for, nor while it waits for an answer that is."""
    for answers in (False, True):
        world = make(idle_s=3)
        limited = Limited(world)
        limited.put(limits(listener=RateLimits(request_bytes_rate=1000, response_bytes_rate=1000)))
        talker = limited.talk(9_000, answers=answers)
        talker.sends = False
        talker.source.send(talker.message * 2)
        limited.run(8)
        assert (talker.pair.cause, talker.received) == (None, 9_004)
        limited.run(12)
        assert talker.received == 18_008
        limited.run(30, step_ms=50)
        assert talker.pair.cause is Cause.IDLE, "and once nothing is owed, it is"
