"""The names and labels that framegate's metrics have in Prometheus, and which of them a query asks for."""

import functools
import re
from collections.abc import Mapping

from control.telemetry.fold import PER_WORKER, WORKER
from control.telemetry.names import label_name, prometheus_name
from proxy.cells import METRICS

__all__ = ["COMING", "DERIVED", "ELSEWHERE", "TARGET", "asked", "declared"]

COMING: Mapping[str, set[str]] = {
    "framegate_frame_forward_duration_seconds": {"le", "framegate_listener", "framegate_direction"},
    "framegate_kafka_request_duration_seconds": {"le", "framegate_listener", "framegate_kafka_api"},
    "framegate_kafka_request_io_bytes_total": {"framegate_listener", "framegate_kafka_api", "framegate_direction"},
    "framegate_memory_pool_wait_duration_seconds": {"le", "framegate_pool"},
    "framegate_memory_pool_listener_usage_bytes": {"framegate_listener"},
    "framegate_tap_append_duration_seconds": {"le", "error_type"},
    "framegate_authentication_duration_seconds": {"le", "framegate_sasl_mechanism"},
    "framegate_upstream_authentication_count_total": {"framegate_upstream", "framegate_sasl_mechanism", "error_type"},
    "framegate_tls_handshake_count_total": {"framegate_side", "tls_protocol_version", "tls_resumed"},
    "framegate_channel_pending": {"framegate_side"},
    "framegate_tap_lag_bytes": {"framegate_consumer"},
    "framegate_tap_lag_time_seconds": {"framegate_consumer"},
    "framegate_drain_time_seconds": set(),
    "framegate_ready": {"framegate_probe"},
    "framegate_telemetry_exports_total": {"framegate_signal", "error_type"},
    "framegate_telemetry_dropped_total": {"framegate_signal"},
    "process_uptime_seconds": {"framegate_process"},
    "cpython_gc_collections_total": {"cpython_gc_generation"},
}
"""What is counted soon: to be deleted when it is. ``le`` says of a histogram that it is one."""
ELSEWHERE: Mapping[str, set[str]] = {
    "framegate_pipeline_batch_duration_seconds": {"le"},
    "framegate_pipeline_frames_total": set(),
    "framegate_pipeline_minutes_total": {"framegate_state"},
}
"""What the Spark job exports."""
INSTRUMENTS: Mapping[str, set[str]] = {
    "process_cpu_time_seconds_total": {"framegate_process", "cpu_mode"},
    "process_memory_usage_bytes": {"framegate_process"},
    "process_unix_file_descriptor_count": {"framegate_process"},
    "process_thread_count": {"framegate_process"},
    "process_uptime_seconds": {"framegate_process"},
    "cpython_gc_collections_total": {"framegate_process", "cpython_gc_generation"},
    "framegate_tls_certificate_not_after_seconds": {"framegate_certificate"},
    "framegate_scrape_refused_total": set(),
    "rpc_server_call_duration_seconds": {"le", "rpc_system_name", "rpc_method", "rpc_response_status_code", "error_type"},
}
"""What is no metric of ours by name, or an instrument of the SDK: it has no line in ``METRICS``."""
MONITOR: Mapping[str, set[str]] = {"up": set(), "scrape_duration_seconds": set()}
"""What Prometheus itself says of a scrape."""
TARGET = {"job", "instance", "pod"}
DERIVED = {"problem", "alert", "measure", "where", "kind", "method"}
"""Labels that a query makes itself."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"(?<![\w:])([a-zA-Z_:][\w:]*)?\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right) \(([^)]*)\)")


@functools.cache
def declared() -> dict[str, set[str]]:
    """The labels of each name that a scrape may give."""
    found: dict[str, set[str]] = {name: set(labels) for name, labels in MONITOR.items()}
    known = {name: (labels, "le" in labels) for name, labels in {**COMING, **ELSEWHERE, **INSTRUMENTS}.items()}
    for metric in METRICS:
        labels = {label_name(key) for key in metric.keys} | ({label_name(WORKER)} if metric.name in PER_WORKER else set())
        known[prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter")] = labels, metric.kind == "histogram"
    for name, (labels, histogram) in known.items():
        if histogram:
            plain = labels - {"le"}
            found |= {f"{name}_bucket": plain | {"le"}, f"{name}_sum": plain, f"{name}_count": plain}
        else:
            found[name] = labels
    return found


def _either(pattern: str) -> str:
    """Of a name with a part that may be there, ``one(_two)?``, the one that is declared."""
    name, _, rest = pattern.partition("(")
    longer = name + rest.removesuffix(")?")
    return longer if longer in declared() else name


def asked(query: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics that a query selects, each with the labels of its matchers; and the labels that it groups by."""
    selected: dict[str, set[str]] = {}
    for name, inside in _SELECTOR.findall(query):
        matchers = {label: value.strip('"') for label, value in _MATCHER.findall(inside)}
        pattern = matchers.pop("__name__", "")
        selected.setdefault(name or _either(pattern), set()).update(matchers)
    grouped = {label.strip() for labels in _GROUPING.findall(_STRING.sub('""', query)) for label in labels.split(",") if label.strip()}
    return selected, grouped
