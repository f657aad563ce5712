"""Which connections have spans, and the ids of these: known before a connection's first row is written, so that its rows and spans have the same."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from opentelemetry.trace import SpanContext, SpanKind

from framegate.control.telemetry.traces import Traces, fields_of

RATE: Final = 200  # Connections that may have spans, per second and at once
MAX_KNOWN: Final = 20_000  # Open connections that may have spans: some 5 MB
SPAN: Final = "framegate.connection"
_ENDED: Final = 1_000  # Connections that are over, and whose later rows still get the ids


class ConnectionTraces:
    """Chooses connections. One thread at a time may call ``begin`` and ``end``, any thread the other methods. ``skip``: counts those that are not
    chosen because of ``RATE`` or ``MAX_KNOWN``. ``clock``: monotonic, in seconds.
    """

    def __init__(self, traces: Traces, skip: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._traces = traces
        self._skip = skip
        self._clock = clock
        self._tokens = float(RATE)
        self._filled_s = clock()
        self._known: dict[int, SpanContext] = {}
        self._ended: deque[int] = deque()

    def begin(self, number: int) -> SpanContext | None:
        """Choose a new connection; None: it has no spans. ``number``: its id."""
        found = self._traces.draw(SPAN, SpanKind.SERVER)
        if found is None:
            return None
        now_s = self._clock()
        self._tokens = min(float(RATE), self._tokens + (now_s - self._filled_s) * RATE)
        self._filled_s = now_s
        if self._tokens < 1 or len(self._known) >= MAX_KNOWN:
            self._skip(1)
            return None
        self._tokens -= 1
        self._known[number] = found
        return found

    def end(self, number: int) -> SpanContext | None:
        """The ids of a connection that is over, which ``of`` returns for a while longer."""
        found = self._known.get(number)
        if found is not None:
            self._ended.append(number)
            if len(self._ended) > _ENDED:
                self._known.pop(self._ended.popleft(), None)
        return found

    def of(self, number: int) -> SpanContext | None:
        """The ids of the span of a connection; None: it has none."""
        return self._known.get(number)

    def fields(self, number: int) -> dict[str, str]:
        """The same, as rows have them."""
        return fields_of(self._known.get(number))
