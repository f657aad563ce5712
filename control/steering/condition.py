"""Conditions over metrics, written once: ``framegate status`` judges them over the last samples, ``deploy/dashboards`` writes them as PromQL.

``total``, ``largest``, ``smallest``    gauges now
``rate``, ``grown``, ``slope``          a counter per second; by how much it grew, if it did; a gauge's change per second
``lately``                              as ``grown``, in the last ten minutes
``longest``, ``steady``                 the largest value of a gauge in the window; the smallest one, in ``framegate status`` of the last moments
``days_left``                           days until a gauge's Unix time
``summed``                              the sum of a condition's values

They are combined as in PromQL: a comparison keeps the values for which it is true, ``&`` those that the other side has too, ``unless`` those that
it has not. The labels of the right side are among those of the left one, except of ``&`` and ``unless``, which match by those that both have.
"""

import abc
import functools
import operator
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from framegate.control.status import Attributes
from framegate.proxy.cells import HistogramValue
from framegate.proxy.cells.metric import Metric
from framegate.proxy.cells.metrics import METRICS
from framegate.proxy.cells.standard_metrics import PROCESS_METRICS

Vector = dict[tuple[str, ...], float]  # values by the values of the labels
Values = Mapping[str, Mapping[Attributes, float | HistogramValue]]  # every value of a moment, by metric and attributes
How = Literal["sum", "max", "min"]
Function = Literal["now", "rate", "grown", "slope", "longest", "steady", "days_left"]

WINDOW_S: Final = 60
LATELY_S: Final = 600  # the window of rare events
STEP_S: Final = 10
STEADY_S: Final = 4  # a gauge is steady if it was so now, and at the last moment that is as long ago
LONG_S: Final = 86_400
LONG_STEP_S: Final = 300
_JOIN: Final[dict[str, Callable[[float, float], float]]] = {"sum": operator.add, "max": max, "min": min}
_BY_NAME: Final = {metric.name: metric for metric in (*METRICS, *PROCESS_METRICS)}


@functools.cache
def _tests(where: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Callable[[str], object], bool], ...]:
    """Attributes, what matches their values, and whether it must."""
    return tuple((key.removeprefix("!"), re.compile(pattern).fullmatch, not key.startswith("!")) for key, pattern in where)


@dataclass(frozen=True, slots=True)
class Series:
    """A metric, summed up."""

    metric: str  # its name
    by: tuple[str, ...]  # the attributes that are kept
    # patterns of attributes, each for the whole value; with ``!`` before the attribute's name for what must not match
    where: tuple[tuple[str, str], ...]
    how: How = "sum"  # of a gauge ``max`` or ``min``; a histogram's observations are counted
    above: float = 0.0  # of a histogram: only observations above this bound

    @property
    def declared(self) -> Metric:
        return _BY_NAME[self.metric]

    def matches(self, attributes: Attributes) -> bool:
        return self._is_one(dict(attributes))

    def _is_one(self, at: Mapping[str, str]) -> bool:
        return all((matches(at.get(key, "")) is not None) is wanted for key, matches, wanted in _tests(self.where))

    def read(self, values: Values) -> Vector:
        found: Vector = {}
        join = _JOIN[self.how]
        for attributes, value in values.get(self.metric, {}).items():
            at = dict(attributes)
            if self._is_one(at):
                key = tuple(at.get(name, "") for name in self.by)
                number = float(self._observations(value) if isinstance(value, HistogramValue) else value)
                found[key] = join(found[key], number) if key in found else number
        return found

    def _observations(self, value: HistogramValue) -> int:
        return sum(value.buckets[self.declared.bounds.index(self.above) + 1 :]) if self.above else value.count


class Condition(abc.ABC):
    """A vector of values with labels ``by``, combined by operators."""

    @property
    @abc.abstractmethod
    def by(self) -> tuple[str, ...]:
        """Its labels."""

    @property
    @abc.abstractmethod
    def parts(self) -> Iterable["Over"]:
        """The metrics in it."""

    @abc.abstractmethod
    def judge(self, history: "History") -> Vector:
        """Its values now."""

    def _with(self, operator: str, other: "Condition | float") -> "Pair":
        return Pair(operator, self, other)

    def __add__(self, other: "Condition | float") -> "Pair":
        return self._with("+", other)

    def __sub__(self, other: "Condition | float") -> "Pair":
        return self._with("-", other)

    def __mul__(self, other: "Condition | float") -> "Pair":
        return self._with("*", other)

    def __truediv__(self, other: "Condition | float") -> "Pair":
        return self._with("/", other)

    def __gt__(self, other: "Condition | float") -> "Pair":
        return self._with(">", other)

    def __ge__(self, other: "Condition | float") -> "Pair":
        return self._with(">=", other)

    def __lt__(self, other: "Condition | float") -> "Pair":
        return self._with("<", other)

    def equals(self, other: "Condition | float") -> "Pair":
        """Where both have the same value."""
        return self._with("==", other)

    def __and__(self, other: "Condition") -> "Pair":
        return self._with("and", other)

    def unless(self, other: "Condition") -> "Pair":
        """Without what the other has, too."""
        return self._with("unless", other)


@dataclass(frozen=True, slots=True)
class Over(Condition):
    """A function of a series over the window that ended ``ago_s`` seconds ago; ``window_s``: its length."""

    function: Function
    series: Series
    ago_s: int = 0
    window_s: int = WINDOW_S

    @property
    def by(self) -> tuple[str, ...]:
        return self.series.by

    @property
    def parts(self) -> Iterable["Over"]:
        return (self,)

    def judge(self, history: "History") -> Vector:
        if id(self) not in history.judged:
            history.judged[id(self)] = self, self._judge(history)
        return history.judged[id(self)][1]

    def _judge(self, history: "History") -> Vector:
        samples = history.window(self.series, self.ago_s, self.window_s)
        if not samples:
            return {}
        (began, first), (ended, last) = samples[0], samples[-1]
        match self.function:
            case "now":
                return last
            case "days_left":
                return {key: (value - time.time()) / 86_400 for key, value in last.items()}
            case "longest":
                return {key: max(sample.get(key, value) for _, sample in samples) for key, value in last.items()}
            case "steady":
                before = next((sample for at, sample in reversed(samples) if ended - at >= STEADY_S), last)
                return {key: min(before.get(key, value), value) for key, value in last.items()}
        if ended == began:
            return {}
        grew = {key: value - first.get(key, value if self.function == "slope" else 0.0) for key, value in last.items()}
        if self.function == "grown":
            return {key: value for key, value in grew.items() if value > 0}
        return {key: value / (ended - began) for key, value in grew.items()}


def _divided(one: float, other: float) -> float:
    return one / other if other else float("nan" if one == 0 else "inf")


_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided}
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "==": operator.eq}


def _projection(labels: tuple[str, ...], onto: tuple[str, ...]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """From values of labels to those of some of them."""
    places = [labels.index(label) for label in onto]
    if places == [*range(len(labels))]:
        return lambda key: key
    return lambda key: tuple([key[place] for place in places])


@dataclass(frozen=True, slots=True)
class Pair(Condition):
    """Two conditions, or a condition and a number."""

    operator: str
    left: Condition
    right: Condition | float

    @property
    def by(self) -> tuple[str, ...]:
        return self.left.by

    @property
    def common(self) -> tuple[str, ...]:
        """The labels by which both sides are matched."""
        return tuple(label for label in self.right.by if label in self.by) if isinstance(self.right, Condition) else self.by

    @property
    def parts(self) -> Iterable[Over]:
        return (*self.left.parts, *(self.right.parts if isinstance(self.right, Condition) else ()))

    def judge(self, history: "History") -> Vector:
        left, right = self.left.judge(history), self.right
        if not isinstance(right, Condition):
            return self._combined({key: (value, float(right)) for key, value in left.items()})
        if not left:
            return {}
        common, judged = self.common, right.judge(history)
        of_left, of_right = _projection(self.by, common), _projection(right.by, common)
        others = {of_right(key): value for key, value in judged.items()}
        keys = {key: of_left(key) for key in left}
        if self.operator == "unless":
            return {key: value for key, value in left.items() if keys[key] not in others}
        return self._combined({key: (value, others[keys[key]]) for key, value in left.items() if keys[key] in others})

    def _combined(self, pairs: Mapping[tuple[str, ...], tuple[float, float]]) -> Vector:
        if self.operator in _ARITHMETIC:
            return {key: _ARITHMETIC[self.operator](*values) for key, values in pairs.items()}
        holds = _COMPARISONS.get(self.operator)
        return {key: one for key, (one, other) in pairs.items() if holds is None or holds(one, other)}


@dataclass(frozen=True, slots=True)
class Summed(Condition):
    """The values of a condition, added up by some of its labels."""

    condition: Condition
    labels: tuple[str, ...]

    @property
    def by(self) -> tuple[str, ...]:
        return self.labels

    @property
    def parts(self) -> Iterable[Over]:
        return self.condition.parts

    def judge(self, history: "History") -> Vector:
        found: Vector = {}
        onto = _projection(self.condition.by, self.labels)
        for key, value in self.condition.judge(history).items():
            found[onto(key)] = found.get(onto(key), 0.0) + value
        return found


class History:
    """The last samples of some series: of a minute all, of ten minutes those with rare events, and of a day one in five minutes, of those that are
    compared with the past.
    """

    def __init__(self, parts: Iterable[Over]) -> None:
        parts = tuple(parts)
        # functions of series, by identity, with what they are now: many conditions have the same ones
        self.judged: dict[int, tuple[Over, Vector]] = {}
        self._series = tuple(dict.fromkeys(part.series for part in parts))
        self._compared = {part.series for part in parts if part.ago_s}
        self._rare = {part.series for part in parts if part.window_s > WINDOW_S}
        self._recent: deque[tuple[float, dict[Series, Vector]]] = deque()
        self._lately: deque[tuple[float, dict[Series, Vector]]] = deque()
        self._past: deque[tuple[float, dict[Series, Vector]]] = deque(maxlen=LONG_S // LONG_STEP_S + 2)

    def sample(self, values: Values) -> dict[Series, Vector]:
        return {series: series.read(values) for series in self._series}

    def add(self, now_s: float, sample: dict[Series, Vector]) -> None:
        """Add a sample; ``now_s``: of a monotonic clock."""
        self._recent.append((now_s, sample))
        self.judged = {}
        while self._recent[0][0] < now_s - WINDOW_S:
            self._recent.popleft()
        if self._rare:
            self._lately.append((now_s, {series: sample[series] for series in self._rare}))
            while self._lately[0][0] < now_s - LATELY_S:
                self._lately.popleft()
        if not self._past or now_s - self._past[-1][0] >= LONG_STEP_S:
            self._past.append((now_s, {series: sample[series] for series in self._compared}))

    def window(self, series: Series, ago_s: int, window_s: int) -> list[tuple[float, Vector]]:
        """The samples of the window that ended ``ago_s`` ago; none if they are not there."""
        samples: list[tuple[float, dict[Series, Vector]]] = list(self._recent if window_s == WINDOW_S else self._lately)
        if ago_s and samples:
            until = samples[-1][0] - ago_s
            samples = [sample for sample in self._past if until - 2 * LONG_STEP_S < sample[0] <= until]
        return [(at, sample[series]) for at, sample in samples]


def _series(metric: str, by: tuple[str, ...], where: Mapping[str, str] | None, how: How = "sum", above: float = 0.0) -> Series:
    name = metric if metric in _BY_NAME else f"framegate.{metric}"
    bounds = _BY_NAME[name].bounds
    nearest = min(bounds, key=lambda bound: abs(bound - above)) if above else 0.0
    return Series(name, by, tuple((where or {}).items()), how, nearest)


def total(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """The sum of a gauge."""
    return Over("now", _series(metric, by, where))


def largest(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """The largest value of a gauge."""
    return Over("now", _series(metric, by, where, "max"))


def smallest(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """The smallest value of a gauge."""
    return Over("now", _series(metric, by, where, "min"))


def rate(metric: str, *by: str, where: Mapping[str, str] | None = None, above: float = 0.0, ago_s: int = 0) -> Over:
    """A counter, or a histogram's observations above (about) a bound, per second."""
    return Over("rate", _series(metric, by, where, above=above), ago_s)


def grown(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """By how much a counter grew, if it did; its first event counts."""
    return Over("grown", _series(metric, by, where))


def lately(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """By how much a counter of rare events grew in the last ten minutes, if it did."""
    return Over("grown", _series(metric, by, where), window_s=LATELY_S)


def slope(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """By how much a gauge grows per second."""
    return Over("slope", _series(metric, by, where))


def longest(metric: str, *by: str, how: How = "max") -> Over:
    """The largest value of a gauge in the window; ``how``: of several ones."""
    return Over("longest", _series(metric, by, None, how))


def steady(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """The smallest value of a gauge in the window."""
    return Over("steady", _series(metric, by, where))


def days_left(metric: str, *by: str, where: Mapping[str, str] | None = None) -> Over:
    """Days until a time in seconds since 1970."""
    return Over("days_left", _series(metric, by, where, "min"))


def summed(condition: Condition, *by: str) -> Summed:
    """The sum of a condition's values; ``by``: some of its labels."""
    return Summed(condition, by)


def values_of(folded: Any) -> Values:
    """The values of a ``telemetry.fold.Folded``."""
    return {**folded.points, **folded.histograms}
