"""The socket to one processor: requests are read and handled in batches, and answered with one write.

What one read gave is handled in one go, without a task or a future for a frame that a plain function handles. Replies are held back for
1 ms at most, or 256 KiB, so that a slow handler's answers leave one by one. After 5 ms the other processors and the tasks have their turn, and this
socket is not read until what was read is handled. Nor is it while the processor does not take replies: whoever sends requests and reads no answers is
not read. While too many long answers wait in this process (``kept_answers``) requests are put off, and read on: what makes room comes behind them.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from proxy.handler.activity import Activity, Interrupted
from proxy.handler.connection import Connection
from proxy.handler.failures import Failures
from proxy.handler.kept_answers import KeptAnswers
from proxy.handler.load import LoadedHandler
from proxy.handler.tasks import Tasks
from proxy.relay.handler_wire import (
    CLOSED,
    DIRECTIONS,
    FAILED,
    LONG,
    MAX_BODY,
    OPEN,
    REQUEST,
    SEND,
    RecordReader,
    Reply,
    Request,
    WireError,
    encode_replies,
    held,
    read_closed,
    read_open,
    read_request,
    read_requests,
    read_send,
    record_end,
)

__all__ = ["Processor"]

READ: Final = 65_536
"""Bytes of one read: what glibc takes from its heap and gives back to it, without a call of the system's."""
MOST_READ: Final = 1 << 20
"""Of one read of a record that is longer."""
HOLD_NS: Final = 1_000_000
HOLD_BYTES: Final = 256 * 1024
TURN_NS: Final = 5_000_000
NO_MEMORY: Final = b"no memory for its answer: as many long answers wait in the handler process as may, for clients that do not read theirs"
_KIND: Final = 4


class Processor:
    """One processor.

    Args:
        sock: ours from here on.
        name: ``slot.generation``, for rows.
        handlers: by listener.
        answers: those that wait, of all processors.
        broken: told of what a processor cannot have sent, and of our own errors; the socket is closed then.
        ended: called once, when the socket is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        handlers: Mapping[str, LoadedHandler],
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], int],
        activity: Activity,
        failures: Failures,
        answers: KeptAnswers,
        broken: Callable[["Processor", Exception], None],
        ended: Callable[["Processor"], None],
    ) -> None:
        sock.setblocking(False)
        self.name: Final = name
        self._socket: Final = sock
        self._descriptor: Final = sock.fileno()
        self._handlers: Final = handlers
        self._loop: Final = loop
        self._now: Final = now
        self._activity: Final = activity
        self._failures: Final = failures
        self._answers: Final = answers
        self._broken: Final = broken
        self._ended: Final = ended
        self._connections: Final[dict[int, Connection]] = {}
        self._reader: Final = RecordReader()
        self._out: Final[list[Reply]] = []
        self._kept: Final[dict[tuple[int, int], deque[Reply]]] = {}  # replies that wait for SEND, by connection and direction
        self._put_off: deque[Request] = deque()  # requests that wait until fewer answers do
        self._held = 0
        self._flush_ns = 0
        self._turn_ns = 0
        self._unsent: memoryview | None = None
        self._reading = False
        self._flush_is_due = False
        self.tasks: Final = Tasks(loop, now, activity, failures, self._emit)
        self.is_open = True

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def begin(self, hello: bytes) -> None:
        """Say who we are, and read."""
        self._resume()
        self._write(hello)

    def end(self) -> None:
        """Close the socket, and everything that goes with it. A second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self._pause()
        self._loop.remove_writer(self._descriptor)
        self._socket.close()
        for connection in self._connections.values():
            if connection.is_async:
                self.tasks.close(connection)
        self._connections.clear()
        self._out.clear()
        for key in tuple(self._kept):
            self._forget(key)
        self._activity.waiting -= len(self._put_off)
        self._put_off.clear()
        self._answers.leave(self._go_on)
        self._unsent = None
        self._ended(self)

    # Reading.

    def _resume(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        missing = self._reader.missing
        try:
            data = self._socket.recv(READ if missing <= READ else min(missing, MOST_READ))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            return
        data = self._reader.take(data)
        if data:
            self._handle(data)

    def _on_turn(self) -> None:
        """Go on with what was read, and read on when that is done with."""
        if self._is_stopped():
            return
        if self._put_off and not self._attempt(self._handle_put_off):
            return
        if self._reader.missing == 0:
            self._handle(self._reader.take(b""))
        if not self._is_stopped() and self._reader.missing:
            self._resume()

    def _is_stopped(self) -> bool:
        """Whether nothing is to be handled: the socket is closed, or the processor does not take replies."""
        return not self.is_open or self._unsent is not None

    def _handle(self, data: bytes) -> None:
        """Handle the requests of what was read, as far as the turn goes."""
        if not self._attempt(lambda: self._batch(data)):
            return
        if self._flush() and self._reader.missing == 0:
            self._pause()
            self._loop.call_soon(self._on_turn)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Handle something; False: the socket is closed since that failed."""
        try:
            work()
        except Interrupted:  # the process ends
            self.end()
            return False
        except Exception as error:
            self.end()
            self._broken(self, error)
            return False
        finally:
            self._activity.began_ns = 0
            self._activity.batch = b""
        return True

    def _batch(self, data: bytes) -> None:
        """Handle records from the first on, to the end, to a record that is not whole, or for long enough; what is left is kept."""
        activity = self._activity
        activity.batch = data
        activity.position = 0
        self._begin_turn()
        while True:
            requests = read_requests(data, activity.position)
            if requests:
                if self._answers.puts_off or self._put_off:
                    self._wait_with(requests)
                elif not self._handle_requests(requests):
                    break
                continue
            end = record_end(data, activity.position)
            if end < 0:
                break
            self._administer(data, activity.position, end)
            activity.position = end
        self._reader.keep(data, activity.position)

    def _begin_turn(self) -> None:
        now_ns = self._now()
        self._flush_ns = now_ns + HOLD_NS
        self._turn_ns = now_ns + TURN_NS

    def _wait_with(self, requests: list[Request]) -> None:
        """Put requests off."""
        if not self._put_off:
            self._answers.wait(self._go_on)
        self._put_off.extend(requests)
        self._activity.waiting += len(requests)
        self._activity.position = requests[-1][5]

    def _go_on(self) -> None:
        """Fewer answers wait."""
        self._loop.call_soon(self._on_turn)

    def _handle_put_off(self) -> None:
        """Handle what was put off, as far as there is room and the turn goes."""
        self._begin_turn()
        self._handle_requests(self._take_put_off())
        self._flush()
        if self._put_off and self.is_open:
            if self._answers.puts_off:
                self._answers.wait(self._go_on)
            elif self._unsent is None:
                self._go_on()

    def _take_put_off(self) -> Iterator[Request]:
        while self._put_off and not self._answers.puts_off:
            self._activity.waiting -= 1
            yield self._put_off.popleft()

    def _handle_requests(self, requests: Iterable[Request]) -> bool:
        """Handle requests; False: the turn is over, or the processor takes no more replies."""
        activity, get, out, kept, now = self._activity, self._connections.get, self._out, self._kept, self._now
        handled, held, goes_on = 0, self._held, True
        first_ns = began_ns = now()
        for number, direction, sequence, header, frame, end in requests:
            connection = get(number)
            if connection is None:
                raise WireError(f"a request of the connection {number}, which is not open")
            activity.position = end
            if connection.is_async:
                self.tasks.accept(connection, direction, sequence, header, frame)
                continue
            activity.began_ns = began_ns
            context = connection.context
            context.direction = DIRECTIONS[direction]
            context.sequence = sequence
            context.header = header
            try:
                result = connection.handle(frame, context)
                if type(result) is bytes and len(result) <= MAX_BODY:
                    action, throttle_ms = connection.bytes_action, 0
                else:
                    action, throttle_ms, result = connection.decide(result, direction)
            except BaseException as error:
                action, throttle_ms, result = FAILED, 0, self._failed(connection, error)
            ended_ns = now()
            reply = (action, direction, throttle_ms, number, sequence, began_ns, ended_ns, result)
            handled += 1
            held += len(result)
            began_ns = ended_ns
            if kept or len(result) > LONG:
                self._queue(reply)
                if self._answers.puts_off:
                    break
            else:
                out.append(reply)
            if held > HOLD_BYTES or ended_ns > self._flush_ns:
                goes_on = self._flush() and ended_ns < self._turn_ns
                if not goes_on:
                    break
                held = 0
                self._flush_ns = ended_ns + HOLD_NS
        self._held = held
        activity.batch_done(handled, began_ns - first_ns)
        return goes_on

    def _failed(self, connection: Connection, error: BaseException) -> bytes:
        """A function raised; what was raised to end it is raised on."""
        if isinstance(error, Interrupted):
            raise error
        return self._failures.raised(connection.handler.name, connection.context, error)

    def _administer(self, data: bytes, position: int, end: int) -> None:
        """A record that is no request."""
        kind = data[position + _KIND]
        if kind == OPEN:
            number, facts = read_open(data, position, end)
            handler = self._handlers.get(facts["listener"])
            if handler is None or number in self._connections:
                raise WireError(f"the connection {number} of the listener {facts['listener']} is open, or there is no handler for it")
            self._connections[number] = Connection(number, handler, facts)
        elif kind == CLOSED:
            connection = self._connections.pop(read_closed(data, position), None)
            if connection is None:
                raise WireError("a connection that is not open is closed")
            if connection.is_async:
                self.tasks.close(connection)
            if self._put_off:
                left = deque(request for request in self._put_off if request[0] != connection.number)
                self._activity.waiting -= len(self._put_off) - len(left)
                self._put_off = left
            for direction in (0, 1):
                self._forget((connection.number, direction))
        elif kind == SEND:
            self._release(read_send(data, position))
        elif kind == REQUEST:
            read_request(data, position, end)
            raise WireError("a request that cannot be read")
        else:
            raise WireError(f"a processor sent a record of kind {kind}")

    # Writing.

    def _emit(self, reply: Reply) -> None:
        """A reply of a task: it leaves with the others of this turn of the loop."""
        self._queue(reply)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._on_flush)

    def _queue(self, reply: Reply) -> None:
        """Have a reply leave, or wait: a long one until the processor asks for it, and any that such a one is before."""
        if len(reply[7]) > LONG and self._answers.drops:
            self._activity.failed += 1
            reply = (FAILED, *reply[1:7], NO_MEMORY)
        key = reply[3], reply[1]
        waiting = self._kept.get(key)
        if waiting is not None:
            waiting.append(reply)
            self._answers.add(len(reply[7]))
        elif len(reply[7]) > LONG:
            self._kept[key] = deque((reply,))
            self._answers.add(len(reply[7]))
            self._out.append(held(reply))
        else:
            self._out.append(reply)

    def _release(self, key: tuple[int, int]) -> None:
        """The processor asks for a reply that waits: those behind it leave, too, up to the next that has to wait."""
        waiting = self._kept.pop(key, None)
        if waiting is None:
            raise WireError(f"nothing of the connection {key[0]} and direction {key[1]} waits")
        self._leave(waiting.popleft())
        while waiting:
            if len(waiting[0][7]) > LONG:
                self._kept[key] = waiting
                self._out.append(held(waiting[0]))
                return
            self._leave(waiting.popleft())

    def _leave(self, reply: Reply) -> None:
        self._out.append(reply)
        self._answers.remove(len(reply[7]))

    def _forget(self, key: tuple[int, int]) -> None:
        """Nobody wants the replies of a connection and direction that wait, if any do."""
        for reply in self._kept.pop(key, ()):
            self._answers.remove(len(reply[7]))

    def _on_flush(self) -> None:
        self._flush_is_due = False
        self._flush()

    def _flush(self) -> bool:
        """Write what there is; True when nothing is left. What the socket does not take waits, and nothing is read until it is gone."""
        if self._is_stopped():
            return False
        if not self._out:
            return True
        data = encode_replies(self._out)
        self._out.clear()
        self._held = 0
        return self._write(data)

    def _write(self, data: bytes) -> bool:
        sent = self._send(data)
        if sent == len(data):
            return True
        if sent >= 0:
            self._unsent = memoryview(data)[sent:]
            self._pause()
            self._loop.add_writer(self._descriptor, self._on_writable)
        return False

    def _send(self, data: bytes | memoryview) -> int:
        """Bytes that the socket took; -1: the processor is gone."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.end()
            return -1

    def _on_writable(self) -> None:
        assert self._unsent is not None, "nobody asks for room without need"
        unsent = self._unsent
        sent = self._send(unsent)
        if sent < 0:
            return
        self._unsent = unsent[sent:] if sent < len(unsent) else None
        if self._flush():
            self._loop.remove_writer(self._descriptor)
            self._on_turn()
