"""Names in Prometheus."""

import pytest

from framegate.control.telemetry.names import label_name, prometheus_name
from framegate.proxy.cells import METRICS


@pytest.mark.parametrize(
    ("name", "unit", "monotonic", "expected"),
    [
        ("framegate.frame.count", "{frame}", True, "framegate_frame_count_total"),
        ("framegate.io", "By", True, "framegate_io_bytes_total"),
        ("framegate.memory_pool.depleted.time", "s", True, "framegate_memory_pool_depleted_time_seconds_total"),
        ("framegate.connection.active", "{connection}", False, "framegate_connection_active"),
        ("framegate.draining", "{drain}", False, "framegate_draining"),
        ("framegate.rate.io.limit", "By/s", False, "framegate_rate_io_limit_bytes_per_second"),
        ("framegate.rate.frame.limit", "{frame}/s", False, "framegate_rate_frame_limit_per_second"),
        ("framegate.tls.certificate.not_after", "s", False, "framegate_tls_certificate_not_after_seconds"),
        ("rpc.server.call.duration", "s", False, "rpc_server_call_duration_seconds"),
    ],
)
def test_a_name_gets_its_unit_and_total(name: str, unit: str, monotonic: bool, expected: str) -> None:
    assert prometheus_name(name, unit, monotonic=monotonic) == expected


def test_no_two_metrics_share_a_name() -> None:
    names = [prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter") for metric in METRICS]
    assert len(set(names)) == len(names)


def test_labels_have_no_dots() -> None:
    assert label_name("network.io.direction") == "network_io_direction"
