"""Clients whose user or certificate was revoked: those that are open end, and those that had begun before and are READY later."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from framegate.proxy.network.certificate import serial_of
from tests.fakes.cases import each_of
from tests.fakes.sasl_frames import handshake, plain_token, token
from tests.fakes.tls import TlsWorld
from tests.fakes.world import SECOND, World, frame
from tests.proxy.relay.test_session_leg import SESSION_S, Rig

USER, CERTIFICATE = "the user was removed, or the password was changed", "the certificate is revoked"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with contextlib.closing(Rig()) as made:
        yield made


def revoke(rig: Rig, *users: str, everybody: bool = False) -> None:
    rig.world.route.revoked.add(None if everybody else list(users), [], rig.world.clock.ns)


def end_all(world: World) -> list[tuple[str, str, str]]:
    """Cause, detail and side of those that end."""
    before = len(world.rows)
    for pair in list(world.relay.pairs.open.values()):
        world.relay.end_revoked(pair)
    world.pass_time(1.1)
    return [(row["cause"], row["detail"], row["side"]) for row in world.rows[before:]]


def test_revoked_users_end_and_others_stay_and_all_with_a_password_may_be_revoked(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    revoke(rig, "other", "User")
    assert end_all(rig.world) == []
    rig.ask(client, upstream, 1)
    revoke(rig, "user")
    assert end_all(rig.world) == [("session_expired", USER, "internal")]
    assert rig.world.ended(client) == b""
    _, _, pair = rig.login()
    _, _, token_pair = rig.login()
    token_pair.client.channel.identity.mechanism = "OAUTHBEARER"
    revoke(rig, everybody=True)
    assert len(end_all(rig.world)) == 1
    assert (pair.state.value, token_pair.state.value) == ("closed", "open")


def test_a_client_that_authenticated_again_since_the_revocation_stays(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    rig.authenticate(client)
    revoke(rig, "user")
    rig.world.pass_time(SESSION_S // 2)
    assert len(end_all(rig.world)) == 1
    client, upstream, pair = rig.login()
    rig.authenticate(client)
    assert end_all(rig.world) == []
    rig.ask(client, upstream, 1)
    assert pair.state.value == "open"


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_began_before_the_revocation_is_closed_when_it_is_ready(rig: Rig, late: bool) -> None:
    """A password whose answer was on its way, or that was sent later, which costs a connection more."""
    client, pair = rig.world.client()
    client.sendall(frame(handshake("PLAIN")))
    rig.frame_of(client)
    if late:
        revoke(rig, "user")
        rig.world.clock.ns += 1
    rig.auth_source.late = True
    client.sendall(frame(token(plain_token())))
    rig.world.until(lambda: rig.auth_source.open)
    if not late:
        revoke(rig, "user")
        assert end_all(rig.world) == [], "nobody knows yet who it is"
    rig.auth_source.settle()
    rig.world.until(lambda: rig.world.rows or rig.world.pass_time(1.1))
    assert (rig.world.row["cause"], rig.world.row["detail"], pair.upstream.channel) == ("session_expired", USER, None)
    rig.auth_source.late = False
    _, _, pair = rig.login()
    assert pair.state.value == "open", "who begins later is judged by what is new"


def test_names_are_remembered_as_long_as_a_login_may_take(rig: Rig) -> None:
    revoked = rig.world.route.revoked
    revoked.add(["a", "b"], ["1"], 1000 * SECOND)
    revoked.add(["b"], [], 1010 * SECOND)
    assert (revoked._users, revoked._serials) == ({"a": 1000 * SECOND, "b": 1010 * SECOND}, {"1": 1000 * SECOND})
    revoked.add([], [], 1010 * SECOND + 1)
    assert (revoked._users, revoked._serials) == ({"b": 1010 * SECOND}, {})


@each_of("before", [False, True])
def test_a_certificate_that_is_revoked_ends_its_connections_and_no_other(make: Callable[..., World], tls_world: TlsWorld, before: bool) -> None:
    world = make(client_tls=tls_world.server_settings(client_auth="requested"))
    pem = Path(tls_world.client[0]).read_text()
    serial = f"{x509.load_pem_x509_certificate(pem.encode()).serial_number:x}"
    assert serial_of(ssl.PEM_cert_to_DER_cert(pem)) == serial
    own, nobody = [shake(world, tls_world, identity) for identity in (tls_world.client, None)]
    if before:
        world.until(lambda: own.state.value == nobody.state.value == "open")
        world.clock.ns += 1
    world.route.revoked.add([], [serial], world.clock.ns)
    end_all(world)
    world.until(lambda: world.rows)
    rows = [(row["cause"], row["detail"]) for row in world.rows]
    assert rows == [("session_expired", CERTIFICATE)]
    world.until(lambda: nobody.state.value == "open")


def shake(world: World, tls_world: TlsWorld, identity: tuple[str, str] | None) -> Any:
    """A pair whose client has said all that it has to in its handshake."""
    client, pair = world.client()
    settings = tls_world.client_settings(identity=identity)
    world.shake(client, settings.context)
    return pair
