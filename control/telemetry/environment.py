"""What telemetry is to do: what the configuration file says, and where it is silent the OTEL_* variables; judged as a whole, before anything starts.

Imports nothing of OpenTelemetry: it is read even where nothing is exported.
"""

import os
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from control.errors import StartError
from control.telemetry.variables import Fault, Values, read
from proxy.config.model import OtlpConfig, TelemetryConfig

__all__ = ["Batch", "Logs", "Metrics", "Protocol", "Settings", "Signal", "Target", "Temporality", "Traces", "judge"]

Signal = Literal["metrics", "traces", "logs"]
Protocol = Literal["grpc", "http/protobuf"]
Temporality = Literal["cumulative", "delta", "lowmemory"]

_DEFAULT_SIGNALS: Final = ("metrics", "traces")
_PORTS: Final = {"grpc": 4317, "http/protobuf": 4318}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The collector of one signal.

    Attributes:
        signal: what it gets.
        protocol: how.
        endpoint: over gRPC ``host:port``; over HTTP the whole URL, with the signal's path.
        secure: over TLS.
        headers: sent with each export; not shown, they may be secrets.
        gzip: whether exports are compressed.
        timeout_s: the most that one export takes, with all its attempts.
        certificate: file of the authorities that are trusted; none: the system's.
        client_certificate: file of who we are.
        client_key: file of its key.
    """

    signal: Signal
    protocol: Protocol
    endpoint: str
    secure: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    gzip: bool = False
    timeout_s: float = 10.0
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How spans or log records wait: at most ``queue``, and ``size`` in one export; an export every ``delay_ms``, each ``timeout_ms`` at the most."""

    queue: int
    size: int
    delay_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """``interval_ms``: between two exports."""

    target: Target
    interval_ms: int
    temporality: Temporality


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """``sampler`` as OTEL_TRACES_SAMPLER names it, ``ratio`` its argument; ``limits`` are the keyword arguments of the SDK's ``SpanLimits``."""

    target: Target
    batch: Batch
    sampler: str
    ratio: float
    limits: tuple[tuple[str, int], ...]
    propagators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """``limits`` are the keyword arguments of the SDK's ``LogRecordLimits``."""

    target: Target
    batch: Batch
    limits: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it; a signal that is not exported is None.

    Attributes:
        metrics: over OTLP.
        traces: likewise.
        logs: likewise.
        prometheus: ``host:port`` where scrapes are answered; port 0 asks the kernel for one.
        exemplars: the filter, as OTEL_METRICS_EXEMPLAR_FILTER names it.
        resource: attributes that the environment gives it, ``service.name`` too.
        log_level: as OTEL_LOG_LEVEL names it.
        disabled: sections of ``telemetry`` in the file that do nothing, since OTEL_SDK_DISABLED is true: the one variable that wins over the
            file, for who sets it wants silence whatever else is said.
    """

    metrics: Metrics | None = None
    traces: Traces | None = None
    logs: Logs | None = None
    prometheus: str | None = None
    exemplars: str = "trace_based"
    resource: tuple[tuple[str, str], ...] = ()
    log_level: str = "info"
    disabled: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether anything is exported."""
        return any(item is not None for item in (self.metrics, self.traces, self.logs, self.prometheus))


def judge(config: TelemetryConfig, environ: Mapping[str, str] = os.environ) -> Settings:
    """What the file and the environment want together.

    Args:
        config: of the file, which wins.
        environ: for the OTEL_* variables.

    Raises:
        StartError: variables have values that cannot be, or do not go together; all are named, secrets are not shown.
    """
    values = read(environ)
    if values.get("OTEL_SDK_DISABLED") is True:
        return Settings(disabled=tuple(name for name, section in (("otlp", config.otlp), ("prometheus", config.prometheus)) if section is not None))
    signals = _signals(config, values)
    metrics = traces = logs = None
    if "metrics" in signals:
        interval = config.otlp.interval_ms if config.otlp is not None else None
        metrics = Metrics(
            target=_target(config.otlp, values, "metrics", values.get("OTEL_METRIC_EXPORT_TIMEOUT", 30_000)),
            interval_ms=interval if interval is not None else values.get("OTEL_METRIC_EXPORT_INTERVAL", 10_000),
            temporality=values.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "cumulative"),
        )
    if "traces" in signals:
        batch = _batch(values, "BSP", 5_000)
        traces = Traces(
            target=_target(config.otlp, values, "traces", batch.timeout_ms),
            batch=batch,
            sampler=values.get("OTEL_TRACES_SAMPLER", "parentbased_always_on"),
            ratio=values.get("OTEL_TRACES_SAMPLER_ARG", 1.0),
            limits=_limits(values, "SPAN"),
            propagators=values.get("OTEL_PROPAGATORS", ("tracecontext", "baggage")),
        )
    if "logs" in signals:
        batch = _batch(values, "BLRP", 1_000)
        logs = Logs(target=_target(config.otlp, values, "logs", batch.timeout_ms), batch=batch, limits=_limits(values, "LOGRECORD"))
    settings = Settings(
        metrics=metrics,
        traces=traces,
        logs=logs,
        prometheus=_prometheus(config, values),
        exemplars=values.get("OTEL_METRICS_EXEMPLAR_FILTER", "trace_based"),
        resource=_resource(values),
        log_level=values.get("OTEL_LOG_LEVEL", "info"),
    )
    if values.faults:
        text = "; ".join(str(fault) for fault in dict.fromkeys(values.faults))  # each once, that is one for several signals, too
        names = ",".join(dict.fromkeys(fault.name for fault in values.faults))
        whose = "the file's words" if all(fault.name.startswith("telemetry.") for fault in values.faults) else "the environment's variables"
        raise StartError(f"{whose} for telemetry cannot be used: {text}", reason="TELEMETRY_ENVIRONMENT_INVALID", variables=names)
    return settings


def _signals(config: TelemetryConfig, values: Values) -> frozenset[str]:
    """Which go over OTLP: those that the file lists; else those whose OTEL_*_EXPORTER says so; else metrics and traces where the file has ``otlp`` or
    the environment a common endpoint, and those that have an endpoint of their own.
    """
    if config.otlp is not None and config.otlp.signals is not None:
        return frozenset(config.otlp.signals)
    found = set()
    for signal in ("metrics", "traces", "logs"):
        exporters = values.get(f"OTEL_{signal.upper()}_EXPORTER")
        own = values.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        common = config.otlp is not None or values.get("OTEL_EXPORTER_OTLP_ENDPOINT") is not None
        by_default = own is not None or (common and signal in _DEFAULT_SIGNALS)
        if by_default if exporters is None else "otlp" in exporters:
            found.add(signal)
    return frozenset(found)


def _prometheus(config: TelemetryConfig, values: Values) -> str | None:
    if config.prometheus is not None:
        return config.prometheus.address
    if "prometheus" not in values.get("OTEL_METRICS_EXPORTER", ()):
        return None
    host = values.get("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")
    return f"{host}:{values.get('OTEL_EXPORTER_PROMETHEUS_PORT', 9464)}"


def _target(config: OtlpConfig | None, values: Values, signal: Signal, timeout_ms: int) -> Target:
    told = None if config is None else config.protocol
    protocol = cast(Protocol, told or values.otlp("PROTOCOL", signal, "grpc"))
    from_file = None if config is None else config.endpoint
    name = values.otlp_name("ENDPOINT", signal)
    endpoint = from_file or values.get(name) or f"http://127.0.0.1:{_PORTS[protocol]}"
    secure = endpoint.startswith("https://")
    if "://" not in endpoint:
        if protocol != "grpc":
            values.faults.append(Fault(name, endpoint, "must begin with http:// or https:// where the protocol is http/protobuf"))
        secure = not values.otlp("INSECURE", signal, False)
    elif protocol == "grpc":
        url = urllib.parse.urlsplit(endpoint)
        if url.path.rstrip("/"):
            where = name if from_file is None else "telemetry.otlp.endpoint"
            values.faults.append(Fault(where, endpoint, "has a path, which the protocol grpc has no place for; see OTEL_EXPORTER_OTLP_PROTOCOL"))
        endpoint = url.netloc if url.port is not None else f"{url.netloc}:{443 if secure else 80}"
    elif from_file is not None or name == "OTEL_EXPORTER_OTLP_ENDPOINT":
        endpoint = f"{endpoint.rstrip('/')}/v1/{signal}"
    certificate, key = (values.otlp(what, signal) for what in ("CLIENT_CERTIFICATE", "CLIENT_KEY"))
    if (certificate is None) != (key is None):
        there, missing = ("CLIENT_CERTIFICATE", "CLIENT_KEY") if key is None else ("CLIENT_KEY", "CLIENT_CERTIFICATE")
        values.faults.append(Fault(values.otlp_name(there, signal), None, f"is set without OTEL_EXPORTER_OTLP_{missing}"))
    elif secure:
        values.faults.extend(_tls_faults(values, signal))
    return Target(
        signal=signal,
        protocol=protocol,
        endpoint=endpoint,
        secure=secure,
        headers=values.otlp("HEADERS", signal, ()),
        gzip=values.otlp("COMPRESSION", signal, "none") == "gzip",
        timeout_s=min(values.otlp("TIMEOUT", signal, 10_000), timeout_ms) / 1000,
        certificate=values.otlp("CERTIFICATE", signal),
        client_certificate=certificate,
        client_key=key,
    )


def _tls_faults(values: Values, signal: Signal) -> Iterator[Fault]:
    """What is wrong with the files of a collector that is spoken to over TLS; each has been read."""
    files = {what: (values.otlp_name(what, signal), values.otlp(what, signal)) for what in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")}
    if all(path is None for _, path in files.values()):
        return
    from control.configuration.files import authority_fault, identity_fault  # only who has such files pays for what judges them

    name, path = files["CERTIFICATE"]
    if path is not None and (text := authority_fault(path)) is not None:
        yield Fault(name, path, f"names a file that {text}")
    certificate, key = files["CLIENT_CERTIFICATE"][1], files["CLIENT_KEY"][1]
    if certificate is not None and key is not None and (found := identity_fault(certificate, key)) is not None:
        name, path = files["CLIENT_CERTIFICATE" if found[0] == "certificate" else "CLIENT_KEY"]
        yield Fault(name, path, f"names a file that {found[1]}")


def _batch(values: Values, prefix: str, delay_ms: int) -> Batch:
    batch = Batch(
        queue=values.get(f"OTEL_{prefix}_MAX_QUEUE_SIZE", 2_048),
        size=values.get(f"OTEL_{prefix}_MAX_EXPORT_BATCH_SIZE", 512),
        delay_ms=values.get(f"OTEL_{prefix}_SCHEDULE_DELAY", delay_ms),
        timeout_ms=values.get(f"OTEL_{prefix}_EXPORT_TIMEOUT", 30_000),
    )
    if batch.size > batch.queue:
        text = f"is less than OTEL_{prefix}_MAX_EXPORT_BATCH_SIZE ({batch.size}), which then can never come together"
        values.faults.append(Fault(f"OTEL_{prefix}_MAX_QUEUE_SIZE", str(batch.queue), text))
    return batch


def _limits(values: Values, prefix: str) -> tuple[tuple[str, int], ...]:
    """Those that are set, as the SDK's classes name them; what is not set they read, or default, themselves."""
    count = values.get("OTEL_ATTRIBUTE_COUNT_LIMIT")
    length = values.get("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
    own_count, own_length = values.get(f"OTEL_{prefix}_ATTRIBUTE_COUNT_LIMIT"), values.get(f"OTEL_{prefix}_ATTRIBUTE_VALUE_LENGTH_LIMIT")
    if prefix == "LOGRECORD":
        limits = {"max_attributes": count if own_count is None else own_count, "max_attribute_length": length if own_length is None else own_length}
    else:
        limits = {
            "max_attributes": count,
            "max_attribute_length": length,
            "max_span_attributes": own_count,
            "max_span_attribute_length": own_length,
            "max_events": values.get("OTEL_SPAN_EVENT_COUNT_LIMIT"),
            "max_links": values.get("OTEL_SPAN_LINK_COUNT_LIMIT"),
            "max_event_attributes": values.get("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT"),
            "max_link_attributes": values.get("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
        }
    return tuple((name, limit) for name, limit in limits.items() if limit is not None)


def _resource(values: Values) -> tuple[tuple[str, str], ...]:
    attributes = dict(values.get("OTEL_RESOURCE_ATTRIBUTES", ()))
    if (name := values.get("OTEL_SERVICE_NAME")) is not None:
        attributes["service.name"] = name
    return tuple(attributes.items())
