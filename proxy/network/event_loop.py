"""What channels need of the selector, and what the selector needs of channels: two interfaces, so that neither module knows the other."""

import abc

from mypy_extensions import i64

from framegate.proxy.network.delayed_refusals import DelayedRefusals
from framegate.proxy.network.faults import Faults
from framegate.proxy.network.fd_handler import FdHandler
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.pipe import Pipe
from framegate.proxy.network.timer import Timer

__all__ = ["EventLoop", "PolledChannel"]


class PolledChannel(FdHandler):
    """What is called of a channel within a poll, besides ``on_event``. None of it raises.

    Attributes:
        fd: its descriptor's number.
        is_open: READY or later, and not closed.
    """

    def __init__(self, fd: i64) -> None:
        self.fd: i64 = fd
        self.is_open: bool = False

    @abc.abstractmethod
    def step_handshake(self) -> None:
        """Take the handshake as far as it goes now."""

    @abc.abstractmethod
    def poll_buffered(self) -> None:
        """Read what the transport holds although the socket is silent."""

    @abc.abstractmethod
    def notify_write_ended(self) -> None:
        """Tell the sink that our end of the stream is out."""

    @abc.abstractmethod
    def notify_closed(self) -> None:
        """Tell the sink that the channel is closed."""

    @abc.abstractmethod
    def close_socket(self) -> None:
        """Close the socket, after the batch of events in which the channel was closed; the last that is called."""


class EventLoop(abc.ABC):
    """What a channel and its parts call.

    Attributes:
        now_ns: the clock as it was when the wait of this poll ended.
        pool: of memory.
        faults: what raised.
        refusals: refused peers that wait for the answer.
    """

    def __init__(self, pool: MemoryPool, now_ns: i64) -> None:
        self.pool: MemoryPool = pool
        self.now_ns: i64 = now_ns
        self.faults: Faults = Faults()
        pool.faults = self.faults
        self.refusals: DelayedRefusals = DelayedRefusals()

    @abc.abstractmethod
    def read_clock(self) -> i64:
        """The clock as it is now; ``now_ns`` is older by what this poll has done since its wait ended."""

    @abc.abstractmethod
    def call_at(self, deadline_ns: i64, timer: Timer) -> None:
        """Arm a timer (``timer.fire(now_ns)``), or arm it anew."""

    @abc.abstractmethod
    def cancel(self, timer: Timer) -> None:
        """Disarm a timer; harmless when it is not armed."""

    @abc.abstractmethod
    def change_interest(self, channel: PolledChannel, before: i64, wanted: i64) -> None:
        """Tell epoll what a channel waits for; -1 stands for a descriptor that epoll does not know."""

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
        """A channel has closed: no more events; ``notify_closed`` and ``close_socket`` are called at the end of this poll."""

    @abc.abstractmethod
    def watch_slots(self) -> None:
        """A large frame waits for a slot: start the stall evictor."""

    @abc.abstractmethod
    def pipe(self) -> Pipe:
        """The pipe for bytes that are not inspected. It is empty; the caller leaves it empty.

        Raises:
            OSError: there are no descriptors for it.
        """

    @abc.abstractmethod
    def drop_pipe(self) -> None:
        """Throw it away, with what an error has left in it."""
