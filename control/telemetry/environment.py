"""What telemetry is to do: what the configuration file says, and where it is silent the OTEL_* variables; judged as a whole, before anything starts.

Only what decides whether and where to export is read here, and what OpenTelemetry's exporters read otherwise than the specification (times, files,
compression). The rest they read themselves. Imports nothing of OpenTelemetry: it is read even where nothing is exported.
"""

import os
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from framegate.control.errors import StartError
from framegate.control.telemetry.variables import OTLP, SIGNALS, Fault, faults_of, otlp_name
from framegate.proxy.config.model import OtlpConfig, TelemetryConfig

__all__ = ["Protocol", "Settings", "Signal", "Target", "judge"]

Signal = Literal["metrics", "traces", "logs"]
Protocol = Literal["grpc", "http/protobuf"]

_DEFAULT_SIGNALS: Final = ("metrics", "traces")
_PORTS: Final = {"grpc": 4317, "http/protobuf": 4318}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The collector of one signal. Its headers are not here: the exporter reads them.

    Attributes:
        signal: what it gets.
        protocol: how.
        endpoint: over gRPC ``host:port``; over HTTP the whole URL, with the signal's path.
        secure: over TLS.
        gzip: whether exports are compressed.
        timeout_s: the most that one export takes, with all its attempts.
        certificate: file of the authorities that are trusted; none: those that the exporter brings.
        client_certificate: file of who we are.
        client_key: file of its key.
    """

    signal: Signal
    protocol: Protocol
    endpoint: str
    secure: bool
    gzip: bool = False
    timeout_s: float = 10.0
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it; a signal that is not exported is None.

    Attributes:
        metrics: over OTLP.
        traces: likewise.
        logs: likewise.
        interval_ms: between two exports of metrics.
        prometheus: ``host:port`` where scrapes are answered; port 0 asks the kernel for one.
        log_level: as OTEL_LOG_LEVEL names it.
        disabled: sections of ``telemetry`` in the file that have no effect, since OTEL_SDK_DISABLED is true: the one variable that wins over the
            file.
    """

    metrics: Target | None = None
    traces: Target | None = None
    logs: Target | None = None
    interval_ms: int = 10_000
    prometheus: str | None = None
    log_level: str = "INFO"
    disabled: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The collectors."""
        return tuple(target for target in (self.metrics, self.traces, self.logs) if target is not None)

    @property
    def wanted(self) -> bool:
        """Whether anything is exported."""
        return bool(self.targets) or self.prometheus is not None


def judge(config: TelemetryConfig, environ: Mapping[str, str] = os.environ) -> Settings:
    """What the file and the environment want together.

    Args:
        config: of the file, which wins.
        environ: for the OTEL_* variables.

    Raises:
        StartError: variables have values that cannot be, or do not go together; all are named, secrets are not shown.
    """
    faults = list(faults_of(environ))
    environ = {name: value.strip() for name, value in environ.items() if name.startswith("OTEL_") and value.strip()}
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Settings(disabled=tuple(name for name, section in (("otlp", config.otlp), ("prometheus", config.prometheus)) if section is not None))
    wanted = _signals(config, environ) if not faults else ()
    targets = {signal: _target(config.otlp, environ, signal, faults) for signal in wanted}
    if faults:
        text = "; ".join(dict.fromkeys(map(str, faults)))  # each once, that is one for several signals, too
        names = ",".join(dict.fromkeys(fault.name for fault in faults))
        source = "the file's words" if all(fault.name.startswith("telemetry.") for fault in faults) else "the environment's variables"
        raise StartError(f"{source} for telemetry cannot be used: {text}", reason="TELEMETRY_ENVIRONMENT_INVALID", variables=names)
    interval_ms = None if config.otlp is None else config.otlp.interval_ms
    return Settings(
        metrics=targets.get("metrics"),
        traces=targets.get("traces"),
        logs=targets.get("logs"),
        interval_ms=interval_ms if interval_ms is not None else int(environ.get("OTEL_METRIC_EXPORT_INTERVAL", 10_000)),
        prometheus=_prometheus(config, environ),
        log_level=environ.get("OTEL_LOG_LEVEL", "info").upper(),
    )


def _exporters(environ: Mapping[str, str], signal: str) -> list[str] | None:
    """What OTEL_*_EXPORTER names; None: it is not set."""
    text = environ.get(f"OTEL_{signal.upper()}_EXPORTER")
    return None if text is None else [item.strip().lower() for item in text.split(",")]


def _signals(config: TelemetryConfig, environ: Mapping[str, str]) -> tuple[Signal, ...]:
    """Which go over OTLP: those that the file lists; else those whose OTEL_*_EXPORTER says so; else metrics and traces where the file has ``otlp`` or
    the environment a common endpoint, and those that have an endpoint of their own.
    """
    if config.otlp is not None and config.otlp.signals is not None:
        return cast("tuple[Signal, ...]", tuple(config.otlp.signals))
    common = config.otlp is not None or f"{OTLP}ENDPOINT" in environ
    found = []
    for signal in SIGNALS:
        exporters = _exporters(environ, signal)
        by_default = f"{OTLP}{signal.upper()}_ENDPOINT" in environ or (common and signal in _DEFAULT_SIGNALS)
        if by_default if exporters is None else "otlp" in exporters:
            found.append(signal)
    return cast("tuple[Signal, ...]", tuple(found))


def _prometheus(config: TelemetryConfig, environ: Mapping[str, str]) -> str | None:
    if config.prometheus is not None:
        return config.prometheus.address
    if "prometheus" not in (_exporters(environ, "metrics") or ()):
        return None
    host = environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")
    return f"{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{environ.get('OTEL_EXPORTER_PROMETHEUS_PORT', 9464)}"


def _target(config: OtlpConfig | None, environ: Mapping[str, str], signal: Signal, faults: list[Fault]) -> Target:
    def told(what: str) -> str | None:
        return environ.get(otlp_name(environ, what, signal))

    chosen = None if config is None else config.protocol
    protocol = cast(Protocol, chosen or (told("PROTOCOL") or "grpc").lower())
    endpoint, secure = _endpoint(config, environ, signal, protocol, faults)
    files = {what: (otlp_name(environ, what, signal), told(what)) for what in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")}
    faults.extend(_file_faults(files, secure=secure))
    return Target(
        signal=signal,
        protocol=protocol,
        endpoint=endpoint,
        secure=secure,
        gzip=(told("COMPRESSION") or "").lower() == "gzip",
        timeout_s=int(told("TIMEOUT") or 10_000) / 1000,
        certificate=files["CERTIFICATE"][1],
        client_certificate=files["CLIENT_CERTIFICATE"][1],
        client_key=files["CLIENT_KEY"][1],
    )


def _endpoint(config: OtlpConfig | None, environ: Mapping[str, str], signal: Signal, protocol: Protocol, faults: list[Fault]) -> tuple[str, bool]:
    """Where a collector is, and whether it is spoken to over TLS."""
    from_file = None if config is None else config.endpoint
    name = "telemetry.otlp.endpoint" if from_file else otlp_name(environ, "ENDPOINT", signal)
    endpoint = from_file or environ.get(name, f"http://127.0.0.1:{_PORTS[protocol]}").rstrip("/")
    secure = endpoint.startswith("https://")
    if "://" not in endpoint:
        if protocol != "grpc":
            faults.append(Fault(name, endpoint, "must begin with http:// or https:// where the protocol is http/protobuf"))
        return endpoint, environ.get(otlp_name(environ, "INSECURE", signal), "").lower() != "true"
    if protocol == "grpc":
        url = urllib.parse.urlsplit(endpoint)
        if url.path.rstrip("/"):
            faults.append(Fault(name, endpoint, "has a path, which the protocol grpc has no place for; see OTEL_EXPORTER_OTLP_PROTOCOL"))
        return url.netloc if url.port is not None else f"{url.netloc}:{443 if secure else 80}", secure
    own = name == f"{OTLP}{signal.upper()}_ENDPOINT"
    return endpoint if own else f"{endpoint.rstrip('/')}/v1/{signal}", secure


def _file_faults(files: Mapping[str, tuple[str, str | None]], *, secure: bool) -> Iterator[Fault]:
    """What is wrong with the certificates for a collector; each file has been read."""
    authority, certificate, key = (files[what][1] for what in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    if (certificate is None) != (key is None):
        there, missing = ("CLIENT_CERTIFICATE", "CLIENT_KEY") if key is None else ("CLIENT_KEY", "CLIENT_CERTIFICATE")
        yield Fault(files[there][0], None, f"is set without {OTLP}{missing}")
        return
    if not secure or (authority is None and certificate is None):
        return
    from framegate.control.configuration.tls_rules import authority_fault, identity_fault  # loaded only where there are such files

    if authority is not None and (text := authority_fault(authority)) is not None:
        yield Fault(files["CERTIFICATE"][0], authority, f"names a file that {text}")
    if certificate is not None and key is not None and (found := identity_fault(certificate, key)) is not None:
        name, path = files["CLIENT_CERTIFICATE" if found[0] == "certificate" else "CLIENT_KEY"]
        yield Fault(name, path, f"names a file that {found[1]}")
