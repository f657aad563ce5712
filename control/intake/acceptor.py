"""The listening sockets, on a thread of its own with its own epoll; it shares no lock with the event loop or gRPC.

An accepted connection goes to the processors in turn, one message with its descriptor each. A processor whose queue is full is passed over;
when all are full (or none runs) the acceptor waits with that one connection in its hand, meters the time, and the kernel's backlog holds the
rest. Which connections quotas let in is ``admission``'s: a listener that has to wait is not asked for any, and the others go on. Whatever goes wrong
with one connection costs that connection: the thread goes on, and liveness sees when it does not. Counts have one writer each: ``handed`` this
thread, ``closed`` the event loop; a listener's open connections are their difference.
"""

import collections
import contextlib
import errno
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from control.errors import StartError
from control.guard import Guard, Job
from control.intake.admission import Admission
from control.intake.quotas import ConnectionQuotas
from control.logs import RowLog
from control.meters import Meters
from proxy.cells import ACCEPT_ERRORS
from proxy.config.address import Address, format_peer, format_sockaddr, parse_address
from proxy.config.limits import UNLIMITED_NODE, LimitsConfig, LimitsInForce, client_key, limits_in_force
from proxy.config.model import ListenerConfig, SocketConfig
from proxy.network.socket_options import set_socket_options
from proxy.server.link import Handover, send_handover

__all__ = ["Acceptor", "Handed", "Listening", "Target"]

_ACCEPTS_PER_EVENT: Final = 64
_WAIT_S: Final = 0.05
_BEAT_S: Final = 1.0
STANDS_S: Final = 5.0
"""A thread that has not moved for so long stands, and with it liveness."""
_COMPLAINT_NS: Final = 1_000_000_000
"""Between two rows about trouble that may come back many times a second; all of it is counted."""
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
)
"""Errors of the connection that was to be accepted (accept(2)): it is off the backlog, and the next one can be tried at once."""
_DYING: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENOTCONN})
"""A hand-over socket whose processor is gone: the supervisor takes it out of the targets."""


class Target:
    """One processor that takes connections. Attributes: ``slot``, ``sock`` (the hand-over socket, non-blocking), ``token`` (names the process)."""

    __slots__ = ("slot", "sock", "token")

    def __init__(self, slot: int, sock: socket.socket, token: int) -> None:
        self.slot = slot
        self.sock = sock
        self.token = token


class Handed(NamedTuple):
    """One connection that a processor got; ``token`` names the process."""

    token: int
    handover: Handover


class Listening:
    """One bound listener.

    Attributes:
        config: as configured.
        address: the bound one, as text, port 0 resolved.
        handed: connections given to processors (written by the acceptor's thread).
        closed: of those, the ones that ended (written by the event loop).
    """

    def __init__(self, config: ListenerConfig) -> None:
        self.config = config
        self._parsed = parse_address(config.address, port_zero=True)
        self.sock = _bind(config.name, self._parsed, config.socket)
        self.family = int(self.sock.family)
        self.address = format_sockaddr(self.family, self.sock.getsockname())
        self.accepting = False
        self.handed = 0
        self.closed = 0

    @property
    def open(self) -> int:
        """Connections open now."""
        return max(0, self.handed - self.closed)

    def listen(self) -> None:
        """Let clients connect. Raises StartError."""
        try:
            self.sock.listen(self.config.backlog)
        except OSError as error:
            raise _bind_error(self.config.name, self.address, error) from error
        self.accepting = True

    def close(self) -> None:
        """Refuse clients from now on; a Unix socket's file goes."""
        if self.sock.fileno() < 0:
            return
        self.accepting = False
        self.sock.close()
        if self._parsed.kind == "unix":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._parsed.host)


def _bind_error(name: str, address: str, error: OSError) -> StartError:
    return StartError(
        f"listener {name} cannot bind {address}: {error.strerror or error}", reason="LISTENER_ADDRESS_UNUSABLE", listener=name, address=address
    )


def _bind(name: str, address: Address, options: SocketConfig) -> socket.socket:
    if address.kind == "unix":
        return _bind_unix(name, address)
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise _bind_error(name, str(address), error) from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # of what is accepted, too: once here instead of for each connection
        set_socket_options(sock, options)  # likewise
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setblocking(False)
        sock.bind(sockaddr)
    except OSError as error:
        sock.close()
        raise _bind_error(name, str(address), error) from error
    return sock


def _bind_unix(name: str, address: Address) -> socket.socket:
    path = address.host
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _remove_stale(name, path)
        sock.setblocking(False)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise _bind_error(name, str(address), error) from error
    except StartError:
        sock.close()
        raise
    return sock


def _remove_stale(name: str, path: str) -> None:
    """Remove a socket that nobody listens on any more; anything else that lies there stays and is an error."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket lies there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise StartError(f"listener {name}: another process listens on {path}", reason="LISTENER_ADDRESS_IN_USE", listener=name, address=f"unix:{path}")


class Acceptor:
    """Accepts on every listener and hands over.

    Args:
        listeners: bound, not yet listening.
        meters: gets ``connection.rejected``, ``accept.errors`` and ``accept.blocked.time``, and what ``Admission`` says.
        log: gets rows for refused connections and for accept errors.
        guard: sees the thread.
        limits: of the node and of addresses at first; those of listeners are in their configurations.
        clock: of quotas; monotonic, in ns.
    """

    def __init__(
        self,
        listeners: Sequence[Listening],
        meters: Meters,
        log: RowLog,
        guard: Guard,
        limits: LimitsConfig = UNLIMITED_NODE,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.listeners = {item.config.name: item for item in listeners}
        quotas = ConnectionQuotas(limits_in_force(limits, {item.config.name: item.config.limits for item in listeners}), limits.protected_listener)
        self._admission = Admission(quotas, meters, log, clock)
        self.handed: collections.deque[Handed] = collections.deque()
        self._meters = meters
        self._log = log
        self._guard = guard
        self._job: Job | None = None
        self._complained_ns = 0
        self._targets: tuple[Target, ...] = ()
        self._turn = 0
        self._accepted_ns = 0
        self._stopping = False
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._by_fd = {item.sock.fileno(): item for item in listeners}
        self._thread = threading.Thread(target=self._run, name="framegate-acceptor", daemon=True)

    def start(self) -> None:
        """Listen on every socket and accept. Raises StartError."""
        for listening in self.listeners.values():
            listening.listen()
        for descriptor in self._by_fd:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._job = self._guard.job("acceptor", STANDS_S)
        self._thread.start()

    def set_targets(self, targets: Sequence[Target]) -> None:
        """The processors that take connections from now on. Event loop only."""
        self._targets = tuple(targets)
        self._notify()

    def set_limits(self, limits: LimitsInForce) -> None:
        """Put other quotas in force, for the next connection on; those that wait are asked again. Event loop only."""
        self._admission.set_limits(limits)
        self._notify()

    def gave_back(self, listener: str, peer: str) -> None:
        """A connection that was handed over has ended. Event loop only."""
        self.listeners[listener].closed += 1
        if self._admission.ended(listener, peer):
            self._notify()

    def stop(self) -> None:
        """Close the listeners and end the thread; a connection in its hand is closed. Event loop only; returns within 100 ms or so."""
        self._stopping = True
        self._notify()
        if self._thread.is_alive():
            self._thread.join(5)
        if self._job is not None:
            self._job.end()
        for listening in self.listeners.values():
            listening.close()

    def close(self) -> None:
        """Give descriptors back, after ``stop``."""
        self._admission.close()
        self._epoll.close()
        os.close(self._wake)

    def _notify(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        assert self._job is not None, "the job is made before its thread starts"
        job = self._job
        while not self._stopping:
            try:
                self._accept_ready(job)
            except Exception as error:
                job.failed(error)
                time.sleep(_WAIT_S)
            else:
                job.beat()

    def _accept_ready(self, job: Job) -> None:
        self._admission.settle(job.failed)  # who ends from now on while a listener waits wakes us
        while not self._stopping and (name := self._admission.resume()) is not None:
            self._epoll.modify(self.listeners[name].sock.fileno(), select.EPOLLIN)
            self._try_accept(job, self.listeners[name], 1)
        ready = self._epoll.poll(self._admission.rest_s(_BEAT_S))
        self._admission.settle(job.failed)
        for descriptor, _ in ready:
            if descriptor == self._wake:
                self._clear_wake()
            elif not self._stopping:
                listening = self._by_fd[descriptor]
                self._try_accept(job, listening, self._admission.at_once(listening.config.name, _ACCEPTS_PER_EVENT))

    def _try_accept(self, job: Job, listening: Listening, most: int) -> None:
        try:
            self._accept_some(listening, most)
        except Exception as error:  # our bug: it costs the connection at hand
            job.failed(error)
            self._pause()

    def _pause(self) -> None:
        """Wait a little, less when there is news: what fails each time fills neither the log nor the processor."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(_WAIT_S * 1000):
            self._clear_wake()

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _accept_some(self, listening: Listening, most: int) -> None:
        name = listening.config.name
        if self._admission.waits(name):
            self._epoll.modify(listening.sock.fileno(), 0)
            return
        for _ in range(most):
            try:
                connection, sockaddr = listening.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if self._accept_failed(listening, error):
                    continue
                return
            with connection:
                peer = format_peer(listening.family, sockaddr)
                key = client_key(peer)
                if self._admission.refuses(name, connection, peer, key):
                    continue
                if not self._hand_over(listening, connection, peer, key):
                    self._reject(listening, peer)
                    return

    def _accept_failed(self, listening: Listening, error: OSError) -> bool:
        """Whether the next connection may be tried at once. Otherwise the one at the head of the backlog is still there: without the pause, a
        shortage of descriptors, or a rule that forbids accepting, would keep the thread busy with it.
        """
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

    def _reject(self, listening: Listening, peer: str) -> None:
        name = listening.config.name
        self._meters.add("connection.rejected", name, "draining")
        self._log.write("rejected", level="warning", listener=name, peer=peer, reason="draining", cause="drained")

    def _hand_over(self, listening: Listening, connection: socket.socket, peer: str, key: str) -> bool:
        self._accepted_ns = max(time.monotonic_ns(), self._accepted_ns + 1)
        handover = Handover(self._accepted_ns, listening.family, listening.config.name, peer)
        while not self._stopping:
            token, error = self._offer(handover, connection.fileno())
            if token:
                listening.handed += 1
                self._admission.take(handover.listener, key)
                self.handed.append(Handed(token, handover))
                return True
            self._wait_for_room(handover.listener, error)
        return False

    def _offer(self, handover: Handover, descriptor: int) -> tuple[int, OSError | None]:
        """Try every processor once, the next in turn first; the token of the one that took it, or 0 and the error of one that did not just wait."""
        targets = self._targets
        failure = None
        for offset in range(len(targets)):
            index = (self._turn + offset) % len(targets)
            target = targets[index]
            try:
                taken = send_handover(target.sock, handover, descriptor)
            except OSError as error:
                failure = error
                continue
            if taken:
                self._turn = index + 1
                return target.token, None
        return 0, failure

    def _wait_for_room(self, listener: str, error: OSError | None) -> None:
        """Wait until a queue has room, the processors change, or a moment has passed.

        After an error the sockets are not asked: their processor is dying, and the supervisor will say so, or the kernel is short of something
        (ETOOMANYREFS: too many descriptors are on their way) while the queue is not full.
        """
        began = time.monotonic()
        if error is None:
            self._wait_for_queue()
        else:
            if error.errno not in _DYING:
                self._complain("hand_over_failed", listener, error)
            self._pause()
        if self._job is not None:
            self._job.beat()
            self._admission.settle(self._job.failed)
        self._meters.add("accept.blocked.time", listener, amount=time.monotonic() - began)

    def _wait_for_queue(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for target in self._targets:
            descriptor = target.sock.fileno()  # once: the event loop may close it between two looks
            if descriptor >= 0:
                poll.register(descriptor, select.POLLOUT)
        events = poll.poll(_WAIT_S * 1000)
        if any(descriptor == self._wake for descriptor, _ in events):
            self._clear_wake()
        elif any(flags & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, flags in events):
            time.sleep(_WAIT_S / 10)
