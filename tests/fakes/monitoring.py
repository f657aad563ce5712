"""Prometheus' own programs, where they are, and what a framegate that counts says to them."""

import asyncio
import dataclasses
import itertools
import json
import shutil
import subprocess
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from framegate.control.status import Attributes
from framegate.proxy.cells import LISTENER, METRICS, Metric
from framegate.proxy.config.model import PrometheusConfig, TelemetryConfig
from tests.demo import panels
from tests.fakes.plane import FakePlane, fake_config
from tests.fakes.ports import free_port
from tests.fakes.tracing import metered, scraped_samples
from tests.fakes.waiting import until

STEP_S = 15  # between two scrapes
Sample = tuple[str, dict[str, str], float]
Samples = list[list[Sample]]  # what each scrape gave


def program(name: str) -> str | None:
    """Where a program of Prometheus is: on the PATH, or among the tools that `make dashboards` keeps."""
    kept = sorted(Path.home().glob(f".cache/framegate/telemetry-*/bin/{name}"))
    return shutil.which(name) or (str(kept[-1]) if kept else None)


def scrapes(count: int, grow: float = 10) -> Samples:
    """Real scrapes of a control process whose plane counts: before each one every counter, gauge and bucket has grown by ``grow``. Where nothing has
    been counted yet, framegate is ready all the same, and knows a broker.
    """
    config = dataclasses.replace(fake_config("unix:unused", None), telemetry=TelemetryConfig(prometheus=PrometheusConfig(address="127.0.0.1:0")))
    plane = FakePlane(config)
    try:
        telemetry = metered(plane, config.telemetry, {"listener/kafka": (time.time() - 85 * 86_400, time.time() + 5 * 86_400)})
        found = []
        for number in range(count):
            _count(plane, round(number * grow))
            telemetry.record_call("framegate.control.v1.ProxyService/GetStatus", "OK", 0.01)
            telemetry.record_call("framegate.control.v1.LimitService/UpdateLimit", "UNAVAILABLE", 0.01)
            samples = scraped_samples(telemetry.prometheus_address)
            found.append([_known((sample.name, dict(sample.labels), sample.value)) for sample in samples])
        asyncio.run(telemetry.stop())
        return found
    finally:
        plane.close()


def _count(plane: FakePlane, value: int) -> None:
    """Every cell of every processor, and what control counts."""
    for writer in plane.writers:
        writer.publish(array("q", [value]) * plane.layout.count)
    names = [listener.name for listener in plane.config.listeners]
    for metric in METRICS:
        if metric.source == "control" and not metric.name.startswith("framegate.tls.certificate."):  # telemetry is told those
            for attributes in _points(metric, names):
                good = metric.name == "framegate.ready" or (metric.name == "framegate.broker.count" and ("framegate.state", "up") in attributes)
                plane.measured[metric.name, attributes] = max(value, 1) if good else value


def _points(metric: Metric, listeners: Sequence[str]) -> Iterator[Attributes]:
    """Every combination of attributes that a metric of control may have."""
    keys = metric.keys
    for values in itertools.product(*(known or (listeners if key == LISTENER else ("spark",)) for key, known in metric.attributes)):
        yield tuple((key, value) for key, value in zip(keys, values, strict=True) if value)


def _known(sample: Sample) -> Sample:
    """An upstream has an address all the same."""
    name, labels, value = sample
    return (name, labels, max(value, 1.0)) if name == "framegate_upstream_endpoint_count" else sample


class Prometheus:
    """A real one over samples that it finds in its database: it does not scrape. A context manager.

    Args:
        folder: an empty one.
        samples: of each scrape, ``STEP_S`` apart; the last is of ``now``.
        target: labels that a scrape adds.
    """

    def __init__(self, folder: Path, samples: Samples, target: Mapping[str, str]) -> None:
        self.now = int(time.time()) // STEP_S * STEP_S - 3_600
        text = folder / "samples.txt"
        text.write_text("".join(_openmetrics(samples, target, self.now)))
        blocks = [_there("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
        made = subprocess.run(blocks, capture_output=True, text=True, check=False, timeout=60)
        assert made.returncode == 0, made.stderr
        (folder / "prometheus.yml").write_text("global: {}\n")
        self._server = panels.Prometheus(f"127.0.0.1:{free_port()}")
        options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data", "web.listen-address": self._server.address}
        command = [_there("prometheus"), *(f"--{key}={value}" for key, value in options.items()), "--log.level=error"]
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            until(lambda: self._server.ready() or self._process.poll() is not None, "Prometheus does not start", 30)
            assert self._process.poll() is None, (folder / "log").read_text()
        except AssertionError:
            self.stop()
            raise

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: elements with ``metric``, the labels, and ``value``, a time and a number as text. Raises AssertionError:
        Prometheus does not take it.
        """
        try:
            result: list[dict[str, Any]] = self._server.instant(expression, self.now)["result"]
        except panels.QueryError as error:
            raise AssertionError(f"{error}\n{expression}") from error
        return result

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()


def _there(name: str) -> str:
    found = program(name)
    assert found is not None, f"{name} is not installed"
    return found


def _openmetrics(samples: Samples, target: Mapping[str, str], end: int) -> Iterable[str]:
    """The samples as OpenMetrics with times; a series' samples follow one another."""
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for number, scrape in enumerate(samples):
        at = end - STEP_S * (len(samples) - 1 - number)
        extra = [("up", {}, 1.0), ("scrape_duration_seconds", {}, 0.01)]
        for name, labels, value in [*scrape, *extra]:
            key = (name, tuple(sorted({**labels, **target}.items())))
            series.setdefault(key, []).append(f"{value} {at}")
    for (name, labels), lines in series.items():
        shown = ",".join(f"{key}={json.dumps(value)}" for key, value in labels)
        yield from (f"{name}{{{shown}}} {line}\n" for line in lines)
    yield "# EOF\n"
