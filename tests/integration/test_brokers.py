"""A cluster behind a whole framegate: each broker has a port or a name here, and clients read no other address."""

import contextlib
import json
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.accept.broker_list import Broker, brokers_in, metadata_question
from framegate.control.v1 import kafka_rule_service_pb2 as rules_pb2
from framegate.control.v1.kafka_rule_service_pb2_grpc import KafkaRuleServiceStub
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.network.proxy_protocol import header_bytes
from framegate.proxy.relay.retirement import AT_BOOTSTRAP
from tests.control.steering.test_cluster import reaches
from tests.fakes.brokers import API_VERSIONS, KNOWN, METADATA, metadata_answer, versions_answer
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate
from tests.fakes.ports import free_port, free_ports
from tests.fakes.upstream import ScriptedUpstream, ask, frame, read_frame, refusing_port
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow
asked = metadata_question([ApiRange(METADATA, 0, 8)])
assert asked is not None
VERSION, QUESTION = asked
HEARTBEAT = bytes.fromhex("000c 0000 00000007 ffff 0001 67 00000000 0001 6d")
REFUSED = bytes.fromhex("00000007 001e")  # GROUP_AUTHORIZATION_FAILED


class KafkaBroker(ScriptedUpstream):
    """Answers Metadata with the brokers of its cluster, itself among them. ``answers``: while it is not set, nothing is answered."""

    def __init__(self, node: int, cluster: "dict[int, KafkaBroker]") -> None:
        super().__init__(self._talk)
        self.node = node
        self.cluster = cluster
        self.answers = threading.Event()
        self.answers.set()
        cluster[node] = self

    def named(self) -> Broker:
        return Broker(self.node, "127.0.0.1", self.port, "rack")

    def _talk(self, sock: socket.socket) -> None:
        while True:
            body = read_frame(sock)
            self.answers.wait(60)
            key, version = struct.unpack_from(">hh", body)
            if key == API_VERSIONS:
                answer = versions_answer(KNOWN)
            else:
                answer = metadata_answer([each.named() for _, each in sorted(self.cluster.items())], version)
            answer = body[4:8] + answer
            sock.sendall(struct.pack(">i", len(answer)) + answer)


@pytest.fixture
def cluster() -> Iterator[dict[int, KafkaBroker]]:
    brokers: dict[int, KafkaBroker] = {}
    for node in (0, 2):
        KafkaBroker(node, brokers)
    made = list(brokers.values())
    yield brokers
    for broker in {*made, *brokers.values()}:
        broker.close()


def config_of(bootstrap: list[str], brokers: dict[str, Any], *, address: str = "", **listener: Any) -> dict[str, Any]:
    given = {"name": "kafka", "address": address, "upstream": "u", "protocol": "kafka", "max_receive_size": "1MiB", "brokers": brokers, **listener}
    return {"memory_pool": {"size": "8MiB"}, "listeners": [given], "upstreams": [{"name": "u", "kafka": {"bootstrap": bootstrap}}]}


def told(sock: socket.socket) -> dict[int, tuple[str, int]]:
    """What a client reads of the brokers."""
    return {item.node: (item.host, item.port) for item in brokers_in(ask(sock, QUESTION), VERSION)}


@contextlib.contextmanager
def serving(folder: Path, cluster: dict[int, KafkaBroker], listener: dict[str, Any] | None = None, **keys: Any) -> Iterator[tuple[Framegate, int]]:
    """framegate with a port for each of nodes 0 to 2, behind the bootstrap's; and the first of them."""
    first = free_ports(4)[1]
    config = config_of(
        [broker.address for broker in cluster.values()], {"ports": f"{first}-{first + 2}"}, address=f"127.0.0.1:{first - 1}", **(listener or {})
    )
    with Framegate(folder, {**config, **keys}) as proxy:
        yield proxy, first


def test_clients_read_framegates_addresses_and_reach_each_broker_by_its_port(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    with serving(tmp_path, cluster, processors=2) as (proxy, first):
        mine = {0: ("127.0.0.1", first), 2: ("127.0.0.1", first + 2)}
        for _ in range(4):
            with proxy.connect("kafka") as client:
                assert told(client) == mine, "from the first connection on"
        clients = [socket.create_connection(("127.0.0.1", port), timeout=5) for _, port in mine.values()]
        assert [told(client) for client in clients] == [mine, mine]
        until(lambda: sorted(item.broker_node_id for item in proxy.channels().values()) == [0, 2], "channels say which broker they are for")
        endpoints = {item.broker_node_id: item.upstream_endpoint for item in proxy.channels().values()}
        assert endpoints == {node: cluster[node].address for node in mine}
        until(lambda: sum(row["open_connection_count"] for row in proxy.json("brokers", "list")) == 2)
        listed = proxy.json("brokers", "list")
        assert [(row["node_id"], row["state"], row["rack"]) for row in listed] == [(0, "STATE_UP", "rack"), (2, "STATE_UP", "rack")]
        until(lambda: proxy.metric("framegate_broker_connections", framegate_upstream="u", framegate_kafka_broker="2") == 1)
        until(lambda: proxy.metric("framegate_broker_count", framegate_upstream="u", framegate_state="up") == 2)
        for client in clients:
            client.close()
    assert {row["broker"] for row in proxy.events("closed") if "broker" in row} >= {0, 2}


@pytest.mark.extended
def test_a_broker_that_joins_is_told_once_its_port_is_open_and_one_that_left_no_more(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    with serving(tmp_path, cluster) as (proxy, first), contextlib.ExitStack() as clients:
        early = clients.enter_context(proxy.connect("kafka"))
        joined = KafkaBroker(1, cluster)
        assert told(early)[1] == ("127.0.0.1", first - 1), "until then clients are told the bootstrap's address"
        row = proxy.closed_row(early)
        assert (row["cause"], row["detail"]) == ("drained", AT_BOOTSTRAP), "it may take its connection for one to the new broker"
        client = clients.enter_context(socket.create_connection(("127.0.0.1", first), timeout=5))
        assert told(client)[1] == ("127.0.0.1", first + 1)
        assert reaches(first + 1)
        with socket.create_connection(("127.0.0.1", first + 1), timeout=5) as direct:
            assert sorted(told(direct)) == [0, 1, 2]
            del cluster[1]
            until(lambda: told(client).keys() == {0, 2} and not reaches(first + 1), "it has left, for five seconds", 20)
            assert sorted(told(direct)) == [0, 2], "its connections stay"
            (row,) = [row for row in proxy.json("brokers", "list") if row["node_id"] == 1]
            assert (row["state"], row["open_connection_count"]) == ("STATE_GONE", 1)
        joined.close()
        events = [row["event"] for row in proxy.rows if row.get("broker") == 1]
        assert [name for name in events if name.startswith("broker_")] == ["broker_joined", "broker_left"]


def test_a_start_needs_no_broker_and_finds_them_when_they_are_there(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(refusing_port())
        ports = free_ports(3)
        config = config_of([f"127.0.0.1:{port}"], {"ports": f"{ports[0]}-{ports[-1]}", "by": "order"}, address=f"127.0.0.1:{free_port()}")
        proxy = stack.enter_context(Framegate(tmp_path, config))
        row = proxy.wait_row(lambda row: row["event"] == "brokers_unreadable")
        assert "refused" in row["error"] or "Connect" in row["error"]
        listed = proxy.cli("brokers", "list")
        assert (listed.returncode, listed.stdout) == (0, "")
        assert "no brokers" in listed.stderr


SILENT = """import socket, sys
server = socket.create_server(("127.0.0.1", 0), backlog=64)
print(server.getsockname()[1], flush=True)
while True:
    server.accept()
"""


def test_a_broker_that_is_stopped_delays_nothing(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    with subprocess.Popen([sys.executable, "-c", SILENT], stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout is not None
        port = int(silent.stdout.readline())
        silent.send_signal(signal.SIGSTOP)
        try:
            bootstrap = [f"127.0.0.1:{port}", f"localhost:{port}", cluster[0].address]
            first = free_ports(4)[1]
            config = config_of(bootstrap, {"ports": f"{first}-{first + 2}"}, address=f"127.0.0.1:{first - 1}")
            with Framegate(tmp_path, config) as proxy:
                proxy.wait_row(lambda row: row["event"] == "broker_joined" and row["broker"] == 2)
                with socket.create_connection(("127.0.0.1", first + 2), timeout=5) as client:
                    assert sorted(told(client)) == [0, 2]
        finally:
            silent.kill()


def test_a_broker_that_moves_and_rules_that_change_while_control_is_stopped_are_both_in_force_when_it_goes_on(
    tmp_path: Path, cluster: dict[int, KafkaBroker]
) -> None:
    rules = rules_pb2.KafkaRules(listener="kafka", rules=[rules_pb2.KafkaRule(deny=["Heartbeat"])])
    with serving(tmp_path, cluster, {"kafka": {}}, processors=2) as (proxy, first), proxy.api() as channel:
        mine = {0: ("127.0.0.1", first), 2: ("127.0.0.1", first + 2)}
        clients = [proxy.connect("kafka") for _ in range(4)]
        assert [told(client) for client in clients] == [mine] * 4
        stub = KafkaRuleServiceStub(channel)
        stub.GetKafkaRules(rules_pb2.GetKafkaRulesRequest(listener="kafka"), timeout=20)
        proxy.process.send_signal(signal.SIGSTOP)
        cluster[2].close()
        moved = KafkaBroker(2, cluster)
        setting = stub.UpdateKafkaRules.future(rules_pb2.UpdateKafkaRulesRequest(kafka_rules=rules), timeout=20)
        assert mine in [told(client) for client in clients if not is_ended(client)], "what is open goes on"
        assert not setting.done()
        proxy.process.send_signal(signal.SIGCONT)
        setting.result(20)
        row = proxy.wait_row(lambda row: row["event"] == "broker_moved")
        assert (row["broker"], row["address"]) == (2, moved.address)
        with socket.create_connection(mine[2], timeout=5) as client:
            assert told(client) == mine
            assert ask(client, HEARTBEAT) == REFUSED
        assert {ask(client, HEARTBEAT) for client in clients if not is_ended(client)} == {REFUSED}


def is_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    finally:
        client.settimeout(5)


def test_a_broker_that_accepts_and_does_not_answer_is_shown_and_the_bootstrap_goes_round_it(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    first = free_ports(4)[1]
    config = config_of([broker.address for broker in cluster.values()], {"ports": f"{first}-{first + 2}"}, address=f"127.0.0.1:{first - 1}")
    config["upstreams"][0] |= {"check": {"kind": "kafka", "every": "200ms", "timeout": "200ms", "fall": 2, "rise": 2}, "ejection": {"failures": 3}}
    with Framegate(tmp_path, config) as proxy:

        def states() -> list[str]:
            return [row["state"] for row in proxy.json("brokers", "list")]

        until(lambda: states() == ["STATE_UP", "STATE_UP"])
        cluster[2].answers.clear()
        until(lambda: states() == ["STATE_UP", "STATE_DOWN"], "its checks fail")
        assert "check" in proxy.json("brokers", "list")[1]["reason"]
        for _ in range(6):
            with proxy.connect("kafka") as client:
                assert sorted(told(client)) == [0, 2]
        with socket.create_connection(("127.0.0.1", first + 2), timeout=5) as late:
            late.sendall(frame(QUESTION))
            cluster[2].answers.set()
            assert sorted(item.node for item in brokers_in(read_frame(late), VERSION)) == [0, 2], "who wants no other broker waits for it"
        until(lambda: states() == ["STATE_UP", "STATE_UP"], "it is back")


def test_with_hosts_the_broker_is_the_one_that_the_client_names(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    """Also behind a header of the PROXY protocol, whose address is shown as the client's."""
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("server", hosts=("*.localhost", "b0.localhost", "b2.localhost", "localhost"))
    brokers = {"hosts": "b{id}.localhost", "advertise": "localhost", "advertise_port": 443}
    listener = {
        "tls": {"certificate": certificate, "key": key, "client_auth": "none"},
        "proxy_protocol": {"trusted": ["127.0.0.0/8"]},
        "kafka": {"rules": [{"deny": ["Heartbeat"]}]},
    }
    config = config_of([broker.address for broker in cluster.values()], brokers, address="127.0.0.1:0", **listener)
    context = ssl.create_default_context(cafile=str(authority.path))
    with Framegate(tmp_path / "gate", config) as proxy:
        mine = {0: ("b0.localhost", 443), 2: ("b2.localhost", 443)}

        def connect(number: int, version: str, name: str) -> ssl.SSLSocket:
            raw = socket.create_connection(proxy.address("kafka"), timeout=5)
            raw.sendall(header_bytes(version, f"198.51.100.{number}:1234", "192.0.2.1:9092"))
            return context.wrap_socket(raw, server_hostname=name)

        clients = [connect(1, "v1", "b2.localhost"), connect(2, "v2", "B0.localhost"), connect(3, "v2", "localhost")]
        for client in clients:
            assert told(client) == mine
            assert ask(client, HEARTBEAT) == REFUSED
        found = {
            (item.peer_address, item.broker_node_id, item.upstream_endpoint) for item in proxy.channels().values() if item.HasField("broker_node_id")
        }
        assert found == {("198.51.100.1:1234", 2, cluster[2].address), ("198.51.100.2:1234", 0, cluster[0].address)}
        assert [row["open_connection_count"] for row in proxy.json("brokers", "list")] == [1, 1]
        until(lambda: [proxy.metric("framegate_broker_connections", framegate_kafka_broker=str(node)) for node in mine] == [1, 1])
        for client in clients:
            client.close()


@pytest.mark.extended
def test_standing_actions_stay_in_force_while_brokers_and_listeners_are_applied(tmp_path: Path, cluster: dict[int, KafkaBroker]) -> None:
    """A standing action matches by the name of a listener: also where a range of brokers moves, and where a listener of that name comes again."""
    first = free_ports(8)[0]
    servers = [broker.address for broker in cluster.values()]

    def configured(name: str, brokers: range) -> dict[str, Any]:
        given = config_of(servers, {"ports": f"{brokers[0]}-{brokers[-1]}"}, address=f"127.0.0.1:{first}", name=name)
        return {
            **given,
            "listeners": [*given["listeners"], {"name": "plain", "address": "127.0.0.1:0", "upstream": "other", "max_receive_size": "1MiB"}],
            "processors": 2,
        } | {"upstreams": [*given["upstreams"], {"name": "other", "endpoints": servers[:1]}]}

    def stands_still(port: int) -> bool:
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        client.settimeout(0.4)
        client.sendall(frame(QUESTION))
        with contextlib.suppress(TimeoutError):
            return not client.recv(4)
        return True

    def apply(name: str, brokers: range) -> None:
        changed = {**proxy.config, **configured(name, brokers)}
        (tmp_path / "new.yaml").write_text(json.dumps(changed))
        done = proxy.cli("config", "apply", str(tmp_path / "new.yaml"), "--reason", "another range")
        assert done.returncode == 0, done.stderr

    near, far = range(first + 1, first + 4), range(first + 4, first + 7)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Framegate(tmp_path, configured("kafka", near)))
        until(lambda: reaches(near[2]))
        act = ("channels", "mute", "--filter", "listener=kafka", "--standing", "--reason", "incident 7")
        muted = proxy.json(*act)["action"]["id"]
        act = ("channels", "throttle", "--filter", "listener=kafka", "--standing", "--request-rate", "1MB", "--reason", "incident 7")
        throttled = proxy.json(*act)["action"]["id"]
        for turn, brokers in enumerate((near, far, near)):
            apply("kafka", brokers)
            until(lambda brokers=brokers: reaches(brokers[0]) and reaches(brokers[2]), brokers)
            assert not reaches((near if brokers is far else far)[2]), "the other range is gone"
            assert all(stands_still(port) for port in (first, brokers[0], brokers[2])), turn
            rates = {row["throttle"]["request_bytes_per_second"] for row in proxy.json("channels", "list", "--filter", "waiting=admin")}
            assert rates == {1_000_000}
            assert not stands_still(proxy.address("plain")[1]), "other listeners are not concerned"
        apply("renamed", near)
        assert not any(stands_still(port) for port in (first, near[0], near[2])), "no listener has that name"
        listed = [(row["id"], row["filter"], row["standing"]) for row in proxy.json("channels", "actions")]
        assert listed == [(muted, "listener=kafka", True), (throttled, "listener=kafka", True)], "they wait for one"
        apply("kafka", near)
        assert all(stands_still(port) for port in (first, near[2]))
        for action in (muted, throttled):
            assert proxy.cli("channels", "undo", action).returncode == 0
        assert not stands_still(near[0])
        assert proxy.json("channels", "actions") == []


def test_before_the_stop_of_a_pod_connections_of_brokers_ports_end_too_and_no_listener_is_added(
    tmp_path: Path, cluster: dict[int, KafkaBroker]
) -> None:
    """In the lead-in of its drain; those of the pod itself stay, and a configuration that is applied then is refused as a whole."""
    first = free_ports(6)[0]
    config = config_of([broker.address for broker in cluster.values()], {"ports": f"{first + 1}-{first + 3}", "advertise": "127.0.0.1"})
    (gateway,) = config["listeners"]
    gateway["address"] = f"0.0.0.0:{first}"
    config["upstreams"].append({"name": "one", "endpoints": [cluster[0].address]})
    inner, added = ({"name": name, "upstream": "one", "address": address, "max_receive_size": "1MiB"} for name, address in
                    (("inner", f"127.0.0.1:{first + 4}"), ("added", f"0.0.0.0:{first + 5}")))  # fmt: skip
    config["listeners"].append(inner)
    with Framegate(tmp_path, {**config, "drain": {"delay": "2s", "timeout": "2s", "quiet": "50ms"}}) as proxy, contextlib.ExitStack() as stack:

        def client(at: int) -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", first + at), timeout=10))

        until(lambda: reaches(first + 3))
        ends, stays = [client(0), client(3)], client(4)
        assert proxy.cli("drain", "--no-wait", "--reason", "preStop").returncode == 0
        ends.append(client(1))
        assert all(told(sock) for sock in (*ends, stays))
        (tmp_path / "new.yaml").write_text(json.dumps({**proxy.config, "listeners": [gateway, inner, added]}))
        done = proxy.cli("config", "apply", str(tmp_path / "new.yaml"))
        assert (done.returncode, "(DRAINING)" in done.stderr, reaches(first + 5)) == (1, True, False)
        assert [sock.recv(1) for sock in ends] == [b""] * 3
        assert told(stays)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.wait() == 0
    assert {row["cause"] for row in proxy.events("closed") if row["frames"]["request"]} == {"drained"}
