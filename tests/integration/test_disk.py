"""A full disk under the tap: traffic goes on, every frame that the log lacks is accounted for, and the log goes on when there is room again."""

from pathlib import Path
from typing import Any

import pytest

from framegate.control.v1.proxy_service_pb2 import GetProxyRequest
from framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub
from framegate.control.v1.tap_service_pb2 import ListTapRulesRequest
from framegate.control.v1.tap_service_pb2_grpc import TapServiceStub
from tests.fakes.framegate import Framegate, Witness
from tests.fakes.small_disk import tiny_disk
from tests.fakes.tap_files import missing, stored
from tests.fakes.upstream import ask
from tests.fakes.waiting import until


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
            until(lambda: proxy.metric("framegate_tap_dropped_total") > 0, "the disk is not full", 20)
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
                    assert ask(client, b"there is room again") == b"there is room again"
        assert proxy.process.returncode == 0
        if mounted:
            there, gone = stored(directory), missing(directory)
            for direction in ("request", "response"):
                assert gone[direction] > 0
                assert there[direction] + gone[direction] == witness.count + 1
