"""Conditions over samples: functions of series, and their combination as in PromQL."""

import math
import time

import pytest

from framegate.control.steering.condition import (
    LATELY_S,
    LONG_STEP_S,
    STEP_S,
    WINDOW_S,
    Condition,
    History,
    days_left,
    grown,
    largest,
    lately,
    longest,
    rate,
    slope,
    steady,
    summed,
    total,
)
from framegate.proxy.cells import HistogramValue
from framegate.proxy.cells.metrics import CAUSE, LISTENER, SIDE, UPSTREAM

CLOSED, OPEN, AGE = "framegate.connection.closed", "framegate.connection.active", "framegate.upstream.request.age"


def at(**values: str) -> tuple[tuple[str, str], ...]:
    names = {"listener": LISTENER, "cause": CAUSE, "side": SIDE, "upstream": UPSTREAM}
    return tuple((names[key], value) for key, value in values.items())


def judged(condition: Condition, *samples: dict[str, dict[tuple[tuple[str, str], ...], float | HistogramValue]]) -> dict[tuple[str, ...], float]:
    history = History(condition.parts)
    for number, sample in enumerate(samples):
        history.add(number * STEP_S, history.sample(sample))
    return condition.judge(history)


def test_functions_of_a_series() -> None:
    def ages(one: float, other: float) -> dict[str, dict[tuple[tuple[str, str], ...], float | HistogramValue]]:
        return {AGE: {at(upstream="a"): one, at(upstream="b"): other}}

    samples = [ages(1, 5), ages(9, 6), ages(3, 7)]
    for condition, expected in (
        (total(AGE, UPSTREAM), {("a",): 3, ("b",): 7}),
        (largest(AGE), {(): 7}),
        (longest(AGE, UPSTREAM), {("a",): 9, ("b",): 7}),
        (steady(AGE, UPSTREAM), {("a",): 3, ("b",): 6}),
        (slope(AGE, UPSTREAM), {("a",): 2 / (2 * STEP_S), ("b",): 2 / (2 * STEP_S)}),
        (total("upstream.request.age", where={f"!{UPSTREAM}": "a"}), {(): 7}),
        (total(AGE, UPSTREAM, where={UPSTREAM: "a|c.*"}), {("a",): 3}),
    ):
        assert judged(condition, *samples) == expected, condition
    assert judged(rate(AGE), ages(1, 1)) == {}, "one sample is no rate"
    assert judged(total(AGE)) == {}
    (left,) = judged(days_left("tls.certificate.not_after"), {"framegate.tls.certificate.not_after": {(): time.time() + 86_400}}).values()
    assert left == pytest.approx(1, abs=1e-3)


def test_a_counter_that_begins_has_grown_from_nothing() -> None:
    samples = [{CLOSED: {}}, {CLOSED: {at(listener="kafka", cause="idle"): 3.0}}]
    assert judged(grown(CLOSED, LISTENER), *samples) == {("kafka",): 3}
    assert judged(rate(CLOSED, LISTENER), *samples) == {("kafka",): 3 / STEP_S}
    assert judged(grown(CLOSED, LISTENER), samples[1], samples[1]) == {}


def test_observations_of_a_histogram_are_counted_above_the_nearest_bound() -> None:
    condition = rate("frame.forward.duration", above=0.01)
    series = condition.series
    place = series.declared.bounds.index(series.above)
    assert abs(series.above - 0.01) < 0.002

    def sample(*counts: int) -> dict[str, dict[tuple[tuple[str, str], ...], float | HistogramValue]]:
        buckets = [0] * (len(series.declared.bounds) + 1)
        buckets[place : place + 2] = counts
        return {series.metric: {(): HistogramValue(tuple(buckets), 1.0)}}

    assert judged(condition, sample(0, 0), sample(7, 5)) == {(): 5 / STEP_S}
    assert judged(rate("frame.forward.duration"), sample(0, 0), sample(7, 5)) == {(): 12 / STEP_S}


def test_comparisons_filter_and_sets_match_by_the_labels_that_both_have() -> None:
    sample = {
        CLOSED: {at(listener="kafka", cause="idle"): 4.0, at(listener="kafka", cause="limit"): 1.0, at(listener="plain", cause="limit"): 8.0},
        OPEN: {at(listener="kafka", side="downstream"): 2.0},
    }
    by_cause, open_, idle = total(CLOSED, LISTENER, CAUSE), total(OPEN, LISTENER), total(CLOSED, LISTENER, where={CAUSE: "idle"})
    for condition, expected in (
        (by_cause > 3, {("kafka", "idle"): 4, ("plain", "limit"): 8}),
        (by_cause >= 4, {("kafka", "idle"): 4, ("plain", "limit"): 8}),
        (by_cause < 4, {("kafka", "limit"): 1}),
        (by_cause.equals(1), {("kafka", "limit"): 1}),
        (by_cause / open_, {("kafka", "idle"): 2, ("kafka", "limit"): 0.5}),
        (by_cause + 1 - open_ * 2, {("kafka", "idle"): 1, ("kafka", "limit"): -2}),
        (by_cause & idle, {("kafka", "idle"): 4, ("kafka", "limit"): 1}),
        (by_cause.unless(idle), {("plain", "limit"): 8}),
        (idle & (by_cause > 100), {}),
        (open_.unless(by_cause > 3), {}),
        (open_ / 0, {("kafka",): math.inf}),
        (summed(by_cause > 3, LISTENER), {("kafka",): 4, ("plain",): 8}),
        (summed(by_cause, CAUSE), {("idle",): 4, ("limit",): 9}),
        (summed(by_cause), {(): 13}),
        (summed(by_cause > 100, LISTENER), {}),
    ):
        assert judged(condition, sample) == expected, condition
    assert math.isnan(judged((open_ - 2) / 0, sample)["kafka",])


def test_the_past_is_kept_for_a_day_of_what_is_compared_with_it() -> None:
    past, now = rate(CLOSED, LISTENER, ago_s=3_600), rate(CLOSED, LISTENER)
    history = History([*past.parts, *now.parts])
    steps = 2 * 3_600 // STEP_S
    for number in range(steps):
        before = min(number, steps // 2)  # it grew for an hour, then no more
        history.add(number * STEP_S, history.sample({CLOSED: {at(listener="kafka", cause="idle"): before * STEP_S * 2.0}}))
    assert past.judge(history) == {("kafka",): pytest.approx(2)}
    assert now.judge(history) == {("kafka",): 0}
    assert len(history._recent) == 7
    assert len(history._past) == 2 * 3_600 // LONG_STEP_S


def test_rare_events_are_kept_for_ten_minutes() -> None:
    rare, now = lately(CLOSED), grown(CLOSED)
    history = History([*rare.parts, *now.parts])
    for number in range(2 + LATELY_S // STEP_S):
        history.add(number * STEP_S, history.sample({CLOSED: {at(listener="kafka"): float(number > 0)}}))
        assert now.judge(history) == ({(): 1} if 0 < number <= WINDOW_S // STEP_S else {}), number
        assert rare.judge(history) == ({(): 1} if 0 < number <= LATELY_S // STEP_S else {}), number


def test_a_function_is_computed_once_for_each_sample() -> None:
    shared = total(OPEN, LISTENER)
    history = History(shared.parts)
    for count in (1.0, 2.0):
        history.add(count, history.sample({OPEN: {at(listener="a"): count}}))
        assert (shared > 0.0).judge(history) == (shared & shared).judge(history) == {("a",): count}
        assert len(history.judged) == 1
