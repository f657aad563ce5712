"""The broker runner without a broker: the cache's place, what is missing, settings. A real one runs in tests/integration/test_kafka.py."""

import os
import socket
from pathlib import Path

import pytest

from tests.demo import broker
from tests.demo.brokers import Cluster, Watch


def test_what_is_missing_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert [text.split()[0] for text in broker.missing_tools()] == ["Java", "Maven"]
    with pytest.raises(broker.BrokerError, match="needs Java 17"):
        broker.prepare()
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Maven, to be written; the cache is empty."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(broker, "find_java", lambda: "/bin/true")
    program = tmp_path / "bin" / "mvn"
    program.touch(0o755)
    return program


# What Maven 3.8 says where a proxy's certificate is not trusted, shortened; it resets colours even where it uses none.
REFUSED = """\
\x1b[0m\x1b[0m[ERROR] Plugin org.apache.maven.plugins:maven-dependency-plugin:3.8.1 or one of its dependencies could not be resolved: \
Could not transfer artifact from/to central: PKIX path building failed: \
unable to find valid certification path to requested target -> [Help 1]
[ERROR]
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
"""


def test_mavens_own_reason_is_kept(maven: Path, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(REFUSED)
    maven.write_text(f"#!/bin/sh\ncat {tmp_path}/said\nexit 1\n")
    with pytest.raises(broker.BrokerError) as failed:
        broker.prepare()
    log = broker.cache_directory() / "maven.log"
    reason = str(failed.value)
    assert reason.startswith("Maven could not fetch Kafka's jars: Plugin org.apache.maven.plugins:maven-dependency-plugin:3.8.1 or one of")
    assert reason.endswith(f"unable to find valid certification path to requested target; its log: {log}")
    assert "\n" not in reason
    assert log.read_text() == REFUSED
    assert not (broker.cache_directory() / "complete").exists()


def test_each_broker_has_ports_of_its_own(tmp_path: Path) -> None:
    with broker.Broker(tmp_path / "a") as plain, broker.Broker(tmp_path / "b", {"alice": "secret"}) as with_users:
        assert not set(plain.ports.values()) & set(with_users.ports.values())
        assert len(set(plain.ports.values())) == len(plain.ports)
        assert set(with_users.ports) - set(plain.ports) == {"SASL"}
        assert plain.internal_address == f"127.0.0.1:{plain.ports['INTERNAL']}"


def test_the_ports_of_a_broker_are_reserved_until_it_starts(tmp_path: Path) -> None:
    with broker.Broker(tmp_path) as made:
        address = ("127.0.0.1", made.ports["PLAIN"])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)  # like a program that connects or asks for any port
        socket.create_server(address).close()  # like the broker: Java reuses addresses as well
    with socket.socket() as other:
        other.bind(address)


def test_more_listeners_and_settings_than_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is a script that ends at once; its settings and arguments are compared."""
    (tmp_path / "cache" / "formatted").mkdir(parents=True)
    program = tmp_path / "java"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/told\n')
    program.chmod(0o755)
    monkeypatch.setattr(broker, "prepare", lambda: tmp_path / "cache")
    monkeypatch.setattr(broker, "find_java", lambda: str(program))
    made = broker.Broker(tmp_path / "b", listeners={"OUTER": "SASL_SSL"}, settings="num.io.threads=7\n", options=["-Dmine=1"])
    with made, pytest.raises(broker.BrokerError, match="did not start"):
        made.start({"OUTER": 4711})
    found = dict(line.split("=", 1) for line in (tmp_path / "b" / "server.properties").read_text().splitlines())
    assert found["listener.security.protocol.map"] == "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,PLAIN:PLAINTEXT,OUTER:SASL_SSL"
    assert f"OUTER://127.0.0.1:{made.ports['OUTER']}" in found["listeners"].split(",")
    assert "OUTER://127.0.0.1:4711" in found["advertised.listeners"].split(",")
    assert found["num.io.threads"] == "7", "the last line of a key wins"
    assert "-Dmine=1" in (tmp_path / "told").read_text().split()


def test_the_nodes_of_a_cluster_have_addresses_of_their_own_which_they_advertise_and_the_first_is_the_controller(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=(11, 12), listeners={"TLS": "SSL"}, settings="mine=1\n") as cluster:
        first, second = cluster.brokers.values()
        for made, roles in ((first, "broker,controller"), (second, "broker")):
            found = dict(line.split("=", 1) for line in made.properties({}, tmp_path).splitlines())
            own = ",".join(f"{name}://127.0.1.{made.node}:{made.ports[name]}" for name in ("INTERNAL", "PLAIN", "TLS"))
            assert (found["advertised.listeners"], found["process.roles"]) == (own, roles)
            assert found["controller.quorum.voters"] == f"11@127.0.1.11:{first.ports['CONTROLLER']}"
            assert (found["node.id"], found["broker.rack"], found["mine"]) == (str(made.node), f"rack-{made.node}", "1")
        before = second.client_addresses
        second.move()
        assert all(address != before[name] for name, address in second.client_addresses.items())
        assert cluster.bootstrap("TLS") == [f"{made.host}:{made.ports['TLS']}" for made in (first, second)]


def test_the_watch_reports_who_connects_and_may_not(tmp_path: Path) -> None:
    """The broker is a socket of this process."""
    with Cluster(tmp_path, nodes=(11,)) as cluster, socket.create_server(cluster.brokers[11].client_addresses["PLAIN"]) as server:
        for allowed in (True, False):
            watch = Watch(cluster, os.getpid() if allowed else 0)
            with socket.create_connection(server.getsockname()):
                watch.look()
                watch.look()
            assert watch.seen == ({server.getsockname()} if allowed else set())
            found = [leak.partition(" ")[0] for leak in watch.leaks]
            assert found == ([] if allowed else [str(os.getpid())]), "once for each connection"
