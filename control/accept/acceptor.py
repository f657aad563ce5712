"""Accepts connections on all listening sockets, in a thread with an epoll of its own; it shares no lock with the event loop or gRPC.

Accepted connections go to the processors round robin. Connections that arrive together and go to the same processor are passed in one message with
their descriptors, ten at most. The thread has the policy SCHED_BATCH, so that more are passed in one message: a connection that arrives does not
interrupt a processor that is at work on the same core. A processor with a full queue is skipped. When all queues are full, or no processor runs, the
acceptor waits with the connections of one message and measures the time; the kernel's backlog holds the rest. ``admission`` decides which connections
quotas allow: a listener that has to wait is not polled, and the others go on. An error of one connection closes that connection only; the thread goes
on, and the health check fails when it does not. Each count has one writer: this thread writes ``handed``, the event loop ``closed``.
"""

import collections
import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from framegate.control.accept.admission import Admission, Refusals, close_descriptor
from framegate.control.accept.listening import Listening, ListeningSocket
from framegate.control.accept.quotas import ConnectionQuotas
from framegate.control.errors import StartError
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.task_monitor import MonitoredTask, TaskMonitor
from framegate.proxy.cells import ACCEPT_ERRORS
from framegate.proxy.config.address import format_peer
from framegate.proxy.config.limits import UNLIMITED_NODE, LimitsConfig, LimitsInForce, client_key, limits_in_force
from framegate.proxy.server.link import MAX_TOGETHER, Handover, send_handovers

_ACCEPTS_PER_EVENT: Final = 64
_IPV4: Final = int(socket.AF_INET)
_WAIT_S: Final = 0.05
_BEAT_S: Final = 1.0
STANDS_S: Final = 5.0  # a thread without a heartbeat for so long has stalled, and the health check fails
_COMPLAINT_NS: Final = 1_000_000_000  # least time between two log rows about errors that may happen many times a second; all of them are counted
_GONE: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EPROTO,
        errno.ETIMEDOUT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
    }
)  # Errors of one connection (accept(2)): it has left the backlog, so the next one can be accepted at once
_DYING: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENOTCONN})
"""Errors of a socket to a processor that has ended; the supervisor removes it from the targets."""


class Target(NamedTuple):
    """One processor that takes connections: ``sock`` is the hand-over socket, non-blocking; ``token`` names the process."""

    slot: int
    sock: socket.socket
    token: int


class PassedConnection(NamedTuple):
    """One connection that a processor got; ``token`` names the process."""

    token: int
    handover: Handover


class _PendingConnection(NamedTuple):
    """An accepted connection that no processor has yet."""

    handover: Handover
    descriptor: int


class Acceptor:
    """Accepts connections on every listener and passes them to processors.

    Args:
        listeners: bound, not yet listening.
        meters: gets ``connection.rejected``, ``accept.errors`` and ``accept.blocked.time``, and what ``Admission`` says.
        log: gets rows for refused connections and for accept errors.
        task_monitor: watches the thread.
        limits: the first limits of the node and of addresses; those of listeners are in their configurations.
        clock: for quotas; monotonic, in ns.
    """

    def __init__(
        self,
        listeners: Sequence[Listening],
        meters: Meters,
        log: RowLog,
        task_monitor: TaskMonitor,
        limits: LimitsConfig = UNLIMITED_NODE,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.listeners = {item.config.name: item for item in listeners}  # of the configuration in force, by name
        self.leaving: dict[str, Listening] = {}  # those that were removed, until ``settle`` finds that they have no connection
        quotas = ConnectionQuotas(limits_in_force(limits, {item.config.name: item.config.limits for item in listeners}), limits.protected_listener)
        self._admission = Admission(quotas, meters, log, clock)
        # connections that processors got, which the event loop has not counted yet
        self.handed: collections.deque[PassedConnection] = collections.deque()
        self._meters = meters
        self._log = log
        self._task_monitor = task_monitor
        self._job: MonitoredTask | None = None
        self._complained_ns = 0
        self._targets: tuple[Target, ...] = ()
        self._next_target = 0
        self._accepted_ns = 0
        self.stopped = False  # whether it takes no more connections, for good
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._by_fd: dict[int, ListeningSocket] = {item.sock.fileno(): item for item in listeners}
        self._muted: dict[str, list[ListeningSocket]] = {}  # sockets that are not polled, by listener, the longest muted first
        self._removed: collections.deque[ListeningSocket] = collections.deque()
        self._thread = threading.Thread(target=self._run, name="framegate-acceptor", daemon=True)

    def start(self) -> None:
        for listening in self.listeners.values():
            listening.listen()
            self._epoll.register(listening.sock.fileno(), select.EPOLLIN)
        self._job = self._task_monitor.job("acceptor", STANDS_S)
        self._thread.start()

    def now_ns(self) -> int:
        """The time at which the last connection was accepted, or now."""
        return max(time.monotonic_ns(), self._accepted_ns)

    def set_targets(self, targets: Sequence[Target]) -> None:
        """The processors that take connections from now on. Event loop only."""
        self._targets = tuple(targets)
        self._notify()

    @property
    def open(self) -> int:
        return sum(listening.open for listening in (*self.listeners.values(), *self.leaving.values()))

    @property
    def closing(self) -> bool:
        """Whether sockets of listeners that are gone are still to be closed by the thread."""
        return bool(self._removed)

    def of(self, listener: str) -> Listening:
        return self.listeners.get(listener) or self.leaving[listener]

    def set_limits(self, limits: LimitsInForce, protected: str | None = None) -> None:
        """Put other quotas in force, from the next connection on; waiting listeners are checked again. ``protected``: the listener that the node's
        count and rate do not hold. Event loop only.
        """
        self._admission.set_limits(limits, protected)
        self._notify()

    @property
    def refusals(self) -> Refusals:
        return self._admission.refusals

    def put(self, listeners: Mapping[str, Listening]) -> None:
        """Have other listeners, of ``rebound``. Those that are gone accept what waits in their backlogs, and no more; new ones accept nothing before
        ``accept_new``. Event loop only.
        """
        before, self.listeners = self.listeners, dict(listeners)
        for listening in listeners.values():
            if listening.sock.fileno() not in self._by_fd and listening.sock.fileno() >= 0:
                with contextlib.suppress(StartError):  # ``accept_new`` tries again
                    listening.listen()
        addresses = {item.address for item in listeners.values()}
        for name, was in before.items():
            if listeners.get(name) is not was:
                was.moved = was.address in addresses
                if name not in listeners:
                    self.leaving[name] = was
                self._removed.extend((*was.brokers.values(), was))
                was.brokers.clear()
        for name, listening in listeners.items():
            listening.moved = False
            self.leaving.pop(name, None)
        self._notify()

    def accept_new(self) -> None:
        """Accept on the listeners that are new. One that cannot accept is a row, and accepts with a later call. Event loop only."""
        for listening in self.listeners.values():
            descriptor = listening.sock.fileno()
            if self.stopped:
                listening.close()
            elif descriptor >= 0 and descriptor not in self._by_fd:
                self._by_fd[descriptor] = listening
                try:
                    listening.listen()
                    self._epoll.register(descriptor, select.EPOLLIN)
                except (OSError, StartError) as error:
                    del self._by_fd[descriptor]
                    self._log.write("accept_failed", level="error", listener=listening.config.name, error=str(error))

    def settle(self) -> None:
        """Forget listeners that are gone and have no connection any more. Event loop only."""
        if not self.closing:
            self.leaving = {name: listening for name, listening in self.leaving.items() if listening.open}

    def add_broker(self, listener: str, broker: int, port: int) -> None:
        """Listen at a port for clients of a broker; returns when they can connect. Event loop only. Raises StartError."""
        if self.stopped:
            raise StartError(f"listener {listener} takes no connections any more", reason="LISTENER_CLOSED", listener=listener)
        opened = self.listeners[listener].open_broker(broker, port)
        self._by_fd[opened.sock.fileno()] = opened
        self._epoll.register(opened.sock.fileno(), select.EPOLLIN)

    def remove_broker(self, listener: str, broker: int) -> None:
        """Stop listening for clients of a broker, if there is a socket for it; open connections stay. Event loop only. The thread closes the socket,
        because it may be accepting from it now.
        """
        opened = self.listeners[listener].brokers.pop(broker, None)
        if opened is not None:
            self._removed.append(opened)
            self._notify()

    def gave_back(self, listener: str, peer: str, broker: int) -> None:
        """A passed connection has ended. Event loop only."""
        self.of(listener).count_of(broker).closed += 1
        if self._admission.ended(listener, peer):
            self._notify()

    def stop(self) -> None:
        """Close the listeners and end the thread; connections that no processor has are closed. Event loop only; returns within about 100 ms."""
        self.stopped = True
        self._notify()
        if self._thread.is_alive():
            self._thread.join(5)
        if self._job is not None:
            self._job.end()
        for listening in (*self.listeners.values(), *self._removed):
            listening.close()

    def close(self) -> None:
        self._admission.close()
        self._epoll.close()
        os.close(self._wake)

    def _notify(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        assert self._job is not None, "the job is made before its thread starts"
        job = self._job
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # of this thread; see sched(7)
        while not self.stopped:
            try:
                self._accept_ready(job)
            except Exception as error:
                job.failed(error)
                time.sleep(_WAIT_S)
            else:
                job.heartbeat()

    def _accept_ready(self, job: MonitoredTask) -> None:
        if self._removed:
            self._close_removed(job)
        if self._admission.has_waiting_listener:
            self._admission.process_ended(job.failed)  # a connection that ends later wakes the thread
            self._resume(job)
        ready = self._epoll.poll(self._admission.rest_s(_BEAT_S))
        self._admission.process_ended(job.failed)
        for descriptor, _ in ready:
            if descriptor == self._wake:
                self._clear_wake()
            elif not self.stopped:
                listening = self._by_fd[descriptor]
                self._try_accept(job, listening, self._admission.at_once(listening.config.name, _ACCEPTS_PER_EVENT))

    def _resume(self, job: MonitoredTask) -> None:
        while not self.stopped and (name := self._admission.resume()) is not None:
            for muted in self._muted.pop(name, ()):
                self._epoll.modify(muted.sock.fileno(), select.EPOLLIN)
                self._try_accept(job, muted, 1)

    def _close_removed(self, job: MonitoredTask) -> None:
        while self._removed:
            removed = self._removed[0]
            if not removed.moved and not self.stopped and removed not in self._muted.get(removed.config.name, ()):
                self._try_accept(job, removed, self._admission.at_once(removed.config.name, removed.config.backlog))
            if removed.config.name not in self.listeners:
                self._admission.forget(removed.config.name)
            muted = self._muted.get(removed.config.name, [])
            if removed in muted:
                muted.remove(removed)
            self._epoll.unregister(removed.sock.fileno())
            del self._by_fd[removed.sock.fileno()]  # before the close: another socket may get the number at once
            removed.close()
            self._removed.popleft()

    def _try_accept(self, job: MonitoredTask, listening: ListeningSocket, most: int) -> None:
        try:
            self._accept_some(listening, most)
        except Exception as error:  # our bug: the present connection is closed
            job.failed(error)
            self._pause()

    def _pause(self) -> None:
        """Wait 50 ms, or until the thread is woken, so that a permanent error does not fill the log or use a whole CPU."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(_WAIT_S * 1000):
            self._clear_wake()

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _accept_some(self, listening: ListeningSocket, most: int) -> None:
        name = listening.config.name
        if self._admission.waits(name):
            self._epoll.modify(listening.sock.fileno(), 0)
            self._muted.setdefault(name, []).append(listening)
            return
        held: list[_PendingConnection] = []
        try:
            while most > 0:
                failure = self._accept_together(listening, held, min(most, MAX_TOGETHER))
                if not self._pass_connections(listening, held):
                    return
                if failure is not None and not self._accept_failed(listening, failure):
                    return
                most -= MAX_TOGETHER
        finally:
            self._drop(held)

    def _accept_together(self, listening: ListeningSocket, held: "list[_PendingConnection]", most: int) -> Exception | None:
        """Accept up to ``most`` connections and add those that quotas allow to ``held``. Returns the error that ended it early."""
        name, family, broker = listening.config.name, listening.family, listening.broker
        accept = cast(Any, listening.sock)._accept  # without the object that ``accept`` makes around the descriptor
        for _ in range(most):
            try:
                descriptor, sockaddr = accept()
            except OSError as error:
                return error
            try:
                if family == _IPV4:
                    key = sockaddr[0]
                    peer = f"{key}:{sockaddr[1]}"
                else:
                    peer = format_peer(family, sockaddr)
                    key = client_key(peer)
                refusal = self._admission.admit(name, peer, key)
            except Exception as error:  # our bug: this connection is closed
                close_descriptor(descriptor)
                return error
            if refusal is None:
                self._accepted_ns = max(time.monotonic_ns(), self._accepted_ns + 1)
                held.append(_PendingConnection(Handover(self._accepted_ns, family, name, peer, broker), descriptor))
            else:
                self._admission.refuse(descriptor, refusal)
        return None

    def _drop(self, held: "list[_PendingConnection]") -> None:
        for item in held:
            close_descriptor(item.descriptor)
            self._admission.take_back(item.handover.listener, item.handover.peer)

    def _accept_failed(self, listening: ListeningSocket, error: Exception) -> bool:
        """Whether the next connection may be accepted at once; not when none waits. Other errors leave the connection in the backlog: without the
        pause, a shortage of descriptors, or a rule that forbids accepting, would keep the thread busy.
        """
        if isinstance(error, (BlockingIOError, InterruptedError)):
            return False
        if not isinstance(error, OSError):
            raise error
        name = errno.errorcode.get(error.errno or 0, "")
        self._meters.add("accept.errors", listening.config.name, name if name in ACCEPT_ERRORS else "other")
        if error.errno in _GONE:
            return True
        self._complain("accept_failed", listening.config.name, error)
        self._pause()
        return False

    def _complain(self, event: str, listener: str, error: OSError) -> None:
        now = time.monotonic_ns()
        if now - self._complained_ns >= _COMPLAINT_NS:
            self._complained_ns = now
            self._log.write(event, level="error", listener=listener, error=error.strerror or str(error))

    def _reject(self, listening: ListeningSocket, peer: str) -> None:
        name = listening.config.name
        self._meters.add("connection.rejected", name, "draining")
        self._log.write("rejected", level="warning", listener=name, peer=peer, reason="draining", cause="drained")

    def _pass_connections(self, listening: ListeningSocket, held: "list[_PendingConnection]") -> bool:
        """Pass all connections to processors and remove them from ``held``. False: not all, because the thread is to stop."""
        while held and not self.stopped:
            error = self._offer(listening, held)
            if held:
                self._wait_for_room(listening.config.name, error)
        for item in held:
            self._reject(listening, item.handover.peer)
        return not held

    def _offer(self, listening: ListeningSocket, held: "list[_PendingConnection]") -> OSError | None:
        """Pass each connection to the next processor in turn, with one message for each processor, or to the one after it when its queue is full.
        Removes them from ``held``. Returns the last error that was not a full queue.
        """
        targets = self._targets
        count = len(targets)
        parts = [held[first::count] for first in range(min(count, len(held)))]
        turn = self._next_target
        failure = None
        for first, part in enumerate(parts):
            for offset in range(count):
                target = targets[(turn + first + offset) % count]
                try:
                    taken = send_handovers(target.sock, [item.handover for item in part], [item.descriptor for item in part])
                except OSError as error:
                    failure = error
                    continue
                if taken:
                    self._given(listening, target, part, held)
                    break
        return failure

    def _given(self, listening: ListeningSocket, target: Target, part: "list[_PendingConnection]", held: "list[_PendingConnection]") -> None:
        self._next_target += len(part)
        listening.count.handed += len(part)
        for item in part:
            held.remove(item)
            self.handed.append(PassedConnection(target.token, item.handover))
            close_descriptor(item.descriptor)

    def _wait_for_room(self, listener: str, error: OSError | None) -> None:
        """Wait until a queue has room, the processors change, or a moment has passed. After an error the sockets are not polled: the processor is
        ending, and the supervisor will report it, or the kernel lacks a resource (ETOOMANYREFS: too many descriptors in transit) while the queue is
        not full.
        """
        began = time.monotonic()
        if error is None:
            self._wait_for_queue()
        else:
            if error.errno not in _DYING:
                self._complain("hand_over_failed", listener, error)
            self._pause()
        if self._job is not None:
            self._job.heartbeat()
            self._admission.process_ended(self._job.failed)
        self._meters.add("accept.blocked.time", listener, amount=time.monotonic() - began)

    def _wait_for_queue(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for target in self._targets:
            descriptor = target.sock.fileno()  # read once: the event loop may close it meanwhile
            if descriptor >= 0:
                poll.register(descriptor, select.POLLOUT)
        events = poll.poll(_WAIT_S * 1000)
        if any(descriptor == self._wake for descriptor, _ in events):
            self._clear_wake()
        elif any(flags & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, flags in events):
            time.sleep(_WAIT_S / 10)
