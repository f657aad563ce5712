"""The worker pool for auth requests: a few threads, so that the control process does not wait for hashes, files and signatures.

Each listener and upstream has a queue (``listener:NAME``, ``upstream:NAME``), with a sub-queue for each client address. The threads serve queues and
addresses round robin, so that a flood of logins at one listener, or from one address, does not delay others. A request that would wait longer than
clients do is refused at once: an address may have as many waiting requests as its queue has free places, so one address fills at most half of it.
"""

import dataclasses
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Set
from typing import Final

from framegate.control.identity.auth_responder import AuthResponder
from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse, Unavailable

THREADS: Final = 2  # Two hashes at once: about 500 checks of PLAIN a second, with as much processor time as that takes
QUEUE_LIMIT: Final = 512  # Requests that wait in a queue; of one address alone half as many, half a second of PLAIN's
NICENESS: Final = 10
"""Added to the niceness of the threads: a processor that shares a core with them gets nine tenths of it. It is not the maximum, because a thread
holds the interpreter's lock for a moment after each hash, and the control process waits for a thread that is not scheduled then.
"""
_END_S: Final = 1.0


class AuthPoolError(Exception):
    """A request that is refused."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """One request that waits for its response."""

    auth_queue: str  # the name of its queue
    auth_request: AuthRequest = dataclasses.field(repr=False)  # the request
    address: str  # of the client
    reply: Callable[[AuthResponse], None]  # called with the response, in one of the threads


class _FairQueue:
    """One queue: first in first out for each address, round robin over addresses."""

    def __init__(self) -> None:
        self.size = 0  # requests
        self._by_address: Final[OrderedDict[str, deque[QueuedRequest]]] = OrderedDict()

    def of(self, address: str) -> int:
        return len(self._by_address.get(address, ()))

    def append(self, queued: QueuedRequest) -> None:
        self._by_address.setdefault(queued.address, deque()).append(queued)
        self.size += 1

    def take(self) -> QueuedRequest:
        """The next; there must be one."""
        address, queued_requests = self._by_address.popitem(last=False)
        queued = queued_requests.popleft()
        if queued_requests:
            self._by_address[address] = queued_requests
        self.size -= 1
        return queued

    def remove(self, queued: QueuedRequest) -> None:
        """Take one out. Harmless when it is not there."""
        queued_requests = self._by_address.get(queued.address, deque())
        if queued in queued_requests:
            queued_requests.remove(queued)
            self.size -= 1
            if not queued_requests:
                del self._by_address[queued.address]

    def clear(self) -> None:
        self._by_address.clear()
        self.size = 0


class AuthWorkerPool:
    """The threads and their queues. Any thread.

    Args:
        on_failure: called with an exception of a ``reply``, in its thread.
        threads: requests served at once.
        queue: requests that wait in each queue, of one address half as many.
    """

    def __init__(
        self, answers: Mapping[str, AuthResponder], on_failure: Callable[[Exception], None], *, threads: int = THREADS, queue: int = QUEUE_LIMIT
    ) -> None:
        self._answers = dict(answers)
        self._on_failure: Final = on_failure
        self._most: Final = queue
        self._queues: Final = {name: _FairQueue() for name in answers}
        self._ready: deque[str] = deque()  # names of queues that are not empty
        self._changed: Final = threading.Condition()
        self._closed = False
        self._threads: Final = [threading.Thread(target=self._work, name=f"framegate-auth-{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        with self._changed:
            return sum(queue.size for queue in self._queues.values())

    def answers(self, auth_queue: str) -> AuthResponder:
        """The responder of a queue. Raises KeyError: there is no such queue."""
        with self._changed:
            return self._answers[auth_queue]

    def replace(self, auth_queue: str, answers: AuthResponder) -> None:
        """Replace the responder of a queue, also for requests that wait. Raises AuthPoolError: there is no such queue."""
        with self._changed:
            if auth_queue not in self._queues:
                raise AuthPoolError(f"there is no queue {auth_queue}")
            self._answers[auth_queue] = answers

    def put(self, answers: Mapping[str, AuthResponder], queues: Set[str]) -> None:
        """Have these queues and no others. Requests that wait in one that is gone are answered ``Unavailable``."""
        with self._changed:
            self._answers.update(answers)
            for name in queues - self._queues.keys():
                self._queues[name] = _FairQueue()
            gone = [self._queues.pop(name) for name in self._queues.keys() - queues]
            self._answers = {name: self._answers[name] for name in queues}
            self._ready = deque(name for name in self._ready if name in self._queues)
        for queue in gone:
            while queue.size:
                queue.take().reply(Unavailable("the listener or upstream was removed"))

    def at_once(self, auth_queue: str, auth_request: AuthRequest, address: str) -> AuthResponse | None:
        """The response to a request that needs no work; None: it must be queued."""
        with self._changed:
            answers = None if self._closed else self._answers.get(auth_queue)
        return None if answers is None else answers.at_once(auth_request, address)

    def ask(self, auth_queue: str, auth_request: AuthRequest, reply: Callable[[AuthResponse], None], address: str = "") -> QueuedRequest:
        """Queue a request. ``address``: of the client; empty: none. Raises AuthPoolError: too many wait, there is no such queue, or the pool is
        closed.
        """
        queued = QueuedRequest(auth_queue, auth_request, address, reply)
        with self._changed:
            queue = self._queues.get(auth_queue)
            if queue is None or self._closed:
                raise AuthPoolError(f"there is no queue {auth_queue}" if queue is None else "the proxy ends")
            if queue.of(address) >= self._most - queue.size:
                raise AuthPoolError(f"{queue.size} requests wait in the queue {auth_queue}, {queue.of(address)} of them of this address")
            queue.append(queued)
            if queue.size == 1:
                self._ready.append(auth_queue)
            self._changed.notify()
        return queued

    def withdraw(self, queued: QueuedRequest) -> None:
        """Remove a request from its queue. A request that is being served is answered all the same."""
        with self._changed:
            queue = self._queues.get(queued.auth_queue)
            if queue is None:
                return
            waited = queue.size
            queue.remove(queued)
            if waited and not queue.size:
                self._ready.remove(queued.auth_queue)

    def close(self) -> None:
        """Stop. A request that is being served gets one second to end."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            for queue in self._queues.values():
                queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_END_S)

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)  # of this thread alone; 19 is the most
        while True:
            with self._changed:
                while not self._ready and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                queued = self._next()
                answers = self._answers[queued.auth_queue]
            answer = answers.answer(queued.auth_request, queued.address)
            try:
                queued.reply(answer)
            except Exception as error:
                self._on_failure(error)
            del queued, answer, answers  # while it waits it holds no secret

    def _next(self) -> QueuedRequest:
        name = self._ready.popleft()
        queue = self._queues[name]
        queued = queue.take()
        if queue.size:
            self._ready.append(name)
        return queued
