"""A real framegate, its shipper and an S3 server. Whatever happens to the shipper or the store, traffic goes on, and what is called complete is."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.cli.tap_fleet import Fleet, verify_fleet
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.fleet import node_at
from framegate.proxy.tap.shipper import Shipper
from framegate.proxy.tap.shipping import END_S
from framegate.proxy.tap.store import WHOLE, AbsentError, ConflictError, StoreError, store_at
from tests.fakes.framegate import Framegate, Witness, alive, shipper_pid
from tests.fakes.kept_tap import in_segments
from tests.fakes.s3 import S3, Gcs, s3_server
from tests.fakes.shipped import ShippedTap
from tests.fakes.small_disk import tiny_disk
from tests.fakes.upstream import ask
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(params=[S3, pytest.param(Gcs, marks=pytest.mark.extended)])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server of each kind of store."""
    with s3_server(monkeypatch, kind=request.param) as made:
        yield made


def tapped(plain: dict[str, Any], directory: Path, s3: S3, **ship: Any) -> dict[str, Any]:
    tap = {"directory": str(directory), "segment_age": "1s", "flush": "5ms", "rules": [{"name": "all"}]}
    return {**plain, "tap": {**tap, **ship.pop("tap", {}), "ship": {"to": s3.url, "interval": "1s", **ship}}}


def killed(proxy: Framegate) -> int:
    pid = until(lambda: shipper_pid(proxy.process.pid))
    os.kill(pid, signal.SIGKILL)
    return int(pid)


def found(s3: S3) -> Fleet:
    return verify_fleet(s3.url)


def test_the_rules_of_a_store_hold(store: S3) -> None:
    at = store_at(f"{store.url}/n")
    data = os.urandom(2 * WHOLE + 1)
    at.replace("s/1", [b"1"], None)
    at.replace("s/3", [data[:WHOLE], data[WHOLE:]], None)
    assert b"".join(at.chunks("s/3")[0]) == data
    for name in ("s/1", "s/3"):  # of any size
        with pytest.raises(ConflictError):
            at.replace(name, [data], None)
    with pytest.raises(AbsentError):
        at.read("s/2")
    assert [(item.name, item.size) for item in at.items("s")] == [("1", 1), ("3", len(data))]
    assert [item.name for item in at.items("s", "1")] == ["3"]
    assert store_at(store.url).folders() == ["n"]
    _, version = at.read("s/1")
    newer = at.replace("s/1", [b"22"], version)
    for stale in (version, None):
        with pytest.raises(ConflictError):
            at.replace("s/1", [b"3"], stale)
    at.replace("s/1", [b"333"], newer)
    with pytest.raises(AbsentError):
        store_at(f"{store.scheme}://no-such-bucket/n").replace("x", [b""], None)
    store.fault = lambda method, path: 403
    with pytest.raises(StoreError) as refused:
        at.read("s/1")
    assert "wJalr" not in str(refused.value)


def test_a_truncated_upload_is_found_and_sent_again(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "tap").mkdir()
    tap = ShippedTap(tmp_path / "tap")
    tap.tap.end(in_segments(tap.tap, 2))
    tap.leave()
    cut = [7, 7]
    s3.fault = lambda method, path: cut.pop() if method == "PUT" and path.endswith(".seg") and cut else None
    shipper = Shipper(str(tap.folder), store_at(f"{s3.url}/edge"))
    with pytest.raises(StoreError, match="its CRC differs"):
        shipper.look(None, last=True)
    cut.append(7)
    assert shipper.look(None, last=True)
    assert verify(f"{s3.url}/edge") == verify(str(tap.folder))


def test_minutes_of_a_running_node_become_complete_and_a_killed_or_refused_shipper_changes_nothing(
    store: S3, tmp_path: Path, plain: dict[str, Any]
) -> None:
    directory = tmp_path / "tap"
    with Framegate(tmp_path / "framegate", tapped(plain, directory, store)) as proxy, Witness(proxy, "plain") as witness:
        proxy.wait_row(lambda row: row["event"] == "tap_shipping")
        store.held.clear()  # in the middle of an upload
        store.waiting.clear()
        until(store.waiting.is_set)
        killed(proxy)
        witness.check()
        proxy.wait_row(lambda row: row["event"] == "tap_ship_died")
        store.held.set()
        until(lambda: shipper_pid(proxy.process.pid))
        store.fault = lambda method, path: 503 if method == "PUT" else None
        row = proxy.wait_row(lambda row: row["event"] == "tap_ship_failed", 20)
        assert "503" in row["error"]
        witness.check()
        assert not found(store).verdict.complete or found(store).minutes[-1].state == "open"
        store.fault = lambda method, path: None
        killed(proxy)
        until(lambda: len(proxy.events("tap_shipping")) >= 2, timeout=20)
        root = f"{store.url}/{proxy.config['node']}"
        witness.stop()
        asked_ns = time.time_ns()
        until(lambda: node_at(root, time.time_ns()).until_ns >= asked_ns, "nothing is complete", 20)
        assert b"wJalr" not in b"".join(str(row).encode() for row in proxy.rows)
    fleet = found(store)
    assert proxy.process.returncode == 0
    assert (fleet.verdict.complete, fleet.nodes[0].state) == (True, "stopped")
    assert sum(minute.seen for minute in fleet.minutes) == 2 * witness.count
    assert {minute.state for minute in fleet.minutes} == {"complete"}


def test_an_applied_configuration_a_stopped_control_and_a_drain_leave_every_minute_complete(s3: S3, tmp_path: Path, plain: dict[str, Any]) -> None:
    config = tapped(plain, tmp_path / "tap", s3)
    with Framegate(tmp_path / "framegate", {**config, "drain": {"timeout": "5s", "quiet": "50ms"}}) as proxy:
        with Witness(proxy, "plain") as first:
            proxy.wait_row(lambda row: row["event"] == "tap_shipping")
            more = {**proxy.config["listeners"][0], "name": "more"}
            (tmp_path / "new.yaml").write_text(json.dumps({**proxy.config, "listeners": [*proxy.config["listeners"], more]}))
            done = proxy.cli("config", "apply", str(tmp_path / "new.yaml"), "--reason", "one more")
            assert done.returncode == 0, done.stderr
            proxy.serving["listeners"] = {item["name"]: item["address"] for item in proxy.json("listeners", "list")}
            with Witness(proxy, "more") as second:
                second.check()  # it was accepted, which control does
                os.kill(proxy.process.pid, signal.SIGSTOP)
                try:
                    first.check()
                    second.check()
                finally:
                    os.kill(proxy.process.pid, signal.SIGCONT)
                second.stop()
            first.stop()
        done = proxy.cli("drain", "--reason", "the node is replaced")
        assert done.returncode == 0, done.stderr
        assert proxy.stop(20) == 0
    fleet = found(s3)
    assert (fleet.verdict.complete, fleet.nodes[0].state) == (True, "stopped")
    assert {minute.state for minute in fleet.minutes} == {"complete"}
    assert sum(minute.seen for minute in fleet.minutes) == 2 * (first.count + second.count)


@pytest.mark.extended
def test_a_store_that_hangs_delays_neither_traffic_nor_the_end_for_long(s3: S3, tmp_path: Path, plain: dict[str, Any]) -> None:
    directory = tmp_path / "tap"
    with Framegate(tmp_path / "framegate", tapped(plain, directory, s3)) as proxy:
        proxy.wait_row(lambda row: row["event"] == "tap_shipping")
        s3.held.clear()
        with proxy.connect("plain") as client:
            for _ in range(100):
                assert ask(client, b"x") == b"x"
        until(s3.waiting.is_set)
        began = time.monotonic()
        assert proxy.stop(20) == 0
        assert time.monotonic() - began < 10
    s3.held.set()
    fleet = found(s3)
    assert (fleet.nodes[0].state, {minute.state for minute in fleet.minutes} <= {"open"}) == ("running", True)


@pytest.mark.extended
def test_a_shipper_in_a_request_that_hangs_ends_soon_after_control_was_killed(s3: S3, tmp_path: Path, plain: dict[str, Any]) -> None:
    config = tapped(plain, tmp_path / "tap", s3)
    with Framegate(tmp_path / "framegate", config) as proxy:
        proxy.wait_row(lambda row: row["event"] == "tap_shipping")
        s3.held.clear()
        until(s3.waiting.is_set)
        pid = shipper_pid(proxy.process.pid)
        assert pid is not None
        proxy.process.kill()
        until(lambda: not alive(pid), "it hangs, and no other process can ship", END_S + 5)
    s3.held.set()
    with Framegate(tmp_path / "framegate", config) as proxy:
        proxy.wait_row(lambda row: row["event"] == "tap_shipping", 20)


@pytest.mark.extended
def test_with_keep_shipped_a_full_disk_loses_frames_with_their_number_and_shipping_makes_room(s3: S3, tmp_path: Path, plain: dict[str, Any]) -> None:
    directory = tmp_path / "tap"
    s3.fault = lambda method, path: 503 if method == "PUT" and path.endswith(".seg") else None
    small = {"budget": "1MiB", "segment_size": "128KiB", "flush_size": "64KiB"}
    with tiny_disk(directory, 4) as mounted:
        if not mounted:
            pytest.skip("needs a disk of its own")
        config = tapped(plain, directory, s3, keep="shipped", tap=small)
        with Framegate(tmp_path / "framegate", config) as proxy, Witness(proxy, "plain", size=20_000) as witness:
            until(lambda: proxy.metric("framegate_tap_dropped_total") > 0, "the disk is not full", 20)
            assert not proxy.events("tap_deleted"), "nothing is shipped"
            witness.check()
            s3.fault = lambda method, path: None
            witness.stop()
            killed(proxy)  # its pause may be long
            proxy.wait_row(lambda row: row["event"] == "tap_deleted", 20)
            with proxy.connect("plain") as client:
                assert ask(client, b"there is room again") == b"there is room again"
            proxy.wait_row(lambda row: row["event"] == "tap_losing_ended", 20)
        assert proxy.process.returncode == 0
        fleet = found(s3)
        lost = [minute for minute in fleet.minutes if minute.state == "lost"]
        assert lost
        assert {reason for minute in lost for reason in minute.reasons} == {"disk_full"}
        assert fleet.verdict.faults == []
        assert sum(minute.seen for minute in fleet.minutes) == 2 * (witness.count + 1)
