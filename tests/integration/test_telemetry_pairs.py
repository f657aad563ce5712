"""Parts of telemetry beside what happens to connections, configurations and disks: spans of requests in a drain and of a killed processor, rankings
of clients whose listener is removed, and a log on the full disk that the audit file has, too.
"""

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.framegate import Framegate, Row, config_before
from tests.fakes.kafka_frames import answer, request
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.small_disk import fill, tiny_disk
from tests.fakes.upstream import ScriptedUpstream, ask, peer_name, read_frame
from tests.fakes.waiting import until

HEARTBEAT = 12


class Broker:
    """Answers requests by their client ids: ``now``, ``later``, which waits for ``released``, or ``never``."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = 0
        self.upstream = ScriptedUpstream(self._serve)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(EOFError, OSError):
            while body := read_frame(sock):
                self.asked += 1
                if b"later" in body:
                    self.released.wait(20)
                if b"never" not in body:
                    sock.sendall(answer(int.from_bytes(body[4:8], "big")))


@contextlib.contextmanager
def traced(folder: Path) -> Iterator[tuple[Framegate, Broker, OtlpReceiver]]:
    """A framegate with a span of each request."""
    broker = Broker()
    with OtlpReceiver() as receiver, broker.upstream:
        config = config_before(broker.upstream.address, protocol="kafka")
        config["telemetry"] = {"otlp": {"endpoint": receiver.endpoint, "signals": ["traces"]}, "request_sample": 1.0}
        with Framegate(folder, config, environment={"OTEL_BSP_SCHEDULE_DELAY": "50"}) as proxy:
            yield proxy, broker, receiver


def heartbeat(client: socket.socket, number: int, when: bytes) -> None:
    client.sendall(request(HEARTBEAT, 4, number, client_id=len(when).to_bytes(2, "big") + when))


def spans_of(receiver: OtlpReceiver) -> dict[int, object]:
    """The errors of the requests that have a span, by correlation id; there is one of each, with a link to its connection's span."""
    spans, connections = receiver.named("Heartbeat"), {span.span_id for span in receiver.named("framegate.connection")}
    found = {attributes_of(span)["framegate.kafka.correlation_id"]: attributes_of(span).get("error.type") for span in spans}
    assert len(found) == len(spans)
    assert {link.span_id for span in spans for link in span.links} <= connections
    return found  # type: ignore[return-value]


@pytest.mark.slow
def test_a_drain_ends_with_the_spans_of_requests_that_are_answered_in_it_and_of_those_that_are_not(tmp_path: Path) -> None:
    with traced(tmp_path) as (proxy, broker, receiver):
        first, other = proxy.connect("plain"), proxy.connect("plain")
        heartbeat(first, 1, b"later")
        heartbeat(other, 2, b"never")
        until(lambda: broker.asked == 2)
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(lambda row: row["event"] == "drain_began")
        broker.released.set()
        assert read_frame(first) == (1).to_bytes(4, "big")
        assert proxy.closed_row(first)["cause"] == "drained"
        assert proxy.closed_row(other)["cause"] == "drain_timeout"
        assert proxy.wait() == 0
        assert spans_of(receiver) == {1: None, 2: "unanswered"}


@pytest.mark.slow
def test_a_killed_processor_costs_the_spans_of_its_open_requests_only(tmp_path: Path) -> None:
    with traced(tmp_path) as (proxy, broker, receiver):
        victim = proxy.connect("plain")
        heartbeat(victim, 1, b"now")
        read_frame(victim)
        receiver.wait(lambda: receiver.named("Heartbeat"))
        heartbeat(victim, 2, b"never")
        until(lambda: broker.asked == 2)
        (pid,) = proxy.processors
        os.kill(pid, signal.SIGKILL)
        row = proxy.closed_row(victim)
        proxy.wait_row(lambda row: row["event"] == "processor_ready" and row["pid"] != pid)
        again = proxy.connect("plain")
        heartbeat(again, 3, b"now")
        read_frame(again)
        assert proxy.stop() == 0
        assert spans_of(receiver) == {1: None, 3: None}
        (span,) = [span for span in receiver.named("framegate.connection") if span.span_id.hex() == row["span_id"]]
        assert (row["cause"], attributes_of(span)["error.type"]) == ("processor_died", "processor_died")


@pytest.mark.extended
@pytest.mark.slow  # the window is a minute
@pytest.mark.timeout(200)
def test_clients_of_a_listener_that_is_renamed_leave_the_rankings_after_the_minute(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream:
        config = config_before(upstream.address)
        (listener,) = config["listeners"]
        config["listeners"] += [{**listener, "name": "old"}]
        with Framegate(tmp_path, config) as proxy:

            def ranked() -> dict[str, float]:
                (found,) = (item for item in proxy.json("top", "--every", "20ms")["rankings"] if item["measure"].endswith("_BYTES"))
                return {client["listener"]: client["share"] for client in found["clients"]}

            clients = [proxy.connect(name) for name in ("plain", "old")]
            for client in clients:
                ask(client, bytes(50_000))
            until(lambda: ranked() == {"plain": 1.0, "old": 1.0}, "they are not ranked", 30)
            new = tmp_path / "new.yaml"
            new.write_text(json.dumps({**proxy.config, "listeners": [listener, {**listener, "name": "new"}]}))
            done = proxy.cli("config", "apply", str(new))
            assert done.returncode == 0, done.stderr
            ask(clients[0], bytes(1_000))
            proxy.serving["listeners"]["new"] = next(item["address"] for item in proxy.json("listeners", "list") if item["name"] == "new")
            with proxy.connect("new") as client:
                ask(client, bytes(70_000))
            assert set(ranked()) == {"plain", "old"}, "what it was is known for a minute"
            until(lambda: set(ranked()) == {"plain", "new"}, "the old name stays, or the new one is missing", 100)
            assert proxy.metric("framegate_client_io_bytes_per_second", framegate_listener="old") == 0
            assert not [row for row in proxy.rows if row["level"] == "error"]


def rows_in(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]


@pytest.mark.slow
def test_a_log_and_an_audit_file_on_one_full_disk_both_go_on_when_there_is_space(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with tiny_disk(folder) as mounted, ScriptedUpstream() as upstream:
        if not mounted:
            pytest.skip("no disk can be mounted here")
        log, audit = folder / "log", folder / "audit.log"
        config = {**config_before(upstream.address), "log": {"audit": {"file": str(audit)}}}
        with Framegate(tmp_path, config, wait=False, prefix=("sh", "-c", f'exec "$@" >> {log}', "sh")) as proxy:
            until(lambda: log.exists() and [row for row in rows_in(log) if row["event"] == "serving"], timeout=20)
            (proxy.serving,) = [row for row in rows_in(log) if row["event"] == "serving"]

            def raised(size: int) -> str:
                return proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", str(size)).stderr

            fill(folder / "filler")
            sizes = iter(range(2_000_000, 2_000_100))
            while not (refusal := raised(next(sizes))):
                """The row has the room that was allocated before."""
            assert "No space left on device" in refusal
            for _ in range(100):
                with proxy.connect("plain") as client:
                    assert ask(client, b"traffic goes on") == b"traffic goes on"
                    peer = peer_name(client)
            until(lambda: "cannot be written" in proxy.cli("status").stdout, timeout=20)
            (folder / "filler").unlink()
            assert until(lambda: not raised(3_000_000), "changes stay refused", 20)
            until(lambda: [row for row in rows_in(log) if row["event"] == "closed" and row["peer"] == peer], "the log does not go on", 20)
            assert proxy.stop() == 0
            audited, logged = (
                [(row["result"], row["after"]) for row in found]
                for found in (rows_in(audit), [row for row in rows_in(log) if row["event"] == "audit"])
            )
            assert audited == logged
            assert audited[-1] == ("OK", {"max_receive_size_bytes": 3_000_000})
