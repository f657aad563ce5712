"""framegate.proxy.auth.client: the exchange with an upstream; and with our own server, over real sockets and channels."""

import base64
import random
import struct
from collections.abc import Callable
from typing import cast

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.client import FIRST_CORRELATION_ID, SaslClientAuthenticator, SaslClientAuthenticators, SaslClientSettings
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.auth.scram import SCRAM_SHA_256, SCRAM_SHA_512
from framegate.proxy.auth.secret_redaction import REDACTED
from framegate.proxy.auth.server import SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.errors import LoginError
from framegate.proxy.network.authenticator import ANONYMOUS, WAIT
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.transport import DONE, Identity
from tests.fakes.cases import each_of
from tests.fakes.clock import MS, SECOND
from tests.fakes.network import NetBench, frame, tcp_pair
from tests.fakes.sasl_frames import (
    CLIENT_NONCE,
    answered,
    handshake,
    handshake_answer,
    plain_token,
    scram_exchange,
    token,
    token_answer,
    versions,
    versions_answer,
)
from tests.fakes.tls import TlsWorld
from tests.proxy.auth.conftest import AuthSource, Talk, usual_answer

ID = FIRST_CORRELATION_ID
KNOWN = (ApiRange(17, 0, 1), ApiRange(36, 0, 2))
PLAIN = SaslClientSettings("PLAIN", "user", "a", "c")


def client(auth_source: AuthSource, mechanism: str = "PLAIN", *, chance: random.Random | None = None) -> SaslClientAuthenticator:
    settings = SaslClientSettings(mechanism, "" if mechanism == "OAUTHBEARER" else "user", "token" if mechanism == "OAUTHBEARER" else "a", "c")
    return SaslClientAuthenticators(settings, auth_source, nonce=lambda: CLIENT_NONCE, chance=chance).make(Identity())


def offered(*ranges: ApiRange, error: int = 0) -> bytes:
    return answered(versions_answer(0, *ranges, error=error), ID)


def begun(auth_source: AuthSource, mechanism: str = "PLAIN", *ranges: ApiRange, chance: random.Random | None = None) -> Talk:
    one = Talk(client(auth_source, mechanism, chance=chance))
    assert one.say() == [versions(0, ID)]
    version = min(item.most for item in ranges or KNOWN if item.key == 17)
    bare = not any(item.key == 36 for item in ranges or KNOWN)
    assert one.say(offered(*(ranges or KNOWN))) == [handshake(mechanism, ID + 1, 0 if bare else min(version, 1))]
    return one


def accept(one: Talk, mechanism: str = "PLAIN") -> list[bytes]:
    return one.say(answered(handshake_answer(mechanism), ID + 1))


@each_of(("handshakes", "tokens", "version"), [(1, 0, 0), (1, 1, 1), (1, 2, 2), (9, 9, 2)], fresh={"auth_source": AuthSource})
def test_plain_in_the_newest_version_that_both_sides_know(auth_source: AuthSource, handshakes: int, tokens: int, version: int) -> None:
    ranges = (ApiRange(17, 0, handshakes), ApiRange(36, 0, tokens), ApiRange(3, 0, 20))
    one = begun(auth_source, "PLAIN", *ranges)
    assert accept(one) == [token(plain_token(), ID + 2, version)]
    assert not one.one.complete
    assert one.say(answered(token_answer(version=version), ID + 2)) == []
    assert (one.code, one.one.principal, one.one.expires_ns) == (DONE, ANONYMOUS, NEVER)
    assert one.one.ranges == ranges  # type: ignore[attr-defined]


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("bare", [False, True])
def test_scram(auth_source: AuthSource, mechanism: str, bare: bool) -> None:
    exchange = scram_exchange(mechanism)
    one = begun(auth_source, mechanism, ApiRange(17, 0, 1), *(() if bare else (ApiRange(36, 0, 2),)))
    assert accept(one, mechanism) == [exchange.client[0] if bare else token(exchange.client[0], ID + 2)]
    first, final = (part if bare else answered(token_answer(part), ID + 2 + index) for index, part in enumerate(exchange.server))
    assert one.say(first) == [exchange.client[1] if bare else token(exchange.client[1], ID + 3)]
    assert one.say(final) == []
    assert one.one.complete


def test_ids_are_kafkas_eight_and_come_round(auth_source: AuthSource) -> None:
    one = client(auth_source)
    ids = [one._header(36, 2).correlation_id for _ in range(17)]
    assert ids == [*range(ID, ID + 8), *range(ID, ID + 8), ID]
    assert ids[7] == 0x7FFFFFFF


STAGES: tuple[bytes, ...] = (offered(*KNOWN), answered(handshake_answer("PLAIN"), ID + 1), answered(token_answer(), ID + 2))
"""The good answers to the three requests of PLAIN."""


@each_of(
    ("stage", "answer", "words", "counted"),
    [
        (0, offered(), "wants no SASL", "protocol"),
        (0, offered(ApiRange(36, 0, 2)), "wants no SASL", "protocol"),
        (0, offered(ApiRange(17, 2, 3), ApiRange(36, 0, 2)), "wants no SASL", "protocol"),
        (0, offered(error=35), "error 35", "protocol"),
        (0, versions_answer(0, *KNOWN), "correlation id 7 where", "protocol"),
        (0, offered(*KNOWN)[:-1], "ApiVersions of 2 elements", "protocol"),
        (0, offered(*KNOWN) + b"x", "1 bytes behind", "protocol"),
        (0, struct.pack(">ihi", ID, 0, 0x7FFFFFFF), "ApiVersions of 2147483647 elements", "protocol"),
        (0, b"", "correlation id", "protocol"),
        (1, handshake_answer("PLAIN", "GSS\nAPI", error=33), "PLAIN is not enabled; enabled are PLAIN, GSS\\nAPI", "mechanism"),
        (1, handshake_answer(error=34), "is there SASL at this address", "protocol"),
        (1, handshake_answer(error=-1), "error -1", "protocol"),
        (2, token_answer(error=58, message="Authentication failed: Invalid username or password"), "Invalid username or password", "credentials"),
        (2, token_answer(error=58), "no reason", "credentials"),
        (2, token_answer(error=34, message="x"), "error 34: x", "protocol"),
        (2, token_answer(error=-1), "error -1", "unavailable"),
        (2, token_answer(error=58, message="a\x1b[31m\nb" + "c" * 300), "a\\x1b[31m\\nbc", "credentials"),
        (2, token_answer(b"more?"), "5 bytes where the server has nothing to say", "credentials"),
    ],
    fresh={"auth_source": AuthSource},
)
def test_a_refusal_or_a_malformed_answer_ends_the_login(auth_source: AuthSource, stage: int, answer: bytes, words: str, counted: str) -> None:
    found: list[tuple[str, str]] = []
    one = Talk(SaslClientAuthenticators(PLAIN, auth_source, nonce=lambda: CLIENT_NONCE, count=lambda *what: found.append(what)).make(Identity()))
    one.say()
    one.say(*STAGES[:stage])
    assert found == []
    error = one.refused(answered(answer, ID + stage) if stage else answer)
    assert words in str(error)
    assert str(error).startswith("PLAIN as user: ")
    assert isinstance(error, LoginError)
    assert (error.refused, error.answer, found) == (True, b"", [("PLAIN", counted)]), "a client answers nothing"
    assert len(str(error)) <= 220
    assert "pencil" not in str(error)


def test_a_refusal_of_oauthbearer_is_confirmed_before_its_words_come(auth_source: AuthSource) -> None:
    one = begun(auth_source, "OAUTHBEARER")
    assert accept(one, "OAUTHBEARER") == [token(b"n,,\x01auth=Bearer good\x01\x01", ID + 2)]
    assert one.say(answered(token_answer(b'{"status":"invalid_token"}'), ID + 2)) == [token(b"\x01", ID + 3)]
    assert "invalid_token" in str(one.refused(answered(token_answer(error=58, message='{"status":"invalid_token"}'), ID + 3)))


def test_an_upstream_with_a_wrong_signature_is_refused(auth_source: AuthSource) -> None:
    one = begun(auth_source, SCRAM_SHA_256)
    accept(one, SCRAM_SHA_256)
    one.say(answered(token_answer(scram_exchange(SCRAM_SHA_256).server[0]), ID + 2))
    assert "its signature is wrong" in str(one.refused(answered(token_answer(b"v=AAAA"), ID + 3)))


def test_the_result_of_a_login_is_counted_once(auth_source: AuthSource) -> None:
    found: list[tuple[str, str]] = []
    factory = SaslClientAuthenticators(PLAIN, auth_source, count=lambda *what: found.append(what))
    one = Talk(factory.make(Identity()))
    one.say()
    one.say(*STAGES)
    assert (one.one.step(), found) == (DONE, [("PLAIN", "")])
    auth_source.answer = lambda auth_request: q.Unavailable("gone")
    one = Talk(factory.make(Identity()))
    one.say()
    one.refused(*STAGES[:2])
    assert found[1:] == [("PLAIN", "unavailable")]


# Who has to be asked.


def test_the_login_waits_for_the_password_and_cancels_its_request(auth_source: AuthSource) -> None:
    auth_source.late = True
    one = begun(auth_source)
    assert accept(one) == []
    assert (one.code, auth_source.asked) == (WAIT, [q.WantSecret("a")])
    assert one.say() == []
    auth_source.settle()
    assert one.say() == [token(plain_token(), ID + 2)]
    other = begun(auth_source)
    accept(other)
    pending_auth = auth_source.open[0]
    other.one.close()
    other.one.close()
    assert (auth_source.forgotten, pending_auth.is_cancelled) == ([pending_auth], True)


def test_without_a_secret_the_login_fails(auth_source: AuthSource) -> None:
    auth_source.answer = lambda auth_request: q.Unavailable("password.txt cannot be read")
    error = begun(auth_source).refused(answered(handshake_answer("PLAIN"), ID + 1))
    assert str(error) == "PLAIN as user: the secret is not available: password.txt cannot be read"
    assert isinstance(error, LoginError)
    assert not error.refused, "nobody refused it"


# How long it is good.


@each_of("lifetime", [0, -1, 1, 10_000, 1 << 41, (1 << 63) - 1], fresh={"auth_source": AuthSource})
def test_a_session_is_renewed_before_it_ends(auth_source: AuthSource, lifetime: int) -> None:
    one = begun(auth_source, chance=random.Random(1))
    accept(one)
    one.say(answered(token_answer(lifetime=lifetime), ID + 2))
    assert one.one.complete
    renew = one.one.renew_ns  # type: ignore[attr-defined]
    if not 0 < lifetime < 1 << 40:
        assert (one.one.expires_ns, renew) == (NEVER, NEVER)
        return
    assert one.one.expires_ns == 1000 * SECOND + lifetime * MS
    assert 0.85 * lifetime * MS <= renew - 1000 * SECOND <= 0.95 * lifetime * MS


def test_renewals_are_spread(auth_source: AuthSource) -> None:
    chance, times = random.Random(1), set()
    for _ in range(20):
        one = begun(auth_source, chance=chance)
        accept(one)
        one.say(answered(token_answer(lifetime=10_000), ID + 2))
        times.add(one.one.renew_ns)  # type: ignore[attr-defined]
    assert len(times) == 20


# Both together, over real sockets.

MECHANISMS = ("PLAIN", SCRAM_SHA_256, SCRAM_SHA_512, "OAUTHBEARER")


def join(net: NetBench, auth_source: AuthSource, mechanism: str, world: TlsWorld | None):
    """A channel that is a client of another's."""
    ours, theirs = tcp_pair()
    servers = SaslServerAuthenticators(SaslServerSettings(MECHANISMS, 60_000), auth_source)
    bears = mechanism == "OAUTHBEARER"
    clients = SaslClientAuthenticators(SaslClientSettings(mechanism, "" if bears else "user", "token" if bears else "a"), auth_source)
    server = net.register(ours, 1, net.options(authenticators=servers, tls=world and world.server_settings()))
    upstream = net.register(theirs, 2, net.options(side="upstream", authenticators=clients, tls=world and world.client_settings()))
    return server, upstream


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("tls", [False, True])
def test_a_channel_and_its_peer_know_each_other_and_traffic_goes_on(
    net: NetBench, auth_source: AuthSource, tls_world: TlsWorld, mechanism: str, tls: bool
) -> None:
    server, upstream = join(net, auth_source, mechanism, tls_world if tls else None)
    data = frame(9) + frame(7)
    net.poll_until(lambda: upstream.is_open)
    upstream.send(Run(None, 0, data, 0, len(data), 2, 0))
    net.poll_until(lambda: server.frames_received == 2)
    assert (server.principal, upstream.principal) == ("user", "CN=server,O=Test" if tls else ANONYMOUS)
    assert net.listener.data[server] == data, "and nothing of what was said before"
    assert server.expires_ns == upstream.expires_ns == net.clock.now + 60 * SECOND
    assert net.pool.used == 0


@each_of("mechanism", ["PLAIN", "OAUTHBEARER"])
@each_of(
    "write",
    [str, lambda text: base64.b64encode(f"\0user\0{text}".encode()).decode(), lambda text: f"x{text[1:-1]}x"],
    fresh={"auth_source": AuthSource},
)
def test_a_secret_in_a_servers_text_is_redacted(auth_source: AuthSource, mechanism: str, write: Callable[[str], str]) -> None:
    auth_source.answer = lambda auth_request: q.Secret("canary.7f3a9c")
    one = begun(auth_source, mechanism)
    accept(one, mechanism)
    error = one.refused(answered(token_answer(error=58, message=f"no such login: {write('canary.7f3a9c')}"), ID + 2))
    assert str(error).partition(": ")[2] == REDACTED


def test_the_keys_of_a_password_in_a_servers_text_are_redacted(auth_source: AuthSource) -> None:
    exchange = scram_exchange(SCRAM_SHA_256)
    one = begun(auth_source, SCRAM_SHA_256)
    accept(one, SCRAM_SHA_256)
    one.say(answered(token_answer(exchange.server[0]), ID + 2))
    (asked,) = auth_source.asked
    keys = usual_answer(asked)
    assert isinstance(keys, q.ScramKeys)
    error = one.refused(answered(token_answer(f"e={base64.b64encode(keys.client_key).decode()}".encode()), ID + 3))
    assert str(error) == f"SCRAM-SHA-256 as user: {REDACTED}"


def test_after_a_login_no_secret_is_kept(auth_source: AuthSource) -> None:
    one = begun(auth_source)
    accept(one)
    authenticator = cast(SaslClientAuthenticator, one.one)
    assert authenticator._mechanism is not None
    assert authenticator._mechanism.secrets == (b"pencil",)
    one.say(answered(token_answer(), ID + 2))
    assert (one.code, authenticator._mechanism) == (DONE, None)


def test_a_later_login_begins_with_the_handshake(auth_source: AuthSource) -> None:
    """Kafka's brokers take nothing else behind the end of a session, and have said that they know these versions."""
    one = Talk(SaslClientAuthenticators(PLAIN, auth_source).again(Identity(), "CN=broker"))
    assert one.say() == [handshake("PLAIN", ID)]
    assert one.say(answered(handshake_answer("PLAIN"), ID)) == [token(plain_token(), ID + 1, 1)]
    one.say(answered(token_answer(version=1, lifetime=60_000), ID + 1))
    assert (one.one.complete, one.one.principal, one.one.expires_ns != NEVER) == (True, "CN=broker", True)
