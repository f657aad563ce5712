"""What is known of a pair whose frames are handled. What happens to it is in ``handling`` and ``verdicts``; ``handler_leg`` tells them."""

from collections import deque
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.run import Run
from framegate.proxy.relay.handled_connection import HandledConnection, HandledParty, Request
from framegate.proxy.relay.handler_process import HandlerProcess
from framegate.proxy.relay.leg import RelayLeg
from framegate.proxy.relay.pair import Pair, PairTimer
from framegate.proxy.relay.request_channel import RequestChannel

__all__ = ["Handled", "HandledLeg", "HeldAnswer", "Outgoing"]


class Outgoing:
    """A run that is to be written.

    Attributes:
        run: without a lease.
        owner: whose frame it came of, which has booked it.
        booked: so many bytes; 0: none yet.
        passes: its bytes were received from the other side.
    """

    def __init__(self, run: Run, owner: "HandledLeg", booked: i64, *, passes: bool) -> None:
        self.run: Final = run
        self.owner: Final = owner
        self.booked: i64 = booked
        self.passes: Final = passes


class HeldAnswer:
    """An answer in the upstream's place that waits for the upstream's own to what came before.

    Attributes:
        run: in the client's framing.
        due: when so many of the upstream's answers are done with.
        booked: bytes of the memory pool that the client's leg has booked for it.
        withheld: it is not for the tap.
    """

    def __init__(self, run: Run, due: i64, booked: i64, *, withheld: bool) -> None:
        self.run: Final = run
        self.due: Final[i64] = due
        self.booked: Final[i64] = booked
        self.withheld: Final = withheld


class HandledLeg(RelayLeg):
    """A leg of such a pair.

    Attributes:
        handled: what both legs share.
        handles: its frames go to a handler; until it is known whether they do, nothing is read.
        waits: its channel is muted until there is room, or a process.
        backlog: frames that are here and were not handed over.
        under_way: frames that a handler has.
        awaits: the leg on which the last verdict has to be out before the next frame is handed over.
        out: what is to be written to this leg's channel.
        times: when the reply was read that brought each of what is to be written, or is being written: so many of these are ``sending``.
        ends: its peer's stream has ended, which is not told before all that came is done with.
        done: frames that were received and are done with.
        booked: bytes of the memory pool that it holds: of its backlog, of what is under way and may go on, and of what came of that and is not out.
    """

    def __init__(self, pair: Pair, handled: "Handled", *, is_client: bool) -> None:
        super().__init__(pair, is_client=is_client)
        self.handled: Final = handled
        self.handles: bool = True
        self.waits: bool = False
        self.backlog: Final[deque[Request]] = deque()
        self.under_way: i64 = 0
        self.awaits: HandledLeg | None = None
        self.out: list[Outgoing] = []
        self.times: Final[deque[int]] = deque()
        self.sending: i64 = 0
        self.ends: bool = False
        self.done: i64 = 0
        self.booked: i64 = 0

    @property
    def direction(self) -> i64:
        """Of its frames, as records have it."""
        return 0 if self.is_client else 1


class Handled(HandledParty):
    """What the legs share.

    Attributes:
        pair: None when it is CLOSED.
        number: its id.
        channel: to the handler processes.
        process, connection: those it belongs to; None before the first frame, and when the process is gone.
        throttled: a reply asked for a time in which the client is not read; ``timer`` ends it.
        held: answers that wait, in order.
    """

    def __init__(self, pair: Pair, channel: RequestChannel) -> None:
        self.pair: Pair | None = pair
        self.number: Final[i64] = pair.id
        self.channel: Final = channel
        self.client: HandledLeg | None = None
        self.upstream: HandledLeg | None = None
        self.process: HandlerProcess | None = None
        self.connection: HandledConnection | None = None
        self.throttled: bool = False
        self.timer: PairTimer | None = None
        self.held: Final[deque[HeldAnswer]] = deque()

    def leg(self, direction: i64) -> HandledLeg:
        """The leg whose frames go in a direction."""
        leg = self.client if direction == 0 else self.upstream
        assert leg is not None, "both are made with the pair"
        return leg
