"""Spans and log records of ours on their way to a real OTLP receiver."""

import contextlib
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from framegate.control.steering.state import State
from framegate.control.telemetry.environment import Signal, Target, judge
from framegate.control.telemetry.exporters import Account, otlp_exporter
from framegate.control.telemetry.log_records import LogRecords
from framegate.control.telemetry.provider import Telemetry
from framegate.control.telemetry.traces import Traces
from framegate.proxy.config.model import TelemetryConfig
from tests.fakes.otlp_receiver import OtlpReceiver

RESOURCE = Resource({"service.name": "framegate"})


_NAMES = {
    "queue": "OTEL_{}_MAX_QUEUE_SIZE",
    "size": "OTEL_{}_MAX_EXPORT_BATCH_SIZE",
    "delay_ms": "OTEL_{}_SCHEDULE_DELAY",
    "sampler": "OTEL_TRACES_SAMPLER",
    "ratio": "OTEL_TRACES_SAMPLER_ARG",
}


@contextlib.contextmanager
def _environment(prefix: str, **settings: Any) -> Iterator[None]:
    """The variables that the SDK reads while something is made."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"queue": 2_048, "size": 512, "delay_ms": 20, **settings}.items():
            patch.setenv(_NAMES[name].format(prefix), str(value))
        yield


def _target(receiver: OtlpReceiver, signal: Signal) -> Target:
    return Target(signal=signal, protocol="grpc", endpoint=receiver.endpoint.removeprefix("http://"), secure=False, timeout_s=5.0)


def metered(plane: State, telemetry: TelemetryConfig, validity: Mapping[str, tuple[float, float]] | None = None) -> Telemetry:
    """Running metrics that go where a configuration says."""
    made = Telemetry(plane, validity or {})
    made.follow(made.stage(judge(telemetry)))
    return made


def scraped(address: str | None) -> str:
    """What Prometheus would read there."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def scraped_samples(address: str | None) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(scraped(address)) for sample in family.samples]


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
        with _environment("BSP", **settings):
            traces = Traces(otlp_exporter(_target(receiver, "traces")), RESOURCE, "1.2.3", account)
        try:
            yield Tracing(receiver, traces, account)
        finally:
            receiver.hold.set()
            traces.stop()


@contextlib.contextmanager
def recording(**batch: int) -> Iterator[tuple[LogRecords, OtlpReceiver, Account]]:
    with OtlpReceiver() as receiver:
        account = Account()
        with _environment("BLRP", **batch):
            records = LogRecords(otlp_exporter(_target(receiver, "logs")), RESOURCE, "1.2.3", account)
        try:
            yield records, receiver, account
        finally:
            receiver.hold.set()
            records.stop()
