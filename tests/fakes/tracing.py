"""Spans and log records of ours on their way to a real OTLP receiver."""

import contextlib
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource

from control.telemetry import environment
from control.telemetry.account import Account
from control.telemetry.exporters import log_exporter, span_exporter
from control.telemetry.log_records import LogRecords
from control.telemetry.traces import Traces
from tests.fakes.otlp_receiver import OtlpReceiver

__all__ = ["Tracing", "log_settings", "recording", "trace_settings", "tracing"]

RESOURCE = Resource({"service.name": "framegate"})


def _target(receiver: OtlpReceiver, signal: environment.Signal) -> environment.Target:
    return environment.Target(signal=signal, protocol="grpc", endpoint=receiver.endpoint.removeprefix("http://"), secure=False, timeout_s=5.0)


def trace_settings(receiver: OtlpReceiver, *, sampler: str = "parentbased_always_on", ratio: float = 1.0, **batch: int) -> environment.Traces:
    return environment.Traces(
        target=_target(receiver, "traces"),
        batch=environment.Batch(**{"queue": 2_048, "size": 512, "delay_ms": 20, "timeout_ms": 5_000, **batch}),
        sampler=sampler,
        ratio=ratio,
        limits=(),
        propagators=("tracecontext", "baggage"),
    )


def log_settings(receiver: OtlpReceiver, **batch: int) -> environment.Logs:
    made = environment.Batch(**{"queue": 2_048, "size": 512, "delay_ms": 20, "timeout_ms": 5_000, **batch})
    return environment.Logs(target=_target(receiver, "logs"), batch=made, limits=())


class Tracing:
    """Attributes: ``traces``, the ``receiver`` of its spans, and the ``account`` of what was dropped."""

    def __init__(self, receiver: OtlpReceiver, traces: Traces, account: Account) -> None:
        self.receiver = receiver
        self.traces = traces
        self.account = account

    def spans(self) -> list[Span]:
        """All spans, once the last of them is exported; there are none after that."""
        self.traces.stop()
        return self.receiver.spans


@contextlib.contextmanager
def tracing(**settings: Any) -> Iterator[Tracing]:
    with OtlpReceiver() as receiver:
        account = Account()
        told = trace_settings(receiver, **settings)
        traces = Traces(told, RESOURCE, "1.2.3", span_exporter(told, account), account)
        try:
            yield Tracing(receiver, traces, account)
        finally:
            receiver.hold.set()
            traces.stop()


@contextlib.contextmanager
def recording(**batch: int) -> Iterator[tuple[LogRecords, OtlpReceiver, Account]]:
    with OtlpReceiver() as receiver:
        account = Account()
        told = log_settings(receiver, **batch)
        records = LogRecords(told, RESOURCE, "1.2.3", log_exporter(told, account), account)
        try:
            yield records, receiver, account
        finally:
            receiver.hold.set()
            records.stop()
