"""What a channel tells, and whom: each channel has a sink of its own, given when it is made."""

import abc

from mypy_extensions import i64, mypyc_attr

from proxy.network.pipe import Pipe
from proxy.network.read_size import MAX_READ
from proxy.network.run import Run

__all__ = ["ChannelSink", "PipeTarget"]


class PipeTarget(abc.ABC):
    """Where bytes go that nobody looks at."""

    @abc.abstractmethod
    def takes_pipe(self) -> bool:
        """Whether ``send_pipe`` may be called."""

    @abc.abstractmethod
    def room(self) -> tuple[i64, bool]:
        """How many bytes ``send_pipe`` would pass on now with no rest, 0 when the socket is not writable; and whether nothing waits in it."""

    @abc.abstractmethod
    def send_pipe(self, pipe: Pipe, size: i64, frames: i64) -> bool:
        """As ``Channel.send``, of the ``size`` bytes that are in a pipe, which is empty afterwards; ``frames``: 1 when they complete one."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelSink(abc.ABC):
    """Told of everything that happens to one channel, from within ``Selector.poll``, never before the call that made the channel has returned.

    A callback may call any method of any channel and of the selector. What raises closes the channel whose sink it is, with the cause
    ``internal``, and no other. Callbacks never nest: ``closed`` in particular is told at the end of the poll, whoever closed and where.
    """

    @abc.abstractmethod
    def ready(self) -> None:
        """Handshake and authentication are done; frames flow from here on, unless the channel is muted here."""

    def lets_in(self, principal: str) -> bool:
        """Asked of a peer that has proved who it is in an exchange, before it is told so. False: not yet; ``Channel.queue_handshake`` has it asked
        again. The channel may be closed by now.

        Raises:
            LoginError: it may not come in.
        """
        return True

    @abc.abstractmethod
    def received(self, run: Run) -> None:
        """Whole frames came. The run, and its lease, are the sink's: ``Channel.send`` takes both over, else ``Channel.discard``."""

    @abc.abstractmethod
    def may_read(self) -> bool:
        """Asked before each read of a channel that is ``gated``. False: it is not read, and the sink has muted it."""

    def read_limit(self) -> i64:
        """Asked then: how many bytes that read may have at most; 0: no more than one frame. A frame begun, or cut through, is not held to it."""
        return MAX_READ

    def was_read(self) -> None:  # noqa: B027 - who gates nothing has nothing to be told
        """Told after such a read, whatever came of it; the channel may be closed by now."""

    def refusing(self) -> None:  # noqa: B027 - who is done with a frame when it is received has nothing to wait for
        """What came cannot be a frame, and the channel is going to be closed for that: once ``handler`` does not mute it, if the sink does so now."""

    def holds_up(self) -> bool:
        """Asked of a channel without a byte for too long: whether it is we who kept its traffic back, and it is not to be closed for that."""
        return False

    @abc.abstractmethod
    def room_for(self) -> tuple[i64, bool]:
        """Asked before each read while memory is short: how many bytes what is read may have, so that nothing of it must be held, and whether nothing
        waits where it goes. See ``Channel.room``.
        """

    @abc.abstractmethod
    def wait_for_room(self) -> None:
        """What ``room_for`` said was too little: mute the channel until there may be more."""

    @abc.abstractmethod
    def passes_to(self) -> PipeTarget | None:
        """Asked for each piece, after the first, of a frame that is cut through: where it goes, if nobody looks at it; None: it is ``received``."""

    @abc.abstractmethod
    def passed_by(self, size: i64, frames: i64) -> None:
        """So many bytes went where ``passes_to`` said; ``frames``: 1 when they complete the frame. What was not taken is pending there."""

    @abc.abstractmethod
    def sent(self) -> None:
        """The pending send is out, to the last byte; or there may be the room that ``Channel.want_room`` asked for. Not told of a send that was
        out at once.
        """

    @abc.abstractmethod
    def muted(self) -> None:
        """A mute that had to wait for the end of a frame is in force now. Not told when ``mute`` was in force at once."""

    @abc.abstractmethod
    def end_of_stream(self) -> None:
        """The peer sends no more. A frame begun is dropped and counted (``Channel.lost_bytes``); writing goes on."""

    @abc.abstractmethod
    def write_ended(self) -> None:
        """Our end of the stream is out, after ``Channel.shut_write``. Told at the end of the poll when it was out at once."""

    @abc.abstractmethod
    def closed(self) -> None:
        """The channel is closed: once for each that was registered or connected; ``close_cause`` and ``detail`` are set."""
