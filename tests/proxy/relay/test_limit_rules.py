"""framegate.proxy.relay.limit_rules: which limits a client has, on real sockets: the first rule that matches, from when its facts are known."""

import contextlib
import socket
from typing import Any

import pytest

from framegate.proxy.auth.server import MECHANISMS, SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.config.limits import LimitRule, ListenerLimits
from framegate.proxy.network import mute
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.limit_rules import REPORT_NS, LimitRules
from framegate.proxy.relay.pair import REPORTED, Pair
from framegate.proxy.server.pair_rows import open_row, refused_frame_row, reported_frame_row
from tests.fakes import cluster, kafka_frames
from tests.fakes.handled import HandledWorld
from tests.fakes.limited import Limited, limits
from tests.fakes.sasl_frames import SERVER_NONCE, handshake, plain_token, token
from tests.fakes.world import World, frame
from tests.proxy.auth.conftest import AuthSource
from tests.proxy.relay.conftest import passes

LIMIT = 1000


@pytest.fixture
def make(make: Any) -> Any:
    """Makes worlds with rules."""

    def made(*rules: LimitRule, protocol: str = "framed", **options: Any) -> World:
        world: World = make(protocol, limit=LIMIT, **options)
        put(world, *rules)
        return world

    return made


def put(world: World, *rules: LimitRule, **quotas: int) -> None:
    """Replace the rules, as a change does."""
    world.route.limit_rules.put(rules)
    Limited(world).put(limits(listener=ListenerLimits(rules=rules, **quotas)))


def asked(size: int, client_id: bytes = b"\xff\xff") -> bytes:
    """A Kafka request with a body of so many bytes."""
    return kafka_frames.request(3, 9, 1, bytes(size - 8 - len(client_id)), client_id)


def name_of(pair: Pair) -> str | None:
    return None if pair.limit_rule is None else pair.limit_rule.name


def refused(world: World, client: socket.socket, sent: bytes) -> str:
    """What the row says of a connection whose frame is refused."""
    client.sendall(sent)
    with contextlib.suppress(ConnectionResetError):  # the rest of the frame is not read
        world.ended(client)
    world.pass_time(1.1)
    return world.rows[-1]["cause"] + ": " + str(world.rows[-1]["detail"])


def test_the_first_rule_that_matches_decides_unless_it_asks_for_what_is_not_known_yet() -> None:
    rules = LimitRules("l", ReceiveLimit(LIMIT))
    rules.put(
        (
            LimitRule(name="both", principals=("User:b*", "root"), client_ids=("etl-*",), networks=("10.0.0.0/8", "::1")),
            LimitRule(name="near", networks=("10.1.0.0/16",)),
            LimitRule(name="etl", client_ids=("etl-*",)),
            LimitRule(name="root", principals=("root",)),
        )
    )
    wrong = {}
    for case, wanted in {
        ("10.1.2.3:5", "User:bill", "etl-1"): "both",
        ("[::ffff:10.1.2.3]:5", "root", "etl-"): "both",
        ("[::1]:5", "root", "etl-1"): "both",
        ("10.1.2.3:5", "User:bill", "etl"): "near",
        ("10.1.2.3:5", "User:bill", ""): "near",
        ("10.1.2.3:5", "User:bill", None): None,  # the first rule may match
        ("10.1.2.3:5", "User:anna", None): "near",  # and here it cannot
        ("10.2.2.3:5", "User:anna", "etl-1"): "etl",
        ("10.2.2.3:5", "root", "xetl-1"): "root",
        ("10.2.2.3:5", "root", None): None,
        ("unix:/run/x", "root", "x"): "root",
        ("192.0.2.1:5", "rooted", "x"): None,
    }.items():
        found = rules.choose(*case)
        if (None if found is None else found.name) != wanted:
            wrong[case] = found and found.name
    assert wrong == {}
    rules.put(())
    assert (rules.choose("10.1.2.3:5", "root", "etl-1"), rules.by_client) == (None, False)


def test_a_size_keeps_its_object_and_one_that_is_only_reported_follows_the_listeners() -> None:
    rules = LimitRules("l", ReceiveLimit(LIMIT))
    rules.put((LimitRule(name="a", max_receive_size=5), LimitRule(name="b", max_receive_size=7, report_only=True), LimitRule(name="c")))
    a, b, c = (rule.limit for rule in rules.rules)
    assert [(int(each.value), int(each.passed_to), each.rule) for each in (a, b, c)] == [(5, -1, "a"), (7, LIMIT, "b"), (LIMIT, -1, "")]
    rules.limit.value = 6
    rules.put((LimitRule(name="b", max_receive_size=7, report_only=True), LimitRule(name="a", max_receive_size=9, report_only=True)))
    assert [rule.limit for rule in rules.rules] == [b, a]
    assert (b.value, b.passed_to, a.value, a.passed_to) == (6, 6, 6, 6), "what is above the listener's is refused, so nothing is reported"


def test_a_client_id_counts_from_the_first_request_on_and_later_ones_change_nothing(make: Any) -> None:
    rules = LimitRule(name="etl", client_ids=("etl-*",), max_receive_size=100), LimitRule(name="big", client_ids=("big",), max_receive_size=2 * LIMIT)
    world = make(*rules, protocol="kafka")
    client, upstream, pair = world.pair()
    assert name_of(pair) is None
    passes(world, client, upstream, asked(101, b"\0\5etl-1") + asked(LIMIT, b"\0\5etl-1"))  # of one read: the listener's size
    assert (name_of(pair), open_row(pair, 0)["limit_rule"]) == ("etl", "etl")
    passes(world, client, upstream, asked(100, b"\0\3big"))
    assert name_of(pair) == "etl", "the first client id stays"
    assert refused(world, client, asked(101, b"\0\3big")) == "frame_too_large: frame of 101 bytes exceeds the limit of 100 of the limit rule etl"
    row = refused_frame_row(pair, pair.client, 0)
    assert row is not None
    assert (row["size"], row["limit"], row["rule"], row["client_id"], row["report_only"]) == (101, 100, "etl", "etl-1", False)
    client, upstream, pair = world.pair()
    passes(world, client, upstream, asked(20, b"\0\3big"))
    passes(world, client, upstream, asked(2 * LIMIT, b"\0\5etl-1"))
    assert refused(world, client, asked(2 * LIMIT + 1)).endswith("limit of 2000 of the limit rule big")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, asked(LIMIT))  # without a client id
    assert name_of(pair) is None
    assert refused(world, client, asked(LIMIT + 1)) == "frame_too_large: frame of 1001 bytes exceeds the limit of 1000"


def test_an_address_counts_from_the_first_frame_on(make: Any) -> None:
    world = make(LimitRule(name="near", networks=("10.0.0.0/8",), max_receive_size=10), LimitRule(name="all", max_receive_size=20))
    for peer, most, name in (("10.0.0.1:5", 10, "near"), ("11.0.0.1:5", 20, "all")):
        client, upstream, pair = world.pair(peer)
        assert name_of(pair) == name
        passes(world, client, upstream, frame(bytes(most)))
        assert refused(world, client, frame(bytes(most + 1))).endswith(f"limit of {most} of the limit rule {name}")
        row = refused_frame_row(pair, pair.client, 0)
        assert row is not None
        assert (row["rule"], row["cause"]) == (name, "frame_too_large")
    client, _, pair = world.pair("10.0.0.1:5")
    assert refused(world, client, b"\xff\xff\xff\xff").startswith("negative_size")


def test_rules_that_change_apply_to_open_connections_and_a_frame_that_has_begun_keeps_its_limit(make: Any) -> None:
    world = make(LimitRule(name="a", max_receive_size=100))
    client, upstream, pair = world.pair()
    data = frame(bytes(100))
    client.sendall(data[:50])
    world.poll()
    put(world, LimitRule(name="a", max_receive_size=99))
    client.sendall(data[50:])
    assert world.read(upstream, len(data)) == data
    put(world, LimitRule(name="other", networks=("10.0.0.0/8",)), LimitRule(name="b", max_receive_size=150))
    assert name_of(pair) == "b"
    passes(world, client, upstream, frame(bytes(150)))
    put(world)
    assert name_of(pair) is None
    passes(world, client, upstream, frame(bytes(LIMIT)))
    put(world, LimitRule(name="a", max_receive_size=99))
    assert refused(world, client, frame(bytes(100))).endswith("limit of 99 of the limit rule a")
    put(world)  # closed pairs are left alone


def test_the_principal_is_that_of_sasl_and_stays_when_the_client_authenticates_again(make: Any) -> None:
    settings = SaslServerSettings(MECHANISMS, 100_000)
    factory = SaslServerAuthenticators(settings, AuthSource(), lambda: SERVER_NONCE)
    rules = LimitRule(name="nobody", principals=("ANONYMOUS",)), LimitRule(name="u", principals=("us?r",), max_receive_size=100)
    world = make(*rules, protocol="kafka", authenticators=factory)

    def authenticate(client: socket.socket) -> None:
        for body in (handshake("PLAIN"), token(plain_token())):
            client.sendall(frame(body))
            world.read(client, int.from_bytes(world.read(client, 4), "big"))

    client, pair = world.client()
    authenticate(client)
    world.until(lambda: pair.state.value == "open")
    upstream, _ = world.server.accept()
    world.sockets.append(upstream)
    assert name_of(pair) == "u"
    passes(world, client, upstream, asked(100))
    passes(world, upstream, client, kafka_frames.answer(1))
    world.pass_time(2)
    authenticate(client)
    passes(world, client, upstream, asked(100))
    assert name_of(pair) == "u"
    assert refused(world, client, asked(101)).endswith("limit of 100 of the limit rule u")


def test_the_rate_of_a_rule_is_shared_by_its_connections_and_the_listeners_applies_as_well(make: Any) -> None:
    slow = LimitRule(name="slow", networks=("10.0.0.0/8",), request_bytes_rate=100_000)
    rest = LimitRule(name="rest", request_bytes_rate=500_000)
    world = make(slow, rest)
    limited = Limited(world)
    near = [limited.talk(996, peer=f"10.0.0.{last}:5") for last in (1, 2)]
    far = limited.talk(996, peer="192.0.2.1:5")
    limited.run(2)
    total = sum(each.received for each in near)
    assert 190_000 <= total <= 215_000
    assert min(each.received for each in near) > total * 0.4, "they take turns"
    assert 950_000 <= far.received <= 1_030_000
    put(world, slow, rest, request_bytes_rate=60_000)
    before = [each.received for each in (*near, far)]
    limited.run(2)
    gained = [each.received - was for each, was in zip((*near, far), before, strict=True)]
    assert 110_000 <= sum(gained) <= 135_000, "the listener's is that of all"
    put(world)
    assert not world.relay.pairs.quotas.buckets
    assert all(each.pair.client.channel.mute_causes & mute.THROTTLE == 0 for each in near)


def test_the_rate_of_a_client_id_begins_with_the_read_after_the_first_request(make: Any) -> None:
    world = make(LimitRule(name="etl", client_ids=("etl-*",), request_frames_rate=100, response_frames_rate=50), protocol="kafka")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, asked(50, b"\0\5etl-1"))
    (requests,), (answers,) = (leg.throttle.meter.buckets for leg in (pair.client, pair.upstream))
    assert ((requests.rate, answers.rate), pair.client.channel.gated) == ((100, 50), True)
    client.sendall(asked(50, b"\0\5etl-1") * 300)
    world.until(lambda: pair.client.channel.mute_causes & mute.THROTTLE)
    put(world)
    world.read(upstream, 54 * 300)


def test_with_report_only_a_sound_size_above_the_limit_passes_up_to_the_listeners_and_is_counted(make: Any) -> None:
    world = make(LimitRule(name="try", max_receive_size=10, report_only=True), LimitRule(name="never", max_receive_size=1))
    told = world.told.reported
    cells = world.route.counters.counts.cells
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(bytes(10)))
    assert (told, cells[REPORTED]) == ([], 0)
    sizes = [11, 3, 12, 10, LIMIT, 0, LIMIT - 1]
    passes(world, client, upstream, b"".join(frame(bytes(size)) for size in sizes))
    assert ([size for size, _ in told], cells[REPORTED]) == ([11], 4), "all are counted, and one in a while is told"
    row = reported_frame_row(pair, 11, told[0][1], 0)
    assert (row["size"], row["limit"], row["rule"], row["report_only"], row["head"]) == (11, 10, "try", True, (b"\0\0\0\x0b" + bytes(11)).hex())
    world.clock.ns += REPORT_NS
    world.poll()
    passes(world, client, upstream, frame(bytes(13)))
    assert [size for size, _ in told] == [11, 13]
    assert refused(world, client, frame(bytes(LIMIT + 1))) == "frame_too_large: frame of 1001 bytes exceeds the limit of 1000"
    row = refused_frame_row(pair, pair.client, 0)
    assert row is not None
    assert (row["limit"], row["rule"], row["report_only"]) == (LIMIT, "", False)
    for size, cause in ((0x7FFFFFFF, "frame_too_large"), (0xFFFFFFFF, "negative_size"), (0x80000000, "negative_size")):
        client, _, _ = world.pair()
        assert refused(world, client, size.to_bytes(4, "big")).startswith(cause), "no size that is unsound is passed on"
    assert cells[REPORTED] == 5


def test_clients_of_a_cluster_and_of_a_handler_are_matched_as_well(make: Any) -> None:
    rule = LimitRule(name="etl", client_ids=("etl-*",), max_receive_size=100, request_frames_rate=1000, response_frames_rate=1000)
    said = "frame_too_large: frame of 101 bytes exceeds the limit of 100 of the limit rule etl"
    world = make(rule, protocol="kafka", brokers=cluster.brokers(), broker_endpoints={cluster.NODES[0]: make().server.getsockname()})
    client, upstream, pair = world.pair()
    passes(world, client, upstream, asked(50, b"\0\5etl-1"))
    assert (name_of(pair), pair.upstream.throttle is not None) == ("etl", True)
    assert refused(world, client, asked(101)) == said
    with contextlib.closing(HandledWorld("kafka", limit=LIMIT)) as handled:
        put(handled, rule)
        process = handled.process()
        client, pair = handled.served()
        client.sendall(asked(50, b"\0\5etl-1"))
        process.reply(process.one(), wire.ANSWER, b"\0\0\0\1")
        assert name_of(pair) == "etl"
        assert [meter.buckets[0].rate for meter in (pair.client.throttle.meter, pair.client.throttle.answers)] == [1000, 1000]
        client.sendall(asked(101))
        handled.until(lambda: handled.rows)
        assert f"{handled.row['cause']}: {handled.row['detail']}" == said


def test_connections_of_another_listener_are_not_matched(make: Any) -> None:
    world = make()
    quotas = world.relay.pairs.quotas
    rule = LimitRule(name="r", request_bytes_rate=7)
    quotas.set_limits(limits()._replace(listeners={"l": ListenerLimits(), "m": ListenerLimits(rules=(rule,))}))
    assert list(quotas.buckets) == [("rule", "m/r", "request_bytes")]
    _, _, pair = world.pair()
    assert (pair.limit_rule, pair.client.throttle) == (None, None)
    quotas.set_limits(limits())
    assert list(quotas.buckets) == [("rule", "m/r", "request_bytes")], "connections of a listener that is gone keep theirs"
