"""A full disk under the tap: traffic goes on, every frame that the log lacks is accounted for, and the log goes on when there is room again."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from control.demo.telemetry.small_disk import fill, tiny_disk
from control.gen.framegate.control.v1.proxy_service_pb2 import GetProxyRequest
from control.gen.framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub
from control.gen.framegate.control.v1.tap_service_pb2 import ListTapRulesRequest
from control.gen.framegate.control.v1.tap_service_pb2_grpc import TapServiceStub
from proxy.tap.completeness import verify
from tests.fakes.framegate import Framegate, Witness
from tests.fakes.tap_files import missing, stored
from tests.fakes.upstream import frame, read_frame


def dropped(proxy: Framegate) -> float:
    return proxy.metric("framegate_tap_dropped_total")


@pytest.mark.slow
def test_a_full_disk_costs_the_log_and_not_the_traffic(tmp_path: Path, plain: dict[str, Any]) -> None:
    directory = tmp_path / "tap"
    tap = {"directory": str(directory), "budget": "64MiB", "segment_size": "8MiB", "rules": [{"name": "all"}]}
    with tiny_disk(directory) as mounted:
        # Not root: no file may grow above 1 MiB. The writes fail alike; there is no room again, so the end of the test is left out.
        prefix = () if mounted else ("prlimit", "--fsize=1048576")
        ballast = directory / "ballast"
        if mounted:
            ballast.write_bytes(bytes(512 * 1024))
        with Framegate(tmp_path / "framegate", {**plain, "tap": tap}, prefix=prefix) as proxy, Witness(proxy, "plain", size=20_000) as witness:
            deadline = time.monotonic() + 20
            while dropped(proxy) == 0:
                witness.check()
                assert time.monotonic() < deadline, "the disk is not full"
            before = witness.count
            witness.check()
            assert witness.count > before
            losing = proxy.wait_row(lambda row: row["event"] == "tap_losing")
            assert losing["frames"].keys() == {"disk_full"}
            with proxy.api() as channel:
                found = ProxyServiceStub(channel).GetProxy(GetProxyRequest()).proxy
                (rule,) = TapServiceStub(channel).ListTapRules(ListTapRulesRequest()).tap_rules
            assert proxy.wait_row(lambda row: row["event"] == "tap_disk_low")["free"] < 8 << 20
            assert [text for text in found.warnings if "the tap loses frames" in text]
            assert rule.state == rule.STATE_LOSING
            if mounted:
                ballast.unlink()
                with proxy.connect("plain") as client:
                    client.sendall(frame(b"there is room again"))
                    assert read_frame(client) == b"there is room again"
        assert proxy.process.returncode == 0
        if mounted:
            there, gone = stored(directory), missing(directory)
            for direction in ("request", "response"):
                assert gone[direction] > 0
                assert there[direction] + gone[direction] == witness.count + 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["in order", "killed"])
def test_what_a_disk_that_was_full_to_the_end_did_not_take_is_counted_in_the_log(tmp_path: Path, plain: dict[str, Any], end: str) -> None:
    directory = tmp_path / "tap"
    tap = {"directory": str(directory), "budget": "64MiB", "segment_size": "8MiB", "rules": [{"name": "all"}]}
    with tiny_disk(directory, 4) as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")
        with Framegate(tmp_path / "framegate", {**plain, "tap": tap}) as proxy, Witness(proxy, "plain", size=20_000) as witness:
            witness.check()
            fill(directory / "ballast")
            deadline = time.monotonic() + 20
            while dropped(proxy) < 40:
                witness.check()
                assert time.monotonic() < deadline, "the disk is not full"
            fill(directory / "ballast")
            if end == "killed":
                witness.stop()
                os.kill(proxy.processors[0], signal.SIGKILL)
                proxy.wait_row(lambda row: row["event"] == "tap_gap")
        assert proxy.process.returncode == 0
        assert not [row for row in proxy.rows if row["event"] == "tap_incomplete" and "frames" in row]
        assert (directory / "ballast").stat().st_size > 1 << 20, "no room was made by anybody else"
        verdict = verify(str(directory))
        assert verdict.faults == []
        assert not verdict.complete
        for direction in ("request", "response"):
            rows = [row for row in verdict.rows if row.direction == direction]
            assert {row.state for row in rows} <= {"complete", "lost", "at_most"}
            stored, most = sum(row.stored for row in rows), max(row.shared for row in rows) + max(row.at_most for row in rows)
            lost = sum(row.lost for row in rows)
            if end == "killed":
                assert stored + lost <= witness.count <= stored + lost + most
            else:
                assert stored + lost + most == sum(row.seen for row in rows) == witness.count
            assert lost + most >= 10
        row = next((row for row in proxy.rows if row["event"] == "tap_gap"), None)
        if row is None and end == "in order":
            return  # the writer found room for its own account
        assert row is not None
        assert (row["certainty"], row["reason"]) == (("exact", "disk_full") if end == "in order" else ("at_most", "processor_died"))
