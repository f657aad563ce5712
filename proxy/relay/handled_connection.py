"""A connection whose frames are handled, as the request channel has it: who is told of it, what is under way, and what is counted."""

import abc
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.network.run import Body, Run
from framegate.proxy.network.stats import Histogram
from framegate.proxy.relay.counters import ListenerCounters

if TYPE_CHECKING:  # every processor has the metrics; one without handlers does without the records
    from framegate.proxy.relay.handler_wire import Facts

__all__ = ["HandledConnection", "HandledParty", "HandlerMetrics", "Request"]

ACTIONS: Final = LISTENER_BLOCK.at("framegate.handler.requests")
QUEUE_SIZE: Final = LISTENER_BLOCK.at("framegate.handler.queue.size")


class Request:
    """A frame that a handler has, or will have.

    Attributes:
        sequence: its number in its direction.
        run: the frame, where it may have to go on; None: it was handed over for good.
        booked: bytes of the memory pool that its leg has booked for it.
        enqueued_ns: when it was whole.
        size: its bytes.
        others: of its header, the bytes that do not say how long it is.
        expects: the pairing has it: an answer is expected.
        withheld: it, and its answer, are not for the tap.
    """

    def __init__(self, sequence: i64, run: Run, enqueued_ns: i64, others: bytes, *, expects: bool, withheld: bool) -> None:
        self.sequence: Final[i64] = sequence
        self.run: Run | None = run
        self.booked: i64 = 0
        self.enqueued_ns: Final[i64] = enqueued_ns
        self.size: Final[i64] = run.size
        self.others: Final = others
        self.expects: Final = expects
        self.withheld: Final = withheld


class HandledParty(abc.ABC):
    """A connection whose frames are handled, as what hands them over sees it. What raises costs that connection (``crash``)."""

    @abc.abstractmethod
    def replied(self, request: Request, direction: i64, action: i64, throttle_ms: i64, body: Body) -> None:
        """A frame's reply is here; the frame's run is the party's again. ``body`` may be a view, and a long one is in pieces."""

    @abc.abstractmethod
    def flush(self) -> None:
        """The replies of this read are told: write what they brought."""

    @abc.abstractmethod
    def wake(self, direction: i64) -> bool:
        """There is room. True: the next frame will be read; False: it was handed over already, or there is none to be read now."""

    @abc.abstractmethod
    def process_gone(self, detail: str) -> None:
        """The handler process is gone, and with it what was under way there."""

    @abc.abstractmethod
    def timed_out(self) -> None:
        """There was no handler process for too long."""

    @abc.abstractmethod
    def crash(self, error: Exception) -> None:
        """One of these calls raised."""


def _histogram(counters: ListenerCounters, name: str) -> Histogram:
    return counters.counts.histogram(f"framegate.handler.{name}")


class HandlerMetrics:
    """What the handlers of one listener did. Made once for each listener that has a handler.

    Attributes:
        queue_time: from when a frame is whole to when its handler begins; Kafka's RequestQueueTimeMs.
        local_time: in the handler; LocalTimeMs.
        response_queue_time: from when it is done to when its processor has read what came of it.
        send_time: from there to when the socket has all of that; ResponseSendTimeMs.
    """

    def __init__(self, counters: ListenerCounters) -> None:
        self.queue_time: Final = _histogram(counters, "queue.time")
        self.local_time: Final = _histogram(counters, "time")
        self.response_queue_time: Final = _histogram(counters, "response.queue.time")
        self.send_time: Final = _histogram(counters, "response.send.time")
        self._counters: Final = counters

    def begin(self) -> None:
        """A frame is on its way to a handler."""
        self._counters.counts.cells[QUEUE_SIZE] += 1

    def forget(self, frames: i64) -> None:
        """So many frames have their reply, or will have none that anybody waits for."""
        self._counters.counts.cells[QUEUE_SIZE] -= frames

    def replied(self, action: i64, enqueued_ns: i64, began_ns: i64, ended_ns: i64, now_ns: i64) -> None:
        """A reply was read. Each frame that went to a handler that lives counts once, whatever became of its connection."""
        cells = self._counters.counts.cells
        cells[ACTIONS + action] += 1
        self.queue_time.observe(max(began_ns - enqueued_ns, 0))
        self.local_time.observe(max(ended_ns - began_ns, 0))
        self.response_queue_time.observe(max(now_ns - ended_ns, 0))


class HandledConnection:
    """What a handler process has of one connection. It outlives the connection, until every reply is in.

    Attributes:
        id: of the connection.
        party: None when the connection is over.
        requests, responses: the frames under way, by direction, in order.
        facts: what the process is to be told of it before its first frame; None: it was.
        released: what is under way does not count any more.
    """

    def __init__(self, number: i64, party: HandledParty, metrics: HandlerMetrics, facts: "Facts") -> None:
        self.id: Final[i64] = number
        self.party: HandledParty | None = party
        self.metrics: Final = metrics
        self.facts: Facts | None = facts
        self.released: bool = False
        self.requests: Final[deque[Request]] = deque()
        self.responses: Final[deque[Request]] = deque()

    @property
    def under_way(self) -> i64:
        """Frames without a reply."""
        return len(self.requests) + len(self.responses)
