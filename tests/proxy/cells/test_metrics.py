"""The table of metrics."""

from framegate.proxy.cells import CAUSES, MEASURED_APIS, METRICS
from framegate.proxy.config.selection import KAFKA_APIS, api_key


def test_names_are_unique_and_described():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("framegate.")
        assert metric.description.endswith(".")
        assert list(metric.bounds) == sorted(metric.bounds)
        assert bool(metric.bounds) == (metric.kind == "histogram")


def test_causes_are_listed_once():
    assert len(set(CAUSES)) == len(CAUSES) == 25


def test_every_measured_api_is_one_of_kafkas():
    *names, last = MEASURED_APIS
    assert last == "other"
    assert len(set(names)) == len(names) == 23
    assert [KAFKA_APIS[api_key(name)] for name in names] == names
