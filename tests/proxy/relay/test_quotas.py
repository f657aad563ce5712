"""framegate.proxy.relay.quotas: which buckets there are, which part of each rate they have, and what control is told."""

import pytest

from framegate.proxy.config.limits import UNLIMITED, AddressLimits, LimitOverride, LimitsInForce, ListenerLimits, RateLimits
from framegate.proxy.network import mute
from framegate.proxy.relay.bucket import WHOLE
from framegate.proxy.relay.counters import Counters, LoopCounters
from framegate.proxy.relay.quotas import (
    ADDRESS,
    COUNTERS,
    LISTENER,
    LISTENER_LIMITS,
    MOST_GONE,
    NODE,
    NODE_LIMITS,
    THROTTLED,
    DemandWatcher,
    KeyDemand,
    Quotas,
)
from tests.fakes.limited import limits
from tests.fakes.network import NetBench, frame

BYTES = RateLimits(request_bytes_rate=1_000_000)


class Control(DemandWatcher):
    def __init__(self) -> None:
        self.told: list[list[tuple[str, str, str, int, int, int]]] = []

    def demanded(self, demands: list[KeyDemand]) -> None:
        self.told.append([(each.level, each.name, each.counter, int(each.used), int(each.waiting), int(each.wanting)) for each in demands])


@pytest.fixture
def quotas(net: NetBench) -> Quotas:
    return Quotas(net.selector, LoopCounters())


def join(net: NetBench, quotas: Quotas, peer: str = "192.0.2.1:5", *, requests: bool = True):
    channel, _ = net.ready_pair()
    return quotas.join(None, channel, "l", peer, requests=requests)


def rates(throttle) -> list[tuple[int, int]]:
    """Rate and part of each bucket that holds for a channel."""
    return [] if throttle is None else [(int(bucket.rate), int(bucket.part)) for bucket in throttle.meter.buckets]


def pass_time(net: NetBench, milliseconds: float) -> None:
    for _ in range(int(milliseconds / 50)):
        net.clock.advance_ms(50)
        net.poll()


def test_each_counter_of_each_level_has_a_bucket_of_its_own(net, quotas):
    assert not quotas.active
    assert join(net, quotas) is None
    each = {f"{counter}_rate": number + 1 for number, counter in enumerate(COUNTERS)}
    quotas.set_limits(
        LimitsInForce(
            RateLimits(**each), {"l": ListenerLimits(request_bytes_rate=10), "m": ListenerLimits(request_bytes_rate=1_000_000)}, AddressLimits(BYTES)
        )
    )
    assert quotas.active
    assert rates(join(net, quotas)) == [(1_000_000, WHOLE), (10, WHOLE), (1, WHOLE), (2, WHOLE)]
    assert rates(join(net, quotas, requests=False)) == [(3, WHOLE), (4, WHOLE)]
    assert [quotas.buckets[NODE, "", counter].frames for counter in COUNTERS] == [False, True, False, True]


def test_connections_of_one_address_share_its_buckets_and_unix_sockets_have_none(net, quotas):
    quotas.set_limits(limits(address=BYTES, overrides=(LimitOverride(network="10.0.0.0/8", request_bytes_rate=7),)))
    first, second = join(net, quotas, "192.0.2.1:5"), join(net, quotas, "192.0.2.1:6")
    assert first.meter.buckets[0] is second.meter.buckets[0]
    assert join(net, quotas, "192.0.2.2:5").meter.buckets[0] is not first.meter.buckets[0]
    assert rates(join(net, quotas, "10.0.0.1:5")) == [(7, WHOLE)]
    assert join(net, quotas, "unix:") is None
    assert len(quotas._channels) == 3


def test_to_join_twice_changes_nothing_and_to_leave_twice_neither_and_what_was_read_is_paid_for(net, quotas):
    quotas.set_limits(LimitsInForce(UNLIMITED, {}, AddressLimits(UNLIMITED)))
    quotas.set_parts(1000, [])
    pass_time(net, 500)
    assert quotas.demands() == [], "without limits there is nothing to do"
    quotas.set_limits(limits(address=BYTES))
    channel, _ = net.ready_pair()
    throttle = quotas.join(None, channel, "l", "192.0.2.1:5", requests=True)
    meter = throttle.meter
    assert quotas.join(throttle, channel, "l", "192.0.2.1:5", requests=True) is throttle
    assert throttle.meter is meter
    (bucket,) = meter.buckets
    channel.read_half.bytes_received += 30_000  # in the read that ends it
    quotas.leave(throttle)
    quotas.leave(throttle)
    assert (throttle.meter, bucket.passed) == (None, 30_000)


def test_a_rate_that_is_removed_frees_waiting_channels_at_once(net, quotas):
    quotas.set_limits(limits(node=RateLimits(request_bytes_rate=10)))
    channel, peer = net.ready_pair()
    throttle = quotas.join(None, channel, "l", "", requests=True)
    channel.gated = True
    peer.sendall(frame(100))
    net.poll()
    assert throttle.meter.may_read()
    throttle.meter.was_read()
    assert not throttle.meter.may_read()
    assert channel.mute_causes == mute.THROTTLE
    quotas.set_limits(limits())
    assert channel.mute_causes == 0
    assert quotas.join(throttle, channel, "l", "", requests=True).meter is None


def test_what_addresses_that_are_gone_owe_is_kept_of_so_many_only(net, quotas):
    quotas.set_limits(limits(address=RateLimits(request_bytes_rate=100)))
    channel, _ = net.ready_pair()
    for number in range(MOST_GONE + 5):
        throttle = quotas.join(None, channel, "l", f"10.0.{number >> 8}.{number & 255}:1", requests=True)
        throttle.meter.buckets[0].charge(50, net.clock.now)
        quotas.leave(throttle)
    assert len(quotas._channels) == MOST_GONE
    levels = []
    for peer in ("10.0.0.4:1", "10.0.0.5:1"):
        throttle = quotas.join(None, channel, "l", peer, requests=True)
        levels.append(throttle.meter.buckets[0].level)
        quotas.leave(throttle)
    assert levels == [2, -48], "the oldest are let off"
    pass_time(net, 1000)
    assert len(quotas._channels) == 0


# Parts.


def test_parts_hold_at_once_for_what_they_name_and_the_default_for_the_rest(net, quotas):
    quotas.set_limits(limits(node=BYTES, listener=BYTES, address=BYTES))
    throttle = join(net, quotas)
    quotas.set_parts(5_000, [])
    assert rates(throttle) == [(1_000_000, 5_000)] * 3
    quotas.set_parts(5_000, [(NODE, "", "request_bytes", 400_000), (ADDRESS, "192.0.2.1", "request_bytes", 0), (ADDRESS, "gone", "request_bytes", 9)])
    assert rates(throttle) == [(1_000_000, 0), (1_000_000, 5_000), (1_000_000, 400_000)]
    quotas.set_limits(limits(node=RateLimits(request_bytes_rate=10), listener=BYTES, address=BYTES))
    assert rates(throttle)[2] == (10, 400_000), "a part is of whatever the rate is"
    quotas.set_parts(10_000, [(ADDRESS, "192.0.2.1", "request_bytes", -1), (LISTENER, "l", "request_bytes", 7), (LISTENER, "x", "request_bytes", 8)])
    assert rates(throttle) == [(1_000_000, 10_000), (1_000_000, 7), (10, 400_000)]
    assert rates(join(net, quotas, "192.0.2.9:1"))[0] == (1_000_000, 10_000)


def test_demands_are_told_five_times_a_second_while_there_are_others(net, quotas):
    quotas.watcher = told = Control()
    quotas.set_limits(limits(node=BYTES))
    pass_time(net, 500)
    assert told.told == [], "who is alone has nobody to tell"
    quotas.set_parts(500_000, [])
    throttle = join(net, quotas)
    throttle.channel.read_half.bytes_received += 30_000
    throttle.meter.was_read()
    pass_time(net, 1000)
    assert told.told == [], "nobody waits"
    quotas.set_parts(500_000, [(NODE, "", "request_bytes", 1000)])
    throttle.channel.read_half.bytes_received += 30_000
    throttle.meter.was_read()
    assert not throttle.meter.may_read()
    pass_time(net, 1000)
    assert len(told.told) == 5
    assert told.told[-1] == [(NODE, "", "request_bytes", 0, 1000, 1000)]
    quotas.set_parts(500_000, [(NODE, "", "request_bytes", -1), (ADDRESS, "192.0.2.7", "request_frames", 900_000)])
    pass_time(net, 1000)
    assert told.told[-1] == [(ADDRESS, "192.0.2.7", "request_frames", 0, 0, 0)], "what has a part of its own is told of, whoever is here"
    quotas.leave(throttle)
    quotas.set_parts(500_000, [(ADDRESS, "192.0.2.7", "request_frames", -1)])
    pass_time(net, 200)
    count = len(told.told)
    pass_time(net, 500)
    quotas.set_parts(WHOLE, [])
    pass_time(net, 500)
    assert len(told.told) == count


def test_many_addresses_are_looked_at_some_at_a_time(net, quotas):
    quotas.set_limits(limits(address=BYTES))
    quotas.set_parts(500_000, [])
    channel, _ = net.ready_pair()
    throttles = [quotas.join(None, channel, "l", f"10.0.{number >> 8}.{number & 255}:1", requests=True) for number in range(2500)]
    for throttle in throttles:
        throttle.meter.buckets[0].charge(900_000, net.clock.now)
        throttle.meter.buckets[0].wait(throttle.meter, net.clock.now, first=False)
    net.clock.advance_ms(100)
    found = [quotas.demands() for _ in range(3)]
    assert [len(each) for each in found] == [1024] * 3
    assert len({demand.name for each in found for demand in each}) == 2500
    for throttle in throttles:
        quotas.leave(throttle)


def test_rates_in_force_and_those_that_throttle_are_shown(net):
    counters = Counters(["l"], [])
    quotas = Quotas(net.selector, counters.loop)
    quotas.show_in(counters)
    quotas.set_limits(limits(node=RateLimits(request_bytes_rate=100), listener=RateLimits(response_frames_rate=40)))
    node, listener = counters.loop.counts.cells, counters.listeners["l"].counts.cells
    assert [int(node[at]) for at in NODE_LIMITS] == [100, 0, 0, 0]
    assert [int(listener[at]) for at in LISTENER_LIMITS] == [0, 0, 0, 40]
    quotas.set_parts(500_000, [(NODE, "", "request_bytes", 250_000)])
    assert [int(node[at]) for at in NODE_LIMITS] == [25, 0, 0, 0]
    assert [int(listener[at]) for at in LISTENER_LIMITS] == [0, 0, 0, 20]
    throttles = [join(net, quotas) for _ in range(3)]
    (bucket,) = {throttle.meter.buckets[0] for throttle in throttles}
    bucket.charge(500, net.clock.now)
    seen = []
    for throttle in throttles:
        throttle.meter.may_read()
        seen.append([int(node[at]) for at in THROTTLED.values()])
    assert seen == [[1, 0, 0, 0]] * 3
    quotas.set_limits(limits())
    assert [int(node[at]) for at in THROTTLED.values()] == [0, 0, 0, 0]
    assert [int(node[at]) for at in NODE_LIMITS] == [0, 0, 0, 0]
