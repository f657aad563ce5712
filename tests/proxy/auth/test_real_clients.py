"""A Kafka client that is not ours (librdkafka) against the server authenticator: over a real socket, every mechanism, good and bad."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from proxy.auth import questions as q
from proxy.auth.messages import ApiRange
from proxy.auth.scram import SCRAM_SHA_256, SCRAM_SHA_512
from proxy.auth.server import MECHANISMS, SaslServerAuthenticators, SaslServerSettings
from proxy.cause import Cause
from proxy.network.channel import Channel
from tests.fakes.clock import MS
from tests.fakes.network import NetBench
from tests.fakes.sasl_frames import PASSWORD, known_apis
from tests.fakes.tls import TlsWorld
from tests.proxy.auth.conftest import Desk, usual_answer

pytestmark = pytest.mark.slow
METADATA = b"\0\x03"
FOREVER_S = 4e9


def with_metadata(question: q.Question) -> q.Answer:
    """As usual; and Metadata will be understood."""
    return known_apis(ApiRange(3, 0, 12)) if isinstance(question, q.SupportedApis) else usual_answer(question)


class Rig:
    """A listening socket, and a client of librdkafka's.

    Attributes:
        channels: accepted, in order.
        errors: what the client was told, by code.
    """

    def __init__(self, net: NetBench, desk: Desk, mechanisms: tuple[str, ...] = MECHANISMS, world: TlsWorld | None = None) -> None:
        self.net = net
        self.channels: list[Channel] = []
        self.errors: list[tuple[int, str]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        factory = SaslServerAuthenticators(SaslServerSettings(mechanisms, max_session_ms=600_000), desk)
        tls = None if world is None else world.server_settings()
        self._options = net.options(authenticators=factory, tls=tls, failed_authentication_delay_ns=MS)
        self._client: Any = None
        self._polling = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self, mechanism: str, password: str, **extra: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{self._listener.getsockname()[1]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "error_cb": lambda error: self.errors.append((error.code(), error.str())),
            "log_level": 0,
            "reconnect.backoff.ms": 10_000,
            **extra,
        }
        if mechanism == "OAUTHBEARER":
            settings["oauth_cb"] = lambda _: (password, FOREVER_S)
        else:
            settings |= {"sasl.username": "user", "sasl.password": password}
        self._client = confluent_kafka.Producer(settings)
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._polling.is_set():
            self._client.poll(0.02)

    def until(self, done: Callable[[], object]) -> None:
        """Serve until it is done."""
        for _ in range(20_000):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                pass
            else:
                accepted.setblocking(False)
                self.channels.append(self.net.register(accepted, len(self.channels) + 1, self._options))
            self.net.poll()
            self.net.clock.advance_ms(1)
            if done():
                return
            threading.Event().wait(0.001)
        pytest.fail(f"it never came to that; errors: {self.errors}")

    def close(self) -> None:
        self._polling.set()
        if self._thread is not None:
            self._thread.join(10)
        self._listener.close()


@pytest.fixture
def rig(net: NetBench, desk: Desk) -> Iterator[Rig]:
    desk.answer = with_metadata
    made = Rig(net, desk)
    yield made
    made.close()


def first_request(net: NetBench, channel: Channel) -> bytes:
    return net.listener.data.get(channel, b"")[4:6]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_it_authenticates_and_goes_on_with_its_requests(rig: Rig, mechanism: str) -> None:
    rig.connect(mechanism, "good" if mechanism == "OAUTHBEARER" else PASSWORD)
    rig.until(lambda: rig.channels and rig.channels[0].frames_received)
    channel = rig.channels[0]
    assert (channel.principal, channel.principal_type) == ("user", "User")
    assert first_request(rig.net, channel) == METADATA, "what comes after is the channel's, untouched"
    assert rig.errors == []


def test_it_authenticates_within_tls(net: NetBench, desk: Desk, tls_world: TlsWorld) -> None:
    desk.answer = with_metadata
    rig = Rig(net, desk, world=tls_world)
    try:
        more = {"security.protocol": "SASL_SSL", "ssl.ca.location": tls_world.authority, "ssl.endpoint.identification.algorithm": "none"}
        rig.connect(SCRAM_SHA_512, PASSWORD, **more)
        rig.until(lambda: rig.channels and rig.channels[0].frames_received)
        assert rig.channels[0].principal == "user"
    finally:
        rig.close()


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("PLAIN", "Authentication failed: Invalid username or password"),
        (SCRAM_SHA_256, "due to invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("OAUTHBEARER", "invalid_token"),
    ],
)
def test_it_is_told_why_it_is_refused(rig: Rig, mechanism: str, words: str) -> None:
    rig.connect(mechanism, "bad")
    rig.until(lambda: any(words in text for _, text in rig.errors))
    assert confluent_kafka.KafkaError._AUTHENTICATION in [code for code, _ in rig.errors]
    assert rig.channels[0].close_cause is Cause.AUTH_FAILED
    assert rig.channels[0].frames_received == 0


def test_it_is_told_which_mechanisms_there_are(net: NetBench, desk: Desk) -> None:
    rig = Rig(net, desk, ("PLAIN", SCRAM_SHA_256))
    try:
        rig.connect(SCRAM_SHA_512, PASSWORD)
        rig.until(lambda: any("PLAIN" in text and SCRAM_SHA_256 in text for _, text in rig.errors))
        assert rig.channels[0].close_cause is Cause.AUTH_FAILED
    finally:
        rig.close()
