"""A connection with a handler, as the request channel knows it: its requests in flight, the receiver of its events, and its metrics."""

import abc
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.network.run import Body, Run
from framegate.proxy.network.stats import Histogram
from framegate.proxy.relay.counters import ListenerCounters

if TYPE_CHECKING:  # every processor has the metrics, but processors without handlers do not import the records
    from framegate.proxy.relay.handler_wire import Facts

ACTIONS: Final = LISTENER_BLOCK.at("framegate.handler.requests")
QUEUE_SIZE: Final = LISTENER_BLOCK.at("framegate.handler.queue.size")


class Request:
    """A frame that waits for a handler, or was sent to one."""

    def __init__(self, sequence: i64, run: Run, enqueued_ns: i64, others: bytes, *, expects: bool, withheld: bool) -> None:
        self.sequence: Final[i64] = sequence  # its number in its direction
        self.run: Run | None = run  # the frame, while it may still be passed on; otherwise None
        self.booked: i64 = 0  # bytes of the memory pool that its leg has booked for it
        self.enqueued_ns: Final[i64] = enqueued_ns  # when it was received whole
        self.size: Final[i64] = run.size  # its bytes
        self.others: Final = others  # the bytes of its header that are not its size
        self.expects: Final = expects  # it is an open request of the pairing
        self.withheld: Final = withheld  # the tap must not have its body, nor that of its response


class HandledParty(abc.ABC):
    """Receives the events of one connection from the request channel. If a method raises, ``crash`` is called."""

    @abc.abstractmethod
    def replied(self, request: Request, direction: i64, action: i64, throttle_ms: i64, body: Body) -> None:
        """A reply to a request has arrived. ``body`` may be a view; a long one is in pieces."""

    @abc.abstractmethod
    def flush(self) -> None:
        """All replies of one read were passed to ``replied``: write what is to be sent."""

    @abc.abstractmethod
    def wake(self, direction: i64) -> bool:
        """The queue has room. True: the next frame will be read; False: one was submitted at once, or none can be read now."""

    @abc.abstractmethod
    def process_gone(self, detail: str) -> None:
        """The handler process is gone; there will be no replies."""

    @abc.abstractmethod
    def timed_out(self) -> None:
        """There was no handler process for too long."""

    @abc.abstractmethod
    def crash(self, error: Exception) -> None:
        """One of the other methods has raised."""


def _histogram(counters: ListenerCounters, name: str) -> Histogram:
    return counters.counts.histogram(f"framegate.handler.{name}")


class HandlerMetrics:
    """Metrics of the handler of one listener."""

    def __init__(self, counters: ListenerCounters) -> None:
        self.queue_time: Final = _histogram(counters, "queue.time")  # from when a frame is whole until its handler begins; Kafka's RequestQueueTimeMs
        self.local_time: Final = _histogram(counters, "time")  # in the handler; LocalTimeMs
        # from the end of the handler until the processor has read the reply
        self.response_queue_time: Final = _histogram(counters, "response.queue.time")
        # from then until the socket has taken all that is sent; ResponseSendTimeMs
        self.send_time: Final = _histogram(counters, "response.send.time")
        self._counters: Final = counters

    def begin(self) -> None:
        """A frame was submitted."""
        self._counters.counts.cells[QUEUE_SIZE] += 1

    def forget(self, frames: i64) -> None:
        """So many frames have their reply, or will not get one."""
        self._counters.counts.cells[QUEUE_SIZE] -= frames

    def replied(self, action: i64, enqueued_ns: i64, began_ns: i64, ended_ns: i64, now_ns: i64) -> None:
        """A reply was read; also counted if the connection is over."""
        cells = self._counters.counts.cells
        cells[ACTIONS + action] += 1
        self.queue_time.observe(max(began_ns - enqueued_ns, 0))
        self.local_time.observe(max(ended_ns - began_ns, 0))
        self.response_queue_time.observe(max(now_ns - ended_ns, 0))


class HandledConnection:
    """A connection that belongs to a handler process. It exists until every reply has arrived, also after the connection is over."""

    def __init__(self, number: i64, party: HandledParty, metrics: HandlerMetrics, facts: "Facts") -> None:
        self.id: Final[i64] = number  # of the connection
        self.party: HandledParty | None = party  # receives its events; None when the connection is over
        self.metrics: Final = metrics
        self.facts: Facts | None = facts  # what the process must get before the first frame; None: it has that
        self.released: bool = False  # the connection is over, and its frames do not count any more
        # requests, responses: the frames without a reply, by direction, in order
        self.requests: Final[deque[Request]] = deque()
        self.responses: Final[deque[Request]] = deque()

    @property
    def under_way(self) -> i64:
        """Frames without a reply."""
        return len(self.requests) + len(self.responses)
