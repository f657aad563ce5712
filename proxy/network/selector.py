"""The selector: all connections of one thread, and the only place where the thread waits.

One ``poll``: wait; handle events; continue handshakes; poll channels with buffered bytes that no event announces; fire timers; notify the sinks of
channels that ended or closed. Theory of operation:

- *Level-triggered epoll, one read and one write per event.* The next wait announces the rest again, after the other channels: this is fair. No read
  until EAGAIN, which costs an exception.
- *A poll is bounded in time.* Each part reads the clock every few steps and leaves the rest for the next poll when its budget is spent. Events that
  are left are handled before the next wait, so that the end of a batch does not starve.
- *Watched descriptors come first.* They are in a second epoll, which the first one watches. After a long poll they are handled before all channels.
- *Descriptor numbers are reused.* A socket is closed at the end of the poll in which its channel closed; later events of that poll find no handler.
- *Callbacks do not nest.* ``Channel.close`` and ``shut_write`` may be called in any callback; the sink hears of it at the end of the poll.
- *Handshakes come last.* A TLS handshake costs more than a hundred frames. Handshakes get at most 2 ms of a poll.
- *An exception* costs one channel, timer or callback, and is noted in ``faults``.
- *Arrival.* Events come at the end of the wait. If it did not wait, they came since the wait before it, while the thread was at work, and are taken
  to have come in the middle of that. After a longer wait the kernel says for how long the thread was ready to run, and did not (``run_delay``).
- *Buffered bytes.* A TLS transport may hold decrypted bytes while its socket is silent, after an exact read or a mute. Such a channel is queued for
  ``poll_buffered``, and the wait does not block meanwhile. A muted channel is not queued; ``unmute`` queues it.
"""

import errno
import math
import os
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.clock import Clock
from framegate.proxy.errors import ConnectError
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.connection_socket import open_socket, set_socket_options
from framegate.proxy.network.epoll import FdHandler
from framegate.proxy.network.faults import Faults
from framegate.proxy.network.lanes import may_open, new_fast_path
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.pipe import Pipe
from framegate.proxy.network.plaintext import PlaintextTransport
from framegate.proxy.network.run_delay import RunDelay
from framegate.proxy.network.stall_evictor import StallEvictor
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.timer import NEVER, DelayedRefusals, Timer, TimerHeap
from framegate.proxy.network.transport import Transport
from framegate.proxy.network.watchdog import Watchdog

if TYPE_CHECKING:
    from framegate.proxy.network.fast_path import FastPath, Lane
    from framegate.proxy.network.tls_wire import BioPair

AF_UNIX: Final = int(socket.AF_UNIX)
IPPROTO_TCP: Final = int(socket.IPPROTO_TCP)
TCP_NODELAY: Final = int(socket.TCP_NODELAY)
MAX_EVENTS: Final = 256  # of one wait
MAX_REGISTERED: Final = 20  # new sockets for each poll
HANDSHAKE_BUDGET_NS: Final = 2_000_000
BUDGET_NS: Final = 5_000_000  # for events, buffered bytes and notifications, each, in a poll; a step takes up to 1 ms (256 KiB of TLS, both ways)
CLOCK_EACH: Final = 4  # steps between two readings of the clock
LONG_NS: Final = 1_000_000  # after a poll with this much work, watched descriptors are handled before the channels; what is ready has waited
SHORT_NS: Final = 50_000  # a wait that is no longer found events that were there before
MAX_WATCHED: Final = 16  # watched descriptors handled at a time


class _Watched(FdHandler):
    """Handles the events of the second epoll."""

    def __init__(self, selector: "Selector") -> None:
        self._selector: Final = selector

    def on_event(self, events: i64) -> None:
        self._selector.poll_watched()


class Selector:
    """Waits for events and moves bytes; everything happens in ``poll``. ``run_delay``: of this thread; None: not asked."""

    def __init__(self, clock: Clock, pool: MemoryPool, run_delay: RunDelay | None = None) -> None:
        self.pool: Final = pool  # the memory pool
        self.now_ns: i64 = clock.now_ns()  # the time at which the wait of this poll ended
        self.arrived_ns: i64 = self.now_ns  # when the events of this poll came, as far as that is known
        self._found_ns: i64 = self.now_ns  # the end of the last wait; the polls after it handled what it found
        self.faults: Final = Faults()  # exceptions that were caught
        pool.faults = self.faults
        self.refusals: Final = DelayedRefusals()  # the timers of refused peers whose answer is delayed
        self._clock_ns: Final = clock.now_ns
        self.register_budget: i64 = MAX_REGISTERED  # how many more sockets the caller should register in this poll
        self.channel_count: i64 = 0  # open channels, and those that are being opened
        # busy_ns, idle_ns: time spent working and waiting
        self.busy_ns: i64 = 0
        self.idle_ns: i64 = 0
        self.polls: i64 = 0  # how many
        self._epoll: Final = select.epoll()
        # moves frames for channels whose frames nothing but a tap inspects (``lanes``); None: the data path is not compiled
        self.fast_path: Final[FastPath | None] = new_fast_path(self._epoll.fileno())
        self._run_delay: Final = run_delay
        self._timed: SideStats | None = None  # the first side with runs that were sent in this poll
        self._watch_epoll: select.epoll | None = None  # for watched descriptors; made with the first
        self._watched: Final[dict[int, FdHandler]] = {}
        self._left: Final[deque[tuple[FdHandler, int, int]]] = deque()  # events of the last wait that are not handled yet
        self._handlers: Final[list[FdHandler | None]] = []
        self._channels: Final[set[Channel]] = set()
        self._lanes: Final[dict[int, Channel]] = {}  # the channels that have a lane, by descriptor
        self._timers: Final = TimerHeap(clock.now_ns, self.faults)
        self._stall_evictor: Final = StallEvictor(self, pool, self._channels)
        self._pipe: Pipe | None = None  # made with the first frame that needs one
        self._bios: BioPair | None = None  # shared by all TLS connections; made with the first
        self._handshakes: Final[deque[Channel]] = deque()
        self._buffered: Final[deque[Channel]] = deque()
        self._write_ended: Final[deque[Channel]] = deque()
        self._closed: Final[deque[Channel]] = deque()

    def register(self, sock: socket.socket, channel_id: i64, options: ChannelOptions, sink: ChannelSink, *, peer: str = "") -> Channel:
        """Make a channel of an accepted stream socket, which has TCP_NODELAY already. The sink's ``ready`` is called in this poll or the next."""
        sock.setblocking(False)
        if options.socket is not None and sock.family == AF_UNIX:
            set_socket_options(sock, options.socket)
        self.register_budget -= 1
        return self.adopt(sock, self._transport(sock, options), channel_id, options, sink, peer=peer)

    def connect(self, family: int, address: object, channel_id: i64, options: ChannelOptions, sink: ChannelSink, *, peer: str = "") -> Channel:
        """Open a connection. Never blocks. A failure of the network is reported later, as ``closed``. ``family``: AF_INET, AF_INET6 or AF_UNIX.
        ``address``: as ``socket.connect`` takes it, resolved already. Raises OSError: no socket is available, the family is not supported, or the
        address is not of that family.
        """
        sock = open_socket(family)
        try:
            if family != AF_UNIX:
                sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            if options.socket is not None:
                set_socket_options(sock, options.socket)
            code = sock.connect_ex(address)  # type: ignore[arg-type]
            if code == errno.EINPROGRESS:  # on the same host it is connected by now, and asking again is cheaper than an event
                code = sock.connect_ex(address)  # type: ignore[arg-type]
        except OSError:
            sock.close()
            raise
        channel = self.adopt(sock, self._transport(sock, options), channel_id, options, sink, peer=peer, connecting=code != 0)
        if code not in (0, errno.EALREADY):  # EAGAIN too: the queue of a Unix socket is full, and no connection will follow
            reason = os.strerror(code)
            channel.close(Cause.UPSTREAM_REFUSED, reason, ConnectError(reason, side="upstream", errno=code))
        return channel

    def adopt(
        self,
        sock: socket.socket,
        transport: Transport,
        channel_id: i64,
        options: ChannelOptions,
        sink: ChannelSink,
        *,
        peer: str = "",
        connecting: bool = False,
    ) -> Channel:
        """Make a channel of a non-blocking socket and a transport. The selector takes over the socket."""
        channel = Channel(self, sock, transport, channel_id, options, sink, peer, connecting=connecting)
        if self.pool.finds_leaks:
            self.pool.watch(f"{options.side} channel {channel_id}", channel.read_half.receive, channel.write_half.pending, transport)
        self._channels.add(channel)
        self.channel_count += 1
        channel.start(Watchdog(self, channel))
        return channel

    def watch(self, fd: int, handler: FdHandler, events: int = select.EPOLLIN) -> None:
        """Call ``handler.on_event`` when ``events`` occur on a descriptor of the caller. A second call changes the events."""
        if self._watch_epoll is None:
            self._watch_epoll = select.epoll()
            self._epoll.register(self._watch_epoll.fileno(), select.EPOLLIN)
            self._set_handler(self._watch_epoll.fileno(), _Watched(self))
        if fd in self._watched:
            self._watch_epoll.modify(fd, events)
        else:
            self._watch_epoll.register(fd, events)
        self._watched[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor; call it before the descriptor is closed. No effect if it is not watched."""
        if self._watched.pop(fd, None) is not None:
            assert self._watch_epoll is not None, "what is watched was registered"
            self._watch_epoll.unregister(fd)

    def call_at(self, deadline_ns: i64, timer: Timer) -> None:
        """Arm a timer for a time. An earlier deadline of the same timer is void."""
        self._timers.arm(timer, deadline_ns)

    def cancel(self, timer: Timer) -> None:
        """Disarm a timer. No effect if it is not armed."""
        self._timers.cancel(timer)

    def read_clock(self) -> i64:
        """Return the current time; ``now_ns`` is the time at which the wait of this poll ended."""
        now: i64 = self._clock_ns()
        return now

    def poll(self, timeout_ms: i64) -> None:
        """Wait for at most ``timeout_ms``, or until the next timer is due, then do the work of one poll. Raises ValueError: a negative timeout."""
        if timeout_ms < 0:
            raise ValueError(f"a timeout of {timeout_ms} ms")
        before: i64 = self._clock_ns()
        if self._timed is not None:
            self._settle_runs(before)
        worked = before - self.now_ns if self.polls else 0
        now = before
        events: list[tuple[int, int]] = []
        fast_path = None if self._left else self.fast_path
        if not self._left:
            if fast_path is None:
                events = self._epoll.poll(self._timeout_s(before, timeout_ms), MAX_EVENTS)
            else:
                fast_path.wait(math.ceil(self._timeout_s(before, timeout_ms) * 1000))
            now = self._clock_ns()
            self.arrived_ns = self._arrival(before - self._found_ns, before, now)
            self._found_ns = now
        self.busy_ns += worked
        self.idle_ns += now - before
        self.now_ns = now
        self.polls += 1
        self.register_budget = MAX_REGISTERED
        if worked >= LONG_NS:
            self.poll_watched()
            now = self._clock_ns()
        if fast_path is not None:
            events = self._run_lanes(fast_path, now + BUDGET_NS)
        self._handle(events, now + BUDGET_NS)
        if self._handshakes:
            self._step_handshakes()
        if self._buffered:
            self._poll_buffered()
        self._fire_timers()
        if self._write_ended or self._closed:
            self._notify(self._clock_ns() + BUDGET_NS)

    def _fire_timers(self) -> None:
        if self._timers.next_ns() <= self.now_ns:
            self.settle()  # not before: an event may have given a frame that has begun back to the fast path
            self._timers.fire_due(self.now_ns)

    def time_runs(self, stats: SideStats) -> None:
        """Have the runs that a side sends in this poll measured at its end."""
        stats.next = self._timed
        self._timed = stats

    def settle(self) -> None:
        """Take over the counts of the fast path, and the frames that have begun. Whoever looks at channels or sides outside of an event or a timer
        calls this first.
        """
        if self.fast_path is not None:
            self.take_counts()
            for fd, data in self.fast_path.take_begun():
                self._lanes[fd].take_begun(data)

    def take_counts(self) -> None:
        """Take over the counts of the fast path."""
        fast_path = self.fast_path
        if fast_path is None:
            return
        for fd, frames_received, bytes_received, frames_sent, bytes_sent, wire_received, wire_sent, last_ns in fast_path.take_channels():
            self._lanes[fd].count_passed(frames_received, bytes_received, frames_sent, bytes_sent, wire_received, wire_sent, last_ns)
        for stats, reads, received, received_bytes, writes, sent, sent_bytes, sizes in fast_path.take_sides():
            stats.count_passed(reads, received, received_bytes, writes, sent, sent_bytes, sizes)

    def close_lanes(self) -> None:
        """Have Python see what all channels receive next, because something that all lanes depend on may change."""
        if self.fast_path is not None:
            self.settle()
            self.fast_path.close_all()

    def add_lane(self, channel: Channel, lane: "Lane") -> None:
        """Have the fast path know the lane of a channel, closed."""
        if self.fast_path is not None:
            self.fast_path.add(lane)
            self._lanes[int(channel.fd)] = channel

    def remove_lane(self, channel: Channel, lane: "Lane") -> None:
        """Forget the lane of a channel that is closed."""
        if self.fast_path is not None:
            self.fast_path.remove(lane)
            del self._lanes[int(channel.fd)]

    def _run_lanes(self, fast_path: "FastPath", until_ns: i64) -> list[tuple[int, int]]:
        """Handle the events of the wait that concern open lanes, and what they hand over. Returns the other events."""
        if self.pool.finds_leaks:
            self._check_lanes(fast_path)
        others: list[tuple[int, int]] = []
        while True:
            events, handed, timed = fast_path.run(self.now_ns, until_ns, not self.pool.common.is_short(answers=False))
            others += events
            if timed is not None:
                for stats, runs in timed:
                    if stats.runs == 0:
                        self.time_runs(stats)
                    stats.runs += runs
            if handed is None:
                break
            self.take_counts()
            for fd, data, taken, frames, code, rest in handed:
                channel = self._lanes.get(fd)
                if channel is not None:  # the first part may have closed it
                    channel.take_over(data, taken, frames, code, rest)
        if others or self._handshakes or self._buffered or self._write_ended or self._closed:
            self.take_counts()  # who handles a channel takes the frame that has begun on its lane
        return others

    def _check_lanes(self, fast_path: "FastPath") -> None:
        """Raise AssertionError if a lane is open that should be closed."""
        for channel in self._lanes.values():
            served = None if channel.lane is None else fast_path.served(channel.lane)
            if served is not None:
                assert may_open(channel, self._lanes[served[0]]), "the lane should be closed"
                assert served[1] == channel.read_half.receive.limit, "the lane has an old limit"

    def settle_runs(self) -> None:
        """Measure the runs that were sent in this poll until now, and take over the counts of the fast path."""
        self.take_counts()
        if self._timed is not None:
            self._settle_runs(self._clock_ns())

    def _settle_runs(self, now_ns: i64) -> None:
        took_ns = now_ns - self.arrived_ns
        stats = self._timed
        self._timed = None
        while stats is not None:
            stats.forwards.observe(took_ns, stats.runs)
            stats.runs = 0
            following = stats.next
            stats.next = None
            stats = following

    def _arrival(self, worked: i64, before: i64, now: i64) -> i64:
        """When the events came that a wait found. ``worked``: since the wait before it."""
        waited = now - before
        if self._run_delay is not None and (waited >= LONG_NS or worked >= LONG_NS):
            delay_ns = i64(self._run_delay.since_last_ns())  # after long work it is asked only to be none of a later wait
            if waited >= LONG_NS:
                return now - min(delay_ns, waited)
        return now - worked // 2 if waited < SHORT_NS else now

    def close_channels(self, cause: Cause = Cause.DRAINED) -> None:
        """Close every channel and notify its sink. The selector stays usable."""
        for channel in list(self._channels):
            channel.close(cause)
        self._notify(NEVER)

    def close(self, cause: Cause = Cause.DRAINED) -> None:
        self.close_channels(cause)
        self.drop_pipe()
        if self._run_delay is not None:
            self._run_delay.close()
        if self._watch_epoll is not None:
            self._watch_epoll.close()
        self._epoll.close()

    # Called by channels.

    def change_interest(self, channel: Channel, before: i64, wanted: i64) -> None:
        """Change the events that epoll reports for a channel from ``before`` to ``wanted``; either may be UNREGISTERED."""
        fd = channel.fd
        if wanted < 0:
            self._set_handler(fd, None)
            try:
                self._epoll.unregister(fd)
            except (OSError, ValueError) as error:  # the channel must close all the same; closing the socket unregisters it, too
                self.faults.note("channel", error)
        elif before < 0:
            self._epoll.register(fd, wanted)
            self._set_handler(fd, channel)
        else:
            self._epoll.modify(fd, wanted)

    def defer_handshake(self, channel: Channel) -> None:
        """Have ``step_handshake`` called after the events of this poll."""
        self._handshakes.append(channel)

    def defer_buffered(self, channel: Channel) -> None:
        """Have ``poll_buffered`` called in the next poll, which does not block."""
        self._buffered.append(channel)

    def watch_slots(self) -> None:
        """Start the stall evictor, because a large frame waits for an admission slot."""
        self._stall_evictor.watch()

    def pipe(self) -> Pipe:
        """Return the pipe for bytes that are not inspected. It is empty, and must be left empty. Raises OSError: no descriptor is available."""
        if self._pipe is None:
            self._pipe = Pipe()
        return self._pipe

    def drop_pipe(self) -> None:
        """Close the pipe, with any bytes that an error left in it."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def defer_write_ended(self, channel: Channel) -> None:
        """Have ``notify_write_ended`` called at the end of this poll."""
        self._write_ended.append(channel)

    def defer_closed(self, channel: Channel) -> None:
        """Have ``notify_closed`` and ``close_socket`` called at the end of this poll. The channel gets no more events."""
        self._closed.append(channel)

    # The parts of a poll.

    def _timeout_s(self, now_ns: i64, timeout_ms: i64) -> float:
        if self._handshakes or self._buffered or self._write_ended or self._closed:
            return 0.0
        wait_ns = timeout_ms * 1_000_000
        due_ns = self._timers.next_ns()
        if due_ns != NEVER:
            wait_ns = max(min(wait_ns, due_ns - now_ns), 0)
        return int(wait_ns) / 1e9

    def poll_watched(self) -> None:
        """Handle the events of watched descriptors."""
        if self._watch_epoll is None:
            return
        found = self._watch_epoll.poll(0, MAX_WATCHED)
        if found:
            self.settle()
        for fd, bits in found:
            handler = self._watched.get(fd)
            if handler is not None:
                self._call(handler, bits)

    def _handle(self, events: list[tuple[int, int]], until_ns: i64) -> None:
        """Handle the events of a wait, or those that the last poll left. Events that are not reached by ``until_ns`` wait for the next poll."""
        left = self._left
        handlers = self._handlers
        count: i64 = 0
        while left:
            handler, fd, bits = left.popleft()
            if handlers[fd] is handler:  # else it is closed, and its descriptor number may be reused
                self._call(handler, bits)
            count += 1
            if count % CLOCK_EACH == 0 and self._clock_ns() >= until_ns:
                return
        for fd, bits in events:
            found = handlers[fd]
            if found is not None:
                self._call(found, bits)
            count += 1
            if count % CLOCK_EACH == 0 and self._clock_ns() >= until_ns:
                self._leave(events, count)
                return

    def _leave(self, events: list[tuple[int, int]], start: i64) -> None:
        for fd, bits in events[start:]:
            handler = self._handlers[fd]
            if handler is not None:
                self._left.append((handler, fd, bits))

    def _call(self, handler: FdHandler, bits: i64) -> None:
        try:
            handler.on_event(bits)
        except Exception as error:
            self.faults.note("descriptor", error)

    def _step_handshakes(self) -> None:
        """Make at least one step, then more until the budget is spent. The others wait for the next poll."""
        until_ns: i64 = self._clock_ns() + HANDSHAKE_BUDGET_NS
        while self._handshakes:  # a step of a client may add that of its upstream, if this is connected at once
            channel = self._handshakes.popleft()
            channel.step_handshake()
            if self._clock_ns() >= until_ns:
                return

    def _poll_buffered(self) -> None:
        """Poll the channels that are queued now, until the budget is spent. Channels that are queued meanwhile wait for the next poll."""
        buffered = self._buffered
        left: i64 = len(buffered)
        until_ns: i64 = self._clock_ns() + BUDGET_NS
        while left > 0:
            buffered.popleft().poll_buffered()
            left -= 1
            if left % CLOCK_EACH == 0 and self._clock_ns() >= until_ns:
                return

    def _notify(self, until_ns: i64) -> None:
        """Notify the sinks of channels that ended or closed, until none is left or until ``until_ns``."""
        count: i64 = 0
        while self._write_ended or self._closed:
            if self._write_ended:
                channel = self._write_ended.popleft()
                if channel.is_open:
                    channel.notify_write_ended()
            else:
                channel = self._closed.popleft()
                self._channels.discard(channel)
                self.channel_count -= 1
                channel.notify_closed()
                channel.close_socket()
            count += 1
            if count % CLOCK_EACH == 0 and self._clock_ns() >= until_ns:
                return

    def _transport(self, sock: socket.socket, options: ChannelOptions) -> Transport:
        if options.tls is None:
            return PlaintextTransport(sock)
        from framegate.proxy.network.tls import TlsTransport  # here, so that a processor without TLS does not load OpenSSL (4 MiB)
        from framegate.proxy.network.tls_wire import BioPair

        if self._bios is None:
            self._bios = BioPair()
        return TlsTransport(sock, options.tls, options.account or self.pool.common, self._bios)

    def _set_handler(self, fd: int, handler: FdHandler | None) -> None:
        while fd >= len(self._handlers):
            self._handlers.append(None)
        self._handlers[fd] = handler
