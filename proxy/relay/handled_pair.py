"""The state of a pair with a handler, and of its legs. ``handling`` and ``verdicts`` change it; ``handler_leg`` calls them."""

from collections import deque
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.relay.handled_connection import HandledConnection, HandledParty, Request
from framegate.proxy.relay.handler_process import HandlerProcess
from framegate.proxy.relay.leg import RelayLeg
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.request_channel import RequestChannel


class Outgoing:
    """A run that waits to be written."""

    def __init__(self, run: Run, owner: "HandledLeg", booked: i64, *, passes: bool) -> None:
        self.run: Final = run  # without a lease
        self.owner: Final = owner  # the leg whose frame caused it; it has booked the memory
        self.booked: i64 = booked  # bytes; 0: none yet
        self.passes: Final = passes  # its bytes were received from the other side


class HeldAnswer:
    """A handler's answer to a request that waits until the upstream has answered the requests before it."""

    def __init__(self, run: Run, due: i64, booked: i64, *, withheld: bool) -> None:
        self.run: Final = run  # in the client's framing
        self.due: Final[i64] = due  # it is sent when ``done`` of the upstream's leg has reached this
        self.booked: Final[i64] = booked  # bytes of the memory pool that the client's leg has booked for it
        self.withheld: Final = withheld  # the tap must not have its body


class HandledLeg(RelayLeg):
    """A leg of a pair with a handler."""

    def __init__(self, pair: Pair, handled: "Handled", *, is_client: bool) -> None:
        super().__init__(pair, is_client=is_client)
        self.handled: Final = handled  # what both legs share
        self.handles: bool = True  # its frames go to a handler; True until a process says otherwise, and nothing is read before
        self.waits: bool = False  # its channel is muted until the queue has room, or there is a process
        self.backlog: Final[deque[Request]] = deque()  # frames that were received and not submitted
        self.under_way: i64 = 0  # frames that were submitted and have no reply
        self.awaits: HandledLeg | None = None  # the leg that must have sent what the last verdict caused before the next frame is submitted
        self.out: list[Outgoing] = []  # runs that wait to be written to this leg's channel
        # for each run of ``out`` and each that is being written, when the reply was read; the first ``sending`` of them are being written
        self.times: Final[deque[int]] = deque()
        self.sending: i64 = 0
        self.ends: bool = False  # its peer's stream has ended, which is handled after all frames before the end
        self.done: i64 = 0  # frames that were received and passed on, answered or dropped
        # bytes of the memory pool that it holds: for its backlog, for submitted frames, and for what waits to be written because of them
        self.booked: i64 = 0

    @property
    def direction(self) -> i64:
        """Of its frames, as in the records of ``handler_wire``."""
        return 0 if self.is_client else 1


class Handled(HandledParty):
    """What the two legs share."""

    def __init__(self, pair: Pair, channel: RequestChannel) -> None:
        self.pair: Pair | None = pair  # None when it is CLOSED
        self.number: Final[i64] = pair.id  # the pair's id
        self.channel: Final = channel  # to the handler processes
        self.client: HandledLeg | None = None
        self.upstream: HandledLeg | None = None
        # process, connection: those that the pair belongs to; None before the first frame, and when the process is gone
        self.process: HandlerProcess | None = None
        self.connection: HandledConnection | None = None
        self.throttled: bool = False  # a reply asked that the client is not read for a time; ``timer`` ends that
        self.timer: CallbackTimer | None = None
        self.held: Final[deque[HeldAnswer]] = deque()  # answers that wait for the upstream, in order

    def leg(self, direction: i64) -> HandledLeg:
        """The leg that receives the frames of a direction."""
        leg = self.client if direction == 0 else self.upstream
        assert leg is not None, "both are made with the pair"
        return leg
