"""The sink: the object that a channel calls when something happens. Each channel gets its own when it is made."""

import abc

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.pipe import Pipe
from framegate.proxy.network.read_size import MAX_READ
from framegate.proxy.network.run import Run

__all__ = ["ChannelSink", "PipeTarget"]


class PipeTarget(abc.ABC):
    """The destination of bytes that are not inspected."""

    @abc.abstractmethod
    def accepts_pipe(self) -> bool:
        """Whether ``send_pipe`` may be called."""

    @abc.abstractmethod
    def room(self) -> tuple[i64, bool]:
        """How many bytes ``send_pipe`` would pass on now with no rest, 0 when the socket is not writable; and whether nothing waits in it."""

    @abc.abstractmethod
    def send_pipe(self, pipe: Pipe, size: i64, frames: i64) -> bool:
        """As ``Channel.send``, of the ``size`` bytes that are in a pipe, which is empty afterwards; ``frames``: 1 when they complete one."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelSink(abc.ABC):
    """Receives the events of one channel, within ``Selector.poll``, never before the call that made the channel has returned.

    A callback may call any method of any channel and of the selector. An exception closes the sink's channel with the cause ``internal``, and no
    other. Callbacks do not nest: ``closed`` always comes at the end of the poll.
    """

    @abc.abstractmethod
    def ready(self) -> None:
        """Handshake and authentication are done; frames flow from here on, unless the channel is muted here."""

    def admits_principal(self, principal: str) -> bool:
        """Whether an authenticated peer may connect; asked before it gets the answer. False: not yet; ``Channel.queue_handshake`` asks again. The
        channel may be closed by now.

        Raises:
            LoginError: it is refused.
        """
        return True

    @abc.abstractmethod
    def received(self, run: Run) -> None:
        """Whole frames came. The run, and its lease, are the sink's: ``Channel.send`` takes both over, else ``Channel.discard``."""

    @abc.abstractmethod
    def may_read(self) -> bool:
        """Called before each read of a ``gated`` channel. False: no read; the sink has muted the channel."""

    def read_limit(self) -> i64:
        """Bytes that this read may have at most; 0: no more than one frame. Not applied to a frame that is begun or cut through."""
        return MAX_READ

    def was_read(self) -> None:  # noqa: B027 - optional
        """Called after such a read, also one that failed; the channel may be closed by now."""

    def frame_refused(self) -> None:  # noqa: B027 - optional
        """The input is not a frame, and the channel will be closed for that; a sink that mutes it for ``handler`` here delays the close."""

    def blocks_peer(self) -> bool:
        """Whether the proxy itself kept the traffic of this idle channel back, so that it is not closed."""
        return False

    @abc.abstractmethod
    def room_for(self) -> tuple[i64, bool]:
        """Called before each read while memory is short: how many bytes can be passed on at once, and whether nothing waits at the destination. See
        ``Channel.room``.
        """

    @abc.abstractmethod
    def wait_for_room(self) -> None:
        """``room_for`` was too small: mute the channel until there may be more room."""

    @abc.abstractmethod
    def pipe_target(self) -> PipeTarget | None:
        """Called for each piece, after the first, of a frame that is cut through: its destination if it is not inspected, or None: ``received``."""

    @abc.abstractmethod
    def was_piped(self, size: i64, frames: i64) -> None:
        """``size`` bytes went to ``pipe_target``; ``frames``: 1 when they complete the frame. Bytes that it did not take are pending there."""

    @abc.abstractmethod
    def sent(self) -> None:
        """The pending send is out, to the last byte; or there may be the room that ``Channel.want_room`` asked for. Not called for a send that was
        out at once.
        """

    @abc.abstractmethod
    def muted(self) -> None:
        """A mute that waited for the end of a frame is in force now. Not called when ``mute`` was in force at once."""

    @abc.abstractmethod
    def end_of_stream(self) -> None:
        """The peer sends no more. A frame begun is dropped and counted (``Channel.lost_bytes``); writing goes on."""

    @abc.abstractmethod
    def write_ended(self) -> None:
        """Our end of the stream is out, after ``Channel.shut_write``. Called at the end of the poll when it was out at once."""

    @abc.abstractmethod
    def closed(self) -> None:
        """The channel is closed: once for each that was registered or connected; ``close_cause`` and ``detail`` are set."""
