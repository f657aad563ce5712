"""How many series there are follows from closed lists and the configured names alone: not from peers, connections, or processors that come and go.

A metric with a label whose value a peer can choose fails here.
"""

import asyncio
import dataclasses
import itertools
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from framegate.control.telemetry.catalogue import EXPORTED, label_name, prometheus_name
from framegate.control.telemetry.fold import PER_WORKER, WORKER, Fold, Folded
from framegate.control.telemetry.series import EVENTS, LATE
from framegate.proxy.cells import CAUSES, END_SIDES, LISTENER, METRICS, UPSTREAM, CellLayout, Metric
from framegate.proxy.cells.metrics import CAUSE, SERVER_ADDRESS
from framegate.proxy.config.model import ListenerConfig, OtlpConfig, PrometheusConfig, ProxyConfig, TapConfig, TelemetryConfig, UpstreamConfig
from framegate.proxy.config.sasl import ListenerSasl, UpstreamSasl
from framegate.proxy.config.tls import ListenerTls, UpstreamTls
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.relay.counters import ERROR_INDEX, Counters
from framegate.proxy.relay.ending import CLOSED_BY
from framegate.proxy.relay.opening import ACCEPTED
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.publisher import Publisher
from tests.fakes.kafka_frames import answer, request
from tests.fakes.otlp_receiver import GrpcReceiver
from tests.fakes.plane import FakePlane, fake_config
from tests.fakes.tracing import metered, scraped_samples

_OURS = ("scrape", "tls_certificate", "container", "memory_usage", "memory_limit", "process", "connection_rejected", "accept")
OURS = tuple(f"framegate_{name}_" for name in _OURS)
"""Of metrics that control measures, also without any traffic."""
DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MOST = 64  # processors
CONNECTIONS = 10_000
COUNTED = [metric for metric in METRICS if metric.source == "processor"]
Point = tuple[str, frozenset[tuple[str, str]]]


def rows_of(metric: Metric, config: ProxyConfig) -> int:
    """Sets of labels that a metric has."""
    if SERVER_ADDRESS in metric.keys:
        names = sum(len(item.addresses) for item in config.upstreams)
    else:
        names = len(config.listeners if LISTENER in metric.keys else config.upstreams if UPSTREAM in metric.keys else ("one",))
    return math.prod((names, *(len(values) for _, values in metric.attributes if values)))


def number_of(config: ProxyConfig, processors: int) -> int:
    """Points of all that processors count; a histogram is one."""
    return sum(rows_of(metric, config) * (processors if metric.name in PER_WORKER else 1) for metric in COUNTED)


def count_all(plane: FakePlane) -> None:
    """Whatever may happen has happened: nothing is left out."""
    for writer in plane.writers:
        writer.publish(plane.layout.count * (1).to_bytes(8, "little"))


def points(folded: Folded) -> set[Point]:
    known = [*folded.points.items(), *folded.histograms.items()]
    counted = {metric.name for metric in COUNTED}
    return {(name, frozenset(at)) for name, values in known if name in counted for at in values}


def connect(counters: Counters, chance: random.Random) -> None:
    """What one client leaves behind: with a principal, an address and an API of its own."""
    listener = counters.listeners[chance.choice(list(counters.listeners))]
    cause = chance.choice(CAUSES)
    listener.counts.cells[ACCEPTED] += 1
    listener.counts.cells[CLOSED_BY[cause, chance.choice(END_SIDES)]] += 1
    counters.loop.downstream_durations[ERROR_INDEX[cause]].observe(chance.randrange(10**9))
    chance.choice(counters.loop.downstream_handshakes).observe(chance.randrange(10**9))
    pairing = Pairing(listener.pairing)
    name = f"client-{chance.random()}".encode()
    asked = request(chance.randrange(-(1 << 15), 1 << 15), chance.randrange(20), 1, client_id=len(name).to_bytes(2, "big") + name)
    told = answer(1, bytes(chance.randrange(100)))
    pairing.requests(Run(None, 0, asked, 0, len(asked), 1, 0), 1)
    pairing.answers(Run(None, 0, told, 0, len(told), 1, 0), 1 + chance.randrange(10**9), False)
    pairing.release()


@pytest.mark.parametrize(("listeners", "upstreams"), [(1, 1), (2, 1), (3, 5)])
def test_the_number_of_rows_is_what_the_names_make_it(listeners: int, upstreams: int) -> None:
    config = ProxyConfig(
        node="n",
        listeners=tuple(ListenerConfig(name=f"l{number}", address="x", upstream="u0") for number in range(listeners)),
        upstreams=tuple(UpstreamConfig(name=f"u{number}", endpoints=("x:1", "x:2")) for number in range(upstreams)),
    )
    rows = [row for row in CellLayout.of(config).rows if row.metric.exported]
    assert len({(row.metric.name, row.attributes) for row in rows}) == len(rows) == number_of(config, 1)


def test_ten_thousand_connections_add_no_series() -> None:
    plane = FakePlane(fake_config("unix:unused", None))
    config, chance = plane.config, random.Random(9)
    try:
        count_all(plane)
        before = points(Fold(plane).end())
        assert len(before) == number_of(config, config.processors)
        counters = Counters([item.name for item in config.listeners], [item.name for item in config.upstreams])
        limits = {item.name: ReceiveLimit(1) for item in config.listeners}
        for writer in plane.writers:
            writer.publish(bytes(plane.layout.count * 8))
        plane.writers[0].start(1, 1, 0)
        publisher = Publisher(plane.writers[0], counters, limits, MemoryPool(1, lambda: 0), None)
        for _ in range(CONNECTIONS):
            connect(counters, chance)
        publisher.publish()
        folded = Fold(plane).end()
        assert sum(folded.points["framegate.connection.accepted"].values()) == CONNECTIONS
        assert sum(value.count for value in folded.histograms["framegate.kafka.request.duration"].values()) > CONNECTIONS // 2
        assert points(folded) <= before
    finally:
        plane.close()


def test_processors_that_come_and_go_leave_one_series_of_each_that_is_counted_by_processor() -> None:
    config = dataclasses.replace(fake_config("unix:unused", None), processors=MOST)
    plane = FakePlane(config)
    try:
        count_all(plane)
        assert len(points(Fold(plane).end())) == number_of(config, MOST)
        for _ in range(3):
            for slot in range(1, MOST):
                plane.retire(slot)
            gone = points(Fold(plane).end())
            assert len(gone) == number_of(config, 2)
            assert {value for _, at in gone for key, value in at if key == WORKER} == {"0", "retired"}
            for slot in range(1, MOST):
                plane.hire(slot)
            assert len(points(Fold(plane).end())) == number_of(config, MOST + 1)
    finally:
        plane.close()


def test_a_scrape_has_no_more_than_all_of_them() -> None:
    """Whatever may happen has happened: then each point is a series, and each histogram one for each bucket and two more."""
    plane = FakePlane(fake_config("unix:unused", None))
    wanted = TelemetryConfig(prometheus=PrometheusConfig(address="127.0.0.1:0"))
    telemetry = metered(plane, wanted)
    assert telemetry is not None
    try:
        seen = []
        for value in (0, 1):
            for writer in plane.writers:
                writer.publish((plane.layout.count * 8 * b"\0") if value == 0 else (plane.layout.count * (1).to_bytes(8, "little")))
            seen.append([sample for sample in scraped_samples(telemetry.prometheus_address) if sample.name.startswith("framegate_")])
        most = 0
        for metric in COUNTED:
            each = rows_of(metric, plane.config) * (plane.config.processors if metric.name in PER_WORKER else 1)
            most += each * (len(metric.bounds) + 3 if metric.kind == "histogram" else 1)
        others = len([sample for sample in seen[1] if sample.name.startswith(OURS)])
        assert len({(sample.name, frozenset(sample.labels.items())) for sample in seen[1]}) == len(seen[1]) == most + others
        assert len(seen[0]) < most, "what never happened is left out"
    finally:
        asyncio.run(telemetry.stop())
        plane.close()


def selectors(*files: Path) -> set[tuple[str, str]]:
    """The names and matchers of all rates in queries."""
    texts = [document.read_text().replace("\\", "") for document in files]
    return {(name, matchers or "") for text in texts for name, matchers in re.findall(r"\brate\((\w+)(\{[^}]*\})?\[", text)}


def wanted(metric: Metric, matchers: str) -> list[dict[str, str]]:
    """The events of a metric that a selector reads, as labels."""
    told = [(key, sign, value) for key, sign, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers) if "$" not in value]
    lists = [(label_name(key), values) for key, values in metric.attributes if key in EVENTS]
    events = [dict(zip([key for key, _ in lists], values, strict=True)) for values in itertools.product(*(values for _, values in lists))]
    tests = [(key, re.compile(value if "~" in sign else re.escape(value)), sign.startswith("=")) for key, sign, value in told]
    return [at for at in events if all((test.fullmatch(at[key]) is not None) is good for key, test, good in tests if key in at)]


def test_each_event_whose_rate_an_alert_or_the_first_panel_reads_begins_with_0() -> None:
    """Queries as they are written, so that none is forgotten: a rate does not see an event with which its series begins."""
    base = fake_config("unix:unused", None, TapConfig(directory="/nowhere"))
    parts: dict[str, Any] = {"sasl": ListenerSasl(mechanisms=("PLAIN",)), "tls": ListenerTls(certificate="x", key="x"), "handler": "x:y"}
    listeners, upstream = tuple(dataclasses.replace(item, **parts) for item in base.listeners), base.upstreams[0]
    upstreams = (dataclasses.replace(upstream, tls=UpstreamTls(), sasl=UpstreamSasl(mechanism="PLAIN")),)
    config = dataclasses.replace(base, listeners=listeners, upstreams=upstreams)
    read = selectors(DEPLOY / "alerts" / "framegate.yaml", DEPLOY / "dashboards" / "healthy.json")
    shares = {name.removesuffix("_bucket") for name, _ in read if name.endswith("_bucket")}
    plane = FakePlane(config)
    with GrpcReceiver() as collector:
        otlp = OtlpConfig(endpoint=collector.endpoint, signals=("metrics",))
        telemetry = metered(plane, TelemetryConfig(prometheus=PrometheusConfig(address="127.0.0.1:0"), otlp=otlp))
        samples = scraped_samples(telemetry.prometheus_address)
        asyncio.run(telemetry.stop())
    plane.close()
    missing, checked = [], 0
    for metric in EXPORTED:
        name = prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter")
        if name in shares or metric.kind == "gauge" or metric.name in LATE:
            continue
        sample_name = f"{name}_count" if metric.kind == "histogram" else name
        shown = [sample.labels for sample in samples if sample.name == sample_name]
        for matchers in (matchers for each, matchers in read if each == sample_name and ("cause" in matchers or CAUSE not in metric.keys)):
            for at in wanted(metric, matchers):
                if at and at.get("framegate_sasl_mechanism", "PLAIN") in ("", "PLAIN"):
                    checked += 1
                    if not any(all(labels.get(key, "") == value for key, value in at.items()) for labels in shown):
                        missing.append((sample_name, *at.values()))
    causes = ("internal", "processor_died", "negative_size", "frame_too_large", "receive_stalled", "send_stalled")
    surprises = {("framegate_connection_closed_total", cause) for cause in causes}
    assert set(missing) == {*surprises, ("framegate_upstream_connect_duration_seconds_count", "other")}
    assert checked > 30
    zeros = [sample for sample in samples if sample.name.startswith("framegate_") and sample.value == 0]
    assert len(zeros) < 280, "and yet they are few"


def test_what_the_configuration_makes_unlikely_has_no_series_before_it_happens() -> None:
    """A plain listener, and an upstream without TLS or a login."""
    plane = FakePlane(fake_config("unix:unused", None))
    folded = Fold(plane).end()
    plane.close()
    ends = {(dict(at)["framegate.cause"], dict(at)["framegate.side"]) for at in folded.points["framegate.connection.closed"]}
    upstream = {(f"upstream_{cause}", "upstream") for cause in ("refused", "timeout", "closed")}
    assert upstream | {("wrong_protocol", "downstream")} <= ends
    assert not {cause for cause, _ in ends} & {"tls_failed", "auth_failed", "handshake_timeout", "handler_failed", "internal"}
    attempts = {dict(at).get("error.type", "") for at in folded.histograms["framegate.upstream.connect.duration"]}
    assert attempts == {"", "refused", "timeout", "closed", "resolution"}
