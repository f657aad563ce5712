"""What the file and the OTEL_* variables want together."""

from pathlib import Path
from typing import Any

import pytest

from control.errors import StartError
from control.telemetry.environment import Settings, judge
from proxy.config.model import OtlpConfig, PrometheusConfig, TelemetryConfig
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
    return {name for name in ("metrics", "traces", "logs") if getattr(settings, name) is not None}


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
    return getattr(judge(config, environ), signal).target


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
    assert (settings.traces.target.endpoint, settings.metrics.interval_ms, settings.prometheus) == ("http://file:5/v1/traces", 700, "h:1")
    silent = judge(SECTION, environ)
    assert silent.metrics is not None
    assert (silent.metrics.interval_ms, silent.prometheus) == (900, "127.0.0.1:77")


def test_defaults_are_those_of_the_specification_but_for_the_interval() -> None:
    settings = judge(TelemetryConfig(otlp=OtlpConfig(signals=("metrics", "traces", "logs"))), {"OTEL_SERVICE_NAME": " "})
    assert settings.metrics is not None
    assert settings.traces is not None
    assert settings.logs is not None
    assert (settings.metrics.interval_ms, settings.metrics.temporality, settings.exemplars) == (10_000, "cumulative", "trace_based")
    assert (settings.traces.sampler, settings.traces.ratio, settings.traces.propagators) == (
        "parentbased_always_on",
        1.0,
        ("tracecontext", "baggage"),
    )
    for batch, delay_ms in ((settings.traces.batch, 5_000), (settings.logs.batch, 1_000)):
        assert (batch.queue, batch.size, batch.delay_ms, batch.timeout_ms) == (2_048, 512, delay_ms, 30_000)
    assert (settings.traces.target.timeout_s, settings.traces.target.gzip, settings.traces.target.headers) == (10.0, False, ())
    assert (settings.traces.limits, settings.logs.limits, settings.resource, settings.log_level) == ((), (), (), "info")


def test_each_variable_has_its_effect(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.write_text("x")
    environ = {
        "OTEL_SERVICE_NAME": "orders",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=other, a.b=c%2Cd",
        "OTEL_LOG_LEVEL": "Error",
        "OTEL_PROPAGATORS": "baggage,baggage",
        "OTEL_TRACES_SAMPLER": "traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_BSP_SCHEDULE_DELAY": "11",
        "OTEL_BSP_EXPORT_TIMEOUT": "200",
        "OTEL_BSP_MAX_QUEUE_SIZE": "7",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "7",
        "OTEL_METRICS_EXEMPLAR_FILTER": "always_off",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "LowMemory",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20x=,b=1",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "c=2",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "300",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(pem),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(pem),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(pem),
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "1",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "2",
        "OTEL_SPAN_LINK_COUNT_LIMIT": "0",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "3",
    }
    settings = judge(SECTION, environ)
    assert settings.metrics is not None
    assert settings.traces is not None
    assert settings.logs is not None
    assert dict(settings.resource) == {"service.name": "orders", "a.b": "c,d"}
    assert (settings.log_level, settings.exemplars, settings.metrics.temporality) == ("error", "always_off", "lowmemory")
    assert (settings.traces.sampler, settings.traces.ratio, settings.traces.propagators) == ("traceidratio", 0.25, ("baggage",))
    assert (settings.traces.batch.queue, settings.traces.batch.size, settings.traces.batch.delay_ms) == (7, 7, 11)
    assert (settings.traces.target.timeout_s, settings.metrics.target.timeout_s) == (0.2, 0.3)
    assert settings.traces.target.headers == (("authorization", "Bearer x="), ("b", "1"))
    assert settings.metrics.target.headers == (("c", "2"),)
    assert settings.traces.target.gzip
    assert (settings.traces.target.certificate, settings.traces.target.client_certificate, settings.traces.target.client_key) == (str(pem),) * 3
    assert dict(settings.traces.limits) == {"max_attributes": 1, "max_span_attributes": 2, "max_links": 0}
    assert dict(settings.logs.limits) == {"max_attributes": 3}


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"])
@pytest.mark.parametrize("value", ["hunter2", "ok=hunter2,hunter2", "a%0A=hunter2", "x=hunter2%0d%0a", "content-length=hunter2", "k-bin=hunter2"])
def test_what_is_in_headers_is_never_shown(name: str, value: str) -> None:
    text = refusal({name: value})
    assert name in text
    assert "hunter2" not in text
    settings = judge(SECTION, {name: "k=hunter2", "OTEL_LOGS_EXPORTER": "otlp"})
    assert "hunter2" not in repr(settings)


def test_a_password_in_an_endpoint_is_not_shown() -> None:
    text = refusal({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hunter2@there:1"})
    assert "OTEL_EXPORTER_OTLP_ENDPOINT must be" in text
    assert "hunter2" not in text


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


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "0.0.0.0:9464"), ("::", "[::]:9464"), ("[::1]", "[::1]:9464"), ("localhost", "localhost:9464")]
)
def test_scrapes_are_answered_where_the_environment_says(host: str, address: str) -> None:
    environ = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST": host}
    assert judge(NOTHING, environ).prometheus == address


@pytest.mark.parametrize("host", ["a b", "127.0.0.1:9", "[::1", "unix:/x", "http://a"])
def test_a_host_that_is_none_is_refused_by_its_variable(host: str) -> None:
    environ = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST": host}
    assert f"OTEL_EXPORTER_PROMETHEUS_HOST={host!r} must be an address" in refusal(environ, NOTHING)


def test_a_queue_smaller_than_a_batch_is_refused() -> None:
    environ = {"OTEL_BSP_MAX_QUEUE_SIZE": "511"}
    assert "OTEL_BSP_MAX_EXPORT_BATCH_SIZE (512)" in refusal(environ)
    assert judge(SECTION, {"OTEL_BSP_MAX_QUEUE_SIZE": "512"}).traces is not None


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


def test_all_faults_are_named_at_once() -> None:
    text = refusal({"OTEL_TRACES_SAMPLER": "sometimes", "OTEL_BSP_MAX_QUEUE_SIZE": "many", "OTEL_CONFIG_FILE": "/x"}, NOTHING)
    for part in ("OTEL_TRACES_SAMPLER='sometimes'", "OTEL_BSP_MAX_QUEUE_SIZE='many'", "OTEL_CONFIG_FILE='/x'", "framegate.yaml"):
        assert part in text
