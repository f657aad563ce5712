"""A processor's end of the link: while control is behind, does not read, or is gone. Nothing that must arrive is lost."""

import errno
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.auth.auth_requests import Unavailable
from framegate.proxy.cells import CellWriter, State
from framegate.proxy.config.sasl import ListenerSasl
from framegate.proxy.network.selector import MAX_REGISTERED
from framegate.proxy.relay.quotas import KeyDemand
from framegate.proxy.relay.request_sampler import RequestSpan
from framegate.proxy.server.control_link import LINK_CLOSE_MS, MAX_REQUESTS, MAX_ROWS, ROWS_WAIT_NS
from framegate.proxy.server.link import MAX_TOGETHER, Handover, send_handovers
from framegate.proxy.server.messages import AdvertisedRow, BrokerRow, BrokersSeenNotice, ClusterRow
from framegate.proxy.server.rows import HandoverFailedRow, SeenBrokerRow
from framegate.proxy.tap.rule_use import WINDOW_NS, RuleUse
from tests.fakes import cluster
from tests.fakes.disk import FakeDisk
from tests.fakes.kafka_frames import request
from tests.fakes.loop import LoopBench
from tests.fakes.rows import access_row, closed_row, line_of, opened_row
from tests.fakes.sasl_frames import handshake, plain_token, token
from tests.fakes.upstream import frame

STOP = {"type": "stop"}


def test_a_link_that_is_behind_gets_every_row_and_every_count_at_the_end(tmp_path: Path) -> None:
    """Rows wait when the loop ends, and the tap has something to say after the channels are closed."""
    ended = threading.Event()

    class Broken(FakeDisk):
        def write(self, fd: int, parts: list[Any], position: int) -> int:
            ended.set()
            raise OSError(5, "broken")

    with LoopBench(str(tmp_path), Broken(), link_bytes=4608) as bench:
        clients = [bench.connect() for _ in range(30)]

        def stop() -> None:
            for client in clients:
                client.sendall(b"\0\0\0\1x")
            bench.when(lambda: bench.tap is not None and bench.tap.frames_matched_request == 30, lambda: bench.send(STOP, STOP))

        bench.when_open(30, stop)
        with bench.reading(ended):
            assert bench.loop.run([])
        assert len({row["row"]["id"] for row in bench.of("closed")}) == 30
        assert [row["event"] for row in bench.of("log")][-1] == "tap_incomplete"
        assert bench.cells.cell("framegate.connection.closed", "plain", "drained", "internal") == 30
        assert bench.cells.cell("framegate.connection.active", "downstream", "plain") == 0
        assert bench.cells.cell("framegate.tap.matched") == 30
        assert bench.cells.state == State.STOPPED


def test_rows_that_control_keeps_as_state_arrive_when_others_are_dropped(tmp_path: Path) -> None:
    """A rule that turned itself off, and a tap that is not complete, are reported once. Control reads the link only at the end."""
    reads = threading.Event()
    use = RuleUse("dear", 0.0, 30.0)
    use.evaluate(1)
    use.spent_ns = WINDOW_NS // 2
    assert use.evaluate(1 + WINDOW_NS)

    disk = FakeDisk()
    disk.broken = errno.EIO

    class Stopping(CellWriter):
        def state(self, state: State) -> None:
            super().state(state)
            if state is State.STOPPED:
                reads.set()

    with LoopBench(str(tmp_path), disk, Stopping, link_bytes=4608) as bench:
        rules = bench.relay.pairs.rules
        assert rules is not None
        client = bench.connect()

        def turn_off() -> None:
            client.sendall(b"\0\0\0\1x")
            for _ in range(400):
                bench.loop.link.log("handover_failed", HandoverFailedRow(error="x" * 1000))
            rules._turned_off.append(use)
            bench.when(lambda: not rules._turned_off and bench.tap is not None and bench.tap.frames_matched_request, end)

        def end() -> None:
            bench.loop.stop()
            bench.loop.stop()

        bench.when_open(1, turn_off)
        with bench.reading(reads):
            assert bench.loop.run([])
        rows = [row for row in bench.of("log") if row["event"] != "handover_failed"]
        assert bench.cells.cell("framegate.link.dropped") > 100
    assert [row["event"] for row in rows] == ["tap_rule_off", "tap_incomplete"]
    assert (rows[0]["level"], rows[0]["fields"]) == ("warning", {"rule": "dear", "cause": "cpu", "percent": 50.0, "limit": 30.0})


@pytest.mark.slow
def test_a_link_that_nobody_reads_is_given_up_after_a_second() -> None:
    with LoopBench(link_bytes=4608) as bench:
        for _ in range(30):
            bench.connect()
        bench.when_open(30, lambda: bench.send(STOP, STOP))
        begun = time.monotonic()
        assert bench.loop.run([])
        assert time.monotonic() - begun >= 0.9 * LINK_CLOSE_MS / 1000
        assert bench.cells.cell("framegate.connection.closed", "plain", "drained", "internal") == 30
        bench.end()
        assert len(bench.of("closed")) < 30


@pytest.mark.slow
@pytest.mark.parametrize("first", [(), (STOP,), (STOP, STOP)])
def test_a_link_that_is_gone_leaves_the_counts(tmp_path: Path, first: tuple[dict[str, str], ...]) -> None:
    with LoopBench(str(tmp_path)) as bench:
        client = bench.connect()

        def leave() -> None:
            bench.send(*first)
            bench.command.close()
            bench.handover.close()

        bench.when_open(1, lambda: client.sendall(b"\0\0\0\1x"))
        bench.when(lambda: bench.tap is not None and bench.tap.frames_matched_request, leave)
        assert bench.loop.run([])
        assert bench.cells.cell("framegate.connection.closed", "plain", "drained", "internal") == 1
        assert bench.cells.cell("framegate.tap.flushed") == 1
        assert bench.cells.state == State.STOPPED


def test_closed_rows_wait_for_others_until_they_are_many_or_the_first_has_waited_long_enough() -> None:
    with LoopBench() as bench:
        link, now_ns = bench.loop.link, bench.selector.now_ns
        line = line_of(closed_row(), 1)
        assert link.queue_due(now_ns, 7) == 7, "there is none"
        link._collect(link._closed, line)
        assert [link.queue_due(now_ns, timeout_ms) for timeout_ms in (7, 2)] == [ROWS_WAIT_NS // 1_000_000, 2]
        assert link.queue_due(now_ns + ROWS_WAIT_NS - 1, 7) == 1, "no wait is shorter than what is left"
        assert link.writer.pending == 0
        assert link.queue_due(now_ns + ROWS_WAIT_NS, 7) == 7
        assert link.writer.pending > 0
        link.flush()
        for count in range(1, MAX_ROWS + 1):
            assert link.writer.pending == 0, f"{count} rows"
            link._collect(link._closed, line)
            link.queue_due(now_ns, 7)
        assert link.writer.pending > 0
        link.flush()
        link._collect(link._closed, line)
        link.reply({"type": "dance"})
        bench.send(STOP)
        assert bench.loop.run([])
        bench.end()
        assert [row["type"] for row in bench.read] == ["closed"] * (MAX_ROWS + 2) + ["dance"]


def test_rows_of_connections_that_opened_go_before_those_that_closed_and_both_before_what_is_told_later() -> None:
    """A connection may close before its opened row is sent; no row that says that it is open follows its closed row."""
    with LoopBench() as bench:
        link, now_ns = bench.loop.link, bench.selector.now_ns
        link._collect(link._closed, line_of(closed_row(), 1))
        link._collect(link._opened, line_of(opened_row(), 1))
        assert link.queue_due(now_ns, 7) == ROWS_WAIT_NS // 1_000_000, "they wait together"
        link._report_access([line_of(access_row(), 1)])
        for count in range(1, MAX_ROWS + 2):
            assert link.queue_due(now_ns, 7) == (7 if count in (1, MAX_ROWS + 1) else ROWS_WAIT_NS // 1_000_000)
            link._collect(link._opened, line_of(opened_row(), 1))
        link.queue_due(now_ns, 7)
        link.reply({"type": "dance"})
        bench.send(STOP)
        assert bench.loop.run([])
        bench.end()
        assert [row["type"] for row in bench.read] == ["opened", "closed", "access", *["opened"] * (MAX_ROWS + 1), "dance"]


def test_connections_of_one_message_are_taken_over_each_by_itself() -> None:
    """An unknown listener, a descriptor that is no socket, a lost descriptor, an impossible family and nonsense cost no other connection."""
    with LoopBench() as bench:
        clients = [bench.accepted() for _ in range(2)]
        with open(__file__) as no_socket:
            family, descriptor = int(socket.AF_INET), no_socket.fileno()
            facts = [(family, "plain"), (family, "unheard-of"), (family, "plain"), (1 << 40, "plain"), (family, "plain"), (family, "plain")]
            descriptors = [clients[0][1].fileno(), descriptor, descriptor, descriptor, clients[1][1].fileno()]
            handovers = [Handover(number, family, name, f"192.0.2.1:{number}") for number, (family, name) in enumerate(facts)]
            assert send_handovers(bench.handover, handovers, descriptors)
        bench.handover.send(b"nonsense")
        for _, accepted in clients:
            accepted.close()
        bench.when_open(2, lambda: bench.send(STOP, STOP))
        assert bench.loop.run([])
        bench.end()
        rows = sorted((closed["row"] for closed in bench.of("closed")), key=lambda row: str(row["peer"]))
        assert [(row["peer"][-1], row["cause"]) for row in rows] == [("0", "drained"), ("2", "internal"), ("4", "drained"), ("5", "limit")]
        assert [row["id"] & 7 for row in rows] == [1, 2, 3, 4], "each takes one id, in the order in which they came"
        assert rows[-1]["detail"] == "no descriptor to be had"
        assert bench.cells.cell("framegate.connection.closed", "plain", "limit", "internal") == 1
        told = {(row["event"], row["fields"].get("error", "")) for row in bench.of("log")}
        assert told == {
            ("handover_failed", "no listener unheard-of"),
            ("handover_failed", "a hand-over that cannot be read: not enough values to unpack (expected 5, got 1)"),
            ("internal_error", "OverflowError: Python int too large to convert to C int"),
        }


@pytest.mark.parametrize("together", [1, MAX_TOGETHER - 3, MAX_TOGETHER])
def test_one_poll_takes_over_at_most_as_many_connections_as_the_selector_accepts(together: int) -> None:
    with LoopBench() as bench:
        pairs = [bench.accepted() for _ in range(3 * MAX_REGISTERED)]
        for first in range(0, len(pairs), together):
            some = pairs[first : first + together]
            handovers = [Handover(first + number, int(socket.AF_INET), "plain", "192.0.2.1:1") for number in range(len(some))]
            assert send_handovers(bench.handover, handovers, [accepted.fileno() for _, accepted in some])
        for _, accepted in pairs:
            accepted.close()
        counts: list[int] = []
        bench.loop.link.watch()
        while len(bench.relay.pairs.open) < len(pairs):
            before = len(bench.relay.pairs.open)
            bench.selector.poll(100)
            counts.append(len(bench.relay.pairs.open) - before)
        assert max(counts) <= MAX_REGISTERED
        assert min(filter(None, counts)) >= min(MAX_TOGETHER, len(pairs) - sum(counts[:-1]))
        bench.send(STOP, STOP)
        assert bench.loop.run([])


def test_demand_is_sent_unless_the_link_is_behind() -> None:
    with LoopBench() as bench:
        quotas = bench.relay.pairs.quotas
        watcher = quotas.watcher
        assert watcher is not None
        watcher.demanded([KeyDemand("node", "", "request_bytes", 5, 0, 0)])
        bench.loop.link.writer.queue({"type": "drained", "open": 0, "cut_off": 0})
        watcher.demanded([KeyDemand("node", "", "request_bytes", 6, 0, 0)])
        bench.when(lambda: True, lambda: bench.send(STOP))
        assert bench.loop.run([])
        bench.end()
        assert [row["demands"][0]["used"] for row in bench.of("demand")] == [5]


def login(bench: LoopBench) -> None:
    """A client that says who it is, whose question control gets."""
    bench.connect().sendall(frame(handshake("PLAIN")) + frame(token(plain_token())))


def test_an_auth_request_is_sent_and_its_response_ends_it() -> None:
    with LoopBench(sasl=ListenerSasl(mechanisms=("PLAIN",))) as bench:
        credentials = bench.settings.in_force.credentials
        assert credentials is not None
        refused = {"type": "answer", "number": 1, "kind": "Refused", "row": {"reason": "no such user", "scope": ""}}
        login(bench)
        bench.when(lambda: credentials.open, lambda: bench.send({**refused, "kind": "Nonsense"}, refused))
        bench.when(lambda: credentials.open, lambda: bench.when(lambda: not bench.relay.pairs.open, lambda: bench.send(STOP)))
        assert bench.loop.run([])
        bench.end()
        (question,) = bench.of("question")
        assert (question["queue"], question["kind"], question["row"]["user"]) == ("listener:plain", "CheckPassword", "user")
        (closed,) = bench.of("closed")
        assert (closed["row"]["cause"], closed["row"]["detail"]) == ("auth_failed", "PLAIN: no such user")
        (error,) = bench.of("error")
        assert "no answer of the kind Nonsense" in error["error"]


def test_a_lost_link_ends_open_auth_requests() -> None:
    with LoopBench(sasl=ListenerSasl(mechanisms=("PLAIN",))) as bench:
        credentials = bench.settings.in_force.credentials
        assert credentials is not None
        waiting = []

        def leave() -> None:
            waiting.extend(credentials._open.values())
            bench.command.close()
            bench.handover.close()

        login(bench)
        bench.when(lambda: credentials.open, leave)
        assert bench.loop.run([])
        assert [inquiry.answer for inquiry in waiting] == [Unavailable("the link to the control process is gone")]
        assert credentials.open == 0


def test_a_connection_goes_to_the_broker_of_its_hand_over_and_control_hears_of_brokers_that_answers_name() -> None:
    asked = request(cluster.METADATA, 12, 7)

    def serve(broker: socket.socket) -> None:
        sock, _ = broker.accept()
        with sock:
            while sock.recv(len(asked), socket.MSG_WAITALL):
                sock.sendall(cluster.metadata(nodes=(1, 5), rack="r"))

    with socket.create_server(("127.0.0.1", 0)) as broker, ThreadPoolExecutor(2) as threads:
        address: list[str | int] = ["127.0.0.1", int(socket.AF_INET), *broker.getsockname()]
        told = AdvertisedRow(bootstrap=["localhost", 9092], brokers=[[1, "localhost", 9101]])
        with LoopBench(brokers=ClusterRow(brokers=[BrokerRow(id=1, rack="", addresses=[address])], listeners={"plain": told})) as bench:
            served = threads.submit(serve, broker)
            client, accepted = bench.accepted()
            with accepted:
                facts = Handover(time.monotonic_ns(), int(socket.AF_INET), "plain", "192.0.2.1:9", 1)
                assert send_handovers(bench.handover, [facts], [accepted.fileno()])

            def ask() -> bytes:
                client.sendall(asked * 2)
                passed = b""
                while passed.count(b"localhost") < 4:
                    passed += client.recv(1 << 16)
                bench.send(STOP)
                return passed

            passed = threads.submit(ask)
            assert bench.loop.run([])
            assert cluster.SECRET not in passed.result()
            served.result()
            bench.end()
            assert [row["row"]["broker"] for row in bench.of("closed")] == [1]
            hosts = {node: f"{cluster.SECRET.decode()}{node}" for node in (1, 5)}
            rows = [SeenBrokerRow(id=node, host=host, port=9092, rack="r") for node, host in hosts.items()]
            assert bench.of("brokers_seen") == [BrokersSeenNotice(type="brokers_seen", upstream="u", brokers=rows)]


def test_requests_with_a_span_are_reported_together_and_what_finds_no_room_is_counted() -> None:
    left: list[int] = []
    with LoopBench() as bench:
        bench.connect()

        def report() -> None:
            (pair,) = bench.relay.pairs.open.values()
            sampler, link = bench.relay.pairs.sampler, bench.loop.link
            room = link.writer._row_bytes
            sampler.skipped = 4
            for number in range(MAX_REQUESTS + 2):
                link.request_ended(pair, RequestSpan(3 << 16, number, 1, 1, 0, None))
            left.append(int(sampler.skipped))
            link.writer._row_bytes = 0
            link.report_requests()
            left.append(int(sampler.skipped))
            link.writer._row_bytes = room
            link.report_requests()
            bench.send(STOP)

        bench.when_open(1, report)
        assert bench.loop.run([])
        bench.end()
        assert left == [0, 2]
        assert [(len(each["spans"]), each["skipped"]) for each in bench.of("request_spans")] == [(MAX_REQUESTS, 4), (0, 2)]
