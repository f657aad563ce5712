"""Ejection: endpoints that take connections, but fail them or are slow beside the others, are left out for a while.

Theory of operation. An endpoint that refuses connections is down after the first one (``upstream``). Ejection is for what that does not find:

- *Failures*: so many connections in a row failed: no connection could be made, or the endpoint ended it before it sent a byte.
- *Latency*: from the beginning of an attempt until READY, and from the first request until the first answer. A moving mean for each endpoint is
  compared with the median of the means of the others that are in. Nothing is measured for each frame: the writing halves of both channels note when
  they wrote first.
- *Bounds.* At most a share of an upstream's endpoints is out, ejected or otherwise; one without another that is in is never ejected.
- *Hysteresis.* It is out for ``time``. Then one connection each second tries it. After ``successes`` of them in a row that were answered, and not too
  slowly, it is used as before; a failure doubles the time, up to ``MOST_TIMES`` of it. An endpoint that stays in for that long begins with ``time``.

Source: Envoy's outlier detection, HAProxy's ``observe layer4``.
"""

from typing import Final, NamedTuple

from mypy_extensions import i64

from framegate.proxy.config.model import EjectionConfig
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay.endpoint import Endpoint

LEAST_SAMPLES: Final = 8  # of an endpoint, before its latency is judged, or judges others
SPAN: Final = 8  # the moving mean takes this part of each difference
NOISE_NS: Final = 1_000_000  # a difference in latency below this says nothing
MOST_TIMES: Final = 10
WATCHED: Final = 1_000  # connections at a time whose first answer is waited for; others are not measured


class _Watch(NamedTuple):
    """A connection whose first answer is waited for. ``connected_ns``: how long the attempt took; ``ready_ns``: when it was READY."""

    endpoint: Endpoint
    requests: WriteHalf
    answers: WriteHalf
    connected_ns: int
    ready_ns: int


class Ejection:
    """The rules of one upstream, and the connections that are measured."""

    def __init__(self, config: EjectionConfig) -> None:
        self._failures: Final[i64] = config.failures
        self._factor_percent: Final[i64] = i64(int(config.latency_factor * 100))
        self._time_ns: Final[i64] = i64(config.time_ms) * 1_000_000
        self._successes: Final[i64] = config.successes
        self._at_most_percent: Final[i64] = config.at_most_percent
        self._watched: list[_Watch] = []

    def watch(self, endpoint: Endpoint, requests: WriteHalf, answers: WriteHalf, began_ns: i64, ready_ns: i64) -> None:
        """Measure a connection that is READY. ``requests`` writes to the endpoint, ``answers`` to the client."""
        if len(self._watched) < WATCHED:
            self._watched.append(_Watch(endpoint, requests, answers, int(ready_ns - began_ns), int(ready_ns)))

    def take_answers(self) -> list[tuple[Endpoint, int, int]]:
        """Of each connection whose first answer has come: the endpoint, its latency in ns, and when it was READY. Those that closed without one are
        forgotten.
        """
        found: list[tuple[Endpoint, int, int]] = []
        waiting: list[_Watch] = []
        for each in self._watched:
            came_ns = each.answers.first_ns
            if came_ns == 0:
                if not each.requests.is_closed and not each.answers.is_closed:
                    waiting.append(each)
                continue
            asked_ns = each.requests.first_ns
            since_ns: i64 = asked_ns if 0 < asked_ns <= came_ns else i64(each.ready_ns)  # else the server speaks first
            found.append((each.endpoint, each.connected_ns + int(max(came_ns - since_ns, 0)), each.ready_ns))
        self._watched = waiting
        return found

    def fails(self, endpoint: Endpoint, all_: list[Endpoint]) -> bool:
        """A connection failed; whether the endpoint is to be ejected, or its ejection prolonged."""
        endpoint.errors += 1
        if endpoint.ejected:
            return True
        return self._failures != 0 and endpoint.errors >= self._failures and self._may_eject(endpoint, all_)

    def answers(self, endpoint: Endpoint, latency_ns: i64, all_: list[Endpoint]) -> str:
        """The first answer of a connection came; why the endpoint is to be ejected for its latency, or empty."""
        endpoint.errors = 0
        endpoint.samples += 1
        endpoint.latency_ns += (latency_ns - endpoint.latency_ns) // (SPAN if endpoint.samples > 1 else 1)
        others_ns = self._median(endpoint, all_)
        mean_ns = latency_ns if endpoint.ejected else endpoint.latency_ns
        slow = others_ns >= 0 and mean_ns * 100 > others_ns * self._factor_percent and mean_ns > others_ns + NOISE_NS
        if endpoint.ejected:
            endpoint.successes += 1
        if not slow or not (endpoint.ejected or (endpoint.samples >= LEAST_SAMPLES and not endpoint.down and self._may_eject(endpoint, all_))):
            return ""
        return f"first answers after {mean_ns // 1_000} µs, those of the others after {others_ns // 1_000} µs"

    def is_proven(self, endpoint: Endpoint) -> bool:
        """Whether an ejected endpoint has answered often enough."""
        return endpoint.successes >= self._successes

    def eject(self, endpoint: Endpoint, now_ns: i64) -> None:
        """Set how long an endpoint is out, which is longer each time."""
        again = endpoint.ejected or now_ns - endpoint.returned_ns < self._time_ns * MOST_TIMES
        endpoint.ejection_ns = min(2 * endpoint.ejection_ns, self._time_ns * MOST_TIMES) if again and endpoint.ejection_ns != 0 else self._time_ns
        endpoint.ejected = True
        endpoint.ejected_ns = now_ns
        endpoint.errors = endpoint.successes = endpoint.samples = endpoint.latency_ns = 0
        endpoint.backoff_ns = endpoint.ejection_ns
        endpoint.due_ns = now_ns + endpoint.ejection_ns

    def too_many(self, all_: list[Endpoint]) -> list[Endpoint]:
        """The ejected endpoints that must return, because there are fewer endpoints than before."""
        return [endpoint for endpoint in all_ if endpoint.ejected and not self._may_eject(endpoint, all_)]

    def _may_eject(self, endpoint: Endpoint, all_: list[Endpoint]) -> bool:
        """Whether there are enough others that are in."""
        count: i64 = 0
        out: i64 = 1
        for other in all_:
            if other.broker == endpoint.broker:
                count += 1
                out += 1 if other is not endpoint and other.is_out else 0
        return out < count and out * 100 <= count * self._at_most_percent

    def _median(self, endpoint: Endpoint, all_: list[Endpoint]) -> i64:
        """The median latency of the others that are in and were measured often enough; -1: there are none, or latency is not judged."""
        if self._factor_percent == 0:
            return -1
        means = sorted(
            [
                int(other.latency_ns)
                for other in all_
                if other is not endpoint and other.broker == endpoint.broker and not other.is_out and other.samples >= LEAST_SAMPLES
            ]
        )
        return means[len(means) // 2] if means else -1
