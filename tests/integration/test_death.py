"""SIGKILL to a processor, and to the control process."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.tap import log_reader
from tests.fakes.framegate import Framegate, Witness, alive
from tests.fakes.tap_files import missing, stored
from tests.fakes.upstream import ask, peer_name
from tests.fakes.waiting import until

UNKNOWN = {"request": None, "response": None}


def gaps(directory: Path) -> dict[str, int]:
    """Frames that gaps for dead processors miss, by direction, over all streams."""
    found = {"request": 0, "response": 0}
    for stream in log_reader.streams(str(directory)):
        if ".recovery." in stream:
            lost = missing(directory, stream)
            found = {direction: found[direction] + lost[direction] for direction in found}
    return found


@pytest.mark.slow
def test_a_killed_processor_takes_only_its_own_connections_and_is_replaced(tmp_path: Path, plain: dict[str, Any]) -> None:
    tap = {"directory": "tap", "flush": "10s", "flush_size": "4MiB", "rules": [{"name": "all"}]}
    with Framegate(tmp_path, {**plain, "processors": 2, "tap": tap}) as proxy, Witness(proxy, "plain") as witness:
        witness.check()
        with proxy.connect("plain") as victim:
            for number in range(10):
                assert ask(victim, bytes([number])) == bytes([number])
            listed = proxy.channels()
            slot = listed[peer_name(victim)].processor_slot
            assert slot != listed[peer_name(witness.sock)].processor_slot
            pid = proxy.wait_row(lambda row: row["event"] == "processor_ready" and row["slot"] == slot)["pid"]
            os.kill(pid, signal.SIGKILL)
            row = proxy.closed_row(victim)
            assert victim.recv(1) == b""
        assert (row["cause"], row["id"]) == ("processor_died", listed[row["peer"]].id)
        assert (row["frames"], row["bytes"]) == (UNKNOWN, UNKNOWN)
        died = proxy.wait_row(lambda row: row["event"] == "processor_died")
        assert (died["slot"], died["pid"], died["exit_code"], died["connections"]) == (slot, pid, -9, 1)
        ready = proxy.wait_row(lambda row: row["event"] == "processor_ready" and row["slot"] == slot and row["pid"] != pid)
        assert ready["generation"] > died["generation"]
        gap = proxy.wait_row(lambda row: row["event"] == "tap_gap")
        assert gap["frames"] == gaps(tmp_path / "tap")
        assert all(10 <= count <= 10 + 64 for count in gap["frames"].values()), (
            "an upper bound, though no counter had to be published before the kill"
        )
        assert proxy.metric("framegate_connection_closed_total", framegate_cause="processor_died") == 1
        assert proxy.metric("framegate_worker_restarts_total") == 1
        assert proxy.closed_cause(row["id"]) == "processor_died"
        with Witness(proxy, "plain") as another, Witness(proxy, "plain") as third:
            another.check()
            third.check()
            assert {item.processor_slot for item in proxy.channels().values()} == {0, 1}
        witness.check()
    assert proxy.process.returncode == 0


@pytest.mark.extended
@pytest.mark.slow
def test_processors_leave_no_orphan_when_control_is_killed(tmp_path: Path, plain: dict[str, Any]) -> None:
    tap = {"directory": "tap", "flush": "10s", "flush_size": "4MiB", "rules": [{"name": "all"}]}
    proxy = Framegate(tmp_path, {**plain, "processors": 2, "tap": tap})
    with proxy.connect("plain") as client:
        for number in range(10):
            assert ask(client, bytes([number])) == bytes([number])
        pids = proxy.processors
        assert len(pids) == 2
        proxy.process.kill()
        proxy.wait()
        until(lambda: not any(alive(pid) for pid in pids), timeout=8)
        assert client.recv(1) == b""
    assert stored(tmp_path / "tap") == {"request": 10, "response": 10}
    with Framegate(tmp_path, {**plain, "tap": tap}) as successor, Witness(successor, "plain") as witness:
        witness.check()


@pytest.mark.extended
@pytest.mark.slow
def test_an_end_that_is_forced_is_no_crash_and_names_those_it_cut_off(tmp_path: Path, plain: dict[str, Any]) -> None:
    proxy = Framegate(tmp_path, {**plain, "drain": {"timeout": "1m", "quiet": "20s"}})
    with proxy.connect("plain") as client:
        assert ask(client, b"x") == b"x"
        (listed,) = proxy.channels().values()
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(lambda row: row["event"] == "drain_began")
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.wait() == 1
    events = [row["event"] for row in proxy.rows]
    assert "processor_died" not in events
    stopped = proxy.events("processor_stopped")[0]
    assert (stopped["level"], stopped["forced"], stopped["connections"]) == ("warning", True, 1)
    closed = proxy.events("closed")[0]
    assert (closed["id"], closed["cause"], closed["frames"]) == (listed.id, "drain_timeout", UNKNOWN)
