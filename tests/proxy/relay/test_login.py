"""Our logins to an upstream: what is tried again and when; and pairs whose upstream asks who we are, over loopback."""

import contextlib
import socket
import struct

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.client import FIRST_CORRELATION_ID
from framegate.proxy.cause import Cause
from framegate.proxy.config.sasl import UpstreamIdentity, UpstreamSasl
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import AnonymousAuthenticators, AuthenticatorFactory
from framegate.proxy.relay import ending
from framegate.proxy.relay.login import FIRST_NS, MOST_NS, Login
from framegate.proxy.server.upstream_logins import UpstreamLogins
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.sasl_frames import keys
from tests.fakes.world import frame
from tests.proxy.auth.conftest import AuthSource
from tests.proxy.relay.conftest import end_by, finish

GATE, SECRET = "gate", "canary-7f3a9c"


class Secrets(AuthSource):
    """Of credentials, by their names; of one that is not there nothing is to be had."""

    def __init__(self, **texts):
        super().__init__()
        self.texts = texts
        self.answer = self._answer

    def _answer(self, question):
        text = self.texts.get(question.credential)
        return q.Unavailable("the file cannot be read") if text is None else keys(question, text)


def for_all(mechanism="PLAIN", user=GATE):
    return UpstreamSasl(mechanism=mechanism, user=user, password_file="/p")


@pytest.fixture
def broker():
    with contextlib.closing(SaslBroker({GATE: SECRET, "apps": "other"}, tokens={"good": "token-owner"})) as made:
        yield made


@pytest.fixture
def secrets():
    return Secrets(u=SECRET)


def address(broker):
    return ("127.0.0.1", broker.port)


def ask(world, client, key=3, correlation=FIRST_CORRELATION_ID):
    """A request of a client; the answer's id, and whom the broker took it to be from."""
    request = struct.pack(">hhi", key, 12, correlation) + struct.pack(">h", 1) + b"c"
    client.sendall(frame(request))
    size = struct.unpack(">i", world.read(client, 4))[0]
    answer = world.read(client, size)
    who, _, echoed = answer[4:].partition(b"|")
    assert echoed == request, "it passed untouched"
    return struct.unpack(">i", answer[:4])[0], who.decode()


def ended(world, client):
    """The row of a client whose connection is ended."""
    count = len(world.rows)
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: len(world.rows) > count)
    return world.rows[-1]


# The back-off.


def test_one_that_is_refused_is_left_alone_and_tried_by_one_at_a_time():
    login = Login(AnonymousAuthenticators())
    first, second = login.begin(0), login.begin(0)
    first.refused("no", 5)
    second.refused("no, too", 6)
    assert (login.backoff_ns, login.due_ns, login.detail) == (FIRST_NS, 5 + FIRST_NS, "no")
    assert login.begin(4 + FIRST_NS) is None
    assert "in 1000 ms: no" in login.why_not(5)
    third = login.begin(5 + FIRST_NS)
    assert login.begin(5 + FIRST_NS) is None, "one at a time"
    assert "by another connection" in login.why_not(5 + FIRST_NS)
    third.abandoned()
    login.begin(6 + FIRST_NS).refused("again", 10 * FIRST_NS)
    assert (login.backoff_ns, login.due_ns) == (2 * FIRST_NS, 12 * FIRST_NS)
    for _ in range(7):
        login.begin(int(login.due_ns)).refused("no", int(login.due_ns))
    assert login.backoff_ns == MOST_NS, "the back-off has an end"
    now = int(login.due_ns)
    login.begin(now).accepted(now)
    assert login.backoff_ns == 0
    early = login.begin(now + 1)
    login.begin(now + 2).accepted(now + 3)
    early.refused("no", now + 4)
    assert login.backoff_ns == 0, "a refusal that is older than what was let in says nothing"


# Pairs.


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_upstream_sees_us_and_the_clients_frames_pass_untouched(make, broker, secrets, mechanism):
    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", for_all(mechanism), secrets))
    client, pair = world.client()
    assert ask(world, client, key=18, correlation=1) == (1, GATE), "its own ApiVersions is the upstream's to answer"
    assert ask(world, client) == (FIRST_CORRELATION_ID, GATE), "an id like ours is the client's own"
    assert not pair.pairing.lost
    logged_in = [(key, correlation) for key, correlation, who in broker.requests if not who]
    assert logged_in[:2] == [(18, FIRST_CORRELATION_ID), (17, FIRST_CORRELATION_ID + 1)]
    assert {correlation >> 3 for _, correlation in logged_in} == {FIRST_CORRELATION_ID >> 3}
    assert [key for key, _, who in broker.requests if who == GATE] == [18, 3]
    assert (pair.upstream.channel.frames_received, pair.client.channel.frames_received) == (2, 2), "the login is no traffic"
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.until(lambda: world.rows)


def test_what_the_client_sends_at_once_waits_for_the_login(make, broker, secrets):
    secrets.late = True
    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", for_all(), secrets))
    client, pair = world.client()
    client.sendall(frame(struct.pack(">hhih", 3, 12, 7, -1)))
    world.until(lambda: secrets.open)
    world.poll()
    assert (pair.state.value, broker.asked()) == ("connecting_upstream", [18, 17])
    secrets.settle()
    world.until(lambda: pair.client.channel.frames_received)
    assert world.read(client, 4 + 4 + len(GATE) + 1 + 10)[4:8] == struct.pack(">i", 7)
    finish(world, client)


def test_a_wrong_password_ends_the_pair_and_is_not_hammered(make, broker, secrets):
    secrets.texts["u"] = "wrong-" + SECRET
    with contextlib.closing(SaslBroker({GATE: SECRET})) as other:
        world = make("kafka", endpoints=[address(broker), address(other)], logins=UpstreamLogins("u", for_all(), secrets))
        row = ended(world, world.client()[0])
        assert (row["cause"], row["side"], row["state"]) == ("auth_failed", "upstream", "connecting_upstream")
        assert row["detail"] == f"127.0.0.1:{broker.port}: PLAIN as gate: {broker.words}"
        assert other.requests == [], "no other endpoint is asked"
        for _ in range(5):
            row = ended(world, world.client()[0])
            assert (row["cause"], row["side"]) == ("auth_failed", "upstream")
            assert "not tried again, it will be in 1000 ms: PLAIN as gate: " in row["detail"]
        assert (broker.refused + other.refused, len(other.requests)) == (1, 0)
        assert world.told.endpoints == [], "the endpoint is there"
        secrets.texts["u"] = SECRET
        world.clock.ns += FIRST_NS
        assert ask(world, world.client()[0]) == (FIRST_CORRELATION_ID, GATE)
        assert ask(world, world.client()[0]) == (FIRST_CORRELATION_ID, GATE), "all may again"
        assert not any(SECRET in str(row) for row in world.rows)
        for open_pair in list(world.relay.pairs.open.values()):
            ending.abort(open_pair, Cause.ADMIN, "", "internal")
        world.until(lambda: not world.relay.pairs.open)


def test_a_missing_secret_ends_the_pair_with_the_side_internal_and_is_read_again(make, broker, secrets):
    del secrets.texts["u"]
    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", for_all(), secrets))
    row = ended(world, world.client()[0])
    assert (row["cause"], row["side"]) == ("auth_failed", "internal")
    assert "the secret is not available: the file cannot be read" in row["detail"]
    secrets.texts["u"] = SECRET
    client, _ = world.client()
    assert ask(world, client) == (FIRST_CORRELATION_ID, GATE), "there is no back-off"
    client.close()
    world.until(lambda: len(world.rows) == 2)


def test_the_next_endpoint_is_tried_when_one_cannot_be_reached_or_speaks_something_else(make, broker, secrets, refusing):
    with socket.create_server(("127.0.0.1", 0)) as web:
        logins = UpstreamLogins("u", for_all(), secrets)
        world = make("kafka", endpoints=[refusing, web.getsockname(), address(broker)], logins=logins)
        client, pair = world.client()
        world.until(lambda: pair.upstream.channel is not None and pair.upstream.channel.connected_ns)
        accepted, _ = web.accept()
        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert ask(world, client) == (FIRST_CORRELATION_ID, GATE)
        accepted.close()
    assert {row["reason"] for row in world.told.endpoints} == {"refused", "other"}
    finish(world, client)


def test_the_clients_principal_decides_our_identity(make, broker):
    sasl = UpstreamSasl(
        identities=(
            UpstreamIdentity(principals=("ANONYMOUS",), mechanism="SCRAM-SHA-256", user="apps", password_file="/a"),
            UpstreamIdentity(principals=("alice",), mechanism="OAUTHBEARER", token_file="/t"),
        )
    )
    source = Secrets(**{"u/0": "other", "u/1": "good"})
    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", sasl, source))
    client, _ = world.client()
    assert ask(world, client) == (FIRST_CORRELATION_ID, "apps")
    finish(world, client)


def test_a_principal_without_an_identity_is_refused(make, broker, secrets):
    sasl = UpstreamSasl(identities=(UpstreamIdentity(principals=("alice",), mechanism="PLAIN", user=GATE, password_file="/a"),))
    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", sasl, secrets))
    row = ended(world, world.client()[0])
    assert (row["cause"], row["side"], row["detail"]) == ("auth_failed", "upstream", "no identity of u is for the principal ANONYMOUS")
    assert broker.requests == []


@pytest.mark.parametrize("way", ["admin", "end", "drain"])
def test_a_try_whose_connection_ends_is_made_by_the_next(make, broker, secrets, way):
    logins = UpstreamLogins("u", for_all(), secrets)
    secrets.texts["u"] = "wrong"
    world = make("kafka", endpoints=[address(broker)], logins=logins)
    ended(world, world.client()[0])
    world.clock.ns += FIRST_NS
    secrets.late = True
    client, pair = world.client()
    world.until(lambda: secrets.open)
    end_by(way, world, client, pair)
    client.close()
    world.until(lambda: len(world.rows) == 2)
    assert secrets.open == [], "nobody waits for the password"
    login = logins.choose("")
    assert not login.tried
    assert login.begin(int(login.due_ns)) is not None


def test_an_upstream_that_fails_authentication_gets_no_credentials(make, broker, secrets):
    class Nobody(AuthenticatorFactory):
        def make(self, identity):
            raise AuthenticationError("its key is none of pins")

    world = make("kafka", endpoints=[address(broker)], logins=UpstreamLogins("u", for_all(), secrets))
    world.upstream_options.authenticators = Nobody()
    row = ended(world, world.client()[0])
    assert (row["cause"], row["side"]) == ("auth_failed", "upstream")
    assert "none of pins" in row["detail"]
    assert broker.requests == []
    assert len(world.told.endpoints) == 1, "that endpoint failed, and others are tried"
