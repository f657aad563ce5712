"""A connection whose frames are handled, as the request channel has it: who is told of it, and what is under way."""

import abc
from collections import deque
from typing import Final

from mypy_extensions import i64

from proxy.network.run import Body, Run
from proxy.relay import handler_wire as wire
from proxy.relay.handler_metrics import HandlerMetrics

__all__ = ["HandledConnection", "HandledParty", "Handles", "Load", "Request"]


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


class Load:
    """What a handler process weighs here.

    Attributes:
        kept: how many of the frames that it has are kept here, since they may have to go on.
    """

    def __init__(self) -> None:
        self.kept: i64 = 0


class HandledConnection:
    """What a handler process has of one connection. It outlives the connection, until every reply is in.

    Attributes:
        id: of the connection.
        load: of the process that it belongs to.
        party: None when the connection is over.
        requests, responses: the frames under way, by direction, in order.
        facts: what the process is to be told of it before its first frame; None: it was.
        released: what is under way does not count any more.
    """

    def __init__(self, number: i64, load: Load, party: HandledParty, metrics: HandlerMetrics, facts: wire.Facts) -> None:
        self.id: Final[i64] = number
        self.load: Final = load
        self.party: HandledParty | None = party
        self.metrics: Final = metrics
        self.facts: wire.Facts | None = facts
        self.released: bool = False
        self.requests: Final[deque[Request]] = deque()
        self.responses: Final[deque[Request]] = deque()

    @property
    def under_way(self) -> i64:
        """Frames without a reply."""
        return len(self.requests) + len(self.responses)


class Handles:
    """Which directions the handler of one listener is given."""

    def __init__(self, facts: wire.HandlerFacts) -> None:
        self.requests: Final = "request" in facts["directions"]
        self.responses: Final = "response" in facts["directions"]
