"""A real Kafka broker and one framegate before it, with a listener for each way through; who may come in, and whom the broker then sees.

========== ==================================================================================== ==============================================
through    what framegate does                                                                   what the broker sees
========== ==================================================================================== ==============================================
terminated knows the client (TLS, mTLS, or SASL within TLS)                                      ``gate``, by certificate or by SCRAM
swapped    knows the client (TLS, mTLS, or SASL in plaintext), and has an identity for each      ``orders_WAY``, by another mechanism each
passed     knows TLS alone; what clients and broker say about SASL goes through                  the client: ``alice_WAY``
renewed    as swapped; sessions last 5 s on both sides                                           as swapped
========== ==================================================================================== ==============================================

The broker's ACLs give each of those the topics and groups that are called ``THROUGH_WAY_…``, and nothing else.
"""

import contextlib
import dataclasses
import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
from confluent_kafka import Consumer, TopicPartition
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
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.demo import broker
from tests.demo.kafka import create_topics
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Row
from tests.fakes.sasl_frames import versions
from tests.fakes.upstream import frame, read_frame
from tests.peers.clients import Entry, run

SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = ("TLS", "mTLS", *SASL)
THROUGH = ("terminated", "swapped", "passed")
BECOMES = dict(zip(WAYS, ("PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER", "PLAIN", "SCRAM-SHA-512"), strict=True))
"""By which mechanism framegate is somebody else, for each way that a client came in."""
GATE = "gate"
SESSION_S = 5
ISSUER, AUDIENCE = "https://id.example.com", "kafka"
LISTENERS = {
    "TERMINATED-TLS": "SSL",
    "TERMINATED-SASL": "SASL_SSL",
    "SWAPPED-TLS": "SASL_PLAINTEXT",
    "SWAPPED-SASL": "SASL_SSL",
    "PASSED": "SASL_SSL",
    "RENEWED": "SASL_PLAINTEXT",
}
_MODULE = "org.apache.kafka.common.security"
_ITERATIONS = 4096


def short(way: str) -> str:
    """A way's name within names of users and topics."""
    return way.lower().replace("-", "_")


def person(way: str) -> str:
    return f"alice_{short(way)}"


def orders(way: str) -> str:
    """The principal that the broker sees when the client of that way was swapped."""
    return f"orders_{short(way)}"


def password(user: str) -> str:
    return f"canary-of-{user}-7f3"


class Issuer:
    """Signs tokens, and writes the file of its public keys."""

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        self.jwks = folder / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": [{**public, "kid": "k", "use": "sig", "alg": "ES256"}]}))

    def token(self, user: str, **claims: Any) -> str:
        now = int(time.time())
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now - 7200, "exp": now + 3600, "scope": "produce"}
        return jwt.encode({**usual, **claims}, self._key, "ES256", headers={"kid": "k"})


class World:
    """Broker, framegate, people; see the module."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.issuer = Issuer(folder)
        self._server = self.authority.leaf("server")
        self._gate = self.authority.leaf(GATE)
        self.certificate = self.authority.leaf(person("mTLS"))
        self.revoked = self.authority.leaf("revoked")
        self._entries = 0
        users = [GATE, *(name(way) for way in WAYS for name in (person, orders))]
        jwks = {"urls": self.issuer.jwks.as_uri(), "files": str(self.issuer.jwks)}
        options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{name}={value}" for name, value in jwks.items()]
        self.broker = undo.enter_context(broker.Broker(folder / "kafka", listeners=LISTENERS, settings=self._settings(users), options=options))
        self.proxy = undo.enter_context(Framegate(folder / "gate", self._config()))
        self.broker.start({name: self.proxy.address(name.lower())[1] for name in LISTENERS})
        self.admin = AdminClient({"bootstrap.servers": self.broker.internal_address, "log_level": 0})
        self._inspector = Consumer({"bootstrap.servers": self.broker.internal_address, "group.id": "inspector", "log_level": 0})
        undo.callback(self._inspector.close)
        self._make_users(users)
        for name in ("terminated-sasl", "swapped-sasl", "renewed"):
            self._wait_until_known(name)

    # --- the broker ------------------------------------------------------------------------------------------------------------

    def _settings(self, users: list[str]) -> str:
        both = self.folder / "broker.pem"
        both.write_text(Path(self._server[1]).read_text() + Path(self._server[0]).read_text())
        lines = [
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",  # who comes in past framegate, at the listener for ourselves
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={both}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.authority.path}",
            "ssl.principal.mapping.rules=RULE:^CN=([^,]+),.*$/$1/",
            "listener.name.terminated-tls.ssl.client.auth=required",
        ]
        known = " ".join(f'user_{user}="{password(user)}"' for user in users)
        modules = dict.fromkeys(SASL[1:3], f"{_MODULE}.scram.ScramLoginModule required;")
        modules |= {
            "PLAIN": f"{_MODULE}.plain.PlainLoginModule required {known};",
            "OAUTHBEARER": f"{_MODULE}.oauthbearer.OAuthBearerLoginModule required;",
        }
        for name in (name.lower() for name, protocol in LISTENERS.items() if protocol.startswith("SASL")):
            at = f"listener.name.{name}"
            lines.append(f"{at}.sasl.enabled.mechanisms={','.join(SASL)}")
            lines += [f"{at}.{mechanism.lower()}.sasl.jaas.config={module}" for mechanism, module in modules.items()]
            lines.append(f"{at}.oauthbearer.sasl.server.callback.handler.class={_MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler")
            lines.append(f"{at}.sasl.oauthbearer.jwks.endpoint.url={self.issuer.jwks.as_uri()}")
            lines += [f"{at}.sasl.oauthbearer.expected.audience={AUDIENCE}", f"{at}.sasl.oauthbearer.expected.issuer={ISSUER}"]
        lines += [f"listener.name.renewed.{mechanism.lower()}.connections.max.reauth.ms={SESSION_S * 1000}" for mechanism in SASL]
        return "\n".join(lines) + "\n"

    def _make_users(self, users: list[str]) -> None:
        hashes = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        made = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, _ITERATIONS), password(user).encode()) for user in users for kind in hashes
        ]
        waiting: list[Any] = []
        for credential in made:
            waiting += self.admin.alter_user_scram_credentials([credential]).values()
        prefixes = {GATE: "terminated_"}
        prefixes |= {person(way): f"passed_{short(way)}_" for way in WAYS} | {orders(way): f"swapped_{short(way)}_" for way in WAYS}
        kinds, prefixed, every, allow = (
            (ResourceType.TOPIC, ResourceType.GROUP),
            ResourcePatternType.PREFIXED,
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        acls = [AclBinding(kind, prefix, prefixed, f"User:{user}", "*", every, allow) for user, prefix in prefixes.items() for kind in kinds]
        waiting += self.admin.create_acls(acls).values()
        for future in waiting:
            future.result(30)

    def _wait_until_known(self, listener: str) -> None:
        """Wait until framegate, which was started before the broker, knows its API versions: earlier clients are refused."""
        tls = ssl.create_default_context(cafile=str(self.authority.path)) if listener == "terminated-sasl" else None
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(EOFError, OSError), self.proxy.connect(listener, tls) as client:
                client.sendall(frame(versions(0)))
                read_frame(client)
                return
            assert time.monotonic() < deadline, "the broker was not reached"
            time.sleep(0.1)

    def topic(self, through: str, way: str, name: str) -> str:
        """Create a topic with one partition that the principal of a way may use; its name."""
        found = f"{through}_{short(way)}_{re.sub('[^a-z]', '_', name)}"
        create_topics(self.admin, [NewTopic(found, 1, 1)])
        return found

    def count(self, topic: str) -> int:
        """How many records are in it, as the broker says."""
        low, high = self._inspector.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        return int(high) - int(low)

    def broker_says(self, listener: str, attribute: str) -> float:
        """The sum of a metric of its network threads, of one listener."""
        jmx = self.broker.ports["JMX"]
        words = ["--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{jmx}/jmxrmi", "--one-time", "--report-format", "tsv"]
        query = ["--object-name", f"kafka.server:type=socket-server-metrics,listener={listener},networkProcessor=*", "--attributes", attribute]
        tool = [*broker.java_command(broker.cache_directory()), "org.apache.kafka.tools.JmxTool", *words, *query]
        said = run(tool, [])
        found = [line.rpartition("\t")[2] for line in said.lines if attribute in line]
        assert found, said.text
        return sum(map(float, found))

    # --- framegate -------------------------------------------------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        gate = self.folder / "gate"
        gate.mkdir()
        with changing(gate / "users") as users:
            for way in SASL:
                users.add(person(way), new_credentials(password(person(way)), iterations=_ITERATIONS))
        for user in (GATE, *map(orders, WAYS)):
            for kind, secret in (("password", password(user)), ("token", self.issuer.token(user))):
                file = gate / f"{user}.{kind}"
                file.touch(0o600)
                file.write_text(secret + "\n")
        tls = {"certificate": self._server[0], "key": self._server[1]}
        ca = str(self.authority.path)
        asked = {**tls, "client_auth": "requested", "client_ca": ca, "crl": [self.authority.revocations(self.revoked[0])]}
        tokens = {"jwks": str(self.issuer.jwks), "issuer": ISSUER, "audience": AUDIENCE, "scopes": ["produce"]}
        sasl = {"mechanisms": list(SASL), "users": "users", "tokens": tokens}
        principal = {"rules": ["RULE:^CN=([^,]+),.*$/$1/"]}
        listeners: dict[str, dict[str, Any]] = {
            "terminated-tls": {"tls": asked, "principal": principal},
            "terminated-sasl": {"tls": asked, "sasl": sasl},
            "swapped-tls": {"tls": asked, "principal": principal},
            "swapped-sasl": {"sasl": sasl},
            "passed": {"tls": tls},
            "renewed": {"sasl": {**sasl, "max_session": f"{SESSION_S}s"}},
        }
        swap = {"identities": [self._identity(way) for way in WAYS]}
        upstreams: dict[str, dict[str, Any]] = {
            "terminated-tls": {"tls": {"ca": ca, "certificate": self._gate[0], "key": self._gate[1]}},
            "terminated-sasl": {"tls": {"ca": ca}, "sasl": {"mechanism": "SCRAM-SHA-512", "user": GATE, "password_file": f"{GATE}.password"}},
            "swapped-tls": {"sasl": swap},
            "swapped-sasl": {"tls": {"ca": ca}, "sasl": swap},
            "passed": {"tls": {"ca": ca}},
            "renewed": {"sasl": swap},
        }
        common = {"address": "127.0.0.1:0", "protocol": "kafka", "max_receive_size": "4MiB"}
        return {
            "memory_pool": {"size": "64MiB"},
            "listeners": [{"name": name, "upstream": name, **common, **keys} for name, keys in listeners.items()],
            "upstreams": [{"name": name, "endpoints": [f"127.0.0.1:{self.broker.ports[name.upper()]}"], **keys} for name, keys in upstreams.items()],
            "tap": {"directory": "tap", "rules": [{"name": "passed", "listeners": ["passed"]}]},
        }

    @staticmethod
    def _identity(way: str) -> dict[str, Any]:
        """The identity towards the broker of the client of a way."""
        mechanism, user = BECOMES[way], orders(way)
        found = {"principals": ["ANONYMOUS" if way == "TLS" else person(way)], "mechanism": mechanism}
        return (
            {**found, "token_file": f"{user}.token"} if mechanism == "OAUTHBEARER" else {**found, "user": user, "password_file": f"{user}.password"}
        )

    def entry(self, through: str, way: str, **other: Any) -> Entry:
        """How a client comes in; ``other`` says what it does otherwise than it should."""
        listener = self._listener(through, way)
        self._entries += 1
        folder = self.folder / f"client-{self._entries}"
        folder.mkdir()
        tls = {item["name"]: "tls" in item for item in self.proxy.config["listeners"]}
        found = Entry(folder=str(folder), port=self.proxy.address(listener)[1], ca=str(self.authority.path), tls=tls[listener])
        if way == "mTLS":
            found = dataclasses.replace(found, certificate=self.certificate[0], key=self.certificate[1])
        elif way == "OAUTHBEARER":
            found = dataclasses.replace(found, mechanism=way, token=self.issuer.token(person(way)))
        elif way in SASL:
            found = dataclasses.replace(found, mechanism=way, user=person(way), password=password(person(way)))
        return dataclasses.replace(found, **other)

    def closed_since(self, began_ns: int, through: str, way: str, cause: str = "") -> list[Row]:
        """The rows of connections that began then or later and have ended, with that cause if one is named: one at least."""
        listener = self._listener(through, way)

        def fits(row: Row) -> bool:
            return row["event"] == "closed" and row["listener"] == listener and row["opened_ns"] >= began_ns and cause in ("", row["cause"])

        self.proxy.wait_row(fits)
        return [row for row in list(self.proxy.rows) if fits(row)]

    @staticmethod
    def _listener(through: str, way: str) -> str:
        return through if through in ("passed", "renewed") else f"{through}-{'sasl' if way in SASL else 'tls'}"


@contextlib.contextmanager
def open_world(folder: Path) -> Iterator[World]:
    with contextlib.ExitStack() as undo:
        yield World(folder, undo)
