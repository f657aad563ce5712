"""The socket to one processor: requests are read and handled in batches, and answered with one write.

The requests of one read are handled one after the other; a handler that is a plain function needs no task or future. Replies are held back for 1 ms
or 256 KiB at most, so that the replies of a slow handler leave one by one. After 5 ms the other processors and the tasks have their turn, and this
socket is not read until the requests that were read are handled. It is also not read while the processor does not take replies. While too many long
replies wait in this process (``reply_buffer``), requests wait, but the socket is read, because the records that make room come after them.
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
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handler_wire import DIRECTIONS, FAILED, LONG, MAX_BODY, RecordReader, Reply, Request, WireError

READ: Final = 65_536  # bytes of one read; glibc allocates and frees so many without a system call
MOST_READ: Final = 1 << 20  # bytes of one read of a longer record
HOLD_NS: Final = 1_000_000
HOLD_BYTES: Final = 256 * 1024
TURN_NS: Final = 5_000_000
NO_MEMORY: Final = b"no memory for its answer: as many long answers wait in the handler process as may, for clients that do not read theirs"
_KIND: Final = 4


class Processor:
    """One processor.

    Args:
        sock: to the processor; closed by this object.
        name: ``slot.generation``, for rows.
        broken: called when the processor breaks the protocol, and after internal errors; the socket is closed then.
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
        return len(self._connections)

    def begin(self, hello: bytes) -> None:
        self._resume()
        self._write(hello)

    def end(self) -> None:
        """Close the socket and its connections. A second call has no effect."""
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
        if not self._round_is_due:
            self._round_is_due = True
            self._loop.call_soon(self._on_round)

    def _on_round(self) -> None:
        self._round_is_due = False
        if not self._is_stopped():
            self._handle(self._reader.take(b""))

    def _is_stopped(self) -> bool:
        """Whether nothing may be handled: the socket is closed, or the processor does not take replies."""
        return not self.is_open or self._unsent is not None

    def _handle(self, data: bytes) -> None:
        """Handle what was read, until the turn is over; read on if nothing is left that can be handled now."""
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
        """Handle pending requests and then records, until a record is not whole, or the turn is over; keep the rest."""
        now_ns = self._now()
        self._flush_ns = now_ns + HOLD_NS
        self._turn_ns = now_ns + TURN_NS
        position = 0
        goes_on = not self._pending or self._handle_pending()
        while data and goes_on:
            requests = wire.read_requests(data, position)
            if requests:
                position = requests[-1][5]
                self._pending.extend(requests)
                self._activity.waiting += len(requests)
                goes_on = self._handle_pending()
                continue
            end = wire.record_end(data, position)
            if end < 0:
                break
            self._administer(data, position, end)
            position = end
        if data:
            self._reader.keep(data, position)

    def _handle_pending(self) -> bool:
        """Handle requests while not too many replies wait; False: the turn is over, or the processor takes no more replies."""
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
        """The body of the reply to a handler that has raised; ``Interrupted`` is raised again."""
        if isinstance(error, Interrupted):
            raise error
        return self._failures.raised(connection.handler.name, connection.context, error)

    def _administer(self, data: bytes, position: int, end: int) -> None:
        kind = data[position + _KIND]
        if kind == wire.OPEN:
            number, facts = wire.read_open(data, position, end)
            handler = self._handlers.get(facts["listener"])
            if handler is None or number in self._connections:
                raise WireError(f"the connection {number} of the listener {facts['listener']} is open, or there is no handler for it")
            self._connections[number] = Connection(number, handler, facts)
        elif kind == wire.CLOSED:
            connection = self._connections.pop(wire.read_closed(data, position), None)
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
        elif kind == wire.SEND:
            self._release(wire.read_send(data, position))
        else:
            raise WireError(f"a processor sent a record of kind {kind} and {end - position} bytes")

    # Writing.

    def _emit(self, reply: Reply) -> None:
        """Send a reply of a task, with the others of this turn of the loop."""
        self._queue(reply)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._on_flush)

    def _queue(self, reply: Reply) -> None:
        """Send a reply with the next write, or keep it: a long one until the processor asks for it, and all replies that follow a kept one."""
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
            self._out.append(wire.held(reply))
        else:
            self._out.append(reply)

    def _release(self, key: tuple[int, int]) -> None:
        """The processor asks for a kept reply: send it, and those after it up to the next long one."""
        waiting = self._kept.pop(key, None)
        if waiting is None:
            raise WireError(f"nothing of the connection {key[0]} and direction {key[1]} waits")
        self._leave(waiting.popleft())
        while waiting:
            if len(waiting[0][7]) > LONG:
                self._kept[key] = waiting
                self._out.append(wire.held(waiting[0]))
                return
            self._leave(waiting.popleft())

    def _leave(self, reply: Reply) -> None:
        self._out.append(reply)
        self._answers.remove(len(reply[7]))

    def _forget(self, key: tuple[int, int]) -> None:
        """Drop the kept replies of a connection and direction, if there are any."""
        for reply in self._kept.pop(key, ()):
            self._answers.remove(len(reply[7]))

    def _on_flush(self) -> None:
        self._flush_is_due = False
        self._flush()

    def _flush(self) -> bool:
        """Write all replies; True: the socket has taken everything. Otherwise nothing is read until it has."""
        if self._is_stopped():
            return False
        if not self._out:
            return True
        data = wire.encode_replies(self._out)
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
        """The number of bytes that the socket took; -1: the processor is gone."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.end()
            return -1

    def _on_writable(self) -> None:
        assert self._unsent is not None, "the writer is registered while something is unsent"
        unsent = self._unsent
        sent = self._send(unsent)
        if sent < 0:
            return
        self._unsent = unsent[sent:] if sent < len(unsent) else None
        if self._flush():
            self._loop.remove_writer(self._descriptor)
            self._on_round()
