"""What a metric is, and the bounds of histograms, each of which is a series of each set of labels."""

import itertools

import pytest

from framegate.proxy.cells import metric
from framegate.proxy.cells.metric import Metric
from tests.fakes.cases import each_of


@each_of("name", [name for name in vars(metric) if name.endswith("_BOUNDS")])
def test_bounds_go_up_and_are_few(name: str) -> None:
    values = getattr(metric, name)
    assert all(one < other for one, other in itertools.pairwise(values))
    assert values[0] > 0
    assert len(values) <= (17 if name == "HANDLER_BOUNDS" else 14) or values in metric.FIRST_POWERS


@each_of("bounds", list(metric.FIRST_POWERS))
def test_with_fine_bounds_no_quantile_is_wrong_by_more_than_a_fifth(bounds: tuple[float, ...]) -> None:
    assert all(other <= 1.2 * one for one, other in itertools.pairwise(bounds))
    power = metric.FIRST_POWERS[bounds]
    assert all(bound == pytest.approx(2 ** ((power + number) / 4), abs=5e-10) for number, bound in enumerate(bounds))
    octaves = [round(bound * 1e9).bit_length() for bound in bounds]
    assert octaves == [octaves[0] + number // 4 for number in range(len(bounds))], "four to each octave of ns"


def test_what_is_counted_in_nanoseconds_is_exported_in_seconds() -> None:
    made = {unit: Metric(name="x.y", kind="counter", unit=unit, description="X.") for unit in ("s", "By", "{frame}")}
    assert {unit: metric.scale for unit, metric in made.items()} == {"s": 1e-9, "By": 1.0, "{frame}": 1.0}


def test_keys_are_in_the_order_of_the_attributes() -> None:
    assert Metric(name="x.y", kind="gauge", unit="s", description="X.", attributes=(("b.b", ()), ("a.a", ("1",)))).keys == ("b.b", "a.a")


def test_a_metric_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Metric(name="x.y", kind="gauge", unit="s", description="X.").unit = "By"  # type: ignore[misc]
