"""What channels need of the selector, and what the selector needs of channels: two interfaces, so that neither module knows the other."""

import abc

from mypy_extensions import i64

from proxy.network.faults import Faults
from proxy.network.fd_handler import FdHandler
from proxy.network.memory_pool import MemoryPool
from proxy.network.pipe import Pipe
from proxy.network.refusals import Refusals
from proxy.network.timer import Timer

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
        refusals: who was refused and waits for the answer.
    """

    def __init__(self, pool: MemoryPool, now_ns: i64) -> None:
        self.pool: MemoryPool = pool
        self.now_ns: i64 = now_ns
        self.faults: Faults = Faults()
        pool.faults = self.faults
        self.refusals: Refusals = Refusals()

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
    def watch_turns(self) -> None:
        """Somebody waits for a turn: see that who holds memory moves."""

    @abc.abstractmethod
    def pipe(self) -> Pipe:
        """What bytes pass through that nobody looks at; empty, and to be left so.

        Raises:
            OSError: there are no descriptors for it.
        """

    @abc.abstractmethod
    def drop_pipe(self) -> None:
        """Throw it away, with what an error has left in it."""
