"""Clients that are not ours prove to a whole framegate who they are, with every mechanism, in plaintext and within TLS; and those who cannot go no
further. Behind it is a server that speaks as much of Kafka's protocol as they ask for and knows nothing of SASL.
"""

import contextlib
import json
import runpy
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

import confluent_kafka
from confluent_kafka.admin import AdminClient

from framegate.control.demo.certificates import Certificates
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from framegate.proxy.auth.server import MECHANISMS
from tests.fakes import kafka_server
from tests.fakes.framegate import Framegate
from tests.fakes.sasl_frames import handshake, versions
from tests.fakes.upstream import ScriptedUpstream, ask, frame, read_frame
from tests.fakes.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
USER, PASSWORD = "alice, of =accounts", "canary-7f3a9c-do-not-log"
ISSUER, AUDIENCE = "https://id.example.com", "kafka"


LEFT = {"peer_closed", "peer_reset"}  # by itself: who leaves while something for it is unread does so with a reset


class Issuer:
    """Signs tokens."""

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))

    def token(self, **claims: Any) -> str:
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": time.time() + 3600}
        return jwt.encode({**usual, **claims}, self._key, "ES256", headers={"kid": "k"})


class Rig:
    """A framegate with two listeners that ask for SASL, in plaintext and within TLS."""

    def __init__(self, folder: Path, certificates: Certificates, undo: contextlib.ExitStack, **sasl: Any) -> None:
        self.folder = folder
        self.certificates = certificates
        self.issuer = Issuer(folder)
        self.asked: list[int] = []  # keys of the requests that the server behind it got
        self._server = _kafka_server(folder)
        self.upstream = undo.enter_context(ScriptedUpstream(self._serve))
        self.put_user(USER, PASSWORD)
        tokens = {"jwks": "jwks.json", "issuer": ISSUER, "audience": AUDIENCE, "scopes": ["produce"]}
        common = {
            "upstream": "kafka",
            "protocol": "kafka",
            "max_receive_size": "1MiB",
            "timeouts": {"failed_authentication": "0ms"},
            "sasl": {"mechanisms": list(MECHANISMS), "users": "users", "tokens": tokens, **sasl},
        }
        tls = {"certificate": str(certificates.server), "key": str(certificates.server_key)}
        config = {
            "rotation": {"poll": "100ms", "grace": "300ms"},
            "memory_pool": {"size": "16MiB"},
            "listeners": [{"name": "plain", "address": "127.0.0.1:0", **common}, {"name": "tls", "address": "127.0.0.1:0", **common, "tls": tls}],
            "upstreams": [{"name": "kafka", "endpoints": [self.upstream.address]}],
        }
        self.proxy = undo.enter_context(Framegate(folder, config))

    def put_user(self, name: str, password: str) -> None:
        with changing(self.folder / "users") as users:
            users.add(name, new_credentials(password, iterations=4096), replace=True)

    def _serve(self, sock: socket.socket) -> None:
        server = self._server()
        while True:
            request = read_frame(sock)
            self.asked.append(int.from_bytes(request[:2], "big"))
            answer = server.handle(request, None)
            if not isinstance(answer, bytes):
                return
            sock.sendall(frame(answer))

    def settings(self, listener: str, mechanism: str, password: str = PASSWORD, user: str = USER) -> Any:
        """Of a client of librdkafka's."""
        port = self.proxy.address(listener)[1]
        (self.folder / "port").write_text(str(port))
        found: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_SSL" if listener == "tls" else "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "log_level": 0,
            "reconnect.backoff.ms": 10_000,
            "reconnect.backoff.max.ms": 10_000,
        }
        if listener == "tls":
            found |= {"ssl.ca.location": str(self.certificates.ca), "ssl.endpoint.identification.algorithm": "none"}
        if mechanism == "OAUTHBEARER":
            return {**found, "oauth_cb": lambda _: (self.issuer.token(scope="produce consume"), time.time() + 3600)}
        return {**found, "sasl.username": user, "sasl.password": password}

    def wait_since(self, count: int, **fields: Any) -> dict[str, Any]:
        """The first row with these fields behind so many."""
        return self.proxy.wait_row(lambda row: row in self.proxy.rows[count:] and fields.items() <= row.items())

    def refusal(self, settings: dict[str, Any]) -> str:
        """What a client that is refused prints, once its connection has ended."""
        errors: list[str] = []

        def on_error(error: confluent_kafka.KafkaError) -> None:
            if error.code() == confluent_kafka.KafkaError._AUTHENTICATION:
                errors.append(error.str())

        client = confluent_kafka.Producer({**settings, "error_cb": on_error})
        until(lambda: client.poll(0.02) is not None and errors, "it is not refused", 20)
        return errors[0]


def _kafka_server(folder: Path) -> Any:
    """The class, of a copy that looks for its port in the folder."""
    shutil.copy(kafka_server.__file__, folder / "served.py")
    return runpy.run_path(str(folder / "served.py"))["KafkaServer"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, made: Certificates) -> Iterator[Rig]:
    with contextlib.ExitStack() as undo:
        yield Rig(tmp_path_factory.mktemp("sasl"), made, undo)


@pytest.mark.parametrize("listener", ["plain", "tls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_proves_who_it_is_is_answered_and_named(rig: Rig, listener: str, mechanism: str) -> None:
    before, rows = len(rig.asked), len(rig.proxy.rows)
    client = AdminClient(rig.settings(listener, mechanism))
    found = client.list_topics(timeout=20)
    assert (found.cluster_id, list(found.topics)) == (kafka_server.CLUSTER, [kafka_server.TOPIC])
    assert set(rig.asked[before:]) <= {kafka_server.METADATA, kafka_server.API_VERSIONS}, "SASL is none of the upstream's"
    del client, found
    closed = rig.wait_since(rows, event="closed", listener=listener)
    assert (closed["principal"], closed["mechanism"]) == (USER, mechanism)
    assert closed["cause"] in LEFT


@pytest.mark.parametrize(
    ("mechanism", "user", "password", "words", "detail"),
    [
        ("PLAIN", USER, "wrong", "Authentication failed: Invalid username or password", "PLAIN: wrong password"),
        ("PLAIN", "nobody", PASSWORD, "Authentication failed: Invalid username or password", "PLAIN: no such user"),
        ("SCRAM-SHA-256", USER, "wrong", "due to invalid credentials with SASL mechanism SCRAM-SHA-256", "SCRAM-SHA-256: "),
        ("SCRAM-SHA-512", "nobody", PASSWORD, "due to invalid credentials with SASL mechanism SCRAM-SHA-512", "SCRAM-SHA-512: "),
    ],
)
def test_who_cannot_is_told_what_kafka_says_and_goes_no_further(rig: Rig, mechanism: str, user: str, password: str, words: str, detail: str) -> None:
    before, rows = len(rig.asked), len(rig.proxy.rows)
    assert words in rig.refusal(rig.settings("plain", mechanism, password, user))
    row = rig.wait_since(rows, event="closed", cause="auth_failed")
    assert row["detail"].startswith(detail)
    assert (row["side"], row["principal"], row["mechanism"], len(rig.asked)) == ("downstream", None, None, before)


def test_a_user_that_is_added_while_it_runs_may_come_in_and_one_whose_password_is_another_may_not(rig: Rig) -> None:
    settings = rig.settings("plain", "PLAIN", "first", "bob")
    assert rig.refusal(settings)
    for password in ("first", "second"):
        rows = len(rig.proxy.rows)
        rig.put_user("bob", password)
        for name in ("plain", "tls"):
            rig.wait_since(rows, event="files_replaced", owner=f"listener/{name}", kind="sasl")
        assert AdminClient(rig.settings("plain", "PLAIN", password, "bob")).list_topics(timeout=20).topics
    assert rig.refusal(settings), "the old password"


def test_what_the_upstream_understands_is_told_before_anybody_has_said_who_he_is(rig: Rig) -> None:
    with rig.proxy.connect("plain") as client:
        answer = ask(client, versions(0, 5))
        keys = [int.from_bytes(answer[at : at + 2], "big") for at in range(10, len(answer), 6)]
        assert keys == [kafka_server.METADATA, 17, kafka_server.API_VERSIONS, 36]
        refused = ask(client, handshake("SCRAM-SHA-1", 6))
        assert all(name.encode() in refused for name in MECHANISMS)
        assert client.recv(1) == b""
        assert rig.proxy.closed_row(client)["cause"] == "auth_failed"


@pytest.mark.extended
def test_a_session_that_ends_is_begun_anew_in_the_same_connection(tmp_path: Path, made: Certificates) -> None:
    """Two clients, each by its own mechanism. Real time: the client's own timer begins it, and none lasts less than a second."""
    mechanisms = ("SCRAM-SHA-256", "PLAIN")
    with contextlib.ExitStack() as undo:
        rig = Rig(tmp_path, made, undo, max_session="1500ms")
        clients = [AdminClient(rig.settings("tls", mechanism)) for mechanism in mechanisms]
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            for client in clients:
                assert client.list_topics(timeout=20).topics
            time.sleep(0.05)
        for mechanism in mechanisms:
            labels = {"framegate_listener": "tls", "framegate_sasl_mechanism": mechanism}
            assert rig.proxy.metric("framegate_authentication_count_total", **labels) >= 4
        accepted = rig.proxy.metric("framegate_connection_accepted_total", framegate_listener="tls")
        assert accepted <= 2 * len(clients), "of librdkafka's, one may be the bootstrap"
        assert {row["cause"] for row in rig.proxy.events("closed")} <= LEFT
        assert set(rig.asked) <= {kafka_server.METADATA, kafka_server.API_VERSIONS}


def test_what_became_of_logins_is_counted(rig: Rig) -> None:
    labels = {"framegate_listener": "plain", "framegate_sasl_mechanism": "PLAIN"}
    assert rig.proxy.metric("framegate_authentication_count_total", **labels) >= 2
    assert rig.proxy.metric("framegate_authentication_count_total", **labels, error_type="credentials") >= 2
    assert rig.proxy.metric("framegate_authentication_count_total", framegate_listener="plain", error_type="mechanism") == 1
    assert rig.proxy.metric("framegate_authentication_questions_refused_total") == 0
    page = rig.proxy.metrics()

    def total(name: str, *labels: str) -> float:
        return sum(value for key, value in page.items() if key.partition("{")[0] == f"framegate_{name}" and all(label in key for label in labels))

    assert total("authentication_duration_seconds_count") == total("authentication_count_total"), "each has its time"
    assert total("tls_handshake_count_total") == total("tls_handshake_count_total", 'framegate_side="downstream"') >= 1
    assert total("tls_handshake_duration_seconds_count", 'error_type="other"') == 0, "who is refused by SASL has shaken hands"
    assert total("kafka_request_duration_seconds_count", 'framegate_kafka_api="Metadata"') >= 1
    asked, answered = (total("kafka_request_io_bytes_total", f'framegate_direction="{way}"') for way in ("request", "response"))
    assert (asked > 0, answered > 0) == (True, True)
