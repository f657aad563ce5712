"""What the harness computes from its rounds, and from its command line."""

import report
from features import judge_tap
from measure import Round
from shapes import SHAPES, Load, chosen

from tests.fakes.cases import each_of


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


@each_of(
    ("cost", "dropped", "words"),
    [
        (4.0, 0.0, "full capture, within: adds 1.00 of what it may"),
        (4.1, 0.0, "full capture, ABOVE: adds 1.03 of what it may"),
        (2.0, 0.5, "NOT FULL CAPTURE: 0.250 of 2 frames per echo were dropped"),
    ],
)
def test_only_a_tap_that_dropped_nothing_is_judged(cost: float, dropped: float, words: str) -> None:
    tapped = [a_round("framegate-tap", number, cost) for number in range(2)]
    for row, lost in zip(tapped, (0.0, dropped), strict=True):
        row.extra = {"tap_frames": 2.0, "tap_bytes": 1000.0, "tap_dropped": lost, "reads": 5.0}
    assert judge_tap(Load(SHAPES[0]), [a_round("framegate", 0, 0.35), *tapped], 0.5, "framegate-tap").endswith(words)
