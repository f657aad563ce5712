"""The OTEL_* variables that are judged before anything starts. OpenTelemetry's SDK and its exporters read most of them themselves.

Where the SDK warns of a bad value and takes its default, framegate refuses to start: a variable that is set is meant to have its effect. Variables
that are not named here are not judged. An empty value is as good as none (``drop_empty``).
"""

import importlib.metadata
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

from framegate.proxy.config.address import parse_address

__all__ = ["CHOICES", "LISTS", "NUMBERS", "OTLP", "SIGNALS", "Fault", "drop_empty", "faults_of", "otlp_name"]

SIGNALS: Final = ("metrics", "traces", "logs")
OTLP: Final = "OTEL_EXPORTER_OTLP_"
"""``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like: each has a variant for each signal, as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, which wins."""
_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "OTEL_SDK_DISABLED": ("true", "false"),
    "OTEL_LOG_LEVEL": ("debug", "info", "warn", "warning", "error", "fatal"),
    "OTEL_TRACES_SAMPLER": (*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS)),
    "OTEL_METRICS_EXEMPLAR_FILTER": ("trace_based", "always_on", "always_off"),
    f"{OTLP}METRICS_TEMPORALITY_PREFERENCE": ("cumulative", "delta", "lowmemory"),
    f"{OTLP}PROTOCOL": ("grpc", "http/protobuf"),
    f"{OTLP}COMPRESSION": ("gzip", "none"),
    f"{OTLP}INSECURE": ("true", "false"),
}
"""One of these, in any case."""
LISTS: Final[dict[str, tuple[str, ...]]] = {
    "OTEL_METRICS_EXPORTER": ("otlp", "prometheus"),
    "OTEL_TRACES_EXPORTER": ("otlp",),
    "OTEL_LOGS_EXPORTER": ("otlp",),
}
"""Some of these, divided by commas, or ``none``."""
NUMBERS: Final = {
    r"OTEL_(SPAN_|EVENT_|LINK_|LOGRECORD_)?(ATTRIBUTE_|EVENT_|LINK_)(COUNT|VALUE_LENGTH)_LIMIT": 0,
    r"OTEL_EXPORTER_PROMETHEUS_PORT": 0,
    r"OTEL_(BSP|BLRP)_(SCHEDULE_DELAY|EXPORT_TIMEOUT|MAX_QUEUE_SIZE|MAX_EXPORT_BATCH_SIZE)": 1,
    r"OTEL_METRIC_EXPORT_(INTERVAL|TIMEOUT)": 100,
    r"OTEL_EXPORTER_OTLP_((METRICS|TRACES|LOGS)_)?TIMEOUT": 100,
}
"""Whole numbers, with the least; times are in milliseconds."""
_HEADER: Final = re.compile(r"\s*[A-Za-z0-9_.-]+\s*=[\x20-\x7e]*")
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_BATCH: Final = {"MAX_QUEUE_SIZE": 2_048, "MAX_EXPORT_BATCH_SIZE": 512}


@dataclass(frozen=True, slots=True)
class Fault:
    """A variable that is set to something that cannot be. ``value`` is None where it may not be shown."""

    name: str
    value: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.name}{'' if self.value is None else f'={self.value!r}'} {self.text}"


def otlp_name(environ: Mapping[str, str], what: str, signal: str) -> str:
    """The variable of the exporter that holds for a signal: its own, or else the one for all."""
    own = f"{OTLP}{signal.upper()}_{what}"
    return own if environ.get(own) else f"{OTLP}{what}"


def drop_empty(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove OTEL_* variables without a value: the specification has them as unset, Python's SDK has not."""
    for name in [name for name, value in environ.items() if name.startswith("OTEL_") and not value.strip()]:
        del environ[name]


def faults_of(environ: Mapping[str, str]) -> Iterator[Fault]:
    """What is wrong with what is set; the values of headers, and of endpoints with a password, are not shown."""
    for name, value in environ.items():
        if not name.startswith("OTEL_") or not value.strip():
            continue
        common = re.sub(f"^{OTLP}({'|'.join(SIGNALS).upper()})_(?!TEMPORALITY|DEFAULT)", OTLP, name)
        text = _fault(common, value)
        if text:
            hidden = common == f"{OTLP}HEADERS" or (common == f"{OTLP}ENDPOINT" and any(mark in value for mark in "@?#"))
            yield Fault(name, None if hidden else value, text)
    for prefix in ("BSP", "BLRP"):
        queue, size = (environ.get(f"OTEL_{prefix}_{what}") or str(default) for what, default in _BATCH.items())
        if queue.isdecimal() and size.isdecimal() and int(size) > int(queue) > 0:
            text = f"is less than OTEL_{prefix}_MAX_EXPORT_BATCH_SIZE ({size}): a batch never comes together"
            yield Fault(f"OTEL_{prefix}_MAX_QUEUE_SIZE", queue, text)


def _fault(name: str, value: str) -> str:
    """What is wrong with one; ``name`` is that for all signals."""
    if name in CHOICES:
        return "" if value.lower() in CHOICES[name] else f"must be one of {', '.join(CHOICES[name])}"
    if name in LISTS:
        names = [item.strip().lower() for item in value.split(",")]
        return "" if names == ["none"] or all(item in LISTS[name] for item in names) else f"must be none, or some of {', '.join(LISTS[name])}"
    least = next((least for pattern, least in NUMBERS.items() if re.fullmatch(pattern, name)), None)
    if least is not None:
        unit = " of milliseconds" if least == 100 else ""
        return "" if re.fullmatch(r"[0-9]{1,10}", value) and int(value) >= least else f"must be a whole number{unit}, at least {least}"
    judge = {
        f"{OTLP}ENDPOINT": _endpoint,
        f"{OTLP}HEADERS": _headers,
        f"{OTLP}CERTIFICATE": _file,
        f"{OTLP}CLIENT_CERTIFICATE": _file,
        f"{OTLP}CLIENT_KEY": _file,
        "OTEL_EXPORTER_PROMETHEUS_HOST": _host,
        "OTEL_PROPAGATORS": _propagators,
        "OTEL_TRACES_SAMPLER_ARG": _share,
    }.get(name)
    return "" if judge is None else judge(value)


def _endpoint(value: str) -> str:
    try:
        url = urllib.parse.urlsplit(f"http://{value}" if _HOST_AND_PORT.fullmatch(value) else value)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        good = good and value.isascii() and value.isprintable() and not any(mark in value for mark in "@?# ")
    except ValueError:
        good = False
    return "" if good else "must be http://host:port or https://host:port, without user, query and fragment"


def _headers(value: str) -> str:
    wrong = [number for number, item in enumerate(value.split(","), 1) if item.strip() and not _HEADER.fullmatch(item)]
    return f"must be key=value,key=value: entry {wrong[0]} is not" if wrong else ""


def _file(value: str) -> str:
    try:
        with open(value, "rb") as file:
            file.read(1)
    except OSError as error:
        return f"names a file that cannot be read: {error.strerror or error}"
    return ""


def _host(value: str) -> str:
    try:
        parse_address(f"[{value}]:0" if ":" in value and not value.startswith("[") else f"{value}:0", port_zero=True, unix=False)
    except ValueError:
        return "must be an address or a host name, without a port"
    return ""


def _propagators(value: str) -> str:
    """The SDK finds them among what is installed; at import, where a fault would end framegate without a word of why."""
    known = {"none", *importlib.metadata.entry_points(group="opentelemetry_propagator").names}
    missing = [name for name in map(str.strip, value.split(",")) if name not in known]
    return f"names {missing[0]!r}, which is not installed" if missing else ""


def _share(value: str) -> str:
    try:
        good = 0.0 <= float(value) <= 1.0
    except ValueError:
        good = False
    return "" if good else "must be a number from 0 to 1"
