"""What the handlers of one listener did."""

from typing import Final

from mypy_extensions import i64

from proxy.cells import LISTENER_BLOCK
from proxy.network.histogram import Histogram
from proxy.relay.counters import ListenerCounters

__all__ = ["HandlerMetrics"]

ACTIONS: Final = LISTENER_BLOCK.at("framegate.handler.requests")
QUEUE_SIZE: Final = LISTENER_BLOCK.at("framegate.handler.queue.size")


def _histogram(counters: ListenerCounters, name: str) -> Histogram:
    return counters.counts.histogram(f"framegate.handler.{name}")


class HandlerMetrics:
    """Made once for each listener that has a handler.

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
