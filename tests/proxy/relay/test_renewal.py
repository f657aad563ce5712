"""A login that does not last is renewed in the connection that there is, between the frames of the traffic, over loopback."""

import contextlib
import struct
import threading

import pytest

from framegate.proxy.auth.client import FIRST_CORRELATION_ID
from framegate.proxy.cause import Cause
from framegate.proxy.config.model import KafkaRule, KafkaRules
from framegate.proxy.network import mute
from framegate.proxy.network.timer import NEVER
from framegate.proxy.relay import ending
from framegate.proxy.relay.kafka_rules import KafkaRulesInForce
from framegate.proxy.relay.renewal import LATE_NS, LOOK_NS
from framegate.proxy.server.upstream_logins import UpstreamLogins
from tests.fakes import cluster, kafka_frames
from tests.fakes.clock import SECOND
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.world import frame
from tests.proxy.relay.conftest import end_by, finish
from tests.proxy.relay.test_login import GATE, SECRET, Secrets, address, ask, ended, for_all

LIFETIME_S = 10
RENEWED_S = 9.6  # when every session of 10 s is being renewed


@pytest.fixture
def broker():
    with contextlib.closing(SaslBroker({GATE: SECRET}, tokens={"first": GATE}, lifetime_ms=LIFETIME_S * 1000)) as made:
        yield made


@pytest.fixture
def secrets():
    return Secrets(u=SECRET)


@pytest.fixture
def world(make, broker, secrets):
    return make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", for_all("SCRAM-SHA-256"), secrets))


def opened(world):
    client, pair = world.client()
    assert ask(world, client) == (FIRST_CORRELATION_ID, GATE)
    return client, pair


def close(world, client):
    finish(world, client)
    return world.row


def expire(world, client, seconds=RENEWED_S):
    """The row of a client whose connection ends when so much time has passed."""
    world.pass_time(seconds)
    assert world.ended(client) == b""
    return close(world, client)


def wait_for_secret(world, secrets):
    """The login is renewed, up to where it asks for the secret, which does not come."""
    secrets.late = True
    world.pass_time(RENEWED_S)
    world.until(lambda: secrets.open)


def hold_answers(broker):
    """Have the broker answer nothing; when it has a request, and what lets it go on."""
    release, asked = threading.Event(), threading.Event()

    def hold(key):
        asked.set()
        assert release.wait(20)

    broker.hold = hold
    return asked, release


def request(correlation, key=3):
    return frame(struct.pack(">hhih", key, 12, correlation, -1))


def test_it_is_renewed_again_and_again_and_the_client_notices_nothing(world, broker):
    client, pair = opened(world)
    upstream = pair.upstream.channel
    for count in range(2, 7):
        before = int(upstream.renew_ns)
        assert 0.85 * LIFETIME_S <= (before - world.clock.ns) / 1e9 <= 0.95 * LIFETIME_S
        world.pass_time(RENEWED_S)
        world.until(lambda since=before: upstream.renew_ns > since)
        assert len(broker.logins) == count
        assert pair.client.channel.mute_causes == 0
        assert [ask(world, client, correlation=number) for number in range(3)] == [(number, GATE) for number in range(3)]
    assert not pair.pairing.lost
    assert (pair.client.frames, pair.upstream.frames) == (16, 16), "our own frames are none of the stream"
    ours = {correlation for key, correlation, _ in broker.requests if key in (17, 18, 36)}
    assert min(ours) == FIRST_CORRELATION_ID
    assert close(world, client)["cause"] == "peer_closed"


def test_answers_that_are_owed_leave_first_and_requests_that_come_meanwhile_wait(world, broker):
    client, pair = opened(world)
    asked, release = hold_answers(broker)
    client.sendall(request(1) + request(2))
    world.until(lambda: pair.pairing.open == 2 and asked.is_set())
    world.pass_time(RENEWED_S)
    assert pair.client.channel.mute_causes == mute.PEER
    client.sendall(request(3))
    world.poll(10)
    assert (pair.pairing.open, broker.logins) == (2, [GATE])
    release.set()
    answer = 4 + 4 + len(GATE) + 1 + 10
    data = world.read(client, 3 * answer)
    assert [struct.unpack(">i", data[at + 4 : at + 8])[0] for at in range(0, len(data), answer)] == [1, 2, 3]
    keys = [key for key in broker.asked() if key in (3, 17)]
    assert keys == [17, 3, 3, 3, 17, 3], "the third request waited for the login"
    assert broker.logins == [GATE, GATE]
    close(world, client)


@pytest.mark.parametrize("pieces", [True, False])
def test_before_a_cluster_answers_are_rewritten_up_to_the_login_and_behind_it(make, broker, secrets, pieces):
    """While a client reads an answer late, its login is due; and another answer is refused and prepared here."""
    rules = KafkaRulesInForce(KafkaRules(rules=(KafkaRule(deny=("DeleteTopics",)),)))
    logins = UpstreamLogins("u", for_all("SCRAM-SHA-256"), secrets)
    options = {"cut_answers": pieces, "answer_limit": 1 << 23, "pool": 1 << 26}
    world = make("kafka", endpoints=[address(broker)], logins=logins, brokers=cluster.brokers(), kafka_rules=rules, **options)
    broker.bodies = {1: cluster.fetch(records=6_000_000)[8:], 3: cluster.metadata()[8:], 18: bytes(6)}
    client, pair = world.client()
    upstream_of = pair.upstream
    for count in (2, 3):
        client.sendall(kafka_frames.request(3, 12, 1) + kafka_frames.request(1, 17, 2) + refused(3))
        world.until(lambda: pair.pairing is not None and pair.pairing.open <= 2 and upstream_of.channel.bytes_received > 100_000)
        world.pass_time(RENEWED_S)
        world.poll(20)
        assert (pair.renewal.mutes_client, len(broker.logins)) == (True, count - 1), "the answers leave first"
        client.sendall(kafka_frames.request(3, 12, 4))
        bodies = [world.read(client, int.from_bytes(world.read(client, 4), "big")) for _ in range(4)]
        assert [int.from_bytes(body[:4], "big") for body in bodies] == [1, 2, 3, 4]
        assert not any(cluster.SECRET in body for body in bodies)
        assert bodies[0][4:] == bodies[3][4:]
        assert len(bodies[1]) > 6_000_000
        assert len(broker.logins) == count
    assert not pair.pairing.lost
    close(world, client)


def refused(correlation):
    """A DeleteTopics request of version 1."""
    return frame(struct.pack(">hhih", 20, 1, correlation, -1) + struct.pack(">ih", 1, 1) + b"t" + bytes(4))


def test_a_client_that_never_rests_is_held_although_the_upstream_takes_again(world, broker):
    client, pair = opened(world)
    asked, release = hold_answers(broker)
    big = frame(struct.pack(">hhih", 3, 12, 9, -1) + bytes(200_000))

    def send():
        with contextlib.suppress(OSError):
            for _ in range(60):
                client.sendall(big)

    def receive():
        with contextlib.suppress(OSError):
            while client.recv(1 << 20):
                pass

    client.settimeout(20)
    threads = [threading.Thread(target=work, daemon=True) for work in (send, receive)]
    for thread in threads:
        thread.start()
    world.until(lambda: pair.upstream.channel.pending_send != 0 and asked.is_set())
    world.pass_time(RENEWED_S)
    count = int(pair.client.channel.frames_received)
    assert (count < 61, pair.renewal.mutes_client) == (True, True)
    release.set()
    world.until(lambda: len(broker.logins) == 2, polls=2000)
    keys = broker.asked()
    assert keys[: len(keys) - keys[::-1].index(17)].count(3) == count, "what was read before is all that went first"
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.until(lambda: world.rows)
    for thread in threads:
        thread.join(5)
    client.close()


def test_what_proves_it_is_read_again(make, broker):
    secrets = Secrets(u="first")
    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", for_all("OAUTHBEARER", ""), secrets))
    client, pair = opened(world)
    broker.tokens = {"second": GATE}
    secrets.texts["u"] = "second"
    before = int(pair.upstream.channel.renew_ns)
    world.pass_time(RENEWED_S)
    world.until(lambda: pair.upstream.channel.renew_ns > before)
    assert ask(world, client) == (FIRST_CORRELATION_ID, GATE)
    close(world, client)


def test_one_that_lasts_now_is_not_renewed_any_more(world, broker):
    client, pair = opened(world)
    broker.lifetime_ms = 0
    world.pass_time(RENEWED_S)
    world.until(lambda: len(broker.logins) == 2)
    world.until(lambda: pair.upstream.channel.renew_ns == NEVER)
    world.pass_time(10 * LIFETIME_S)
    assert ask(world, client) == (FIRST_CORRELATION_ID, GATE)
    assert len(broker.logins) == 2
    close(world, client)


def test_one_that_is_refused_ends_the_pair_and_is_not_hammered(world, broker):
    client, _ = opened(world)
    broker.passwords = {GATE: "changed"}
    row = expire(world, client)
    assert (row["cause"], row["side"], row["state"]) == ("auth_failed", "upstream", "open")
    assert row["detail"] == f"127.0.0.1:{broker.port}: to go on: SCRAM-SHA-256 as gate: {broker.words}"
    assert "not tried again" in ended(world, world.client()[0])["detail"]
    assert broker.refused == 1


def test_a_missing_secret_ends_the_pair_with_the_side_internal(world, secrets):
    client, _ = opened(world)
    del secrets.texts["u"]
    row = expire(world, client)
    assert (row["cause"], row["side"]) == ("auth_failed", "internal")
    assert "the secret is not available" in row["detail"]


def test_one_that_is_not_renewed_in_time_ends_the_pair(world, secrets):
    client, pair = opened(world)
    wait_for_secret(world, secrets)
    assert pair.client.channel.mute_causes == mute.PEER
    row = expire(world, client, LIFETIME_S - RENEWED_S)
    assert (row["cause"], row["side"]) == ("session_expired", "upstream")
    assert secrets.open == [], "nobody waits for the password"


@pytest.fixture
def held(world, broker):
    """A client whose request the broker holds back, until the session is over; and how to let it go on."""
    client, pair = opened(world)
    asked, release = hold_answers(broker)
    client.sendall(request(1))
    world.until(lambda: pair.pairing.open == 1 and asked.is_set())
    world.pass_time(RENEWED_S)
    world.pass_time(LIFETIME_S - RENEWED_S)
    yield client, pair, release
    release.set()


def test_an_answer_that_comes_behind_the_session_is_waited_for(world, broker, held):
    client, pair, release = held
    world.pass_time(LATE_NS / SECOND - 1)
    assert (pair.state.value, broker.logins) == ("open", [GATE])
    release.set()
    assert struct.unpack(">i", world.read(client, 4 + 4 + len(GATE) + 1 + 10)[4:8]) == (1,)
    world.until(lambda: len(broker.logins) == 2 and pair.client.channel.mute_causes == 0)
    assert ask(world, client, correlation=2) == (2, GATE)
    assert broker.asked().count(18) == 1, "a broker would end the connection at ApiVersions behind the session"
    close(world, client)


@pytest.mark.parametrize("lost", [False, True])
def test_waiting_for_open_answers_is_bounded_and_without_pairing_ends_at_once(world, held, lost):
    client, pair, release = held
    if lost:
        pair.pairing.lose()
    world.pass_time((LOOK_NS if lost else LATE_NS) / SECOND)
    assert world.ended(client) == b""
    release.set()
    assert (close(world, client)["cause"], world.row["side"]) == ("session_expired", "upstream")


def test_a_login_that_begins_late_has_as_long_as_one_in_time(world, broker, secrets, held):
    client, pair, release = held
    margin_ns = int(pair.upstream.channel.expires_ns - pair.upstream.channel.renew_ns)
    secrets.late = True
    release.set()
    world.until(lambda: secrets.open)
    world.pass_time((margin_ns - 1) / SECOND)
    assert pair.state.value == "open"
    world.pass_time(2 / SECOND)
    world.until(lambda: pair.cause is not None)
    assert pair.cause is Cause.SESSION_EXPIRED
    assert secrets.open == [], "nobody waits for the password"
    close(world, client)


@pytest.mark.parametrize("way", ["admin", "end", "drain", "broker"])
def test_a_pair_that_ends_meanwhile_leaves_nothing(world, broker, secrets, way):
    client, pair = opened(world)
    wait_for_secret(world, secrets)
    if way == "broker":
        broker.close()
    else:
        end_by(way, world, client, pair)
        world.pass_time(0.8)  # a drain waits until the client is quiet
    world.until(lambda: pair.cause is not None)
    finish(world, client)
    assert (secrets.open, pair.renewal) == ([], None)


def test_an_upstream_that_says_something_else_meanwhile_is_not_believed(world, broker, secrets):
    client, _ = opened(world)
    wait_for_secret(world, secrets)
    (sock,) = broker._open
    sock.sendall(request(7) + request(8))
    row = expire(world, client, 0)
    assert (row["cause"], row["side"]) == ("auth_failed", "upstream")
    assert "something else" in row["detail"]


@pytest.mark.parametrize("completed", [True, False])
def test_without_pairing_the_pair_ends_between_frames_or_with_its_session(world, completed):
    client, pair = opened(world)
    client.sendall(request(7)[:7])
    pair.pairing.lose()
    world.until(lambda: pair.client.channel.staged)
    world.pass_time(RENEWED_S)
    assert pair.state.value == "open", "a frame is begun"
    if completed:
        client.sendall(request(7)[7:])
        world.read(client, 4 + 4 + len(GATE) + 1 + 10)
    row = expire(world, client, 0.1 if completed else LIFETIME_S - RENEWED_S)
    assert (row["cause"], row["detail"]) == ("session_expired", f"the login to the upstream {'cannot' if completed else 'could not'} be renewed here")
