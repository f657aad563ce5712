"""OpenTelemetry's OTLP exporters, the bound of what waits for them, and the count of what they sent.

The exporters encode, send, retry and wait. ``Counted`` wraps one of them: it counts exports and the items that were lost, and ends it. Exporters need
the extra ``otlp``; they are imported only by ``exporter_class``.
"""

import contextlib
import importlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.telemetry.environment import Signal, Target
from framegate.proxy.cells.metrics import ERROR_TYPE, EXPORT_ERRORS, SIGNAL

_MAX_POINTS: Final = 4_000  # Data points in one request: about 1 MB, below the 4 MB that gRPC servers accept
_PLACES: Final = {
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_GRPC_LOGGER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"
GRACE_S: Final = 2.0  # for an export in progress when its exporter is exchanged


class Account:
    """Counts exports by their result, the items that the collector did not get, and spans that were not made. Any thread."""

    def __init__(self) -> None:
        # writes a row when the exports of a signal begin to fail, and when they succeed again (``RowLog.write``)
        self.write: Callable[..., None] = lambda event, *, level, **fields: None
        self._failing: dict[str, tuple[float, int]] = {}  # by signal: since when, and the items that were lost before
        self._lock = threading.Lock()
        self._exports: Counter[tuple[str, str]] = Counter()
        self.dropped: Counter[str] = Counter()  # items, by signal
        self.skipped = 0  # spans

    def export(self, signal: str, error: str) -> None:
        """Count one export. ``error``: one of ``EXPORT_ERRORS``, empty for a success."""
        with self._lock:
            self._exports[signal, error] += 1

    def judge(self, signal: str, target: str, error: str, lost: int) -> None:
        """Write a row if exports to a collector begin to fail, or succeed again. ``error``: why one failed; empty: it succeeded."""
        now_s = time.monotonic()
        with self._lock:
            since = self._failing.get(signal)
            if bool(error) == (since is not None):
                return
            if since is None:
                self._failing[signal] = now_s, self.dropped[signal] - lost
            else:
                del self._failing[signal]
                lost = self.dropped[signal] - since[1]
        facts = {"signal": signal, "target": target, "lost": lost}
        if since is None:
            self.write("telemetry_export_failed", level="warning", **facts, error=error)
        else:
            self.write("telemetry_export_recovered", level="info", **facts, seconds=round(now_s - since[0], 1))

    def drop(self, signal: str, items: int) -> None:
        """Count data points, spans or log records that will not be sent again."""
        if items:
            with self._lock:
                self.dropped[signal] += items

    def skip(self, spans: int) -> None:
        """Count spans that were not made because of the limit on their rate or their queue."""
        with self._lock:
            self.skipped += spans

    def expect(self, signal: str) -> None:
        """Let the counts of a signal begin with 0."""
        with self._lock:
            for error in EXPORT_ERRORS:  # an alert needs the first failure
                self._exports[signal, error] += 0
            self.dropped[signal] += 0

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """By metric and attributes, as ``State.measurements``."""
        with self._lock:
            exports, dropped, skipped = dict(self._exports), dict(self.dropped), self.skipped
        values: dict[tuple[str, Attributes], float] = {}
        for (signal, error), count in exports.items():
            values["framegate.telemetry.exports", ((SIGNAL, signal), *(((ERROR_TYPE, error),) if error else ()))] = count
        for signal, count in dropped.items():
            values["framegate.telemetry.dropped", ((SIGNAL, signal),)] = count
        if "traces" in dropped:
            values["framegate.telemetry.skipped", ()] = skipped
        return values


def queue_size(prefix: str) -> int:
    """The queue of the SDK's batch processor: ``BSP`` for spans, ``BLRP`` for log records."""
    return int(os.environ.get(f"OTEL_{prefix}_MAX_QUEUE_SIZE") or 2_048)


class Room:
    """Bounds the spans, or log records, that wait until the collector has them. Any thread. The SDK's batch processors drop the oldest items without
    a count. Here the newest are dropped, as the specification says, and counted exactly. The processors' queues have the same size, so they are never
    full. ``most``: how many may wait. ``dropped``: called with the number of items that found no room. It must not block.
    """

    def __init__(self, most: int, dropped: Callable[[int], None]) -> None:
        assert most > 0, "a queue that holds no item cannot return one"
        self._most = most
        self._dropped = dropped
        self.used = 0  # how many wait, including those that are being sent
        self._lock = threading.Lock()

    def take(self, count: int = 1) -> int:
        """Take room for ``count`` items; returns for how many there was room. The others are counted as dropped."""
        with self._lock:
            taken = min(count, self._most - self.used)
            self.used += taken
        if taken < count:
            self._dropped(count - taken)
        return taken

    def free(self, count: int) -> None:
        with self._lock:
            self.used -= count
            assert self.used >= 0, "more was given back than was taken"


class _Kept(logging.Filter):
    """Keeps what an exporter logs within ``Counted.export``, for the row of its failure: an exporter that cannot send logs every attempt."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(_failure, "text"):
            return True
        _failure.text = record.getMessage()
        return False


_failure: Final = threading.local()  # ``text``: the last message of the exporter that runs in this thread; missing: none runs
_KEPT: Final = _Kept()


def exporter_class(target: Target) -> Any:
    """OpenTelemetry's exporter of a signal over a protocol; only that one is imported. Raises ImportError: the extra is not installed."""
    place, name = _PLACES[target.signal]
    return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.{target.protocol.partition('/')[0]}.{place}"), name)


def otlp_exporter(target: Target, **options: Any) -> Any:
    """The exporter for one collector, which connects when something is sent. ``target``: the collector. The exporter reads other settings (headers)
    from the environment. ``options``: more arguments of its constructor. Raises ImportError: the extra is not installed; StartError: the certificates
    cannot be used.
    """
    made = exporter_class(target)
    for logger in _loggers(made):
        if _KEPT not in logger.filters:
            logger.filters.insert(0, _KEPT)  # before the exporter's own, which leaves out what was logged just before
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
    """The exporter itself refuses the compression ``none`` in the environment, and accepts a client's certificate only with an authority's."""
    import grpc

    options: dict[str, Any] = {"insecure": not target.secure, "compression": grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression}
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


def behind(work: Callable[[], None], name: str) -> None:
    """Run what may take seconds in a thread of its own, or here if there is no thread for it."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        work()


class Counted:
    """An exporter for the SDK that calls another one, which can be exchanged, and counts. ``over``: called with the number of items after their
    export, whatever its result.
    """

    def __init__(self, exporter: Any, signal: Signal, account: Account, over: Callable[[int], None] = lambda items: None) -> None:
        self._exporter = exporter
        self._sending: Any = None
        self._sent = threading.Condition()
        self._signal = signal
        self._account = account
        self._over = over
        self._preferred_temporality = getattr(exporter, "_preferred_temporality", None)  # a reader of metrics asks for both
        self._preferred_aggregation = getattr(exporter, "_preferred_aggregation", None)
        self.closed = False
        account.expect(signal)

    def exchange(self, exporter: Any) -> None:
        """Send with another exporter from now on. The former one has ``GRACE_S`` for an export in progress; if that fails, the other one repeats it.
        It does not block.
        """
        former, self._exporter = self._exporter, exporter

        def end() -> None:
            with self._sent:
                self._sent.wait_for(lambda: self._sending is not former, GRACE_S)
            former.shutdown()

        behind(end, "framegate-exporter-end")

    def export(self, batch: Any, **options: Any) -> Any:
        """Export, unless it has ended. An exception counts as an export that failed, for example of a value that cannot be encoded."""
        items = len(batch) if hasattr(batch, "__len__") else _points(batch)
        _failure.text = "it was not taken"
        try:
            while True:
                exporter = self._exporter
                result = self._attempt(exporter, batch, options)
                good = result is not None and result.name == "SUCCESS"
                self._account.export(self._signal, "" if good else "failed")
                if good or exporter is self._exporter:
                    break
        finally:
            error = _failure.text
            del _failure.text
            self._over(items)
        self._account.drop(self._signal, 0 if good else items)
        if not self.closed:  # otherwise ``shutdown`` has broken the export off
            self._account.judge(self._signal, str(getattr(exporter, "_endpoint", "")), "" if good else error, 0 if good else items)
        return result

    def _attempt(self, exporter: Any, batch: Any, options: dict[str, Any]) -> Any:
        self._sending = exporter
        try:
            return None if self.closed else exporter.export(batch, **options)
        except Exception as raised:
            _failure.text = f"{type(raised).__name__}: {raised}"
            return None
        finally:
            with self._sent:
                self._sending = None
                self._sent.notify_all()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing waits here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Send nothing more. An export in progress ends at once over gRPC, over HTTP at its timeout."""
        if not self.closed:
            self.closed = True
            self._exporter.shutdown()


def _points(data: Any) -> int:
    """The data points of an export of metrics."""
    scopes = (scope for resource in data.resource_metrics for scope in resource.scope_metrics)
    return sum(len(metric.data.data_points) for scope in scopes for metric in scope.metrics)


def metric_exporter(target: Target) -> Any:
    """For a periodic reader; an export of many points is split into several requests. Errors as of ``otlp_exporter``."""
    return otlp_exporter(target, max_export_batch_size=_MAX_POINTS)


def probe(target: Target) -> str:
    """Send an empty export. Returns what is wrong, in the exporter's words; empty: the collector accepted it. Raises ImportError, StartError: as
    ``otlp_exporter``.
    """
    from opentelemetry.sdk.metrics.export import MetricsData

    exporter = otlp_exporter(target)
    texts: list[str] = []
    collect = logging.Handler(logging.WARNING)
    collect.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    with contextlib.ExitStack() as after:
        after.callback(exporter.shutdown)
        for logger in _loggers(type(exporter)):
            after.callback(setattr, logger, "filters", logger.filters)
            logger.filters = []  # a message about another collector was logged a moment ago, perhaps
            logger.addHandler(collect)
            after.callback(logger.removeHandler, collect)
        good = exporter.export(MetricsData(()) if target.signal == "metrics" else ()).name == "SUCCESS"
    return "" if good else "; ".join(dict.fromkeys(texts)) or "it was not taken"
