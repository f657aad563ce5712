"""A real Kafka broker whose ACLs know one user alone: clients that are somebody else reach it through framegate, and not past it."""

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from framegate.proxy.auth.messages import SUPPORTED, ApiVersionsAnswer, RequestHeader, answer_reader
from tests.demo import broker, records
from tests.demo.kafka import create_topics
from tests.fakes.framegate import Framegate, Row
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.sasl_frames import versions
from tests.fakes.upstream import frame, read_frame

pytestmark = [pytest.mark.extended, *REAL_KAFKA]
GATE, SECRET = "gate", "canary-of-gate-7f3"
PASSWORD = "canary-of-clients-3c1"
SESSION_S = 4
TOPIC, COUNT = "orders", 500
_MODULE = "org.apache.kafka.common.security"
_SETTINGS = f"""authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.sasl.scram-sha-256.sasl.jaas.config={_MODULE}.scram.ScramLoginModule required;
listener.name.sasl.plain.connections.max.reauth.ms={SESSION_S * 1000}
listener.name.sasl.scram-sha-256.connections.max.reauth.ms={SESSION_S * 1000}
"""


class Behind:
    """A broker, and framegate before it: alice and bob become gate, each with another mechanism; carol with a password that is wrong."""

    def __init__(self, folder: Path, real: broker.Broker, undo: contextlib.ExitStack) -> None:
        self.broker = real
        with changing(folder / "users") as users:
            for name in ("alice", "bob", "carol"):
                users.add(name, new_credentials(PASSWORD, iterations=4096))
        self._folder = folder
        for name, text in (("gate", SECRET), ("wrong", "not-" + SECRET)):
            self.put(name, text)
        identities = [
            {"principals": ["alice"], "mechanism": "SCRAM-SHA-256", "user": GATE, "password_file": "gate"},
            {"principals": ["bob"], "mechanism": "PLAIN", "user": GATE, "password_file": "gate"},
            {"principals": ["carol"], "mechanism": "PLAIN", "user": GATE, "password_file": "wrong"},
        ]
        config = {
            "memory_pool": {"size": "32MiB"},
            "listeners": [
                {
                    "name": "kafka",
                    "address": "127.0.0.1:0",
                    "upstream": "brokers",
                    "protocol": "kafka",
                    "max_receive_size": "4MiB",
                    "sasl": {"mechanisms": ["PLAIN", "SCRAM-SHA-512"], "users": "users"},
                }
            ],
            "upstreams": [{"name": "brokers", "endpoints": [f"127.0.0.1:{real.ports['SASL']}"], "sasl": {"identities": identities}}],
        }
        self.proxy = undo.enter_context(Framegate(folder, config))

    def put(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text + "\n")
        (self._folder / name).chmod(0o600)

    def client(self, user: str, port: int = 0, **settings: Any) -> dict[str, Any]:
        """Settings of a client, through framegate unless a port is named."""
        return {
            "bootstrap.servers": f"127.0.0.1:{port or self.proxy.address('kafka')[1]}",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN" if port else "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            "log_level": 0,
            **settings,
        }


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    with contextlib.ExitStack() as undo:
        users = {GATE: SECRET, "alice": PASSWORD}
        real = undo.enter_context(broker.Broker(tmp_path_factory.mktemp("kafka"), users, settings=_SETTINGS))
        made = Behind(tmp_path_factory.mktemp("gate"), real, undo)
        real.start({"SASL": made.proxy.address("kafka")[1]})
        admin = AdminClient({"bootstrap.servers": real.internal_address})
        create_topics(admin, [NewTopic(TOPIC, 1, 1)])
        credential = UserScramCredentialUpsertion(GATE, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), SECRET.encode())
        waiting: list[Any] = list(admin.alter_user_scram_credentials([credential]).values())
        allowed = [(ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, "framegate-demo")]
        literal, every, allow = ResourcePatternType.LITERAL, AclOperation.ALL, AclPermissionType.ALLOW
        waiting += admin.create_acls([AclBinding(kind, name, literal, f"User:{GATE}", "*", every, allow) for kind, name in allowed]).values()
        for future in waiting:
            future.result(30)
        yield made


def test_the_broker_lets_alice_do_nothing(behind: Behind) -> None:
    error = exchange_once(behind, "alice", behind.broker.ports["SASL"])
    assert error is not None
    assert error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT), "she is known there, and nobody gave her anything"


def test_through_framegate_she_is_somebody_who_may(behind: Behind) -> None:
    settings = behind.client("alice")
    options = records.Options(bootstrap=settings.pop("bootstrap.servers"), topic=TOPIC, count=COUNT, client=settings)
    facts = records.exchange(options, lambda row: None)
    assert {name: facts[name] for name in ("produced", "consumed", "wrong", "missing", "doubled")} == {
        "produced": COUNT,
        "consumed": COUNT,
        "wrong": 0,
        "missing": 0,
        "doubled": 0,
    }
    assert exchange_once(behind, "bob") is None, "and so is he, with another mechanism"


def exchange_once(behind: Behind, user: str, port: int = 0) -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer = Producer(behind.client(user, port, **{"message.timeout.ms": 20_000}))
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(25)
    (error,) = errors
    return error


def test_sessions_that_the_broker_ends_are_renewed_under_traffic(behind: Behind) -> None:
    began_ns = time.time_ns()
    failed: list[KafkaError] = []
    sent = 0
    producer = Producer(behind.client("alice", **{"enable.idempotence": True}))
    deadline = time.monotonic() + 2.5 * SESSION_S
    while time.monotonic() < deadline:
        producer.produce(TOPIC, b"%d" % sent, on_delivery=lambda error, _: failed.append(error) if error is not None else None)
        sent += 1
        producer.poll(0.02)
    assert producer.flush(20) == 0
    assert (failed, sent > 100) == ([], True)
    closed = [row for row in behind.proxy.events("closed") if row["opened_ns"] > began_ns]
    assert [row for row in closed if row["cause"] != "peer_closed"] == [], "the broker would have ended each connection with its session"


def test_a_login_that_the_broker_refuses_is_in_the_log_in_its_words(behind: Behind) -> None:
    with pytest.raises(KafkaException):
        AdminClient(behind.client("carol")).list_topics(timeout=5)
    row = behind.proxy.wait_row(lambda row: row["event"] == "closed" and row["principal"] == "carol" and "not tried" not in row["detail"])
    assert (row["cause"], row["side"]) == ("auth_failed", "upstream")
    assert row["detail"].endswith(f"PLAIN as {GATE}: Authentication failed: Invalid username or password")
    assert exchange_once(behind, "bob") is None, "another login is not held back"
    assert SECRET not in json.dumps(behind.proxy.rows) + behind.proxy.errors


def test_what_the_broker_says_of_its_features_is_told_before_anybody_has_logged_in(behind: Behind) -> None:
    for version in (3, 4):
        said = []
        for port in (behind.broker.ports["SASL"], int(behind.proxy.address("kafka")[1])):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                sock.sendall(frame(versions(version)))
                said.append(ApiVersionsAnswer.read(answer_reader(read_frame(sock), RequestHeader(18, version, 7)), version))
        ours = {item.key for item in SUPPORTED.values()}
        epoch = 1  # grows with all that the cluster's metadata have
        assert [tag for tag in said[0].tags if tag[0] != epoch] == [tag for tag in said[1].tags if tag[0] != epoch]
        assert {0, 1, 2} <= {tag for tag, _ in said[1].tags}, "supported features, and those in force with their epoch"
        assert [[item for item in each.ranges if item.key not in ours] for each in said[1:]] == [[i for i in said[0].ranges if i.key not in ours]]


def test_javas_producer_waits_while_our_own_login_is_wrong_and_then_goes_on(behind: Behind, tmp_path: Path) -> None:
    module = f"{_MODULE}.plain.PlainLoginModule required username='carol' password='{PASSWORD}';"
    (tmp_path / "client").write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={module}\n")
    where = ["--bootstrap-server", f"127.0.0.1:{behind.proxy.address('kafka')[1]}", "--topic", TOPIC, "--command-config", str(tmp_path / "client")]
    command = [*broker.java_command(broker.cache_directory()), "org.apache.kafka.tools.ConsoleProducer", *where]
    began_ns = time.time_ns()
    producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert producer.stdin is not None
        producer.stdin.write("from java\n")
        producer.stdin.close()

        def refused() -> list[Row]:
            closed = [row for row in behind.proxy.events("closed") if row["opened_ns"] > began_ns]
            return [row for row in closed if row["principal"] == "carol" and row["cause"] == "auth_failed"]

        behind.proxy.wait_row(lambda row: len(refused()) >= 4, 60)
        assert producer.poll() is None, "it would have ended for good"
        behind.put("wrong", SECRET)
        assert producer.wait(60) == 0
        assert producer.stdout is not None
        said = producer.stdout.read()
        assert "SaslAuthenticationException" not in said
        assert "ERROR" not in said
    finally:
        producer.kill()
        producer.wait()
        if producer.stdout is not None:
            producer.stdout.close()
        behind.put("wrong", "not-" + SECRET)
