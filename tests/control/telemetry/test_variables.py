"""The table of OTEL_* variables: what each takes and what it does not."""

from pathlib import Path

import pytest
from opentelemetry.sdk import environment_variables

from control.telemetry.variables import VARIABLES, read

NAMES = {name for variable in VARIABLES for name, _ in variable.names()}
PYTHONS_OWN = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "OTEL_EXPORTER_ZIPKIN_TIMEOUT"}
"""No part of the specification, or of an exporter that cannot be asked for."""
ELSEWHERE = {"OTEL_PROPAGATORS", "OTEL_METRICS_EXPORTER", "OTEL_TRACES_EXPORTER", "OTEL_LOGS_EXPORTER"}


def test_every_variable_that_the_sdk_knows_is_in_the_table() -> None:
    known = {value for name, value in vars(environment_variables).items() if name.startswith("OTEL_") and not name.startswith("OTEL_PYTHON_")}
    assert known - PYTHONS_OWN - NAMES == set()
    assert ELSEWHERE <= NAMES


def fault(name: str, value: str) -> str:
    (found,) = read({name: value}).faults
    assert found.name == name
    return str(found)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("OTEL_SDK_DISABLED", ["true", "False"], ["1", "yes"]),
        ("OTEL_TRACES_SAMPLER", ["always_on", "ALWAYS_OFF"], ["jaeger_remote", "xray", "on"]),
        ("OTEL_TRACES_SAMPLER_ARG", ["0", "1", "0.5"], ["1.01", "-0.1", "nan", "half"]),
        ("OTEL_PROPAGATORS", ["none", "tracecontext, baggage"], ["b3", "none,baggage"]),
        ("OTEL_METRICS_EXPORTER", ["otlp,prometheus", "none"], ["console", "otlp,none", ","]),
        ("OTEL_TRACES_EXPORTER", ["otlp"], ["prometheus", "zipkin", "console"]),
        ("OTEL_METRIC_EXPORT_INTERVAL", ["100", "3600000"], ["99", "3600001", "1e3", "10s"]),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", ["100", "600000"], ["99", "600001", "0"]),
        ("OTEL_BSP_MAX_QUEUE_SIZE", ["1", "65536"], ["0", "65537"]),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", ["0", "2147483647"], ["-1", "2147483648"]),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", ["grpc", "http/protobuf"], ["http/json", "http"]),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", ["gzip", "none"], ["zstd"]),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", ["http://a:1", "https://[::1]:2/x", "a:1", "a:65535"],
         ["a", "ftp://a:1", "http://", "http://a:99999", "a:65536", "a:0", "http://a b:1"]),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", ["explicit_bucket_histogram"], ["base2_exponential_bucket_histogram"]),
        ("OTEL_RESOURCE_ATTRIBUTES", ["a=b", "a=b,c=", " a = b ", "a=%C3%A9%25"], ["a", "=b", "a=%ZZ", "a=%FF", "a=5%"]),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", [__file__], ["/nowhere/ca.pem", str(Path(__file__).parent)]),
        ("OTEL_CONFIG_FILE", [], ["/etc/otel.yaml"]),
        ("OTEL_EXPORTER_OTLP_SPAN_INSECURE", [], ["true"]),
    ],
)  # fmt: skip
def test_a_value_is_taken_or_refused_with_what_is_possible(name: str, good: list[str], bad: list[str]) -> None:
    for value in good:
        values = read({name: value})
        assert (values.faults, values.get(name) is None) == ([], False), value
    for value in bad:
        text = fault(name, value)
        assert repr(value) in text
        assert len(text) > len(f"{name}={value!r} ") + 10


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_empty_value_is_as_good_as_none(name: str) -> None:
    values = read({name: "  "})
    assert (values.faults, values.get(name)) == ([], None)


@pytest.mark.parametrize("value", ["http://me:sekrit@a:1", "http://a:1?token=sekrit", "http://a:1#sekrit"])
def test_an_endpoint_with_what_may_be_a_secret_is_not_shown(value: str) -> None:
    assert "sekrit" not in fault("OTEL_EXPORTER_OTLP_ENDPOINT", value)


def test_seconds_are_told_from_milliseconds() -> None:
    assert "milliseconds" in fault("OTEL_EXPORTER_OTLP_TIMEOUT", "10")
    assert "milliseconds" not in fault("OTEL_EXPORTER_OTLP_TIMEOUT", "ten")


def test_variables_of_others_are_none_of_ours() -> None:
    assert read({"OTEL_JAVA_ENABLED": "?", "OTEL_EXPORTER_OTLP_ENDPOINTS": "?"}).faults == []
