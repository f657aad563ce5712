"""The selector: all the connections of one thread, and the only place where it waits."""

import select
import socket
from typing import Final

from mypy_extensions import i64

from proxy.clock import Clock
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.network.listener import FdHandler, SelectorListener
from proxy.network.memory_pool import MemoryPool
from proxy.network.options import ChannelOptions
from proxy.network.timer import Timer, TimerHeap

__all__ = ["Selector"]


class Selector:
    """Waits for events and moves bytes; everything happens in ``poll``.

    Attributes:
        now_ns: the clock as it was when the wait of this poll ended.
        pool, listener: as given.
        register_budget: how many more sockets should be registered in this poll.
        channel_count: open channels.
        busy_ns, idle_ns: time spent working and waiting.
        polls: how many.
    """

    def __init__(self, clock: Clock, pool: MemoryPool, listener: SelectorListener) -> None:
        self.pool: Final = pool
        self.listener: Final = listener
        self.now_ns: i64 = clock.now_ns()
        self.register_budget: i64 = 20
        self.channel_count: i64 = 0
        self.busy_ns: i64 = 0
        self.idle_ns: i64 = 0
        self.polls: i64 = 0

    def register(self, sock: socket.socket, channel_id: i64, options: ChannelOptions, *, peer: str = "", local: str = "") -> Channel:
        """Take over an accepted, connected stream socket. ``ready`` is told from a later part of this poll or from the next one."""
        raise NotImplementedError

    def connect(self, family: int, address: object, channel_id: i64, options: ChannelOptions, *, peer: str = "") -> Channel:
        """Open a connection (family AF_INET, AF_INET6 or AF_UNIX; address as ``socket.connect`` takes it). Never blocks and never raises for
        what the network does: a refused connection is told as ``closed`` with the cause ``upstream_refused``, later."""
        raise NotImplementedError

    def watch(self, fd: int, handler: FdHandler, events: int = select.EPOLLIN) -> None:
        """Call ``handler.on_event`` when ``events`` occur on a descriptor that stays the caller's. Again: change the events."""
        raise NotImplementedError

    def unwatch(self, fd: int) -> None:
        """The inverse of ``watch``; harmless when it is not watched. Before the descriptor is closed."""
        raise NotImplementedError

    def call_at(self, deadline_ns: i64, timer: Timer) -> None:
        """Arm a timer (``timer.fire(now_ns)``), or arm it anew."""
        raise NotImplementedError

    def cancel(self, timer: Timer) -> None:
        """Disarm a timer; harmless when it is not armed."""
        raise NotImplementedError

    def poll(self, timeout_ms: i64) -> None:
        """Wait for at most ``timeout_ms``, shorter when a timer is due, then do all there is to do.

        Raises:
            ValueError: a negative timeout.
        """
        raise NotImplementedError

    def close(self, cause: Cause = Cause.DRAINED) -> None:
        """Close every channel, tell the listener of each, then close epoll."""
        raise NotImplementedError
