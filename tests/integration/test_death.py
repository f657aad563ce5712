"""SIGKILL to a processor, and to the control process."""

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from control.gen.framegate.control.v1 import channel_service_pb2 as channels_pb2
from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from proxy.tap import log_reader
from proxy.tap.completeness import verify
from proxy.tap.ledger import read_ledger
from tests.fakes.framegate import Framegate, Witness
from tests.fakes.tap_files import missing, stored
from tests.fakes.tap_read import read_gaps
from tests.fakes.upstream import frame, read_frame

UNKNOWN = {"request": None, "response": None}


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Any, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def slots(proxy: Framegate) -> dict[str, int]:
    """The slot of every open channel, by peer."""
    with proxy.api() as channel:
        answer = ChannelServiceStub(channel).ListChannels(channels_pb2.ListChannelsRequest(), timeout=10)
    return {item.peer_address: item.processor_slot for item in answer.channels}


def channel_ids(proxy: Framegate) -> dict[str, str]:
    """The id of every open channel, by peer."""
    with proxy.api() as channel:
        answer = ChannelServiceStub(channel).ListChannels(channels_pb2.ListChannelsRequest(), timeout=10)
    return {item.peer_address: item.id for item in answer.channels}


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
                victim.sendall(frame(bytes([number])))
                assert read_frame(victim) == bytes([number])
            peers = {"{}:{}".format(*sock.getsockname()[:2]): sock for sock in (victim, witness.sock)}
            by_peer = slots(proxy)
            listed = channel_ids(proxy)
            slot_of = {sock: by_peer[peer] for peer, sock in peers.items()}
            assert slot_of[victim] != slot_of[witness.sock]
            slot = slot_of[victim]
            pid = proxy.wait_row(lambda row: row["event"] == "processor_ready" and row["slot"] == slot)["pid"]
            os.kill(pid, signal.SIGKILL)
            row = proxy.closed_row(victim)
            assert victim.recv(1) == b""
        assert (row["cause"], row["id"]) == ("processor_died", listed[row["peer"]])
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
            assert set(slots(proxy).values()) == {0, 1}
        witness.check()
    assert proxy.process.returncode == 0


@pytest.mark.slow
def test_processors_leave_no_orphan_when_control_is_killed(tmp_path: Path, plain: dict[str, Any]) -> None:
    tap = {"directory": "tap", "flush": "10s", "flush_size": "4MiB", "rules": [{"name": "all"}]}
    proxy = Framegate(tmp_path, {**plain, "processors": 2, "tap": tap})
    with proxy.connect("plain") as client:
        for number in range(10):
            client.sendall(frame(bytes([number])))
            assert read_frame(client) == bytes([number])
        pids = proxy.processors
        assert len(pids) == 2
        proxy.process.kill()
        proxy.wait()
        wait_until(lambda: not any(alive(pid) for pid in pids), timeout=8)
        assert client.recv(1) == b""
    assert stored(tmp_path / "tap") == {"request": 10, "response": 10}
    with Framegate(tmp_path, {**plain, "tap": tap}) as successor, Witness(successor, "plain") as witness:
        witness.check()


def kill_all(proxy: Framegate) -> None:
    """SIGKILL to control and its processors, as when the kernel takes the whole pod: they stand still first, so that none outlives another."""
    pids = [proxy.process.pid, *proxy.processors]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    proxy.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("left", ["open", "sealed", "nothing"])
def test_what_went_with_control_and_processors_together_is_unknown_and_said_to_be(tmp_path: Path, plain: dict[str, Any], left: str) -> None:
    """Whatever the stream has: a segment that was being written, only sealed ones, or no file at all."""
    directory = tmp_path / "tap"
    tap = {"directory": "tap", "segment_age": "1s", "rules": [{"name": "all"}]}
    if left == "nothing":
        tap |= {"flush": "10s", "flush_size": "4MiB"}
    proxy = Framegate(tmp_path, {**plain, "tap": tap})
    before_ns = time.time_ns()
    with proxy.connect("plain") as client:

        def exchange(count: int) -> None:
            for number in range(count):
                client.sendall(frame(b"%d" % number))
                assert read_frame(client) == b"%d" % number

        exchange(20)
        if left == "sealed":
            wait_until(lambda: list(directory.rglob("*.seg")) and not list(directory.rglob("*.open")))
        elif left == "open":
            wait_until(lambda: list(directory.rglob("*.open")))
        kill_all(proxy)
    killed_ns = time.time_ns()
    assert bool(list(directory.rglob("*.seg"))) == (left == "sealed")
    with Framegate(tmp_path, {**plain, "tap": tap}) as successor:
        row = successor.wait_row(lambda row: row["event"] == "tap_gap")
        assert (row["certainty"], row["reason"]) == ("unknown", "processor_died")
    gaps_found = [gap for gap in read_gaps(str(directory)) if gap.stream == row["recovery"]]
    assert {(gap.listener, gap.direction, gap.frames, gap.certainty) for gap in gaps_found} == {
        ("plain", "request", 0, "unknown"),
        ("plain", "response", 0, "unknown"),
    }
    for gap in gaps_found:
        assert before_ns - 10_000_000_000 < gap.from_ns <= killed_ns < gap.until_ns + 1_000_000_000
    verdict = verify(str(directory))
    assert not verdict.complete
    assert verdict.faults == []
    mine = [found for found in verdict.rows if found.stream == row["stream"]]
    assert {found.direction for found in mine if found.unknown} == {"request", "response"}
    assert sum(found.seen - found.accounted for found in mine) == 0, "what is in the log is stated"
    stored = sum(found.stored for found in mine)
    assert {"open": stored <= 40, "sealed": 0 < stored <= 40, "nothing": stored == 0}[left]


def orphaned(proxy: Framegate, client: socket.socket) -> list[int]:
    """SIGKILL to control alone; its processors stand still then, before they could write anything, for a client has sent a part of a frame only.

    They are stopped no sooner, for the kernel lets those that stand still go on when their group is orphaned.
    """
    pids = proxy.processors
    client.sendall(frame(b"cut off")[:6])
    proxy.process.kill()
    proxy.process.wait()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert all(map(alive, pids))
    return pids


def end_orphans(pids: list[int], number: int) -> None:
    for pid in filter(alive, pids):
        os.kill(pid, number)
    wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.slow  # four starts, and processors that end because their control is gone
@pytest.mark.parametrize(("end", "written"), [("in order", "open"), ("killed", "nothing")])
def test_streams_of_a_dead_control_are_settled_when_its_processors_are_gone_and_not_before(
    tmp_path: Path, plain: dict[str, Any], end: str, written: str
) -> None:
    """They stand still when the next control comes, and when that one goes, and when one more comes; each of them carries traffic meanwhile."""
    directory = tmp_path / "tap"
    tap = {"directory": "tap", "flush": "10s", "flush_size": "4MiB", "rules": [{"name": "all"}]}
    first = Framegate(tmp_path, {**plain, "tap": tap | ({"flush": "1ms"} if written == "open" else {})})
    pids: list[int] = []
    try:
        with first.connect("plain") as client:
            for number in range(20):
                client.sendall(frame(b"%d" % number))
                assert read_frame(client) == b"%d" % number
            if written == "open":
                wait_until(lambda: sum(row.stored for row in verify(str(directory)).rows) == 40)
            (stream,) = read_ledger(str(directory)).streams
            pids = orphaned(first, client)
            files = {path: path.read_bytes() for path in (directory / stream).glob("*")}
            assert bool(files) == (written == "open")
            for _ in range(2):
                with Framegate(tmp_path, {**plain, "tap": tap}) as successor, Witness(successor, "plain") as witness:
                    row = successor.wait_row(lambda row: row["event"] == "tap_orphans")
                    assert (row["level"], row["streams"][0]) == ("warning", stream)
                    witness.check()
                    verdict = verify(str(directory))
                    assert verdict.faults == []
                    assert {found.state for found in verdict.rows if found.stream == stream} <= {"open"}
                fate = read_ledger(str(directory)).streams[stream]
                assert (fate.end, fate.settled) == (None, False)
                assert {path: path.read_bytes() for path in (directory / stream).glob("*")} == files, "others' files are left alone"
            with Framegate(tmp_path, {**plain, "tap": tap}) as successor:
                successor.wait_row(lambda row: row["event"] == "tap_orphans")
                end_orphans(pids, signal.SIGCONT if end == "in order" else signal.SIGKILL)
                gone = successor.wait_row(lambda row: row["event"] == "tap_orphans_gone")
                wait_until(lambda: read_ledger(str(directory)).streams[stream].settled)
    finally:
        end_orphans(pids, signal.SIGKILL)
        first.wait()
    assert gone["streams"][0] == stream
    rows = [row for row in verify(str(directory)).rows if row.stream == stream]
    assert verify(str(directory)).faults == []
    if end == "in order":
        assert {(row.direction, row.state) for row in rows} == {("request", "complete"), ("response", "complete")}
        assert sum(row.seen for row in rows) == sum(row.stored for row in rows) == 40
        assert not any(".recovery." in name for name in read_ledger(str(directory)).streams)
    else:
        assert {row.state for row in rows} == {"unknown"}
        assert sum(row.seen for row in rows) == sum(row.stored for row in rows) == (40 if written == "open" else 0)
        assert len([name for name in read_ledger(str(directory)).streams if ".recovery." in name]) == 1


@pytest.mark.slow
def test_an_end_that_is_forced_is_no_crash_and_names_those_it_cut_off(tmp_path: Path, plain: dict[str, Any]) -> None:
    """The second signal kills the processors while they drain."""
    proxy = Framegate(tmp_path, {**plain, "drain": {"timeout": "20s", "quiet": "20s"}})
    with proxy.connect("plain") as client:
        client.sendall(frame(b"x"))
        assert read_frame(client) == b"x"
        (identifier,) = channel_ids(proxy).values()
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(lambda row: row["event"] == "drain_began")
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.wait() == 1
    events = [row["event"] for row in proxy.rows]
    assert "processor_died" not in events
    stopped = next(row for row in proxy.rows if row["event"] == "processor_stopped")
    assert (stopped["level"], stopped["forced"], stopped["connections"]) == ("warning", True, 1)
    closed = next(row for row in proxy.rows if row["event"] == "closed")
    assert (closed["id"], closed["cause"], closed["frames"]) == (identifier, "drain_timeout", UNKNOWN)
