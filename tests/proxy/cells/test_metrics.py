"""The table of metrics."""

from framegate.proxy.cells import (
    CAUSES,
    METRICS,
)


def test_names_are_unique_and_described():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("framegate.")
        assert metric.description.endswith(".")
        assert list(metric.bounds) == sorted(metric.bounds)
        assert bool(metric.bounds) == (metric.kind == "histogram")


def test_causes_are_listed_once():
    assert len(set(CAUSES)) == len(CAUSES) == 24


def test_times_are_kept_in_nanoseconds_and_all_else_as_it_is():
    assert {metric.scale for metric in METRICS if metric.unit == "s"} == {1e-9}
    assert {metric.scale for metric in METRICS if metric.unit != "s"} == {1.0}


def test_keys_are_in_the_order_of_the_attributes():
    rejected = next(metric for metric in METRICS if metric.name == "framegate.frame.rejected")
    assert rejected.keys == ("framegate.listener", "framegate.side", "framegate.reason")
