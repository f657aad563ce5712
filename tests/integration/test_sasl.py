"""A real Kafka broker: the client authenticator logs in with every mechanism, is told why not, and learns how long it is good."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.secrets import Secrets
from framegate.proxy.auth.auth_requests import CredentialSource, PendingAuth
from framegate.proxy.auth.client import SaslClientAuthenticators, SaslClientSettings
from framegate.proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512
from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import NEVER
from tests.demo import broker
from tests.fakes.clock import SECOND
from tests.fakes.network import NetBench, net_bench
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.sasl_frames import versions

pytestmark = [pytest.mark.extended, *REAL_KAFKA]
USER, PASSWORD = "alice", "canary-7f3a9c"
LIFETIME_S = 40
MODULES = {SCRAM_SHA_256: "scram.ScramLoginModule", SCRAM_SHA_512: "scram.ScramLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A broker's listener with every mechanism and sessions of 40 s."""
    lines = [f"listener.name.sasl.sasl.enabled.mechanisms=PLAIN,{','.join(MODULES)}"]
    for name, module in MODULES.items():
        extra = ' unsecuredLoginStringClaim_sub="broker"' if name == "OAUTHBEARER" else ""
        lines.append(f"listener.name.sasl.{name.lower()}.sasl.jaas.config=org.apache.kafka.common.security.{module} required{extra};")
        lines.append(f"listener.name.sasl.{name.lower()}.connections.max.reauth.ms={LIFETIME_S * 1000}")
    with broker.Broker(tmp_path_factory.mktemp("kafka"), {USER: PASSWORD}, settings="\n".join(lines) + "\n") as real:
        real.start({})
        admin = AdminClient({"bootstrap.servers": real.internal_address})
        kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        wanted = [UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 8192), PASSWORD.encode()) for kind in kinds]
        for credential in wanted:
            for future in admin.alter_user_scram_credentials([credential]).values():
                future.result(30)
        yield "127.0.0.1", real.ports["SASL"]


@pytest.fixture
def net() -> Iterator[NetBench]:
    with net_bench() as bench:
        yield bench


class AtOnce(CredentialSource):
    """Has the control process's answers in this one."""

    def __init__(self, answers: AuthResponder) -> None:
        self._answers = answers

    def ask(self, inquiry: PendingAuth) -> None:
        inquiry.complete(self._answers.answer(inquiry.auth_request))

    def forget(self, inquiry: PendingAuth) -> None:
        raise AssertionError("nothing is ever open")


def unsigned_token(user: str) -> str:
    """As the broker's own test mode has it."""
    claims = {"sub": user, "iat": time.time() - 1, "exp": time.time() + 3600}
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, claims))
    return f"{head}.{body}."


def login(net: NetBench, address: tuple[str, int], folder: Path, mechanism: str, secret: str, user: str = USER) -> Channel:
    """A channel that has logged in, or has not."""
    (folder / "secret").write_text(secret + "\n")
    source = AtOnce(AuthResponder(secrets=Secrets({"brokers": str(folder / "secret")})))
    settings = SaslClientSettings(mechanism, "" if mechanism == "OAUTHBEARER" else user, "brokers")
    options = net.options(side="upstream", authenticators=SaslClientAuthenticators(settings, source))
    channel = net.connect(2, address, 1, options)
    deadline = time.monotonic() + 30
    while not channel.is_open and channel.close_cause is None:
        assert time.monotonic() < deadline
        net.poll()
        time.sleep(0.001)
    return channel


@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES, "OAUTHBEARER"])
def test_it_logs_in_and_requests_are_answered(net: NetBench, address: tuple[str, int], tmp_path: Path, mechanism: str) -> None:
    channel = login(net, address, tmp_path, mechanism, unsigned_token(USER) if mechanism == "OAUTHBEARER" else PASSWORD)
    assert (channel.is_open, channel.detail) == (True, "")
    assert channel.expires_ns == (NEVER if mechanism == "PLAIN" else net.clock.now + LIFETIME_S * SECOND)
    body = versions(3, 77)
    data = len(body).to_bytes(4, "big") + body
    channel.send(Run(None, 0, data, 0, len(data), 1, 0))
    deadline = time.monotonic() + 30
    while channel.frames_received == 0:
        assert time.monotonic() < deadline
        net.poll()
        time.sleep(0.001)
    assert net.listener.data[channel][4:10] == b"\0\0\0\x4d\0\0", "the answer to our request, and no error"


@pytest.mark.parametrize(
    ("mechanism", "secret", "user", "words"),
    [
        ("PLAIN", "wrong", USER, "Authentication failed: Invalid username or password"),
        (SCRAM_SHA_256, "wrong", USER, "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        (SCRAM_SHA_512, PASSWORD, "nobody", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("OAUTHBEARER", "not.a.token", "", "invalid"),
    ],
)
def test_it_is_told_why_not(net: NetBench, address: tuple[str, int], tmp_path: Path, mechanism: str, secret: str, user: str, words: str) -> None:
    channel = login(net, address, tmp_path, mechanism, secret, user)
    assert channel.close_cause is Cause.AUTH_FAILED
    assert words in channel.detail
    assert PASSWORD not in channel.detail
    assert getattr(channel.error, "side", "") == "upstream"


def test_a_secret_that_is_not_there_ends_the_login(net: NetBench, address: tuple[str, int], tmp_path: Path) -> None:
    channel = login(net, address, tmp_path, "PLAIN", "")
    assert channel.close_cause is Cause.AUTH_FAILED
    assert "holds no secret in one line" in channel.detail


def test_a_mechanism_that_is_not_enabled_is_named(net: NetBench, address: tuple[str, int], tmp_path: Path) -> None:
    channel = login(net, address, tmp_path, "SCRAM-SHA-1", PASSWORD)
    assert channel.close_cause is Cause.AUTH_FAILED
    assert "SCRAM-SHA-1 is not enabled; enabled are " in channel.detail
