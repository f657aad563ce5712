"""The file and the OTEL_* variables: what is exported, and which values are refused."""

from pathlib import Path
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.telemetry.environment import CHOICES, LISTS, Settings, drop_empty, faults_of, judge
from framegate.proxy.config.model import OtlpConfig, PrometheusConfig, TelemetryConfig
from tests.fakes.certificates import Authority

NOTHING = TelemetryConfig()
SECTION = TelemetryConfig(otlp=OtlpConfig())
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:9"}


def refusal(environ: dict[str, str], config: TelemetryConfig = SECTION) -> str:
    with pytest.raises(StartError) as caught:
        judge(config, environ)
    assert caught.value.reason == "TELEMETRY_ENVIRONMENT_INVALID"
    return str(caught.value)


def signals(settings: Settings) -> set[str]:
    return {target.signal for target in settings.targets}


@pytest.mark.parametrize(
    ("config", "environ", "wanted"),
    [
        (NOTHING, {}, set()),
        (SECTION, {}, {"metrics", "traces"}),
        (NOTHING, ENDPOINT, {"metrics", "traces"}),
        (NOTHING, {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://there:9"}, {"logs"}),
        (SECTION, {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://there:9"}, {"metrics", "traces", "logs"}),
        (NOTHING, {"OTEL_LOGS_EXPORTER": "otlp"}, {"logs"}),
        (SECTION, {"OTEL_TRACES_EXPORTER": "none"}, {"metrics"}),
        (SECTION, {"OTEL_METRICS_EXPORTER": "prometheus"}, {"traces"}),
        (TelemetryConfig(otlp=OtlpConfig(signals=("logs",))), {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "none"}, {"logs"}),
        (TelemetryConfig(otlp=OtlpConfig(signals=())), ENDPOINT, set()),
        (SECTION, {"OTEL_SDK_DISABLED": "TRUE"}, set()),
    ],
)
def test_the_file_says_what_is_exported_and_else_the_environment(config: TelemetryConfig, environ: dict[str, str], wanted: set[str]) -> None:
    settings = judge(config, environ)
    assert signals(settings) == wanted
    assert settings.wanted == (bool(wanted) or settings.prometheus is not None)


def target(config: TelemetryConfig, environ: dict[str, str], signal: str = "traces") -> Any:
    return getattr(judge(config, environ), signal)


@pytest.mark.parametrize(
    ("environ", "signal", "endpoint", "secure"),
    [
        ({}, "traces", "127.0.0.1:4317", False),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "traces", "http://127.0.0.1:4318/v1/traces", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://there"}, "traces", "there:443", True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}, "metrics", "there:80", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:9/"}, "metrics", "[::1]:9", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "there:9"}, "traces", "there:9", True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "there:9", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "traces", "there:9", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://there:9", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "traces", "there:9", True),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:1"}, "traces", "own:1", False),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:1"}, "metrics", "there:9", False),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:9/a/", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "metrics",
         "http://there:9/a/v1/metrics", False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://own:1/x", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"}, "metrics",
         "http://own:1/x", False),
    ],
)  # fmt: skip
def test_endpoints_are_those_of_the_specification(environ: dict[str, str], signal: str, endpoint: str, secure: bool) -> None:
    found = target(SECTION, environ, signal)
    assert (found.endpoint, found.secure) == (endpoint, secure)


def test_the_file_wins_over_the_environment() -> None:
    config = TelemetryConfig(
        otlp=OtlpConfig(endpoint="http://file:5", protocol="http/protobuf", interval_ms=700), prometheus=PrometheusConfig(address="h:1")
    )
    environ = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRIC_EXPORT_INTERVAL": "900",
        "OTEL_METRICS_EXPORTER": "otlp,prometheus",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "77",
    }
    settings = judge(config, environ)
    assert settings.metrics is not None
    assert settings.traces is not None
    assert (settings.traces.endpoint, settings.interval_ms, settings.prometheus) == ("http://file:5/v1/traces", 700, "h:1")
    silent = judge(SECTION, environ)
    assert (silent.interval_ms, silent.prometheus) == (900, "127.0.0.1:77")


def test_settings_have_their_defaults_and_their_variables(tmp_path: Path) -> None:
    silent = judge(TelemetryConfig(otlp=OtlpConfig(signals=("logs",))), {"OTEL_LOGS_EXPORTER": " "})
    assert silent.logs is not None
    assert (silent.interval_ms, silent.log_level, silent.logs.timeout_s, silent.logs.gzip, silent.logs.certificate) == (
        10_000,
        "INFO",
        10.0,
        False,
        None,
    )
    pem = tmp_path / "some.pem"
    pem.write_text("x")
    environ = {
        "OTEL_LOG_LEVEL": "Error",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "300",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "200",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(pem),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(pem),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(pem),
    }
    settings = judge(SECTION, environ)
    assert settings.metrics is not None
    assert settings.traces is not None
    assert (settings.log_level, settings.traces.timeout_s, settings.metrics.timeout_s, settings.traces.gzip) == ("ERROR", 0.2, 0.3, True)
    assert (settings.traces.certificate, settings.traces.client_certificate, settings.traces.client_key) == (str(pem),) * 3


def test_a_client_certificate_needs_its_key(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.write_text("x")
    assert "OTEL_EXPORTER_OTLP_CLIENT_KEY" in refusal({"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(pem)})
    assert "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" in refusal({"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": str(pem)})


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_certificates_that_cannot_be_used_are_named_with_their_variable(tmp_path: Path, protocol: str) -> None:
    """Of who speaks TLS to the collector; else they are nobody's."""
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("client")
    _, other_key = authority.leaf("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("x")
    secure = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://there:9", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    own = {"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": certificate, "OTEL_EXPORTER_OTLP_CLIENT_KEY": key}
    for name, path, text in (
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", str(nonsense), "holds no certificate"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", key, "holds no certificate"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", str(nonsense), "holds no certificate"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(nonsense), "holds no certificate"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(nonsense), "is no private key"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", other_key, "is not the key of the certificate"),
        ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", other_key, "is not the key of the certificate"),
    ):
        environ = {**secure, **own, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.path), name: path}
        refused = refusal(environ)
        assert f"{name}={path!r} names a file that {text}" in refused
        assert refused.count("names a file") == 1
        assert judge(SECTION, {**environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:9"}).metrics is not None
    assert judge(SECTION, {**secure, **own, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.path)}).metrics is not None


def test_http_needs_a_url_and_grpc_no_path() -> None:
    assert "http://" in refusal({"OTEL_EXPORTER_OTLP_ENDPOINT": "there:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    assert "has a path" in refusal({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:9/v1/traces"})


def test_the_files_endpoint_may_have_a_path_over_http() -> None:
    """Whether it is over HTTP the environment may say, so the path is judged with it."""
    config = TelemetryConfig(otlp=OtlpConfig(endpoint="https://there:9/otlp/"))
    assert target(config, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}).endpoint == "https://there:9/otlp/v1/traces"
    assert "telemetry.otlp.endpoint='https://there:9/otlp/' has a path" in refusal({}, config)
    assert "variables" not in refusal({}, config).partition(":")[0]
    assert target(TelemetryConfig(otlp=OtlpConfig(endpoint="https://there")), {}).endpoint == "there:443"
    assert target(TelemetryConfig(otlp=OtlpConfig(endpoint="http://there:9/")), {}).endpoint == "there:9"


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
def test_values_of_headers_are_never_shown(name: str) -> None:
    assert list(faults_of({name: "Authorization=Bearer%20x=,b=1"})) == []
    for value in ("hunter2", "ok=hunter2,hunter2", "a%0A=hunter2", "x=hunter2\r\n"):
        (fault,) = faults_of({name: value})
        assert str(fault).startswith(f"{name} must be")
        assert "hunter2" not in str(fault)


def test_empty_variables_are_removed_and_only_those_of_opentelemetry() -> None:
    environ = {"OTEL_SERVICE_NAME": " ", "OTEL_TRACES_SAMPLER": "always_on", "OTHER": ""}
    drop_empty(environ)
    assert environ == {"OTEL_TRACES_SAMPLER": "always_on", "OTHER": ""}
