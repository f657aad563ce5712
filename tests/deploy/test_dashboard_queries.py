"""Every query of a panel, asked of a real Prometheus that has what a real control process said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import deploying, metric_names, monitoring

queries = deploying.module("dashboards.queries")
problems = deploying.module("dashboards.problems")
SLUGS = ("healthy", "traffic", "hurts", "identity", "tap", "control")
THERE = monitoring.program("promtool") is not None and monitoring.program("prometheus") is not None
pytestmark = pytest.mark.skipif(not THERE, reason="needs Prometheus and promtool")
TARGET = {"job": "framegate", "instance": "10.0.0.7:9464", "pod": "orders-0"}
STEPS = 9


def dashboard(slug: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((deploying.FOLDER / "dashboards" / f"{slug}.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[monitoring.Prometheus]:
    """Everything counts, everything that can be wrong is wrong."""
    with monitoring.Prometheus(tmp_path_factory.mktemp("counting"), monitoring.scrapes(STEPS), TARGET) as running:
        yield running


def without_faults(scrape: list[monitoring.Sample], *others: str) -> list[monitoring.Sample]:
    """No calls, certificates that last, and a disk that does not fill; and without the metrics that begin with the other names."""
    absent = ("rpc_", "framegate_tap_disk_time_left", *others)
    return [(name, labels, value * 10 if "not_after" in name else value) for name, labels, value in scrape if not name.startswith(absent)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[monitoring.Prometheus]:
    """Nothing counts at all."""
    samples = [without_faults(scrape) for scrape in monitoring.scrapes(STEPS, grow=0)]
    with monitoring.Prometheus(tmp_path_factory.mktemp("calm"), samples, TARGET) as running:
        yield running


def said(running: monitoring.Prometheus) -> list[str]:
    """What the first panel says."""
    ((_, (query,)), *_) = queries.panels(dashboard("healthy"))
    return sorted(element["metric"]["problem"] for element in running.query(query))


def test_every_query_is_good_and_gives_something(counting: monitoring.Prometheus) -> None:
    asked = [(title, query) for slug in SLUGS for title, several in queries.panels(dashboard(slug)) for query in several]
    empty = [(title, query) for title, query in asked if not counting.query(query)]
    assert [(title, query) for title, query in empty if not any(name in query for name in metric_names.ELSEWHERE)] == []


def test_when_nothing_is_wrong_the_first_panel_says_so_and_nothing_else(calm: monitoring.Prometheus) -> None:
    assert said(calm) == [problems.FINE]
    (_, _, (_, (query,)), *_) = queries.panels(dashboard("healthy"))
    (line,) = calm.query(query)
    assert line["metric"] == {"problem": problems.FINE}


def test_what_is_wrong_is_said_in_words_and_where_it_is(counting: monitoring.Prometheus) -> None:
    assert problems.FINE not in said(counting)
    assert {"Frames of clients are refused", "The tap loses frames", "A processor was started again"} <= set(said(counting))
    (_, _, (_, (query,)), *_) = queries.panels(dashboard("healthy"))
    lines = [line["metric"] for line in counting.query(query)]
    refused = {(line["where"], line["instance"], line["pod"]) for line in lines if line["problem"] == "Frames of clients are refused"}
    assert refused >= {(f"{name} frame_too_large", "10.0.0.7:9464", "orders-0") for name in ("kafka", "plain")}


def test_without_any_framegate_it_is_not_green(counting: monitoring.Prometheus) -> None:
    ((_, (query,)), *_) = queries.panels(dashboard("healthy"), {"job": "another"})
    assert [element["metric"]["problem"] for element in counting.query(query)] == ["Nothing is heard from framegate"]


def test_a_first_event_is_seen_though_its_series_begins_with_it_and_is_not_seen_again_after_scrapes_that_failed(tmp_path: Path) -> None:
    before = without_faults(monitoring.scrapes(1, grow=0)[0], "framegate_worker_restarts")
    after = [*before, ("framegate_worker_restarts_total", {"framegate_reason": "died"}, 1.0)]
    for name, scraped, words in (
        ("first", [*[before] * 5, *[after] * 2], "A processor was started again"),
        ("gap", [*[after] * 50, *[[]] * 30, *[after] * 3], problems.FINE),
    ):
        (tmp_path / name).mkdir()
        with monitoring.Prometheus(tmp_path / name, scraped, TARGET) as running:
            assert said(running) == [words]


def test_every_rule_is_good_over_what_is_there(counting: monitoring.Prometheus) -> None:
    for rule in problems.rules():
        counting.query(rule.expr)


def test_a_query_that_is_none_is_refused(counting: monitoring.Prometheus) -> None:
    with pytest.raises(AssertionError, match="parse error"):
        counting.query("sum(rate(framegate_io_bytes_total[1m])")
