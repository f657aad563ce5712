"""The sink: the object that a channel calls when something happens. Each channel gets its own when it is made."""

import abc
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.run import Run
from framegate.proxy.network.transport import MAX_READ

if TYPE_CHECKING:
    from framegate.proxy.network.write_half import WriteHalf

NO_LIMIT: Final = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelSink(abc.ABC):
    """Receives the events of one channel. It is called within ``Selector.poll``, never before the call that made the channel has returned. A callback
    may call any method of any channel and of the selector. An exception closes only the sink's channel, with the cause ``internal``. Callbacks do not
    nest: ``closed`` is always called at the end of the poll.
    """

    @abc.abstractmethod
    def ready(self) -> None:
        """Called when handshake and authentication are finished. Frames follow, unless the channel is muted here."""

    def admits_principal(self, principal: str) -> bool:
        """Whether an authenticated peer may connect. Called before the peer gets its answer; the channel may be closed by now. False: not yet; it is
        called again after ``Channel.queue_handshake``. Raises LoginError: the peer is refused.
        """
        return True

    @abc.abstractmethod
    def received(self, run: Run) -> None:
        """Called with whole frames. The sink owns the run and its lease: it must call ``Channel.send``, which takes both, or ``Channel.discard``."""

    def was_forwarded(self, run: Run, taken: i64, code: i64, rest: bytes | None) -> None:
        """Called for a run that came by a lane which the sink has opened (``Channel.open_lane``): ``taken`` bytes were written to the peer, and the
        rest was not. ``code``: the errno of the write; 0: the socket is full.
        """
        raise NotImplementedError("a sink that opens no lane")

    @abc.abstractmethod
    def may_read(self) -> bool:
        """Called before each read of a ``gated`` channel. False: do not read; the sink has muted the channel."""

    def read_limit(self) -> i64:
        """The largest size of this read in bytes; 0: at most one frame. Not applied to a frame that is in progress or cut through."""
        return MAX_READ

    def was_read(self) -> None:  # noqa: B027 - optional
        """Called after such a read, even if it failed. The channel may be closed by now."""

    def frame_refused(self) -> None:  # noqa: B027 - optional
        """Called when a frame is refused. The channel will be closed for it; if the sink mutes it for ``handler`` here, after the unmute."""

    def frame_reported(self, size: i64, head: bytes) -> None:  # noqa: B027 - optional
        """Called when a frame is passed on whose body of ``size`` bytes is above the limit (``ReceiveLimit.passed_to``). ``head``: how it begins."""

    def blocks_peer(self) -> bool:
        """Whether the proxy itself holds back the traffic of this idle channel. If so, the channel is not closed for being idle."""
        return False

    def aged(self) -> None:  # noqa: B027 - optional
        """Called when the channel is older than ``ChannelOptions.max_age_ns`` allows; until it is closed perhaps again."""

    @abc.abstractmethod
    def room_for(self) -> tuple[i64, bool]:
        """Called before each read while memory is short: how many bytes the destination takes at once, and whether it is empty (``Channel.room``)."""

    @abc.abstractmethod
    def wait_for_room(self) -> None:
        """Called when ``room_for`` was too small. The sink must mute the channel until there may be more room."""

    @abc.abstractmethod
    def pipe_target(self) -> "WriteHalf | None":
        """Called for each later piece of a frame that is cut through: the destination if the piece is not inspected, or None (``received``)."""

    def pipe_limit(self) -> i64:
        """How many of the next bytes may be spliced, if there is a ``pipe_target``."""
        return NO_LIMIT

    @abc.abstractmethod
    def was_piped(self, size: i64, frames: i64) -> None:
        """Called when ``size`` bytes were passed to ``pipe_target``, even if some are pending there. ``frames``: 1 if they complete the frame."""

    @abc.abstractmethod
    def sent(self) -> None:
        """Called when the pending send is complete, or when there may be room (``Channel.want_room``). Not called if a send was complete at once."""

    @abc.abstractmethod
    def muted(self) -> None:
        """Called when a mute that waited for the end of a frame is in force. Not called if the mute was in force at once."""

    @abc.abstractmethod
    def end_of_stream(self) -> None:
        """Called when the peer ended its stream. A frame in progress was dropped and counted (``Channel.lost_bytes``); writing goes on."""

    @abc.abstractmethod
    def write_ended(self) -> None:
        """Called at the end of the poll in which the end of our stream was sent, after ``Channel.shut_write``."""

    @abc.abstractmethod
    def closed(self) -> None:
        """Called once for each channel, when it is closed; ``close_cause`` and ``detail`` are set."""
