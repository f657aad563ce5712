"""The ends of connections in the tap's log and in the table ``connections``: they are those of framegate's own log."""

import datetime
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from framegate.proxy.pipeline.sql import open_tables
from framegate.proxy.pipeline.tables import TableWriter
from framegate.proxy.server.link import complete
from tests.fakes.framegate import Framegate, Row, run_cli
from tests.fakes.sasl_frames import handshake, token
from tests.fakes.tap_read import read_ends
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, read_to_end, refusing_port, reset
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
CAUSES = ("peer_closed", "peer_reset", "no_data", "idle", "auth_failed", "upstream_refused", "frame_too_large", "admin", "drained")


def configuration(folder: Path, echo: str, refusing: int) -> dict[str, Any]:
    common = {"address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1KiB"}
    with changing(folder / "users") as users:
        users.add("ann", new_credentials("secret", iterations=4096))
    sasl = {"protocol": "kafka", "timeouts": {"failed_authentication": "0ms"}, "sasl": {"mechanisms": ["PLAIN"], "users": "users"}}
    return {
        "memory_pool": {"size": "8MiB"},
        "listeners": [
            {"name": "plain", **common},
            {"name": "kafka", **common, **sasl},
            {"name": "idle", **common, "timeouts": {"idle": "200ms"}},
            {"name": "dead", **common, "upstream": "dead"},
            {"name": "other", **common},
        ],
        "upstreams": [{"name": "echo", "endpoints": [echo]}, {"name": "dead", "endpoints": [f"127.0.0.1:{refusing}"]}],
        "tap": {"directory": "tap", "rules": [{"name": "most", "listeners": ["plain", "kafka", "idle", "dead"], "capture": "lengths"}]},
    }


def traffic(folder: Path) -> list[Row]:
    """Connections that end for each of CAUSES, one of which nothing is recorded, and one whose processor is killed. Returns the rows ``closed``."""
    folder.mkdir()
    with ScriptedUpstream() as upstream, refusing_port() as port:
        with Framegate(folder, configuration(folder, upstream.address, port)) as proxy:
            killed = proxy.connect("plain")
            ask(killed, b"1")
            os.kill(proxy.processors[0], signal.SIGKILL)
            assert proxy.closed_row(killed)["cause"] == "processor_died"
            proxy.wait_row(lambda row: row["event"] == "processor_ready" and row["generation"] > 1)

            def finished(client: socket.socket, peer: str = "") -> None:
                proxy.closed_row(peer or client)
                client.close()

            other, closing, resetting = proxy.connect("other"), proxy.connect("plain"), proxy.connect("plain")
            for number, client in enumerate((other, closing, resetting)):
                for _ in range(number + 1):
                    ask(client, bytes(100 * number))
            peers = [peer_name(client) for client in (other, closing, resetting)]
            other.close()
            closing.close()
            reset(resetting)
            for peer in peers:
                proxy.closed_row(peer)
            probe = proxy.connect("plain")
            peer = peer_name(probe)
            probe.close()
            proxy.closed_row(peer)
            for listener, data in (("idle", frame(b"x")), ("dead", b""), ("plain", (2048).to_bytes(4, "big"))):
                client = proxy.connect(listener)
                client.sendall(data)
                read_to_end(client)
                finished(client)
            denied = proxy.connect("kafka")
            ask(denied, handshake("PLAIN"))
            denied.sendall(frame(token(b"\0eve\n\0wrong")))
            read_to_end(denied)
            finished(denied)
            chosen = proxy.connect("plain")
            ask(chosen, b"12")
            assert proxy.cli("channels", "close", proxy.channels()[peer_name(chosen)].id, "--reason", "a test").returncode == 0
            read_to_end(chosen)
            finished(chosen)
            staying = proxy.connect("plain")
            ask(staying, b"123")
            assert proxy.stop() == 0
        return proxy.events("closed")


def recorded(rows: list[Row]) -> dict[str, Row]:
    """The rows of connections that are in the record, by id."""
    return {row["id"]: row for row in rows if row["listener"] != "other" and row["cause"] != "processor_died"}


def test_the_log_has_the_row_of_each_connection_once(tmp_path: Path) -> None:
    rows = traffic(tmp_path / "framegate")
    expected = recorded(rows)
    assert sorted(row["cause"] for row in expected.values()) == sorted(CAUSES)
    assert {row["listener"] for row in rows if row["id"] not in expected} == {"other", "plain"}, (
        "of one that is not tapped, and of one that was killed"
    )
    tap = str(tmp_path / "framegate" / "tap")
    ends = list(read_ends(tap))
    assert sorted(end["id"] for end in ends) == sorted(expected)
    for end in ends:
        assert end.pop("tap_rule") == "most"
        complete("closed", end)
        assert expected[end["id"]].items() >= end.items()
    assert run_cli("tap", "verify", tap).returncode in (0, 1), "1: frames of the killed processor may be lost"
    store = f"file://{tmp_path}/store"
    assert run_cli("tap", "ship", tap, store).returncode == 0
    shown = [line for line in run_cli("tap", "cat", tap).stdout.splitlines() if " ended after " in line]
    assert [line for line in run_cli("tap", "cat", store).stdout.splitlines() if " ended after " in line] == shown
    assert len(shown) == len(ends)
    assert all(
        any(f" {row['id']} {row['listener']} {row['peer']} ended" in line and row["cause"] in line for line in shown) for row in expected.values()
    )


def test_connections_that_end_while_control_is_stopped_are_in_the_log_at_once_and_once(tmp_path: Path) -> None:
    """Processors write them; the rows of framegate's log wait for control."""
    with ScriptedUpstream() as upstream, refusing_port() as port:
        with Framegate(tmp_path, configuration(tmp_path, upstream.address, port)) as proxy:
            clients = [proxy.connect("plain") for _ in range(40)]
            for client in clients:
                ask(client, b"1")
            peers = {peer_name(client) for client in clients}
            proxy.process.send_signal(signal.SIGSTOP)
            try:
                for number, client in enumerate(clients):
                    reset(client) if number % 2 else client.close()
                until(lambda: len(list(read_ends(str(tmp_path / "tap")))) == len(clients))
                assert proxy.events("closed") == []
            finally:
                proxy.process.send_signal(signal.SIGCONT)
            assert proxy.stop() == 0
        rows = {row["id"]: row for row in proxy.events("closed")}
        ends = [complete("closed", end) or end for end in read_ends(str(tmp_path / "tap"))]
        assert sorted(end["id"] for end in ends) == sorted(rows)
        assert {end["peer"] for end in ends} == peers
        assert [end["cause"] for end in ends] == [rows[end["id"]]["cause"] for end in ends]
        assert run_cli("tap", "verify", str(tmp_path / "tap")).returncode == 0


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("place", ["folder", "store"])
def test_the_table_has_what_the_rows_say(spark: "SparkSession", tmp_path: Path, place: str) -> None:
    rows = traffic(tmp_path / "framegate")
    source = str(tmp_path / "framegate" / "tap")
    if place == "store":
        store = f"file://{tmp_path}/store"
        assert run_cli("tap", "ship", source, store).returncode == 0
        source = store
    writer = TableWriter(tmp_path / "tables", compact_ms=0, source=source)
    for _ in range(2):
        writer(spark.read.format("framegate").option("output", str(tmp_path / "tables")).load(source), 0)
    writer.close()
    ask_tables = open_tables(tmp_path / "tables")
    table = {row["connection"]: row for row in ask_tables("SELECT * FROM connections").to_pylist()}

    def of_row(row: Row) -> dict[str, Any]:
        times = {f"{name}_time": datetime.datetime.fromtimestamp(row[f"{name}_ns"] // 1000 / 1e6, datetime.UTC) for name in ("opened", "closed")}
        traffic = {f"{side}_{each}": row[each][side] for side in ("request", "response") for each in ("frames", "bytes")}
        same = {name: row[name] or None for name in ("listener", "peer", "principal", "upstream", "endpoint", "cause", "detail", "side", "mechanism")}
        return {
            **same,
            "principal": None if row["principal"] == "ANONYMOUS" else same["principal"],
            **{name: row[name] for name in ("attempts", "level")},
            "duration_ms": int(row["duration_ms"]),
            "unforwarded_bytes": row["lost"]["bytes"],
            "end_state": row["state"],
            "attempted_user": row.get("attempted_user"),
            **traffic,
            **times,
        }

    expected = {identifier: of_row(row) for identifier, row in recorded(rows).items()}
    assert {key: {name: row[name] for name in next(iter(expected.values()))} for key, row in table.items()} == expected
    assert ask_tables("SELECT count(*) AS n FROM connections")["n"].to_pylist() == [len(CAUSES)], "a batch that comes again adds nothing"
    without = "SELECT DISTINCT connection FROM frames WHERE connection NOT IN (SELECT connection FROM connections)"
    killed = [row["id"] for row in rows if row["cause"] == "processor_died"]
    assert set(ask_tables(without)["connection"].to_pylist()) <= set(killed), "only the connection of the killed processor has frames and no row"
