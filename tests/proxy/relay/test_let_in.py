"""A client that proves who it is, before an upstream that asks who we are: it is told that it may come in once the upstream has let us in for it."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from framegate.proxy.auth.server import CANNOT_LOG_IN, NOT_ADMITTED, SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.config.sasl import UpstreamIdentity, UpstreamSasl
from framegate.proxy.relay.login import FIRST_NS
from framegate.proxy.server.upstream_logins import UpstreamLogins
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.sasl_frames import handshake, handshake_answer, plain_token, token, token_answer
from tests.fakes.world import World, frame
from tests.proxy.auth.conftest import AuthSource
from tests.proxy.conftest import builder
from tests.proxy.relay.conftest import end_by, finish
from tests.proxy.relay.test_login import GATE, SECRET, Secrets, address, ask

DELAY_MS = 100
TOLD = frame(token_answer())
REFUSED = frame(token_answer(error=58, message=NOT_ADMITTED))
UNKNOWN = frame(token_answer(error=-1, message=CANNOT_LOG_IN))


class Rig:
    """A listener that asks clients who they are, ``user`` among them, and its upstream, which asks us."""

    def __init__(self, endpoints: list[Any], principals: tuple[str, ...] = ("user",)) -> None:
        self.source = Secrets(**{"u/0": SECRET})  # of our passwords, which answers when it is told to
        self.source.late = True
        self.counts: list[tuple[str, str]] = []  # what became of the clients' logins
        identity = UpstreamIdentity(principals=principals, mechanism="PLAIN", user=GATE, password_file="/p")
        factory = SaslServerAuthenticators(SaslServerSettings(("PLAIN",)), AuthSource(), count=lambda *ended: self.counts.append(ended[:2]))
        self.logins = UpstreamLogins("u", UpstreamSasl(identities=(identity,)), self.source)
        self.world = World("kafka", endpoints=endpoints, authenticators=factory, refusal_ms=DELAY_MS, logins=self.logins)

    def prove(self) -> tuple[socket.socket, Any]:
        """A client that has said all it has to, and waits."""
        client, pair = self.world.client()
        client.sendall(frame(handshake("PLAIN")))
        answer = frame(handshake_answer("PLAIN"))
        assert self.world.read(client, len(answer)) == answer
        client.sendall(frame(token(plain_token())))
        return client, pair

    def is_told(self, client: socket.socket) -> bool:
        """Whether there is something to read for the client."""
        self.world.poll()
        client.setblocking(False)
        try:
            return len(client.recv(1, socket.MSG_PEEK)) > 0
        except BlockingIOError:
            return False

    def refused(self, client: socket.socket) -> tuple[bytes, tuple[str, str, str, str]]:
        world, count = self.world, len(self.world.rows)
        world.poll()
        assert not self.is_told(client), "guessing is slow"
        world.clock.ns += DELAY_MS * 1_000_000
        said = world.ended(client)
        client.close()
        world.until(lambda: len(world.rows) > count)
        row = world.rows[-1]
        return said, (row["cause"], row["side"], row["principal"], row["detail"])

    def close(self) -> None:
        assert self.source.open == [], "nobody waits for a password"
        self.world.close()


@pytest.fixture
def broker() -> Iterator[SaslBroker]:
    with contextlib.closing(SaslBroker({GATE: SECRET})) as made:
        yield made


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    with builder(Rig) as build:
        yield build


@pytest.fixture
def rig(make_rig: Callable[..., Rig], broker: SaslBroker) -> Rig:
    return make_rig([address(broker)])


def test_it_is_told_when_the_upstream_has_let_us_in_and_not_before(rig: Rig, broker: SaslBroker) -> None:
    client, pair = rig.prove()
    rig.world.until(lambda: rig.source.open)
    assert not rig.is_told(client)
    assert (pair.state.value, broker.asked(), rig.counts) == ("handshaking", [18, 17], [])
    rig.source.settle()
    assert rig.world.read(client, len(TOLD)) == TOLD
    rig.world.until(lambda: pair.state.value == "open")
    assert (pair.client.channel.principal, rig.counts, broker.logins) == ("user", [("PLAIN", "")], [GATE])
    for number in range(3):
        assert ask(rig.world, client, correlation=number) == (number, GATE)
    finish(rig.world, client)
    assert (rig.world.row["cause"], rig.world.row["frames"]) == ("peer_closed", {"request": 3, "response": 3})


def test_a_refusal_of_our_login_is_not_the_clients_it_may_try_again_and_so_is_the_back_off(rig: Rig, broker: SaslBroker) -> None:
    rig.source.texts["u/0"] = "wrong"
    rig.source.late = False
    client, _ = rig.prove()
    rig.world.until(lambda: broker.refused)
    said, row = rig.refused(client)
    assert said == UNKNOWN
    assert row == ("auth_failed", "upstream", "user", f"127.0.0.1:{broker.port}: PLAIN as gate: {broker.words}")
    said, row = rig.refused(rig.prove()[0])
    assert said == UNKNOWN
    assert row[:3] == ("auth_failed", "upstream", "user")
    assert "not tried again" in row[3]
    assert (broker.refused, rig.counts) == (1, [("PLAIN", "unavailable")] * 2)
    rig.source.texts["u/0"] = SECRET
    rig.world.clock.ns += FIRST_NS
    client, _ = rig.prove()
    assert rig.world.read(client, len(TOLD)) == TOLD


def test_a_principal_without_an_identity_is_told_so_and_the_upstream_gets_nothing(make_rig: Callable[..., Rig], broker: SaslBroker) -> None:
    rig = make_rig([address(broker)], principals=("somebody",))
    said, row = rig.refused(rig.prove()[0])
    assert (said, row) == (REFUSED, ("auth_failed", "upstream", "user", "no identity of u is for the principal user"))
    assert (broker.requests, rig.counts) == ([], [("PLAIN", "denied")])


def test_our_own_fault_is_not_the_clients_it_may_try_again(rig: Rig) -> None:
    del rig.source.texts["u/0"]
    rig.source.late = False
    client, pair = rig.prove()
    rig.world.until(lambda: pair.refusal is not None)
    said, row = rig.refused(client)
    assert (said, row[:3]) == (UNKNOWN, ("auth_failed", "internal", "user"))
    assert "the file cannot be read" in row[3]
    assert rig.counts == [("PLAIN", "unavailable")]


@pytest.mark.parametrize("way", ["client", "admin", "drain", "reset"])
def test_a_client_that_goes_before_our_login_leaves_nothing_behind(rig: Rig, way: str) -> None:
    world = rig.world
    client, pair = rig.prove()
    world.until(lambda: rig.source.open)
    end_by(way, world, client, pair)
    world.until(lambda: world.rows)
    causes = {"client": "peer_closed", "admin": "admin", "drain": "drained", "reset": "peer_reset"}
    assert (world.row["cause"], world.row["state"]) == (causes[way], "handshaking")
    login = rig.logins.choose("user")
    assert login is not None
    assert (login.tried, login.backoff_ns) == (False, 0)
    assert not world.relay.pairs.open
