"""Which Kafka requests have a span: a share of all requests of the processor, drawn at random.

Requests are not drawn one by one. ``left`` says how many pass before the next one that is chosen; whoever has paired a run subtracts its frames, and
calls ``request_spans.choose`` only if the number is below 0. So a run costs a subtraction and a comparison, also while no share is configured.
"""

import math
import random
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.kafka.trace_parents import Produced

RATE: Final = 200  # Spans in a second, and at once
MAX_OPEN: Final = 1_000  # Chosen requests that wait for their answers
_NEVER: Final = 1 << 62


class RequestSpan:
    """A request that was chosen."""

    def __init__(self, api: i64, correlation: i64, size: i64, began_ns: i64, ahead: i64, produced: Produced | None) -> None:
        self.api: Final[i64] = api  # its API key << 16 | version
        self.correlation: Final[i64] = correlation  # the id that its answer has, 32 bits
        # size, answer_size: of the bodies, in bytes; -1: there was no answer
        self.size: Final[i64] = size
        self.answer_size: i64 = -1
        self.began_ns: Final[i64] = began_ns  # when its first bytes arrived, on the selector's clock
        self.ended_ns: i64 = 0  # when its answer was forwarded, or, if none is expected, the request; or when the connection ended. 0 before.
        self.ahead: i64 = ahead  # open requests of the connection before it
        self.answered: bool = False  # it is not waited for any more
        self.code: i64 = 0  # the error code of the answer as a whole; 0: none
        self.failure: str = ""  # why it has no answer of the upstream; empty: it has one, or none is expected
        self.produced: Final = produced  # what a Produce request carries; None: it is another request


class Sampler:
    """Chooses requests. ``draw``: random numbers from 0 to less than 1."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self.left: i64 = _NEVER  # requests that pass before the next one that is chosen; below 0: it is in the run that has just been subtracted
        self.open: i64 = 0  # chosen requests that have not ended
        # requests that were chosen and have no span, because of ``RATE``, ``MAX_OPEN`` or the limits in ``request_spans``, since they were last
        # reported
        self.skipped: i64 = 0
        self._draw: Final = draw
        self._share: float = 0.0
        self._room: i64 = RATE

    def set_share(self, share: float) -> None:
        """Set the share of requests that are chosen, 0 to 1."""
        if share != self._share:
            self._share = share
            self.left = self.gap()

    def gap(self) -> i64:
        """How many requests pass before the next one: each is chosen with the same probability."""
        if self._share >= 1:
            return 0
        if self._share <= 0:
            return _NEVER
        return i64(int(min(math.log(1 - self._draw()) / math.log1p(-self._share), float(_NEVER))))

    def admit(self) -> bool:
        """Whether there may be another span now; else it is counted."""
        if self._room == 0 or self.open >= MAX_OPEN:
            self.skipped += 1
            return False
        self._room -= 1
        self.open += 1
        return True

    def refill(self) -> None:
        """Allow the spans of the next second."""
        self._room = RATE
