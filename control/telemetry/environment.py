"""What telemetry exports: what the configuration file says and, where it says nothing, the OTEL_* variables; both are checked before anything starts.

Read here are the variables that decide whether and where to export, and those that OpenTelemetry's exporters read differently from the specification
(times, files, compression). The SDK and its exporters read all others. Where the SDK logs a warning about a bad value and uses its default, framegate
refuses to start; variables that are not named here are not checked. This module does not import OpenTelemetry, because it is loaded even if nothing
is exported.
"""

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from framegate.control.errors import StartError
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import OtlpConfig, TelemetryConfig

Signal = Literal["metrics", "traces", "logs"]
Protocol = Literal["grpc", "http/protobuf"]

_SIGNALS: Final = ("metrics", "traces", "logs")
_DEFAULT_SIGNALS: Final = ("metrics", "traces")
_PORTS: Final = {"grpc": 4317, "http/protobuf": 4318}
_OTLP: Final = "OTEL_EXPORTER_OTLP_"
"""``OTEL_EXPORTER_OTLP_ENDPOINT`` and the others have a variant for each signal, such as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, which wins."""
_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "OTEL_SDK_DISABLED": ("true", "false"),
    "OTEL_LOG_LEVEL": ("debug", "info", "warn", "warning", "error", "fatal"),
    "OTEL_TRACES_SAMPLER": (*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS)),
    "OTEL_METRICS_EXEMPLAR_FILTER": ("trace_based", "always_on", "always_off"),
    f"{_OTLP}METRICS_TEMPORALITY_PREFERENCE": ("cumulative", "delta", "lowmemory"),
    f"{_OTLP}METRICS_DEFAULT_HISTOGRAM_AGGREGATION": ("explicit_bucket_histogram", "base2_exponential_bucket_histogram"),
    f"{_OTLP}PROTOCOL": ("grpc", "http/protobuf"),
    f"{_OTLP}COMPRESSION": ("gzip", "none"),
    f"{_OTLP}INSECURE": ("true", "false"),
}  # Variables with one of these values, in any case
LISTS: Final[dict[str, tuple[str, ...]]] = {
    "OTEL_METRICS_EXPORTER": ("otlp", "prometheus"),
    "OTEL_TRACES_EXPORTER": ("otlp",),
    "OTEL_LOGS_EXPORTER": ("otlp",),
}  # Variables with some of these values, divided by commas, or ``none``
_NUMBERS: Final = {
    r"OTEL_(SPAN_|EVENT_|LINK_|LOGRECORD_)?(ATTRIBUTE_|EVENT_|LINK_)(COUNT|VALUE_LENGTH)_LIMIT": 0,
    r"OTEL_EXPORTER_PROMETHEUS_PORT": 0,
    r"OTEL_(BSP|BLRP)_(SCHEDULE_DELAY|EXPORT_TIMEOUT|MAX_QUEUE_SIZE|MAX_EXPORT_BATCH_SIZE)": 1,
    r"OTEL_METRIC_EXPORT_(INTERVAL|TIMEOUT)": 100,
    r"OTEL_EXPORTER_OTLP_((METRICS|TRACES|LOGS)_)?TIMEOUT": 100,
}  # Patterns of variables with whole numbers, and their minimum; times are in milliseconds
_HEADER: Final = re.compile(r"\s*[A-Za-z0-9_.-]+\s*=[\x20-\x7e]*")
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_BATCH: Final = {"MAX_QUEUE_SIZE": 2_048, "MAX_EXPORT_BATCH_SIZE": 512}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The collector of one signal. Its headers are not here: the exporter reads them."""

    signal: Signal  # what is exported
    protocol: Protocol  # of OTLP
    endpoint: str  # over gRPC ``host:port``; over HTTP the whole URL, with the signal's path
    secure: bool  # over TLS
    gzip: bool = False  # whether exports are compressed
    timeout_s: float = 10.0  # the longest time of one export with all its attempts
    certificate: str | None = None  # file of the trusted authorities; None: those that the exporter brings
    # client_certificate, client_key: files of framegate's own certificate and its key
    client_certificate: str | None = None
    client_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to export; a signal that is not exported over OTLP is None."""

    metrics: Target | None = None
    traces: Target | None = None
    logs: Target | None = None
    interval_ms: int = 10_000  # between two exports of metrics
    prometheus: str | None = None  # ``host:port`` on which scrapes are answered; with port 0 the kernel chooses one
    log_level: str = "INFO"  # the value of OTEL_LOG_LEVEL
    # sections of ``telemetry`` in the file that have no effect because OTEL_SDK_DISABLED is true, the only variable that overrides the file
    disabled: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for target in (self.metrics, self.traces, self.logs) if target is not None)

    @property
    def wanted(self) -> bool:
        """Whether anything is exported."""
        return bool(self.targets) or self.prometheus is not None


def judge(config: TelemetryConfig, environ: Mapping[str, str] = os.environ) -> Settings:
    """Combine the file and the environment. ``config``: of the file, which wins. ``environ``: for the OTEL_* variables. Raises StartError: variables
    have values that are not valid, or do not fit together; all are named, and secrets are not shown.
    """
    faults = list(faults_of(environ))
    environ = {name: value.strip() for name, value in environ.items() if name.startswith("OTEL_") and value.strip()}
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Settings(disabled=tuple(name for name, section in (("otlp", config.otlp), ("prometheus", config.prometheus)) if section is not None))
    wanted = _signals(config, environ) if not faults else ()
    targets = {signal: _target(config.otlp, environ, signal, faults) for signal in wanted}
    if faults:
        text = "; ".join(dict.fromkeys(map(str, faults)))  # several signals may have the same fault
        names = ",".join(dict.fromkeys(fault.name for fault in faults))
        source = "the file's words" if all(fault.name.startswith("telemetry.") for fault in faults) else "the environment's variables"
        raise StartError(f"{source} for telemetry cannot be used: {text}", reason="TELEMETRY_ENVIRONMENT_INVALID", variables=names)
    interval_ms = None if config.otlp is None else config.otlp.interval_ms
    return Settings(
        **{str(signal): target for signal, target in targets.items()},  # type: ignore[arg-type]
        interval_ms=interval_ms if interval_ms is not None else int(environ.get("OTEL_METRIC_EXPORT_INTERVAL", 10_000)),
        prometheus=_prometheus(config, environ),
        log_level=environ.get("OTEL_LOG_LEVEL", "info").upper(),
    )


def _exporters(environ: Mapping[str, str], signal: str) -> list[str] | None:
    """The items of OTEL_*_EXPORTER; None: it is not set."""
    text = environ.get(f"OTEL_{signal.upper()}_EXPORTER")
    return None if text is None else [item.strip().lower() for item in text.split(",")]


def _signals(config: TelemetryConfig, environ: Mapping[str, str]) -> tuple[Signal, ...]:
    """The signals that are exported over OTLP: those that the file lists; else those whose OTEL_*_EXPORTER says so; else metrics and traces if the
    file has ``otlp`` or the environment a common endpoint, and those with an endpoint of their own.
    """
    if config.otlp is not None and config.otlp.signals is not None:
        return cast("tuple[Signal, ...]", tuple(config.otlp.signals))
    common = config.otlp is not None or f"{_OTLP}ENDPOINT" in environ
    found = []
    for signal in _SIGNALS:
        exporters = _exporters(environ, signal)
        by_default = f"{_OTLP}{signal.upper()}_ENDPOINT" in environ or (common and signal in _DEFAULT_SIGNALS)
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


def _otlp_name(environ: Mapping[str, str], setting: str, signal: str) -> str:
    """The variable of the exporter that applies to a signal: its own, or else the common one."""
    own = f"{_OTLP}{signal.upper()}_{setting}"
    return own if environ.get(own) else f"{_OTLP}{setting}"


def _target(config: OtlpConfig | None, environ: Mapping[str, str], signal: Signal, faults: "list[Fault]") -> Target:
    def value_of(setting: str) -> str | None:
        return environ.get(_otlp_name(environ, setting, signal))

    chosen = None if config is None else config.protocol
    protocol = cast(Protocol, chosen or (value_of("PROTOCOL") or "grpc").lower())
    endpoint, secure = _endpoint(config, environ, signal, protocol, faults)
    files = {setting: (_otlp_name(environ, setting, signal), value_of(setting)) for setting in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")}
    faults.extend(_file_faults(files, secure=secure))
    return Target(
        signal=signal,
        protocol=protocol,
        endpoint=endpoint,
        secure=secure,
        gzip=(value_of("COMPRESSION") or "").lower() == "gzip",
        timeout_s=int(value_of("TIMEOUT") or 10_000) / 1000,
        certificate=files["CERTIFICATE"][1],
        client_certificate=files["CLIENT_CERTIFICATE"][1],
        client_key=files["CLIENT_KEY"][1],
    )


def _endpoint(config: OtlpConfig | None, environ: Mapping[str, str], signal: Signal, protocol: Protocol, faults: "list[Fault]") -> tuple[str, bool]:
    """The address of a collector, and whether the connection uses TLS."""
    from_file = None if config is None else config.endpoint
    name = "telemetry.otlp.endpoint" if from_file else _otlp_name(environ, "ENDPOINT", signal)
    endpoint = from_file or environ.get(name, f"http://127.0.0.1:{_PORTS[protocol]}").rstrip("/")
    secure = endpoint.startswith("https://")
    if "://" not in endpoint:
        if protocol != "grpc":
            faults.append(Fault(name, endpoint, "must begin with http:// or https:// where the protocol is http/protobuf"))
        return endpoint, environ.get(_otlp_name(environ, "INSECURE", signal), "").lower() != "true"
    if protocol == "grpc":
        url = urllib.parse.urlsplit(endpoint)
        if url.path.rstrip("/"):
            faults.append(Fault(name, endpoint, "has a path, which the protocol grpc has no place for; see OTEL_EXPORTER_OTLP_PROTOCOL"))
        return url.netloc if url.port is not None else f"{url.netloc}:{443 if secure else 80}", secure
    own = name == f"{_OTLP}{signal.upper()}_ENDPOINT"
    return endpoint if own else f"{endpoint.rstrip('/')}/v1/{signal}", secure


def _file_faults(files: Mapping[str, tuple[str, str | None]], *, secure: bool) -> "Iterator[Fault]":
    """Faults of the certificates for a collector; that the files can be read was checked before."""
    authority, certificate, key = (files[setting][1] for setting in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    if (certificate is None) != (key is None):
        there, missing = ("CLIENT_CERTIFICATE", "CLIENT_KEY") if key is None else ("CLIENT_KEY", "CLIENT_CERTIFICATE")
        yield Fault(files[there][0], None, f"is set without {_OTLP}{missing}")
        return
    if not secure or (authority is None and certificate is None):
        return
    from framegate.control.configuration.tls_rules import authority_fault, identity_fault  # loaded only if there are such files

    if authority is not None and (text := authority_fault(authority)) is not None:
        yield Fault(files["CERTIFICATE"][0], authority, f"names a file that {text}")
    if certificate is not None and key is not None and (found := identity_fault(certificate, key)) is not None:
        name, path = files["CLIENT_CERTIFICATE" if found[0] == "certificate" else "CLIENT_KEY"]
        yield Fault(name, path, f"names a file that {found[1]}")


@dataclass(frozen=True, slots=True)
class Fault:
    """A variable, or a key of the file, whose value is not valid. ``value`` is None if it may not be shown."""

    name: str
    value: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.name}{'' if self.value is None else f'={self.value!r}'} {self.text}"


def drop_empty(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove OTEL_* variables without a value: they count as not set by the specification, but not for Python's SDK."""
    for name in [name for name, value in environ.items() if name.startswith("OTEL_") and not value.strip()]:
        del environ[name]


def faults_of(environ: Mapping[str, str]) -> Iterator[Fault]:
    """Faults of single variables; values of headers, and of endpoints that may have a password, are not shown."""
    for name, value in environ.items():
        if not name.startswith("OTEL_") or not value.strip():
            continue
        common = re.sub(f"^{_OTLP}({'|'.join(_SIGNALS).upper()})_(?!TEMPORALITY|DEFAULT)", _OTLP, name)
        text = _fault(common, value)
        if text:
            hidden = common == f"{_OTLP}HEADERS" or (common == f"{_OTLP}ENDPOINT" and any(mark in value for mark in "@?#"))
            yield Fault(name, None if hidden else value, text)
    for prefix in ("BSP", "BLRP"):
        queue, size = (environ.get(f"OTEL_{prefix}_{setting}") or str(default) for setting, default in _BATCH.items())
        if queue.isdecimal() and size.isdecimal() and int(size) > int(queue) > 0:
            text = f"is less than OTEL_{prefix}_MAX_EXPORT_BATCH_SIZE ({size}): a batch never comes together"
            yield Fault(f"OTEL_{prefix}_MAX_QUEUE_SIZE", queue, text)


def _fault(name: str, value: str) -> str:
    """The fault of one variable, empty if there is none; ``name`` is the one for all signals."""
    if name in CHOICES:
        return "" if value.lower() in CHOICES[name] else f"must be one of {', '.join(CHOICES[name])}"
    if name in LISTS:
        names = [item.strip().lower() for item in value.split(",")]
        return "" if names == ["none"] or all(item in LISTS[name] for item in names) else f"must be none, or some of {', '.join(LISTS[name])}"
    least = next((least for pattern, least in _NUMBERS.items() if re.fullmatch(pattern, name)), None)
    if least is not None:
        unit = " of milliseconds" if least == 100 else ""
        return "" if re.fullmatch(r"[0-9]{1,10}", value) and int(value) >= least else f"must be a whole number{unit}, at least {least}"
    check = _CHECKS.get(name)
    return "" if check is None else check(value)


def _endpoint_fault(value: str) -> str:
    try:
        url = urllib.parse.urlsplit(f"http://{value}" if _HOST_AND_PORT.fullmatch(value) else value)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        good = good and value.isascii() and value.isprintable() and not any(mark in value for mark in "@?# ")
    except ValueError:
        good = False
    return "" if good else "must be http://host:port or https://host:port, without user, query and fragment"


def _headers_fault(value: str) -> str:
    wrong = [number for number, item in enumerate(value.split(","), 1) if item.strip() and not _HEADER.fullmatch(item)]
    return f"must be key=value,key=value: entry {wrong[0]} is not" if wrong else ""


def _file_fault(value: str) -> str:
    try:
        with open(value, "rb") as file:
            file.read(1)
    except OSError as error:
        return f"names a file that cannot be read: {error.strerror or error}"
    return ""


def _host_fault(value: str) -> str:
    try:
        parse_address(f"[{value}]:0" if ":" in value and not value.startswith("[") else f"{value}:0", port_zero=True, unix=False)
    except ValueError:
        return "must be an address or a host name, without a port"
    return ""


def _propagators_fault(value: str) -> str:
    """The SDK looks for propagators among the installed packages when it is imported; an unknown one would end framegate without a message."""
    import importlib.metadata  # 1.5 MiB, only for this variable

    known = {"none", *importlib.metadata.entry_points(group="opentelemetry_propagator").names}
    missing = [name for name in map(str.strip, value.split(",")) if name not in known]
    return f"names {missing[0]!r}, which is not installed" if missing else ""


def _share_fault(value: str) -> str:
    try:
        good = 0.0 <= float(value) <= 1.0
    except ValueError:
        good = False
    return "" if good else "must be a number from 0 to 1"


_CHECKS: Final = {
    f"{_OTLP}ENDPOINT": _endpoint_fault,
    f"{_OTLP}HEADERS": _headers_fault,
    f"{_OTLP}CERTIFICATE": _file_fault,
    f"{_OTLP}CLIENT_CERTIFICATE": _file_fault,
    f"{_OTLP}CLIENT_KEY": _file_fault,
    "OTEL_EXPORTER_PROMETHEUS_HOST": _host_fault,
    "OTEL_PROPAGATORS": _propagators_fault,
    "OTEL_TRACES_SAMPLER_ARG": _share_fault,
}
