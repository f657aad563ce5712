"""The OTEL_* variables that are judged: what each takes and what it does not."""

from pathlib import Path

import pytest

from framegate.control.telemetry.variables import CHOICES, LISTS, drop_empty, faults_of

VALUES: dict[str, tuple[list[str], list[str]]] = {
    **{name: ([values[0], values[-1].upper()], ["?", f"{values[0]},"]) for name, values in CHOICES.items()},
    **{name: (["none", ",".join(values)], ["console", "otlp,none", ","]) for name, values in LISTS.items()},
    "OTEL_TRACES_SAMPLER_ARG": (["0", "1", "0.5"], ["1.01", "-0.1", "nan", "half"]),
    "OTEL_PROPAGATORS": (["none", "tracecontext, baggage"], ["nonsense", "tracecontext,"]),
    "OTEL_METRIC_EXPORT_INTERVAL": (["100", "3600000"], ["99", "1e3", "10s"]),
    "OTEL_EXPORTER_OTLP_TIMEOUT": (["100", "600000"], ["99", "0", "10.5"]),
    "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": (["100"], ["10"]),
    "OTEL_BSP_MAX_QUEUE_SIZE": (["512", "65536"], ["0", "many", "511"]),
    "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": (["1", "2048"], ["0", "-1"]),
    "OTEL_SPAN_EVENT_COUNT_LIMIT": (["0", "128"], ["-1", "x"]),
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT": (["0"], ["-1"]),
    "OTEL_EXPORTER_PROMETHEUS_PORT": (["0", "9464"], ["-1", "http"]),
    "OTEL_EXPORTER_PROMETHEUS_HOST": (["0.0.0.0", "::", "[::1]", "localhost"], ["a b", "127.0.0.1:9", "[::1", "unix:/x", "http://a"]),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": (["grpc", "http/protobuf"], ["http/json", "http"]),
    "OTEL_EXPORTER_OTLP_ENDPOINT": (
        ["http://a:1", "https://[::1]:2/x", "a:1", "a:65535"],
        ["a", "ftp://a:1", "http://", "http://a:99999", "a:65536", "a:0", "http://a b:1"],
    ),
    "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE": ([__file__], ["/nowhere/ca.pem", str(Path(__file__).parent)]),
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (["anything"], []),
    "OTEL_JAVA_ENABLED": (["?"], []),
}


def test_a_value_is_taken_or_refused_with_what_is_possible() -> None:
    wrong = []
    for name, (good, bad) in VALUES.items():
        wrong += [(name, value) for value in (*good, "", " ") if list(faults_of({name: value}))]
        for value in bad:
            found = [str(fault) for fault in faults_of({name: value})]
            if len(found) != 1 or not found[0].startswith(f"{name}={value!r} ") or len(found[0]) < len(f"{name}={value!r} ") + 10:
                wrong.append((name, value))
    assert wrong == []


@pytest.mark.parametrize("value", ["http://me:sekrit@a:1", "http://a:1?token=sekrit", "http://a:1#sekrit"])
def test_an_endpoint_with_what_may_be_a_secret_is_not_shown(value: str) -> None:
    (fault,) = faults_of({"OTEL_EXPORTER_OTLP_ENDPOINT": value})
    assert "sekrit" not in str(fault)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"])
def test_what_is_in_headers_is_never_shown(name: str) -> None:
    assert list(faults_of({name: "Authorization=Bearer%20x=,b=1"})) == []
    for value in ("hunter2", "ok=hunter2,hunter2", "a%0A=hunter2", "x=hunter2\r\n"):
        (fault,) = faults_of({name: value})
        assert str(fault).startswith(f"{name} must be")
        assert "hunter2" not in str(fault)


def test_empty_variables_are_removed_and_only_those_of_opentelemetry() -> None:
    environ = {"OTEL_SERVICE_NAME": " ", "OTEL_TRACES_SAMPLER": "always_on", "OTHER": ""}
    drop_empty(environ)
    assert environ == {"OTEL_TRACES_SAMPLER": "always_on", "OTHER": ""}
