"""The socket to one processor: requests are read and handled in batches, and answered with one write.

What one read gave is handled in one go, without a task or a future for a frame that a plain function handles. Replies are held back for
1 ms at most, or 256 KiB, so that a slow handler's answers leave one by one. After 5 ms the other processors and the tasks have their turn, and this
socket is not read until what was read is handled. Nor is it while the processor does not take replies: whoever sends requests and reads no answers is
not read. While too many long answers wait in this process (``reply_buffer``) requests wait, and the socket is read on: what makes room comes behind
them.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from framegate.proxy.handler.activity import Activity, Interrupted
from framegate.proxy.handler.connection import Connection, Failures, Tasks
from framegate.proxy.handler.load import LoadedHandler
from framegate.proxy.handler.reply_buffer import ReplyBuffer
from framegate.proxy.relay.handler_wire import (
    CLOSED,
    DIRECTIONS,
    FAILED,
    LONG,
    MAX_BODY,
    OPEN,
    SEND,
    RecordReader,
    Reply,
    Request,
    WireError,
    encode_replies,
    held,
    read_closed,
    read_open,
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
        answers: ReplyBuffer,
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
        self._pending: deque[Request] = deque()  # requests that were read and are not begun
        self._held = 0
        self._flush_ns = 0
        self._turn_ns = 0
        self._unsent: memoryview | None = None
        self._reading = False
        self._flush_is_due = False
        self._round_is_due = False
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
        self._activity.waiting -= len(self._pending)
        self._pending.clear()
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

    def _go_on(self) -> None:
        """Go on with what was read, in the next turn of the loop."""
        if not self._round_is_due:
            self._round_is_due = True
            self._loop.call_soon(self._on_round)

    def _on_round(self) -> None:
        self._round_is_due = False
        if not self._is_stopped():
            self._handle(self._reader.take(b""))

    def _is_stopped(self) -> bool:
        """Whether nothing is to be handled: the socket is closed, or the processor does not take replies."""
        return not self.is_open or self._unsent is not None

    def _handle(self, data: bytes) -> None:
        """Handle what was read, as far as the turn goes; read on when nothing is left that could be handled now."""
        try:
            self._batch(data)
        except Interrupted:  # the process ends
            self.end()
        except Exception as error:
            self.end()
            self._broken(self, error)
        finally:
            self._activity.began_ns = 0
        if not self._flush():
            return
        if self._reader.missing == 0 or (self._pending and not self._answers.puts_off):
            self._pause()
            self._go_on()
        else:
            self._resume()

    def _batch(self, data: bytes) -> None:
        """Handle what is pending, and records, from the first on to the end, to a record that is not whole, or for long enough; the rest is kept."""
        now_ns = self._now()
        self._flush_ns = now_ns + HOLD_NS
        self._turn_ns = now_ns + TURN_NS
        position = 0
        goes_on = not self._pending or self._handle_pending()
        while data and goes_on:
            requests = read_requests(data, position)
            if requests:
                position = requests[-1][5]
                self._pending.extend(requests)
                self._activity.waiting += len(requests)
                goes_on = self._handle_pending()
                continue
            end = record_end(data, position)
            if end < 0:
                break
            self._administer(data, position, end)
            position = end
        if data:
            self._reader.keep(data, position)

    def _handle_pending(self) -> bool:
        """Handle requests while not too many answers wait; False: the turn is over, or the processor takes no more replies."""
        goes_on = self._answers.puts_off or self._handle_requests()
        if self._pending and self._answers.puts_off:
            self._answers.wait(self._go_on)
        return goes_on

    def _handle_requests(self) -> bool:
        activity, pending, get, out, kept, now = self._activity, self._pending, self._connections.get, self._out, self._kept, self._now
        handled, held, goes_on = 0, self._held, True
        first_ns = began_ns = now()
        while pending and goes_on:
            number, direction, sequence, header, frame, _ = pending.popleft()
            activity.waiting -= 1
            connection = get(number)
            if connection is None:
                raise WireError(f"a request of the connection {number}, which is not open")
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
                held = self._held
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
            if self._pending:
                left = deque(request for request in self._pending if request[0] != connection.number)
                self._activity.waiting -= len(self._pending) - len(left)
                self._pending = left
            for direction in (0, 1):
                self._forget((connection.number, direction))
        elif kind == SEND:
            self._release(read_send(data, position))
        else:  # a request that can be read is not looked at here
            raise WireError(f"a processor sent a record of kind {kind} and {end - position} bytes")

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
            self._on_round()
