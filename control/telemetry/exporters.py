"""Exporters of metrics, spans and log records to an OTLP collector. Need the extra ``otlp``; import this module late.

OpenTelemetry's encoders make the requests, ``transport`` carries them; what fails, or is thrown away by the collector, is counted in an ``Account``.
A row says when exports begin to fail, and one when they no longer do.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, EncodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, MetricExportResult, MetricsData

from control.telemetry.account import Account
from control.telemetry.environment import Logs, Metrics, Target, Temporality, Traces
from control.telemetry.transport import Carrier, transport

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["Sender", "log_exporter", "metric_exporter", "span_exporter"]

_MAX_POINTS: Final = 4_000
"""Data points in one request: about 1 MB, below the 4 MB that gRPC servers take."""
_DELTA: Final[dict[Temporality, tuple[type, ...]]] = {
    "cumulative": (),
    "delta": (Counter, ObservableCounter, Histogram),
    "lowmemory": (Counter, Histogram),
}

_WELL: Final = 5
"""Exports in a row that a collector took: then it is well again."""

_log = logging.getLogger(__name__)


class Sender:
    """Sends encoded requests of one signal and keeps the account.

    Args:
        target: the collector.
        account: where it is counted.
        response: the class of the collector's answer.
        rejected: the name, in the answer's partial success, of how many it threw away.

    Raises:
        StartError: see ``transport``.
    """

    def __init__(self, target: Target, account: Account, response: type[Message], rejected: str) -> None:
        self._signal = target.signal
        self._endpoint = target.endpoint
        self._account = account
        self._response = response
        self._rejected = rejected
        self._carrier = Carrier(transport(target), target.timeout_s)
        self._failing: set[str] = set()
        self._well = 0
        self._told = ""
        account.expect(target.signal)

    def send(self, request: Message, items: int) -> bool:
        """Send one request of so many items; whether the collector has it all."""
        try:
            encoded = request.SerializeToString()
        except EncodeError as error:
            return self._end("other", f"cannot be encoded: {error}", items)
        outcome = self._carrier.carry(encoded)
        if outcome.end:
            return self._end(outcome.end, outcome.text, items)
        response: Any = self._response()
        try:
            response.ParseFromString(outcome.answer)
        except DecodeError:
            return self._end("other", "the answer is not one of OTLP", items)
        partial = response.partial_success
        lost = max(0, min(getattr(partial, self._rejected), items))
        text = partial.error_message[:500]
        if lost:
            return self._end("rejected", f"{lost} of {items} items: {text}", lost)
        if text and text != self._told:
            _log.warning("the collector %s took %s and says: %s", self._endpoint, self._signal, text)
        self._told = text
        return self._end("", "", 0)

    def failed(self, error: Exception, items: int) -> bool:
        """Count an export that could not even be made."""
        return self._end("other", f"cannot be encoded: {error!r}", items)

    def _end(self, end: str, text: str, dropped: int) -> bool:
        self._account.export(self._signal, end)
        self._account.drop(self._signal, dropped)
        if not self._carrier.closed:  # at the end a collector that is dead was told of, or is no news
            self._tell(end, text)
        return not end

    def _tell(self, end: str, text: str) -> None:
        """Each way to fail once, until exports have been well for a while: of two collectors behind one address one may be broken."""
        if end:
            self._well = 0
            if end not in self._failing:
                self._failing.add(end)
                _log.warning("exports of %s to %s fail (%s): %s", self._signal, self._endpoint, end, text)
            return
        self._well += 1
        if self._failing and self._well == _WELL:
            self._failing.clear()
            _log.warning("exports of %s to %s no longer fail", self._signal, self._endpoint)

    def close(self) -> None:
        """End what is under way. Any thread."""
        self._carrier.close()


class _MetricExporter(MetricExporter):
    def __init__(self, metrics: Metrics, account: Account) -> None:
        temporality = dict.fromkeys(_DELTA[metrics.temporality], AggregationTemporality.DELTA)
        super().__init__(preferred_temporality=temporality)
        self.temporality = temporality
        self._sender = Sender(metrics.target, account, ExportMetricsServiceResponse, "rejected_data_points")

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        try:
            requests = list(_split(encode_metrics(metrics_data)))
        except Exception as error:  # a value that protobuf has no place for: it costs this export
            self._sender.failed(error, 0)
            return MetricExportResult.FAILURE
        good = [self._sender.send(request, points) for request, points in requests]
        return MetricExportResult.SUCCESS if all(good) else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._sender.close()


def _split(whole: ExportMetricsServiceRequest, most: int = _MAX_POINTS) -> Iterator[tuple[ExportMetricsServiceRequest, int]]:
    """The same in requests of at most so many points, each with their number."""
    request = ExportMetricsServiceRequest()
    count = 0
    for resource in whole.resource_metrics:
        for scope in resource.scope_metrics:
            into: Any = None
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is None:
                    continue
                points = getattr(metric, kind).data_points
                for start in range(0, len(points), most):
                    taken = min(most, len(points) - start)
                    if count + taken > most:
                        yield request, count
                        request, count, into = ExportMetricsServiceRequest(), 0, None
                    if into is None:
                        owner = request.resource_metrics.add(resource=resource.resource, schema_url=resource.schema_url)
                        into = owner.scope_metrics.add(scope=scope.scope, schema_url=scope.schema_url)
                    copy = into.metrics.add()
                    copy.CopyFrom(metric)
                    if taken < len(points):
                        kept = getattr(copy, kind).data_points
                        del kept[start + taken :], kept[:start]
                    count += taken
    if count:
        yield request, count


def metric_exporter(metrics: Metrics, account: Account) -> _MetricExporter:
    """For a periodic reader. Raises StartError: certificates cannot be used."""
    return _MetricExporter(metrics, account)


def span_exporter(traces: Traces, account: Account) -> "SpanExporter":
    """For a batch processor. Raises StartError: certificates cannot be used."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    sender = Sender(traces.target, account, ExportTraceServiceResponse, "rejected_spans")

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            try:
                request = encode_spans(spans)
            except Exception as error:  # as above
                good = sender.failed(error, len(spans))
            else:
                good = sender.send(request, len(spans))
            return SpanExportResult.SUCCESS if good else SpanExportResult.FAILURE

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return True

        def shutdown(self) -> None:
            sender.close()

    return Exporter()


def log_exporter(logs: Logs, account: Account) -> "LogRecordExporter":
    """For a batch processor. Raises StartError: certificates cannot be used."""
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult

    sender = Sender(logs.target, account, ExportLogsServiceResponse, "rejected_log_records")

    class Exporter(LogRecordExporter):
        def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
            try:
                request = encode_logs(batch)
            except Exception as error:  # as above
                good = sender.failed(error, len(batch))
            else:
                good = sender.send(request, len(batch))
            return LogRecordExportResult.SUCCESS if good else LogRecordExportResult.FAILURE

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return True

        def shutdown(self) -> None:
            sender.close()

    return Exporter()
