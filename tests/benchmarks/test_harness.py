"""What the harness computes from its rounds, and from its command line."""

import pytest
import report
from measure import Round
from shapes import SHAPES, chosen


def a_round(candidate: str, number: int, cost: float) -> Round:
    return Round(candidate, "plain", "100x1", number, 0.0, 1000, 2.0, cost, 0.9, 10.0, 20.0, 30.0)


def test_a_summary_is_the_median_and_the_extremes_of_the_rounds() -> None:
    rounds = [a_round("framegate", number, cost) for number, cost in enumerate((3.0, 1.0, 2.0))] + [a_round("haproxy", 0, 4.0)]
    summary = report.summarize(rounds)["plain", "100x1", "framegate"]
    assert (summary.rounds, summary.cpu_us, summary.low, summary.high, summary.frames_per_second) == (3, 2.0, 1.0, 3.0, 500.0)


def test_every_protocol_meets_every_shape() -> None:
    loads = chosen("100x1,64k", "plain,tls,tls-both")
    assert [(load.protocol, load.shape.name) for load in loads] == [
        (protocol, shape) for protocol in ("plain", "tls", "tls-both") for shape in ("100x1", "64k")
    ]


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(ValueError, match="2k"):
        chosen("2k", "plain")


def test_titles_are_as_people_write_them() -> None:
    assert [shape.title for shape in SHAPES] == ["100 B × 1 × 50", "100 B × 64 × 50", "1 KB × 8 × 50", "64 KiB × 4 × 10", "1 MB × 2 × 4"]
