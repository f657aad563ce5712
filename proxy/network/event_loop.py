"""The interfaces between a selector, its channels, and the parts of a channel, so that their modules do not import each other."""

import abc
import select
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.cause import Cause
from framegate.proxy.network.authenticator import Authenticator
from framegate.proxy.network.faults import Faults
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.pipe import Pipe
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import DelayedRefusals, Timer

__all__ = [
    "BROKEN",
    "EPOLLIN",
    "EPOLLOUT",
    "EPOLLRDHUP",
    "UNREGISTERED",
    "ChannelCallbacks",
    "ChannelWatch",
    "EventLoop",
    "FdHandler",
    "PolledChannel",
]

# Copies of the constants of ``select``, which the compiler cannot inline.
EPOLLIN: Final = 1
EPOLLOUT: Final = 4
EPOLLERR: Final = 8
EPOLLHUP: Final = 16
EPOLLRDHUP: Final = 8192
BROKEN: Final = EPOLLERR | EPOLLHUP
UNREGISTERED: Final = -1  # instead of an interest: the descriptor is not registered
assert (select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR) == (EPOLLIN, EPOLLOUT, EPOLLERR)
assert (select.EPOLLHUP, select.EPOLLRDHUP) == (EPOLLHUP, EPOLLRDHUP)


@mypyc_attr(allow_interpreted_subclasses=True)
class FdHandler(abc.ABC):
    """Handles the events of one descriptor."""

    @abc.abstractmethod
    def on_event(self, events: i64) -> None:
        """Handle ``events``, the bits from epoll. An exception is noted as a fault; the descriptor stays registered."""


class PolledChannel(FdHandler):
    """A channel as its selector sees it. No method raises.

    Attributes:
        fd: the number of its descriptor.
        is_open: READY or later, and not closed.
    """

    def __init__(self, fd: i64) -> None:
        self.fd: i64 = fd
        self.is_open: bool = False

    @abc.abstractmethod
    def step_handshake(self) -> None:
        """Continue the handshake, or the authentication, as far as possible now."""

    @abc.abstractmethod
    def poll_buffered(self) -> None:
        """Read what the transport has buffered, for which no event will come."""

    @abc.abstractmethod
    def notify_write_ended(self) -> None:
        """Tell the sink that the end of our stream was sent."""

    @abc.abstractmethod
    def notify_closed(self) -> None:
        """Tell the sink that the channel is closed."""

    @abc.abstractmethod
    def close_socket(self) -> None:
        """Close the socket, at the end of the poll in which the channel was closed. This is the last call."""


class EventLoop(abc.ABC):
    """A selector as its channels and their parts see it.

    Attributes:
        now_ns: the time at which the wait of this poll ended.
        pool: the memory pool.
        faults: exceptions that were caught.
        refusals: the timers of refused peers whose answer is delayed.
    """

    def __init__(self, pool: MemoryPool, now_ns: i64) -> None:
        self.pool: MemoryPool = pool
        self.now_ns: i64 = now_ns
        self.faults: Faults = Faults()
        pool.faults = self.faults
        self.refusals: DelayedRefusals = DelayedRefusals()

    @abc.abstractmethod
    def read_clock(self) -> i64:
        """Return the current time; ``now_ns`` is the time at which the wait of this poll ended."""

    @abc.abstractmethod
    def call_at(self, deadline_ns: i64, timer: Timer) -> None:
        """Arm a timer for a time. An earlier deadline of the same timer is void."""

    @abc.abstractmethod
    def cancel(self, timer: Timer) -> None:
        """Disarm a timer. No effect if it is not armed."""

    @abc.abstractmethod
    def change_interest(self, channel: PolledChannel, before: i64, wanted: i64) -> None:
        """Change the events that epoll reports for a channel from ``before`` to ``wanted``; either may be UNREGISTERED."""

    @abc.abstractmethod
    def defer_handshake(self, channel: PolledChannel) -> None:
        """Have ``step_handshake`` called after the events of this poll."""

    @abc.abstractmethod
    def defer_buffered(self, channel: PolledChannel) -> None:
        """Have ``poll_buffered`` called in the next poll, which does not block."""

    @abc.abstractmethod
    def defer_write_ended(self, channel: PolledChannel) -> None:
        """Have ``notify_write_ended`` called at the end of this poll."""

    @abc.abstractmethod
    def defer_closed(self, channel: PolledChannel) -> None:
        """Note that a channel has closed: it gets no more events; ``notify_closed`` and ``close_socket`` are called at the end of this poll."""

    @abc.abstractmethod
    def watch_slots(self) -> None:
        """Start the stall evictor, because a large frame waits for an admission slot."""

    @abc.abstractmethod
    def pipe(self) -> Pipe:
        """Return the pipe for bytes that are not inspected. It is empty, and the caller must leave it empty.

        Raises:
            OSError: no descriptor is available.
        """

    @abc.abstractmethod
    def drop_pipe(self) -> None:
        """Close the pipe, with any bytes that an error left in it."""


class ChannelCallbacks(PolledChannel):
    """A channel as its parts see it.

    Attributes:
        gated: ``ChannelSink.may_read`` is called before each read.
        shutting: ``shut_write`` was called.
        last_active_ns: when a byte was last read or written, on the selector's clock.
    """

    def __init__(self, fd: i64, now_ns: i64) -> None:
        super().__init__(fd)
        self.gated: bool = False
        self.shutting: bool = False
        self.last_active_ns: i64 = now_ns

    @abc.abstractmethod
    def mute(self, cause: i64) -> bool:
        """Add one cause (a bit of ``mute``). Returns True if the mute is in force."""

    @abc.abstractmethod
    def unmute(self, cause: i64) -> None:
        """Remove one cause."""

    @abc.abstractmethod
    def discard(self, run: Run) -> None:
        """Release the lease of a run that is not sent on."""

    @abc.abstractmethod
    def close(self, cause: Cause, detail: str = "", error: BaseException | None = None) -> None:
        """Close at once."""

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Close for an exception. One that neither the network nor the peer caused is a bug (``crash``)."""

    @abc.abstractmethod
    def crash(self, error: Exception, place: str = "channel") -> None:
        """Close for an internal error."""

    @abc.abstractmethod
    def sync_interest(self) -> None:
        """Update the events that epoll reports for the channel."""

    @abc.abstractmethod
    def queue_handshake(self) -> None:
        """Queue the next step of the handshake or of the authentication. No effect when both are finished."""

    @abc.abstractmethod
    def wait_opening(self, wanted: i64) -> None:
        """Set the events that the handshake or the authentication waits for, and start the watchdog."""

    @abc.abstractmethod
    def admits_principal(self, principal: str) -> bool:
        """See ``ChannelSink.admits_principal``."""

    @abc.abstractmethod
    def become_ready(self, authenticator: Authenticator) -> None:
        """Take over the principal from a complete authenticator, and close the authenticator."""

    @abc.abstractmethod
    def queue_buffered(self) -> None:
        """Queue a call of ``poll_buffered``."""

    @abc.abstractmethod
    def on_unwanted(self, events: i64) -> None:
        """Handle an event of a channel that must not be read."""

    @abc.abstractmethod
    def on_input_ended(self, *, clean: bool) -> None:
        """Note that the peer ended its stream. ``clean``: as its protocol requires."""

    @abc.abstractmethod
    def on_output_ended(self) -> None:
        """Note that the end of our stream was sent."""

    @abc.abstractmethod
    def after_read(self) -> None:
        """Continue writes that may have waited for a read: ciphertext, or the end of our stream."""


class ChannelWatch(Timer):
    """Closes a channel if something takes too long."""

    @abc.abstractmethod
    def check(self, now_ns: i64) -> None:
        """Close the channel if something takes too long, else arm for the next check."""

    @abc.abstractmethod
    def release(self) -> None:
        """Drop the reference to the closed channel."""
