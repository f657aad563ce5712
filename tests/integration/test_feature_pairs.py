"""Features of a connection in combination: every possible pair of them on some connection of a whole framegate, by one generated model.

``FRAMEGATE_FEATURE_ROUNDS=20 pytest tests/integration/test_feature_pairs.py`` goes on with so many further sets of combinations.
"""

import concurrent.futures
import contextlib
import os
import random
import signal
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from framegate.control.demo.certificates import Certificates, create
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from framegate.control.v1 import pool_service_pb2 as pool_pb2
from framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub
from framegate.proxy.network.connection_id import parse_connection_id
from framegate.proxy.tap.completeness import verify
from tests.fakes.feature_model import Combination, covering, pairs_of, possible_pairs
from tests.fakes.feature_peers import HANDLERS, HEADER, LIMIT, PASSWORD, UPSTREAM_PASSWORD, UPSTREAM_USER, USER, Client, Upstream
from tests.fakes.framegate import Framegate, Row
from tests.fakes.ports import free_ports
from tests.fakes.tap_read import read_frames, read_gaps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("FRAMEGATE_FEATURE_ROUNDS", "0"))
BATCH = 40  # Connections of one framegate
AT_ONCE = 4


@pytest.mark.extended
def test_the_combinations_have_every_possible_pair() -> None:
    wanted = possible_pairs(random.Random(0))
    found = covering(random.Random(1), wanted)
    assert all(combination.possible for combination in found)
    assert frozenset[Any]().union(*map(pairs_of, found)) >= wanted
    assert len(wanted) > 1300
    assert len(found) < 100


@pytest.mark.extended
@pytest.mark.parametrize("number", range(1 + ROUNDS))
def test_every_pair_of_features_keeps_the_rules_of_a_connection(tmp_path: Path, number: int) -> None:
    combinations = covering(random.Random(number), possible_pairs(random.Random(0)))
    certificates = create(tmp_path)
    failures = []
    for begin in range(0, len(combinations), BATCH):
        folder = tmp_path / str(begin)
        failures += Batch(folder, certificates, combinations[begin : begin + BATCH], processors=1 + begin // BATCH % 2).run()
    assert not failures, f"{len(failures)} of {len(combinations)}:\n" + "\n".join(failures)


class Batch:
    """Connections of many combinations through one framegate, whose memory pool is resized, and whose control process is stopped, now and then."""

    def __init__(self, folder: Path, certificates: Certificates, combinations: list[Combination], processors: int) -> None:
        self.folder = folder
        self.certificates = certificates
        self.processors = processors
        self.failures: list[str] = []
        trusting = ssl.create_default_context(cafile=str(certificates.ca))
        trusting.load_cert_chain(certificates.client, certificates.client_key)
        trusting.check_hostname = False  # the certificate does not have the names of brokers
        ports = free_ports(2 * len(combinations))
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(certificates.server, certificates.server_key)
        self.clients = [
            Client(number, item, Upstream(item, serving if item.upstream_tls == "yes" else None), trusting, ports[2 * number])
            for number, item in enumerate(combinations)
        ]

    def run(self) -> list[str]:
        """What failed: combination and reason."""
        self.folder.mkdir()
        (self.folder / "mine.py").write_text(HANDLERS)
        (self.folder / "password").write_text(UPSTREAM_PASSWORD + "\n")
        (self.folder / "password").chmod(0o600)
        with changing(self.folder / "users") as users:
            users.add(USER, new_credentials(PASSWORD, iterations=4096), replace=True)
        with contextlib.ExitStack() as undo:
            for client in self.clients:
                undo.callback(client.upstream.close)
            proxy = undo.enter_context(Framegate(self.folder, self.config()))
            self.traffic(proxy)
            draining = [client for client in self.clients if client.combination.ending == "drain" and not client.abandoned]
            held = proxy.metric("framegate_memory_pool_usage_bytes", framegate_memory_kind="begun")
            faults = proxy.metric("framegate_processor_errors_total")
            with concurrent.futures.ThreadPoolExecutor(max(1, len(draining))) as pool:
                ends = [pool.submit(self.judged, client, client.drain, proxy) for client in draining]
                code = proxy.stop(40)
                concurrent.futures.wait(ends)
            if (code, held, faults) != (0, 0, 0):
                self.failures.append(f"all: exit code {code}, {held} bytes held, {faults} errors of our own")
            self.failures += [f"all: {row}" for row in proxy.rows if row["level"] == "error" or row["event"] in ("processor_died", "handler_died")]
        self.compare_tap()
        return self.failures

    def traffic(self, proxy: Framegate) -> None:
        """All connections but for the ends by drain, while the pool is resized and control is stopped now and then."""
        over = threading.Event()

        def disturb() -> None:
            with proxy.api() as channel:
                for size in (24, 64) * 1000:
                    if over.wait(0.2):
                        return
                    wanted = pool_pb2.UpdateMemoryPoolRequest(memory_pool=pool_pb2.MemoryPool(size_bytes=size << 20))
                    PoolServiceStub(channel).UpdateMemoryPool(wanted, timeout=20)
                    proxy.process.send_signal(signal.SIGSTOP)
                    over.wait(0.2)
                    proxy.process.send_signal(signal.SIGCONT)

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda client: self.judged(client, client.run, proxy), self.clients))
        finally:
            over.set()
            disturbing.join()

    def judged(self, client: Client, step: Any, proxy: Framegate) -> None:
        try:
            step(proxy)
        except Exception as error:
            client.abandon()
            rows = [row for row in proxy.events("closed") if row["peer"] == client.peer]
            self.failures.append(f"{client.name} {client.combination}: {type(error).__name__}: {str(error)[:800]} {rows}")

    def compare_tap(self) -> None:
        directory = str(self.folder / "tap")
        judged = verify(directory)
        unproved = [row for row in judged.rows if row.state not in ("complete", "lost")]
        if judged.faults or unproved:
            self.failures.append(f"all: the record is not proved: {judged.faults} {unproved}")
        found: dict[tuple[int, str], list[bytes]] = {}
        lost: dict[tuple[int, str], int] = {}
        for item in sorted(read_frames(directory), key=lambda item: item.number):
            found.setdefault((item.connection, item.direction), []).append(item.body)
        for gap in read_gaps(directory):
            lost[gap.connection, gap.direction] = lost.get((gap.connection, gap.direction), 0) + gap.frames
        for client in self.clients:
            if client.row and client.combination.tap in ("full", "lengths", "mute") and client.combination.action != "rule":
                for direction in ("request", "response"):
                    which = (parse_connection_id(client.row["id"]), direction)
                    bodies = found.get(which, [])
                    counted = client.row["frames"][direction]
                    if len(bodies) + lost.get(which, 0) not in (counted - client.logins(direction), counted):
                        self.failures.append(f"{client.name} {client.combination}: {len(bodies)} {direction} frames in the log: {client.row}")
                    if direction == "request" and client.combination.tap != "lengths" and bodies != client.recorded():
                        self.failures.append(f"{client.name} {client.combination}: other frames in the log than were sent")

    # --- the configuration ---------------------------------------------------------------------------------------------------------

    def config(self) -> Row:
        rates = {"request_bytes_rate": "16MiB", "response_bytes_rate": "16MiB"}
        kinds: dict[str, Row] = {"full": {}, "lengths": {"capture": "lengths"}, "sampled": {"sample_frames": 0.5}, "mute": {"on_full": "mute"}}
        return {
            "processors": self.processors,
            "memory_pool": {"size": "64MiB", "kind": "leak_finding"},
            "drain": {"timeout": "10s", "quiet": "1s"},
            "limits": {
                "overrides": [{"network": f"{client.address}/32", **rates} for client in self.clients if client.combination.quota == "address"]
            },
            "listeners": [self.listener(client) for client in self.clients],
            "upstreams": [self.upstream(client) for client in self.clients if client.combination.handler != "answers"],
            "tap": {
                "directory": "tap",
                "rules": [
                    {"name": client.name, "listeners": [client.name], **kinds[client.combination.tap]}
                    for client in self.clients
                    if client.combination.tap != "no"
                ],
            },
        }

    def listener(self, client: Client) -> Row:
        item = client.combination
        found: Row = {
            "name": client.name,
            "address": f"127.0.0.1:{client.port if item.brokers == 'ports' else 0}",
            "protocol": item.protocol,
            "framing": item.client_framing,
            "max_receive_size": LIMIT,
            "forwarding": {"requests": item.requests, "responses": item.responses},
            "timeouts": {"failed_authentication": "0ms", **({"max_connection_age": "8s"} if item.ending == "max_age" else {})},
            "limits": self.quota(item),
        }
        if item.client_proxy != "no":
            found["proxy_protocol"] = {"version": item.client_proxy, "trusted": ["127.0.0.0/8"]}
        if item.brokers == "ports":
            found["brokers"] = {"ports": str(client.port + 1)}
        if item.brokers == "hosts":
            found["brokers"] = {"hosts": "b{id}.localhost", "advertise": "localhost", "advertise_port": 443}
        if item.rules != "no":
            found["kafka"] = {"rules": [{"principals": [client.principal], "deny": ["Heartbeat"]}]}
        if item.client_framing == "header":
            found["header"] = HEADER
        if item.handler != "answers":
            found["upstream"] = client.name
        if item.handler != "no":
            found["handler"] = "mine:" + ("answers_kafka" if (item.handler, item.protocol) == ("answers", "kafka") else item.handler)
        if item.client_tls != "no":
            asks = {"client_auth": "required", "client_ca": str(self.certificates.ca)} if item.client_tls == "mutual" else {}
            found["tls"] = {"certificate": str(self.certificates.server), "key": str(self.certificates.server_key), **asks}
        if item.sasl != "no":
            found["sasl"] = {"mechanisms": [item.sasl], "users": "users", "max_session": "1h"}
        return found

    def quota(self, item: Combination) -> Row:
        if item.quota == "rule":
            rates = {"request_bytes_rate": "16MiB", "response_bytes_rate": "16MiB", "request_frames_rate": 300}
            return {"rules": [{"name": "all", "networks": ["127.0.0.0/8"], "max_receive_size": LIMIT, **rates}]}
        value = {"bytes": "16MiB", "frames": 300}.get(item.quota)
        return {} if value is None else {f"request_{item.quota}_rate": value, f"response_{item.quota}_rate": value}

    def upstream(self, client: Client) -> Row:
        item = client.combination
        found: Row = {
            "name": client.name,
            **({"kafka": {"bootstrap": [client.upstream.address]}} if item.brokers != "no" else {"endpoints": [client.upstream.address]}),
            "framing": item.upstream_framing,
            "max_receive_size": LIMIT + 16,
        }
        if item.upstream_proxy != "no":
            found["send_proxy_protocol"] = item.upstream_proxy
        if item.upstream_tls == "yes":
            found["tls"] = {"ca": str(self.certificates.ca), "server_name": "localhost"}
        if item.upstream_sasl != "no":
            found["sasl"] = {"mechanism": item.upstream_sasl, "user": UPSTREAM_USER, "password_file": "password"}
        return found
