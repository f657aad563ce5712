"""OpenTelemetry's OTLP exporters, and the count of what they sent. Need the extra ``otlp``; import this module late.

The exporters encode, send, try again and wait. ``Counted`` stands before one: it counts exports and what was lost with them, and ends.
"""

import contextlib
import importlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from framegate.control.errors import StartError
from framegate.control.telemetry.account import Account
from framegate.control.telemetry.environment import Target

__all__ = ["Counted", "exporter_class", "metric_exporter", "otlp_exporter", "probe"]

_MAX_POINTS: Final = 4_000
"""Data points in one request: about 1 MB, below the 4 MB that gRPC servers take."""
_PLACES: Final = {
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_GRPC_LOGGER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"
_QUIET_S: Final = 600.0
_log = logging.getLogger(__name__)


class _Repeats(logging.Filter):
    """Lets each complaint of an exporter pass once in ten minutes: one that cannot send complains of each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, ...], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it passes. How long it waits, and such figures, make no other complaint of it."""
        words = record.args if isinstance(record.args, tuple) else ()
        key = (record.msg, *(word for word in words if isinstance(word, str)))
        now_s = time.monotonic()
        self._said = {known: at_s for known, at_s in self._said.items() if now_s - at_s < _QUIET_S}
        return now_s == self._said.setdefault(key, now_s)


_REPEATS: Final = _Repeats()


def exporter_class(target: Target) -> Any:
    """OpenTelemetry's exporter of a signal over a protocol; only that is loaded. Raises ImportError: the extra is not installed."""
    place, name = _PLACES[target.signal]
    return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.{target.protocol.partition('/')[0]}.{place}"), name)


def otlp_exporter(target: Target, **options: Any) -> Any:
    """The exporter for one collector, which connects when something is sent.

    Args:
        target: the collector. What is not in it (headers), the exporter reads from the environment.
        options: further ones of its constructor.

    Raises:
        ImportError: the extra is not installed.
        StartError: the certificates cannot be used.
    """
    made = exporter_class(target)
    for logger in _loggers(made):
        logger.addFilter(_REPEATS)
    try:
        options |= _grpc_options(target) if target.protocol == "grpc" else _http_options(target)
        return made(endpoint=target.endpoint, timeout=target.timeout_s, **options)
    except OSError as error:
        text = f"the certificates of the collector for {target.signal} ({target.endpoint}) cannot be used: {error}"
        raise StartError(text, reason="TELEMETRY_CERTIFICATE_UNUSABLE", signal=target.signal) from error


def _loggers(made: Any) -> tuple[logging.Logger, ...]:
    """Of an exporter's class."""
    return logging.getLogger(_GRPC_LOGGER), logging.getLogger(made.__module__)


def _grpc_options(target: Target) -> dict[str, Any]:
    """Its own reading of the environment refuses the compression ``none``, and takes a client's certificate only beside an authority's."""
    import grpc

    options: dict[str, Any] = {
        "insecure": not target.secure,
        "compression": grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression,
    }
    if target.secure:
        files = (_read(path) for path in (target.certificate, target.client_key, target.client_certificate))
        options["credentials"] = grpc.ssl_channel_credentials(*files)
    return options


def _http_options(target: Target) -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http import Compression

    return {
        "compression": Compression.Gzip if target.gzip else Compression.NoCompression,
        "certificate_file": target.certificate,
        "client_key_file": target.client_key,
        "client_certificate_file": target.client_certificate,
    }


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


class Counted:
    """An exporter as the SDK has them, before another one.

    Args:
        exporter: sends.
        target: its collector.
        account: where exports and what was lost are counted.
        over: called with the number of items once their export is over, however it ended.
    """

    def __init__(self, exporter: Any, target: Target, account: Account, over: Callable[[int], None] = lambda items: None) -> None:
        self._exporter = exporter
        self._signal = target.signal
        self._account = account
        self._over = over
        self._preferred_temporality = getattr(exporter, "_preferred_temporality", None)  # a reader of metrics asks for both
        self._preferred_aggregation = getattr(exporter, "_preferred_aggregation", None)
        self.closed = False
        account.expect(target.signal)

    def export(self, batch: Any, **options: Any) -> Any:
        """Export, unless it has ended. What raises is an export that failed: a value that cannot be encoded, say."""
        items = len(batch) if hasattr(batch, "__len__") else _points(batch)
        result: Any = None
        try:
            result = None if self.closed else self._exporter.export(batch, **options)
        except Exception:
            if not self.closed:  # an export that the end breaks off
                _log.exception("an export of %s failed", self._signal)
        finally:
            self._over(items)
        good = result is not None and result.name == "SUCCESS"
        self._account.export(self._signal, "" if good else "failed")
        self._account.drop(self._signal, 0 if good else items)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing waits here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """End: what is under way over gRPC at once, over HTTP at its time-out. Nothing is sent any more."""
        if not self.closed:
            self.closed = True
            self._exporter.shutdown()


def _points(data: Any) -> int:
    """The data points of an export of metrics."""
    scopes = (scope for resource in data.resource_metrics for scope in resource.scope_metrics)
    return sum(len(metric.data.data_points) for scope in scopes for metric in scope.metrics)


def metric_exporter(target: Target, account: Account) -> Counted:
    """For a periodic reader; an export of many points goes in several requests."""
    return Counted(otlp_exporter(target, max_export_batch_size=_MAX_POINTS), target, account)


def probe(target: Target) -> str:
    """Send an export with nothing in it.

    Returns:
        What is wrong, in the exporter's words; empty: the collector took it.

    Raises:
        ImportError, StartError: as ``otlp_exporter``.
    """
    from opentelemetry.sdk.metrics.export import MetricsData

    exporter = otlp_exporter(target)
    heard = _Heard()
    with contextlib.ExitStack() as after:
        after.callback(exporter.shutdown)
        for logger in _loggers(type(exporter)):
            after.callback(setattr, logger, "filters", logger.filters)
            logger.filters = []  # what was said of another collector is said again of this one
            logger.addHandler(heard)
            after.callback(logger.removeHandler, heard)
        good = exporter.export(MetricsData(()) if target.signal == "metrics" else ()).name == "SUCCESS"
    return "" if good else "; ".join(dict.fromkeys(heard.texts)) or "it was not taken"


class _Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
