"""The page about metrics and variables, from the metrics (``framegate.control.telemetry.catalogue``) and the variables that are checked."""

from collections.abc import Iterable, Iterator
from typing import Final

from framegate.control.telemetry.catalogue import EXPORTED, label_name, prometheus_name
from framegate.control.telemetry.environment import CHOICES, LISTS
from framegate.control.telemetry.fold import PER_WORKER
from framegate.proxy.cells.metric import Metric
from framegate.proxy.cells.metrics import PIPELINE_METRICS, WORKER

__all__ = ["page_text"]

_ALL: Final = (*EXPORTED, *PIPELINE_METRICS)
_SOURCES: Final = {"processor": "processors", "control": "control", "pipeline": "the Spark job, over OTLP"}
_FEW: Final = 6
_OPEN: Final = {
    "framegate.listener": "names of listeners",
    "framegate.upstream": "names of upstreams",
    "server.address": "hosts, or paths of Unix sockets, of endpoints and bootstrap servers as the configuration writes them; absent for a broker",
    "server.port": "their ports; absent for a Unix socket or a broker",
    "framegate.kafka.broker": "node ids of brokers; of a cluster with more than 100 the rest is `others`; absent for an endpoint with an address",
    "framegate.consumer": "names of the tap's consumers, at most 50, and `others`",
    "framegate.certificate": "uses of certificates",
    "framegate.principal": "the ten first ones, of failed logins the names that were tried or `<many>`; at most 100 characters",
    "framegate.client.id": "client ids of Kafka of the ten first ones; at most 100 characters",
    "client.address": "of the ten first ones, without port, of IPv6 the /64; of failed logins also `<many>`",
    "framegate.process": "`control`, `processor-0` …, `handler-0` …",
    "rpc.method": "methods of the API, and `_OTHER` for unknown ones",
    "rpc.response.status_code": "names of gRPC's codes",
    "error.type": "names of gRPC's codes except `OK`",
    WORKER: "slots of processors, and `retired`",
}
_HEAD: Final = """\
# Metrics and variables

Generated from the code by `make pages`; do not edit.

## Metrics

The first name is used over OTLP, the second in a scrape of Prometheus, where a histogram also has the suffixes `_bucket`, `_count` and `_sum`. A
label is the attribute's name with `_` for each dot. An attribute without a value is absent, for example `error.type` of a success. A
histogram, and a counter whose attributes name one of many possible events, such as `error.type`, have a series from the first event on. Those whose
rate an alert reads begin with 0 at the start, such a histogram with its count and sum, unless the configuration makes the event unlikely: failed TLS
handshakes where there is no TLS, or errors of framegate's own. Metrics of the tap and of handlers are absent where there are none.

Times with the buckets 2^(n/4) s are right within 19 % at any quantile. Over OTLP they are exponential histograms of scale 2 if
`OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION` is `base2_exponential_bucket_histogram`. framegate's dashboards and alerts read the series
`_bucket`, `_count` and `_sum` of explicit buckets, so set it only for backends with queries of your own.

| Metric | In Prometheus | Kind | Unit | Attributes | Meaning | Counted by |
| --- | --- | --- | --- | --- | --- | --- |
"""
_VALUES: Final = """
## Values of attributes

| Attribute | Of | Values |
| --- | --- | --- |
"""
_VARIABLES: Final = """
## Variables of the environment

OpenTelemetry's SDK for Python and its exporters read the OTEL_* variables. The section `telemetry` of framegate.yaml overrides them, except
`OTEL_SDK_DISABLED` (the row `telemetry_disabled` reports it). A variable for one signal, such as `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, overrides the
variable for all signals. An empty value means not set. framegate differs from the SDK:

- `OTEL_METRIC_EXPORT_INTERVAL` defaults to 10000 ms, not 60000.
- `OTEL_EXPORTER_OTLP_TIMEOUT` is in milliseconds, as in the specification; Python's exporters read seconds.
- Signals are exported if the file or the environment names an endpoint: metrics and traces with a common one, logs with their own or
  `OTEL_LOGS_EXPORTER=otlp`. There is no console exporter, because standard output has framegate's own rows.
- `OTEL_EXPORTER_PROMETHEUS_HOST` and `OTEL_EXPORTER_PROMETHEUS_PORT` (default 127.0.0.1:9464) apply with `OTEL_METRICS_EXPORTER=prometheus`.
- `OTEL_LOG_LEVEL` is the lowest level of the rows `library_log` from OpenTelemetry.

framegate does not start if one of these variables has another value; `framegate check` reports it, with the variable's name, its value (never a
secret) and the valid values. Numbers, endpoints, headers, certificate files, `OTEL_TRACES_SAMPLER_ARG` and `OTEL_PROPAGATORS` are validated, too. The
SDK reads all other variables, and logs those that it cannot use.

| Variable | Values |
| --- | --- |
"""


def page_text() -> str:
    """``deploy/metrics.md``."""
    rows = "".join(_row(_metric_cells(metric)) for metric in _ALL)
    values = "".join(_row(cells) for cells in _value_rows())
    names = {name: ", ".join(f"`{item}`" for item in values) for name, values in CHOICES.items()}
    names |= {name: f"`none`, or some of {', '.join(f'`{item}`' for item in values)}" for name, values in LISTS.items()}
    variables = "".join(_row((f"`{name}`", values)) for name, values in names.items())
    return f"{_HEAD}{rows}{_VALUES}{values}{_VARIABLES}{variables}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _attributes(metric: Metric) -> list[tuple[str, tuple[str, ...]]]:
    worker = [(WORKER, ())] if metric.name in PER_WORKER else []
    return [*metric.attributes, *worker]


def _metric_cells(metric: Metric) -> Iterator[str]:
    yield f"`{metric.name}`"
    yield f"`{prometheus_name(metric.name, metric.unit, monotonic=metric.kind == 'counter')}`"
    yield metric.kind
    yield f"`{metric.unit}`"
    yield ", ".join(f"`{key}`{_inline(key, values)}" for key, values in _attributes(metric))
    yield metric.description
    yield _SOURCES[metric.source]


def _inline(key: str, values: tuple[str, ...]) -> str:
    named = [value for value in values if value]
    return f" ({', '.join(named)})" if named and len(named) <= _FEW else ""


def _value_rows() -> Iterator[tuple[str, str, str]]:
    """Rows for attributes with too many values for the first table: attribute, metrics, values."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for metric in _ALL:
        for key, values in _attributes(metric):
            if not _inline(key, values):
                found.setdefault((key, values), []).append(metric.name)
    for (key, values), names in sorted(found.items()):
        listed = ", ".join(f"`{value}`" for value in values if value) or _OPEN[key]
        yield f"`{key}` (`{label_name(key)}`)", ", ".join(f"`{name}`" for name in names) if len(names) <= _FEW else f"{len(names)} metrics", listed
