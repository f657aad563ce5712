"""Three real brokers that know nothing of framegate, and one framegate before them: a listener for each way in, by ports and by hosts.

===== ========================================================= =====================================================
way   clients                                                   brokers see
===== ========================================================= =====================================================
plain plaintext                                                 plaintext
TLS   TLS                                                       TLS
mTLS  TLS with a certificate of their own                       TLS with framegate's certificate
SASL  SASL PLAIN, by ports in plaintext and by hosts within TLS TLS, and SCRAM-SHA-512 as another user (``swapped``)
===== ========================================================= =====================================================

The clients are in a namespace in which the names of ``hosts`` exist, and in which they reach framegate and no broker; the attempts are counted.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.demo.brokers import Cluster, Watch
from tests.demo.kafka import create_topics
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate
from tests.fakes.ports import free_ports
from tests.fakes.waiting import until
from tests.peers.clients import Entry
from tests.peers.namespace import HOST, Namespace

BY: Final = ("ports", "hosts")
WAYS: Final = ("plain", "TLS", "mTLS", "SASL")
NODES: Final = (11, 12, 13)
DOMAIN: Final = "kafka.test"
_LISTENERS: Final = {"TLS": "SSL", "MTLS": "SSL", "SASL": "SASL_SSL"}
_SPACING: Final = 20  # ports of a listener: the bootstrap's, then one for each node id from 0 on
_USER, _OTHER = "alice", "orders"
_PASSWORDS: Final = {_USER: "canary-of-alice-7f3", _OTHER: "canary-of-orders-7f3"}
_ITERATIONS: Final = 4096
_READY_S: Final = 30.0


class ClusterWorld:
    """Brokers, framegate and a watch for connections past it; see the module."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self._folder = folder
        self._entries = 0
        self.authority = Authority(folder)
        names = (DOMAIN, *(self._broker_name(node) for node in NODES))
        self._server = self.authority.leaf("server", hosts=names, addresses=(HOST,))
        self._gate = self.authority.leaf("gate")
        self._client = self.authority.leaf(_USER)
        self.ports = free_ports(len(WAYS) * _SPACING + len(WAYS))
        self.namespace = undo.enter_context(Namespace(folder, names))  # of the clients
        self.cluster = undo.enter_context(Cluster(folder / "kafka", nodes=NODES, listeners=_LISTENERS, settings=self._settings()))
        self.cluster.start()
        # of the cluster, past framegate
        self.admin = AdminClient({"bootstrap.servers": ",".join(self.cluster.bootstrap("INTERNAL")), "log_level": 0})
        other = UserScramCredentialUpsertion(_OTHER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS), _PASSWORDS[_OTHER].encode())
        self.admin.alter_user_scram_credentials([other])[_OTHER].result(_READY_S)
        self.proxy = undo.enter_context(Framegate(folder / "gate", self._config()))
        # sees the connections to the brokers from outside of the namespace, which are framegate's
        self.watch = undo.enter_context(Watch(self.cluster, self.proxy.process.pid))
        for way in WAYS:
            self._wait_until_told(way)

    def entry(self, by: str, way: str) -> Entry:
        """Where a client comes in, and as whom."""
        self._entries += 1
        folder = self._folder / f"client-{self._entries}"
        folder.mkdir()
        host = HOST if by == "ports" else DOMAIN
        found = Entry(folder=str(folder), host=host, port=self._port(by, way), ca=str(self.authority.path), tls=self._tls(by, way))
        if way == "mTLS":
            return dataclasses.replace(found, certificate=self._client[0], key=self._client[1])
        return found if way != "SASL" else dataclasses.replace(found, mechanism="PLAIN", user=_USER, password=_PASSWORDS[_USER])

    def told(self, by: str, way: str) -> set[str]:
        """The addresses of the brokers that a client may read."""
        port = self._port(by, way)
        return {f"{HOST}:{port + 1 + node}" if by == "ports" else f"{self._broker_name(node)}:{port}" for node in NODES}

    def make_topic(self, name: str) -> None:
        """Create a topic with 3 partitions and 3 replicas past framegate, for a client that cannot."""
        create_topics(self.admin, [NewTopic(name, 3, 3)])

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=60).topics)

    def reached(self, way: str) -> set[int]:
        """The brokers to which framegate had a connection at the listener of a way."""
        at = {broker.client_addresses[way.upper()]: node for node, broker in self.cluster.brokers.items()}
        return {at[address] for address in self.watch.seen if address in at}

    @staticmethod
    def _broker_name(node: int | str) -> str:
        return f"broker-{node}.{DOMAIN}"

    @staticmethod
    def _tls(by: str, way: str) -> bool:
        return way in ("TLS", "mTLS") or (way, by) == ("SASL", "hosts")

    def _port(self, by: str, way: str) -> int:
        number = WAYS.index(way)
        return self.ports[number * _SPACING if by == "ports" else len(WAYS) * _SPACING + number]

    def _settings(self) -> str:
        """Of the brokers: TLS, and the hashes of passwords, which are made later."""
        names = tuple(f"127.0.1.{node}" for node in NODES)
        certificate, key = self.authority.leaf("brokers", addresses=names)
        both = self._folder / "brokers.pem"
        both.write_text(Path(key).read_text() + Path(certificate).read_text())
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return (
            f"ssl.keystore.type=PEM\nssl.keystore.location={both}\nssl.truststore.type=PEM\nssl.truststore.location={self.authority.path}\n"
            "listener.name.mtls.ssl.client.auth=required\nlistener.name.sasl.sasl.enabled.mechanisms=SCRAM-SHA-512\n"
            f"listener.name.sasl.scram-sha-512.sasl.jaas.config={scram}\n"
        )

    def _config(self) -> dict[str, Any]:
        gate = self._folder / "gate"
        gate.mkdir()
        with changing(gate / "users") as users:
            users.add(_USER, new_credentials(_PASSWORDS[_USER], iterations=_ITERATIONS))
        secret = gate / f"{_OTHER}.password"
        secret.touch(0o600)
        secret.write_text(_PASSWORDS[_OTHER] + "\n")
        ca = str(self.authority.path)
        tls = {"certificate": self._server[0], "key": self._server[1]}
        identity = {"principals": [_USER], "mechanism": "SCRAM-SHA-512", "user": _OTHER, "password_file": secret.name}
        kept: dict[str, dict[str, Any]] = {
            "mTLS": {"tls": {**tls, "client_auth": "required", "client_ca": ca}},
            "SASL": {"sasl": {"mechanisms": ["PLAIN"], "users": "users"}},
        }
        upstreams: dict[str, dict[str, Any]] = {
            "plain": {},
            "TLS": {"tls": {"ca": ca}},
            "mTLS": {"tls": {"ca": ca, "certificate": self._gate[0], "key": self._gate[1]}},
            "SASL": {"tls": {"ca": ca}, "sasl": {"identities": [identity]}},
        }
        listeners = []
        for way, by in ((way, by) for way in WAYS for by in BY if (way, by) != ("plain", "hosts")):
            port = self._port(by, way)
            if by == "ports":
                brokers: dict[str, Any] = {"ports": f"{port + 1}-{port + _SPACING - 1}", "advertise": HOST}
            else:
                brokers = {"hosts": self._broker_name("{id}"), "advertise": DOMAIN}
            keys = {**({"tls": tls} if self._tls(by, way) else {}), **kept.get(way, {}), "brokers": brokers}
            keys |= {"protocol": "kafka", "max_receive_size": "4MiB"}
            listeners.append({"name": f"{by}-{way.lower()}", "address": f"{HOST}:{port}", "upstream": way.lower(), **keys})
        clusters = [{"name": way.lower(), "kafka": {"bootstrap": self.cluster.bootstrap(way.upper())[:2]}, **keys} for way, keys in upstreams.items()]
        return {"memory_pool": {"size": "64MiB"}, "listeners": listeners, "upstreams": clusters}

    def _wait_until_told(self, way: str) -> None:
        """Wait until clients are told the brokers' addresses, which framegate finds at its start, or by the first answer that passes."""
        entry = self.entry("ports", way)
        settings = {"bootstrap.servers": entry.address, "log_level": 0, "security.protocol": ("SASL_" if way == "SASL" else "") + "PLAINTEXT"}
        if entry.tls:
            settings |= {"security.protocol": "SSL", "ssl.ca.location": entry.ca}
        if entry.certificate:
            settings |= {"ssl.certificate.location": entry.certificate, "ssl.key.location": entry.key}
        if entry.mechanism:
            settings |= {"sasl.mechanism": entry.mechanism, "sasl.username": entry.user, "sasl.password": entry.password}
        client = AdminClient(settings)

        def told() -> bool:
            with contextlib.suppress(KafkaException):
                return {f"{node.host}:{node.port}" for node in client.list_topics(timeout=5).brokers.values()} == self.told("ports", way)
            return False

        until(told, f"clients are not told the brokers' addresses: {way}", _READY_S)


@contextlib.contextmanager
def open_cluster(folder: Path) -> Iterator[ClusterWorld]:
    """The brokers and framegate, for the length of a block."""
    with contextlib.ExitStack() as undo:
        yield ClusterWorld(folder, undo)
