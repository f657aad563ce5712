"""What a metric is."""

import pytest

from framegate.proxy.cells.metric import Metric


def test_what_is_counted_in_nanoseconds_is_exported_in_seconds() -> None:
    made = {unit: Metric(name="x.y", kind="counter", unit=unit, description="X.") for unit in ("s", "By", "{frame}")}
    assert {unit: metric.scale for unit, metric in made.items()} == {"s": 1e-9, "By": 1.0, "{frame}": 1.0}


def test_keys_are_in_the_order_of_the_attributes() -> None:
    assert Metric(name="x.y", kind="gauge", unit="s", description="X.", attributes=(("b.b", ()), ("a.a", ("1",)))).keys == ("b.b", "a.a")


def test_a_metric_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Metric(name="x.y", kind="gauge", unit="s", description="X.").unit = "By"  # type: ignore[misc]
