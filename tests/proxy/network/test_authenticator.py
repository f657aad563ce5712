"""framegate.proxy.network.authenticator: one suite over every authenticator, so that the fake is as good as the real ones."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from framegate.proxy.auth.certificates import MappedAuthenticators
from framegate.proxy.auth.client import FIRST_CORRELATION_ID, SaslClientAuthenticator, SaslClientAuthenticators, SaslClientSettings
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.auth.scram import SCRAM_SHA_256
from framegate.proxy.auth.server import SaslServerAuthenticator, SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import (
    ANONYMOUS,
    USER,
    WAIT,
    AnonymousAuthenticators,
    Authenticator,
    AuthenticatorFactory,
    CertificateAuthenticators,
    HandshakeAuthenticator,
)
from framegate.proxy.network.frame_exchange import TransportFrames
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.transport import DONE, WANT_READ, WANT_WRITE, Identity
from tests.fakes.authenticator import Await, Expect, Say, ScriptedAuthenticator, ScriptedAuthenticators
from tests.fakes.clock import FakeClock
from tests.fakes.sasl_frames import (
    USER_NAME,
    Exchange,
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
from tests.fakes.transport import memory_transports
from tests.proxy.auth.conftest import AuthSource
from tests.proxy.conftest import builder
from tests.proxy.network.conftest import Alarm


@dataclasses.dataclass
class Kind:
    """One authenticator, and what a peer has to do."""

    factory: AuthenticatorFactory  # makes them
    identity: Identity  # of the peer
    principal: str  # who it is then
    good: tuple[bytes, ...] = ()  # what the peer sends, as frames
    answers: tuple[bytes, ...] = ()  # what it is sent
    bad: tuple[bytes, ...] | None = None  # frames that are refused; None: nobody is
    happen: Callable[[Authenticator], None] = lambda one: None  # makes happen what is waited for
    bound: int = 8  # bytes of a frame, at most


def tell(one: Authenticator) -> None:
    assert isinstance(one, ScriptedAuthenticator)
    if one.waker is not None:
        one.tell()


def sasl_server(mechanism: str, exchange: Exchange, lie: tuple[bytes, ...]) -> Kind:
    """A client that asks for versions and takes one mechanism; ``lie`` is what it proves itself with in vain."""
    source = AuthSource(late=True)
    settings = SaslServerSettings((mechanism,), max_frame=500)
    factory = SaslServerAuthenticators(settings, source, exchange.server_nonce)
    begins = (versions(3), handshake(mechanism))
    good = (*begins, *(token(part) for part in exchange.client))
    answers = (versions_answer(3, ApiRange(0, 3, 11)), handshake_answer(mechanism), *(token_answer(part) for part in exchange.server))
    bad = (*begins, *(token(part) for part in lie))
    return Kind(factory, Identity(), USER_NAME, good, answers, bad, lambda one: source.settle(), 500)


def sasl_client(mechanism: str, exchange: Exchange, lie: tuple[bytes, ...]) -> Kind:
    """A broker that knows SaslAuthenticate; ``lie`` is what it says in vain."""
    source = AuthSource(late=True)
    settings = SaslClientSettings(mechanism, USER_NAME, "a", client_id="c", max_frame=500)
    factory = SaslClientAuthenticators(settings, source, nonce=exchange.client_nonce)
    first = FIRST_CORRELATION_ID
    begins = (answered(versions_answer(0, ApiRange(17, 0, 1), ApiRange(36, 0, 2)), first), answered(handshake_answer(mechanism), first + 1))
    good = (*begins, *(answered(token_answer(part), first + 2 + index) for index, part in enumerate(exchange.server)))
    sent = (versions(0, first), handshake(mechanism, first + 1), *(token(part, first + 2 + index) for index, part in enumerate(exchange.client)))
    bad = (*begins, *(answered(token_answer(part), first + 2 + index) for index, part in enumerate(lie)))
    return Kind(factory, Identity(subject="CN=broker"), "CN=broker", good, sent, bad, lambda one: source.settle(), 500)


PLAIN_EXCHANGE = Exchange((plain_token(),), (b"",))
SCRAM_EXCHANGE = scram_exchange(SCRAM_SHA_256)
BEARER_EXCHANGE = Exchange((b"n,,\x01auth=Bearer good\x01\x01",), (b"",))

INTERFACE: Final = Authenticator, AuthenticatorFactory
PROVES: Final = (
    MappedAuthenticators,
    SaslServerAuthenticator,
    SaslServerAuthenticators,
    SaslClientAuthenticator,
    SaslClientAuthenticators,
    AnonymousAuthenticators,
    HandshakeAuthenticator,
    CertificateAuthenticators,
    ScriptedAuthenticator,
    ScriptedAuthenticators,
)
KINDS: dict[str, Callable[[], Kind]] = {
    "anonymous": lambda: Kind(AnonymousAuthenticators(), Identity(subject="CN=a"), ANONYMOUS),
    "certificate": lambda: Kind(CertificateAuthenticators(), Identity(subject="CN=a"), "CN=a"),
    "certificate, without one": lambda: Kind(CertificateAuthenticators(), Identity(), ANONYMOUS),
    "mapped certificate": lambda: Kind(MappedAuthenticators(MappingRules("RULE:CN=(.*)/$1/")), Identity(subject="CN=a"), "a"),
    "mapped certificate, without one": lambda: Kind(MappedAuthenticators(MappingRules()), Identity(), ANONYMOUS),
    "PLAIN server": lambda: sasl_server("PLAIN", PLAIN_EXCHANGE, (plain_token("wrong"),)),
    "PLAIN client": lambda: sasl_client("PLAIN", PLAIN_EXCHANGE, (b"what else?",)),
    "SCRAM server": lambda: sasl_server(SCRAM_SHA_256, SCRAM_EXCHANGE, (SCRAM_EXCHANGE.client[0], SCRAM_EXCHANGE.client[1][:-8] + b"AAAAAAA=")),
    "SCRAM client": lambda: sasl_client(SCRAM_SHA_256, SCRAM_EXCHANGE, (SCRAM_EXCHANGE.server[0], b"v=AAAA")),
    "OAUTHBEARER server": lambda: sasl_server("OAUTHBEARER", BEARER_EXCHANGE, (b"n,,\x01auth=Bearer bad\x01\x01", b"\x01")),
    "scripted server": lambda: Kind(
        ScriptedAuthenticators(Expect(b"hello"), Say(b"prove it"), Expect(b"proof"), Await(), Say(b"welcome"), max_size=8),
        Identity(),
        "somebody",
        (b"hello", b"proof"),
        (b"prove it", b"welcome"),
        (b"hello", b"lie"),
        tell,
    ),
    "scripted client": lambda: Kind(
        ScriptedAuthenticators(Say(b"hello"), Expect(b"prove it"), Say(b"proof"), Expect(b"welcome"), max_size=8),
        Identity(),
        "somebody",
        (b"prove it", b"welcome"),
        (b"hello", b"proof"),
        (b"prove it", b"go away"),
    ),
}


class Stage:
    """One authenticator between two transports in memory, driven as a channel does."""

    def __init__(self, kind: Kind, *, capacity: int = 1 << 20) -> None:
        self.kind = kind
        self.pool = MemoryPool(1 << 20, FakeClock().now_ns)
        self.ours, self.peer = memory_transports(capacity)
        self.frames = TransportFrames(self.ours, self.pool.common, "downstream")
        self.alarm = Alarm(FakeClock())
        self.one = kind.factory.make(kind.identity)
        self.started = False
        self.got = b""

    def step(self) -> int:
        if self.one.complete and not self.frames.is_sending:
            return DONE
        if not self.frames.flush():
            return WANT_WRITE
        if not self.started:
            self.started = True
            self.one.start(self.frames, self.alarm)
        received = self.frames.received
        code = int(self.one.step())
        assert self.frames.received - received <= 1, "a frame for each step"
        assert (code == DONE) is self.one.complete
        return code

    def run(self) -> int:
        """As far as it goes with what is here."""
        for _ in range(1000):
            code = self.step()
            if code == WAIT:
                self.kind.happen(self.one)
            self.got += self.peer.read(1 << 20) or b""
            if code == DONE or (code == WANT_READ and len(self.ours.inbound) == 0):
                break
        return code

    def close(self) -> None:
        self.one.close()
        self.one.close()
        self.frames.close()
        assert self.pool.used == 0


@pytest.fixture(params=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Callable[..., Stage]]:
    with builder(lambda capacity=1 << 20: Stage(KINDS[request.param](), capacity=capacity)) as build:
        yield build


def framed(bodies: tuple[bytes, ...]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def assert_known(stage: Stage) -> None:
    assert stage.run() == DONE
    one = stage.one
    assert (one.complete, one.principal, one.principal_type) == (True, stage.kind.principal, USER)
    assert one.expires_ns > 0
    assert stage.got == framed(stage.kind.answers)


def test_the_peer_is_known_in_the_end(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.peer.write(framed(one.kind.good))
    assert_known(one)
    assert one.step() == DONE, "and stays so"


def test_wherever_the_bytes_are_cut(stage: Callable[..., Stage]) -> None:
    sent = framed(stage().kind.good)
    for split in range(len(sent)):
        one = stage()
        one.peer.write(sent[:split])
        assert one.run() in (WANT_READ, WAIT)
        assert one.one.principal == ""
        one.peer.write(sent[split:])
        assert_known(one)


def test_nothing_is_read_behind_the_last_frame(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.peer.write(framed(one.kind.good) + b"first request")
    assert_known(one)
    assert one.ours.read(100) == b"first request"


@pytest.mark.parametrize("capacity", [1, 5, 11])
def test_what_is_sent_goes_out_however_little_the_socket_takes(stage: Callable[..., Stage], capacity: int) -> None:
    one = stage(capacity)
    sent = framed(one.kind.good)
    for _ in range(1000):
        taken = one.peer.write(sent)
        sent = sent[taken:]
        if one.run() == DONE and not one.frames.is_sending:
            break
    assert_known(one)


def test_a_step_for_nothing_changes_nothing(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.peer.write(framed(one.kind.good[:1])[:-1])
    code = one.run()
    before = (one.got, one.pool.used, one.one.principal, one.alarm.woken)
    for _ in range(5):
        assert one.run() == code
    assert (one.got, one.pool.used, one.one.principal, one.alarm.woken) == before
    one.peer.write(framed(one.kind.good)[len(framed(one.kind.good[:1])) - 1 :] if one.kind.good else b"")
    assert_known(one)


def test_a_peer_that_is_refused_or_sends_a_frame_above_the_bound_has_no_principal(stage: Callable[..., Stage]) -> None:
    size = stage().kind.bound + 1
    for sent, words in (("bad", None), ("large", f"frame of {size} bytes")):
        one = stage()
        frames = one.kind.bad if sent == "bad" else (b"1" * size,)
        if frames is None or not one.kind.good:
            assert one.run() == DONE
            continue
        one.peer.write(framed(frames))
        with pytest.raises(AuthenticationError, match=words):
            one.run()
        assert (one.one.complete, one.one.principal) == (False, "")
        assert sent == "bad" or len(one.ours.inbound) == size


def test_the_end_of_the_stream_is_waited_behind_for_ever(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.peer.write(framed(one.kind.good)[:-1])
    one.peer.shut_write()
    code = one.run()
    assert code == (WANT_READ if one.kind.good else DONE)
    assert one.frames.ended is bool(one.kind.good)


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_it_may_be_closed_at_any_time(stage: Callable[..., Stage], frames: int) -> None:
    one = stage()
    one.peer.write(framed(one.kind.good[:frames])[:-1])
    if frames:
        one.run()
    one.one.close()


def test_each_channel_has_its_own_and_only_a_complete_one_has_a_name(stage: Callable[..., Stage]) -> None:
    one = stage()
    other = one.kind.factory.make(one.kind.identity)
    assert one.one.complete is not bool(one.kind.good)
    assert bool(one.one.principal) is one.one.complete
    one.peer.write(framed(one.kind.good))
    assert_known(one)
    assert other.complete is not bool(one.kind.good), "what one is told the other does not know"
    other.close()
