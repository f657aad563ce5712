"""Who runs on a certificate that was replaced ends in time, in order, and each in its own moment."""

import pytest

from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.timer import spread
from framegate.proxy.network.transport import Identity
from framegate.proxy.relay.retirement import AT_BOOTSTRAP, DETAIL, Retirement, moment_of
from tests.fakes import cluster, kafka_frames
from tests.fakes.world import SECOND, World, frame
from tests.proxy.relay.conftest import finish


def retirement_of(world: World, timeout_s: int = 30) -> Retirement:
    return Retirement(world.selector, world.clock, world.relay.pairs.open, SECOND, timeout_s * SECOND)


def test_moments_lie_in_the_second_half_and_far_from_each_other():
    moments = [int(moment_of(1 << 40 | count, 100 * SECOND)) for count in range(1000)]
    assert all(50 * SECOND <= moment <= 100 * SECOND for moment in moments)
    in_tenths = [sum(50 + 5 * tenth <= moment / SECOND < 55 + 5 * tenth for moment in moments) for tenth in range(10)]
    assert min(in_tenths) > 60, in_tenths
    assert int(moment_of((1 << 63) - 1, 30 * 86_400 * SECOND)) <= 30 * 86_400 * SECOND


def test_it_ends_when_its_moment_has_come_and_nothing_is_under_way(make):
    world = make()
    retirement = retirement_of(world)
    client, upstream, pair = world.pair()
    retirement.replaced(world.route.listener, 0, 100 * SECOND)
    world.poll()
    assert retirement.waiting == 1
    moment_s = int(moment_of(int(pair.id), 100 * SECOND)) / SECOND
    world.pass_time(moment_s - 0.5)
    assert not pair.draining
    client.sendall(frame(b"half")[:5])
    world.poll()
    world.pass_time(1)
    assert pair.draining
    assert not world.rows, "a frame is under way"
    client.sendall(frame(b"half")[5:])
    assert world.read(upstream, 8) == frame(b"half")
    world.pass_time(1.1)
    world.pass_time(0.1)
    assert world.ended(client) == b""
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["detail"], world.row["lost"]["bytes"]) == ("drained", DETAIL, 0)


def test_connections_to_the_bootstrap_end_once_a_broker_has_an_address_of_its_own(make):
    """And later ones, of clients that still take it for that broker's; those to brokers stay."""
    world = make("kafka", brokers=cluster.brokers())
    retirement = retirement_of(world)
    clients = [world.pair() for _ in range(2)]
    clients[1][2].broker = 2
    client, upstream, pair = clients[0]
    client.sendall(kafka_frames.request(12, 0, 7))
    world.read(upstream, len(kafka_frames.request(12, 0, 7)))
    world.pass_time(0.99)
    retirement.gained(world.route.listener)
    world.poll()
    assert not pair.draining, "it may be logging in"
    world.pass_time(1)
    assert (pair.draining, world.rows) == (True, []), "a request is open"
    upstream.sendall(cluster.heartbeat())
    world.poll(10)
    for _ in range(4):  # it is held until the client waits
        world.pass_time(0.25)
    assert world.ended(client) == cluster.heartbeat()
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["detail"]) == ("drained", AT_BOOTSTRAP)
    for pause_s in (2, 4, 8, 16, 32, 64, 128, 256):
        client, upstream, pair = world.pair()
        world.pass_time(0.9 * pause_s)
        assert not pair.draining
        world.pass_time(0.1 * pause_s)
        assert world.ended(client) == b"", pause_s
        upstream.close()
    client, _, pair = world.pair()
    world.pass_time(600)
    world.pass_time(1)
    assert not pair.draining
    assert not clients[1][2].draining


def test_a_pair_that_is_never_quiet_is_cut_off_in_the_end(make):
    world = make()
    retirement = retirement_of(world, timeout_s=4)
    client, upstream, _ = world.pair()
    retirement.replaced(world.route.listener, 0, 2 * SECOND)
    world.poll()
    client.sendall(frame(b"half")[:5])
    for _ in range(14):
        world.pass_time(0.5)
    finish(world, client, upstream)
    assert world.row["cause"] == "drain_timeout"


@pytest.mark.parametrize("protocol", ["kafka", "framed"])
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_pair_older_than_allowed_ends_once_nothing_is_in_flight_or_when_its_drain_is_over(make, protocol, is_answered):
    world = make(protocol)
    world.relay.pairs.retirement = retirement_of(world, timeout_s=8)
    world.route.options.max_age_ns = 100 * SECOND
    client, upstream, pair = world.pair()
    asked, answer = kafka_frames.request(3, 0, 7), kafka_frames.answer(7)
    client.sendall(asked if protocol == "kafka" else asked[:6])
    age_s = 90 + int(spread(int(pair.id), 20 * SECOND)) / SECOND
    world.pass_time(age_s - 0.001)
    assert not pair.draining
    world.pass_time(0.001)
    world.poll()
    assert (pair.draining, world.rows) == (True, []), "a request is open, or a frame has begun"
    if is_answered:
        client.sendall(b"" if protocol == "kafka" else asked[6:])
        assert world.read(upstream, len(asked)) == asked
        upstream.sendall(answer)
        world.until(lambda: pair.upstream.channel.frames_received == 1)
        world.pass_time(1)
        world.pass_time(0.1)
        assert world.ended(client) == answer
    else:
        for _ in range(20):
            world.pass_time(0.5)
    finish(world, client, upstream)
    row = world.row
    told = (row["cause"], row["detail"]) == ("max_connection_age", "older than timeouts.max_connection_age")
    assert told if is_answered else (row["cause"], "older than" in row["detail"]) == ("drain_timeout", True), row
    assert row["lost"]["bytes"] == (0 if is_answered or protocol == "kafka" else 6)


@pytest.mark.parametrize("max_age_s", [0, 10])
def test_only_connections_with_the_old_certificate_end_and_none_without_a_maximum_age(make, tls_world, max_age_s):
    server = tls_world.server_settings()
    world = make(client_tls=TlsSettings(server.context, server_side=True, number=1))
    retirement = retirement_of(world)
    old, _ = world.client()
    world.poll()
    world.route.options.tls = TlsSettings(server.context, server_side=True, number=2)
    new, fresh = world.client()
    fresh.client.channel.identity = Identity("TLSv1.3", number=2)
    retirement.replaced(world.route.listener, 1, max_age_s * SECOND)
    world.poll()
    assert retirement.waiting == (1 if max_age_s else 0), "who shakes hands did not begin with the new one"
    world.pass_time(9.999)
    assert len(world.rows) == (1 if max_age_s else 0)
    assert int(fresh.id) in world.relay.pairs.open
    for sock in (old, new):
        sock.close()
    world.until(lambda: len(world.rows) == 2)


def test_a_pair_that_ended_before_its_moment_is_forgotten_and_thousands_are_searched_in_slices(make):
    world = make()
    retirement = retirement_of(world)
    client, upstream, _ = world.pair()
    retirement.replaced(world.route.listener, 0, 10 * SECOND)
    retirement.replaced(world.route.listener, 0, 20 * SECOND)
    world.poll()
    assert retirement.waiting == 2, "the first of its moments counts"
    finish(world, client, upstream)
    world.pass_time(30)
    assert retirement.waiting == 0
    assert len(world.rows) == 1
