"""framegate.proxy.relay.administration: what operators do to connections, on real sockets; standing actions meet each new client."""

import contextlib

import pytest

from framegate.proxy.config.matching import address_matcher, text_matcher
from framegate.proxy.network import mute
from framegate.proxy.network.timer import NEVER
from framegate.proxy.relay import administration
from framegate.proxy.relay.standing import Condition, Standing
from tests.fakes import kafka_frames
from tests.fakes.world import frame

RATE = 100_000


def standing(verb: str, *conditions: tuple[str, str, bool], number: int = 7, rates: tuple[int, int] = (0, 0)) -> Standing:
    made = [
        Condition(field, (address_matcher if field == "address" else text_matcher)(value), negated=not equal) for field, value, equal in conditions
    ]
    return Standing(number, verb, "why", *rates, made)


def passed(world, source, target, *, seconds: float) -> int:
    """Bytes that arrive in so many seconds of the clock while the source always has some to send."""
    source.setblocking(False)
    target.setblocking(False)
    count, data = 0, frame(bytes(996)) * 10
    for _ in range(int(seconds * 100)):
        world.clock.ns += 10_000_000
        for _ in range(3):
            try:
                source.send(data)
            except BlockingIOError:
                break
        world.poll()
        with contextlib.suppress(BlockingIOError):
            count += len(target.recv(1 << 20))
    return count


@pytest.mark.parametrize("way", ["requests", "responses"])
def test_each_connection_has_the_rate_that_it_was_given_in_each_direction(world, way):
    pairs = [world.pair() for _ in range(2)]
    rates = (RATE, 0) if way == "requests" else (0, RATE)
    administration.throttle(pairs[0][2], 0, "why", *rates)
    got = []
    for client, upstream, _ in pairs:
        source, target = (client, upstream) if way == "requests" else (upstream, client)
        got.append(passed(world, source, target, seconds=2))
    assert RATE * 2 * 0.95 <= got[0] <= RATE * 2 * 1.05 + 10_000
    assert got[1] > got[0] * 5, "of another connection nothing is taken"
    administration.throttle(pairs[0][2], 0, "", 0, 0)
    assert (pairs[0][2].rates, pairs[0][2].client.channel.mute_causes & mute.THROTTLE) == (None, 0)
    client, upstream, _ = pairs[0]
    source, target = (client, upstream) if way == "requests" else (upstream, client)
    assert passed(world, source, target, seconds=1) > RATE * 5


def test_a_throttled_pair_that_ends_leaves_no_timer(world):
    client, upstream, pair = world.pair()
    administration.throttle(pair, 0, "", 16, 16)
    client.sendall(frame(bytes(1000)))
    world.read(upstream, 1004)
    client.sendall(frame(bytes(1000)))
    world.until(lambda: pair.client.channel.mute_causes & mute.THROTTLE)
    bucket = pair.rates.requests
    administration.close(pair, "gone")
    world.pass_time(1.1)
    assert (pair.state.value, bucket.deadline_ns) == ("closed", NEVER)


@pytest.mark.parametrize(
    ("conditions", "applies"),
    [
        ((), True),
        ((("listener", "l", True), ("address", "192.0.2.0/24", True)), True),
        ((("listener", "m", True),), False),
        ((("address", "192.0.2.1", False),), False),
        ((("principal", "ANON*", True),), True),
        ((("client_id", "", True),), True),
        ((("client_id", "x", True),), False),
    ],
)
def test_a_standing_action_is_for_the_new_clients_that_match(world, conditions, applies):
    world.relay.pairs.standing = [standing("mute", *conditions), standing("throttle", *conditions, number=8, rates=(5, 6))]
    _, _, pair = world.pair()
    assert bool(pair.client.channel.mute_causes & mute.ADMIN) is applies
    assert (pair.reason, pair.mute_action) == (("why", 7) if applies else ("", 0))
    assert (None if pair.rates is None else (pair.rates.action, pair.rates.requests.rate, pair.rates.responses.rate)) == (
        (8, 5, 6) if applies else None
    )
    world.relay.pairs.standing = []
    assert world.pair()[2].client.channel.mute_causes == 0


def test_a_standing_close_ends_a_client_before_the_upstream_is_connected(world):
    world.relay.pairs.standing = [standing("close", ("principal", "ANONYMOUS", True)), standing("mute")]
    world.client()[0].sendall(frame(b"abc"))
    world.pass_time(0.1)
    world.pass_time(1.1)
    (row,) = world.rows
    assert (row["cause"], row["detail"], row["attempts"], row["lost"]["request"]) == ("admin", "why", 0, 7)


@pytest.mark.parametrize("verb", ["mute", "close", "throttle"])
def test_a_client_id_is_known_after_the_first_requests(make, verb):
    world = make("kafka")
    world.relay.pairs.standing = [standing(verb, ("client_id", "billing-*", True), rates=(1000, 0))]
    told = {}
    for name in (b"\0\x09billing-7", b"\0\5other"):
        client, upstream, pair = world.pair()
        request = kafka_frames.request(3, 9, 1, b"\0\0", name)
        client.sendall(request)
        assert world.read(upstream, len(request)) == request, "the first requests pass"
        world.pass_time(0.01)
        told[name[2:]] = (pair.client.channel.mute_causes & mute.ADMIN != 0, pair.state.value in ("closing", "closed"), pair.rates is not None)
    assert told == {b"billing-7": tuple(verb == word for word in ("mute", "close", "throttle")), b"other": (False, False, False)}
