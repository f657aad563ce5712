"""Sends captured requests to an upstream again: ``framegate tap replay``.

Theory of operation. One task reads the log, some frames at a time and in a thread, and gives the frames of each connection to the task of this
connection. It reads ahead, until ``_AHEAD`` bytes wait. A connection is opened at the time of its first captured frame; a request is sent at its
captured time, divided by the speed, whatever the upstream does. At the speed ``max`` it is sent when no more requests are in flight than there
were when it was captured. A second task of the connection reads answers.

Answers are matched with requests as the proxy does: under ``protocol: kafka`` by correlation id, in order; otherwise the frame with number n of the
upstream answers request n. A body that the log does not have as it passed is not sent.
"""

import asyncio
import collections
import dataclasses
import itertools
import pathlib
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import click

from framegate.control.cli.options import TLS_FILES
from framegate.control.cli.tap_comparison import Answer, Report, answer_of
from framegate.control.cli.tap_connections import REQUEST, RESPONSE, Capture, Connection, fault_of, framing_of, header_of
from framegate.control.cli.tap_records import Frame, Wanted
from framegate.proxy.kafka.produce_acks import produce_acks
from framegate.proxy.network.framing import Framing

_AHEAD: Final = 32 << 20  # bytes of frames that wait
_FRAME_COST: Final = 500  # bytes of memory that a frame takes besides its body
_BATCH: Final = 256  # most frames read at a time
_BUFFER: Final = 1 << 20
_MOST_LINE: Final = 64 << 20  # bytes of an answer in a framing with delimiters
_CLOSE_S: Final = 1.0
_PRODUCE: Final = 0
_NOT_SELECTED: Final = "not_selected"
_Item = tuple[Connection, Frame | None]


def tls_context(folder: pathlib.Path) -> ssl.SSLContext:
    """The settings of ``--tls``. Raises ClickException: a file cannot be used."""
    certificate, key, authorities = (folder / name for name in TLS_FILES)
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate.exists():
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise click.ClickException(f"--tls: the files in {folder} cannot be used: {error.strerror or error}") from error
    return context


class Target(NamedTuple):
    """Where requests go, and how."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    framing: Framing | None  # of the upstream; None: the captured one
    speed: float  # 0: max
    timeout_s: float  # without an answer or room to send


@dataclasses.dataclass(slots=True, eq=False)
class _Exchange:
    """A request and its answers, captured and now. Under ``protocol: kafka`` there is none without a request of the log."""

    number: int  # of the request on its connection, and of the answer unless the protocol is Kafka
    correlation: int | None = None  # of Kafka; None: the request has no header
    api: int | None = None
    answers: bool = True  # the upstream answers it
    wire: bytes | None = None  # the request; empty: it was sent; None: it is not to be sent, or is not in the log
    captured_ns: int = 0  # of the request; 0: not known
    in_flight: int = 0  # requests in flight when it was captured
    sent_s: float | None = None
    captured: Answer | None = None
    received: tuple[bytes, float] | None = None  # the body, and when it began to arrive


class _Exchanges:
    """The exchanges of one connection: matches answers with requests, and compares them."""

    def __init__(self, report: Report, *, kafka: bool, complete: bool) -> None:
        """``complete``: the log has all requests."""
        self.in_flight = 0  # requests to be sent that had no captured answer at this place of the log
        self.sent: collections.deque[_Exchange] = collections.deque()  # not answered, in order
        self.owed = 0  # captured answers to requests that are sent which were not received
        self.compared = 0
        self._report = report
        self._kafka = kafka
        self._complete = complete
        self._all: dict[int, _Exchange] = {}  # those that do not have both answers, by number
        self._captured: collections.deque[_Exchange] = collections.deque()  # requests without a captured answer so far, in order
        self._last = -1  # number of the last answer received

    def request(self, frame: Frame) -> _Exchange:
        """A request of the log."""
        exchange = self._all.setdefault(frame.number, _Exchange(frame.number))
        if frame.request is not None:
            exchange.api, exchange.correlation = frame.request.api, frame.request.correlation
        exchange.captured_ns = frame.row.capture_ns
        exchange.in_flight = self.in_flight
        exchange.answers = not _has_no_acks(frame)
        if exchange.answers:
            self._captured.append(exchange)
        else:
            del self._all[exchange.number]
        return exchange

    def leave_out(self, exchange: _Exchange) -> None:
        """The request is not sent."""
        exchange.wire = None
        self._complete = False

    def captured(self, frame: Frame, strip: int) -> None:
        """An answer of the log. ``strip``: bytes at its begin that the upstream's framing does not have."""
        exchange = self._asked(frame)
        if exchange is None:
            return
        if exchange.wire is None and (self._kafka or not self._complete):
            self._all.pop(exchange.number, None)
            return
        latency_us = frame.latency_us
        if latency_us is None and exchange.captured_ns:
            latency_us = (frame.row.capture_ns - exchange.captured_ns) // 1000
        exchange.captured = answer_of(frame, fault_of(frame), strip, latency_us)
        self.owed += exchange.received is None
        self._compare(exchange)

    def _asked(self, frame: Frame) -> _Exchange | None:
        """The exchange of a captured answer; those before it get none."""
        waiting = self._captured
        if self._kafka:
            correlation = None if frame.request is None else frame.request.correlation
            if correlation is None or not any(exchange.correlation == correlation for exchange in waiting):
                return None
            while True:
                exchange = waiting.popleft()
                self.in_flight -= exchange.wire is not None
                if exchange.correlation == correlation:
                    return exchange
        while waiting and waiting[0].number <= frame.number:
            self.in_flight -= waiting.popleft().wire is not None
        return self._all.setdefault(frame.number, _Exchange(frame.number))

    def received(self, body: bytes, came_s: float) -> None:
        """An answer of the upstream. ``came_s``: when its first byte came, by the loop's clock."""
        if self._kafka:
            correlation = int.from_bytes(body[:4], "big", signed=True)
            if not any(exchange.correlation == correlation for exchange in self.sent):
                self._report.of(None).not_captured += 1
                return
            while (exchange := self.sent.popleft()).correlation != correlation:
                pass
        else:
            while self.sent and self.sent[0].number <= self._last:
                self.sent.popleft()
            self._last = self.sent.popleft().number if self.sent else self._last + 1
            exchange = self._all.setdefault(self._last, _Exchange(self._last))
        exchange.received = body, came_s
        self.owed -= exchange.captured is not None
        self._compare(exchange)

    def _compare(self, exchange: _Exchange) -> None:
        """Compare the two answers, once both are known."""
        if exchange.captured is None or exchange.received is None:
            return
        body, came_s = exchange.received
        latency_us = None if exchange.sent_s is None else round((came_s - exchange.sent_s) * 1e6)
        self._report.of(exchange.api).compare(exchange.captured, body, exchange.captured.latency_us, latency_us)
        self.compared += 1
        self._all.pop(exchange.number, None)

    def conclude(self) -> None:
        """Count what has one answer only."""
        for exchange in self._all.values():
            tally = self._report.of(exchange.api)
            tally.unanswered += exchange.captured is not None
            tally.not_captured += exchange.received is not None


def _has_no_acks(frame: Frame) -> bool:
    request, body = frame.request, bytes(frame.kept)
    return request is not None and request.api == _PRODUCE and produce_acks(body, 0, len(body), request.version) == 0


class _Session:
    """One connection."""

    def __init__(self, replay: "Replay", connection: Connection) -> None:
        self.queue: asyncio.Queue[Frame | None] = asyncio.Queue()  # its frames in order; None: there are no more
        self._replay = replay
        self._report = replay.report
        # framings: of the captured requests and answers, and of the upstream; None: ``header``
        self._asked = framing_of(connection.framings[REQUEST])
        self._answered = framing_of(connection.framings[RESPONSE] or connection.framings[REQUEST])
        self._framing = replay.target.framing or self._answered
        complete = not connection.unrecorded(REQUEST) and not connection.lost[REQUEST]
        self._exchanges = _Exchanges(replay.report, kafka=connection.kafka, complete=complete)
        self._writer: asyncio.StreamWriter | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()  # an answer came, or the upstream closed the connection
        self._failure = ""  # why nothing more is sent

    async def run(self) -> None:
        """Replay the connection."""
        async with self._replay.open_slots:
            await self._run()

    async def _run(self) -> None:
        try:
            while (frame := await self.queue.get()) is not None:
                self._replay.release(frame)
                if frame.row.direction == REQUEST:
                    await self._request(frame)
                elif self._answered is not None:
                    stripped = self._framing is not self._answered
                    self._exchanges.captured(frame, int(self._answered.others) if stripped else 0)
            found = self._exchanges
            if self._receiving is not None and not self._failure:
                await self._until(lambda: found.owed <= 0 and (found.compared > 0 or not found.sent))
        finally:
            if self._receiving is not None:
                self._receiving.cancel()
                await asyncio.wait([self._receiving])
            if self._writer is not None:
                await self._close(self._writer)
        if self._receiving is not None and not self._receiving.cancelled():
            self._receiving.result()
        if self._failure:
            self._report.failures[self._failure] += 1
        self._exchanges.conclude()

    async def _request(self, frame: Frame) -> None:
        """Send a request of the log at its time, or count why not."""
        exchange = self._exchanges.request(frame)
        chosen = self._replay.chosen.frame(frame.size, frame.request)
        reason = (fault_of(frame) or self._make(exchange, bytes(frame.kept))) if chosen else _NOT_SELECTED
        if not reason:
            self._exchanges.in_flight += exchange.answers
            if not self._failure:
                await self._replay.wait_for(frame.row.capture_ns)
                await self._send(exchange)
            if self._failure and exchange.sent_s is None:
                self._exchanges.in_flight -= exchange.answers
                reason = "connection_failed"
        if reason:
            self._exchanges.leave_out(exchange)
            if reason != _NOT_SELECTED:
                self._report.not_sent[reason] += 1

    def _make(self, exchange: _Exchange, body: bytes) -> str:
        """Make the frame that is sent; returns why it cannot be made."""
        source, target = self._asked, self._framing
        if source is None or target is None:
            return "framing"
        rest = body[source.others :]
        if len(rest) > target.max_body or (target.tail and target.delimiter in rest):
            return "framing"
        exchange.wire = header_of(source, target, len(body), body) + rest + target.delimiter
        return ""

    async def _send(self, exchange: _Exchange) -> None:
        """Send a request, on a new connection if there is none. ``_failure`` says why it was not sent."""
        if self._writer is None:
            await self._connect()
        if not self._replay.target.speed and not self._failure:
            found = self._exchanges
            if not await self._until(lambda: len(found.sent) <= exchange.in_flight):
                self._failure = "an answer did not come in time"
        writer, receiving, wire = self._writer, self._receiving, exchange.wire
        if self._failure or writer is None or receiving is None or wire is None:
            return
        if receiving.done():
            self._failure = "the upstream closed the connection"
            return
        if exchange.answers:
            self._exchanges.sent.append(exchange)
        exchange.sent_s = asyncio.get_running_loop().time()
        exchange.wire = b""
        self._report.of(exchange.api).requests += 1
        writer.write(wire)
        try:
            async with asyncio.timeout(self._replay.target.timeout_s):
                await writer.drain()
        except TimeoutError:
            self._failure = "the upstream did not read in time"
        except OSError:
            await asyncio.wait([receiving])  # it sees the end, after what came before it

    async def _connect(self) -> None:
        target = self._replay.target
        limit = _MOST_LINE if self._framing is not None and self._framing.tail else _BUFFER
        try:
            async with asyncio.timeout(target.timeout_s):
                reader, self._writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls, limit=limit)
        except (OSError, TimeoutError) as error:
            self._failure = f"not connected: {str(error) or 'it took too long'}"
            return
        self._report.connections += 1
        self._receiving = asyncio.create_task(self._receive(reader))

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()

    async def _until(self, true: Callable[[], bool]) -> bool:
        """Wait for answers until something is true, or the upstream closed the connection. Returns False when no answer came in time."""
        receiving = self._receiving
        try:
            while receiving is not None and not receiving.done() and not true():
                self._moved.clear()
                async with asyncio.timeout(self._replay.target.timeout_s):
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Read answers until the upstream closes the connection, or sends what is no frame."""
        framing = self._framing
        assert framing is not None, "nothing is sent without a framing"
        try:
            while True:
                self._exchanges.received(*await self._answer(reader, framing))
                self._moved.set()
        except (OSError, asyncio.IncompleteReadError):
            pass  # requests without an answer are counted
        except (ValueError, asyncio.LimitOverrunError):
            self._failure = f"an answer is no frame of {framing.name}"
        finally:
            self._moved.set()

    async def _answer(self, reader: asyncio.StreamReader, framing: Framing) -> tuple[bytes, float]:
        """The next answer, and when it began to come. Raises ValueError: it is no frame."""
        loop = asyncio.get_running_loop()
        if framing.tail:
            line = await reader.readuntil(framing.delimiter)
            return line.removesuffix(framing.delimiter), loop.time()
        head = await reader.readexactly(int(framing.least_header))
        came_s = loop.time()
        while (missing := int(framing.header_size(head, 0))) < 0:
            head += await reader.readexactly(-missing)
        size = int(framing.body_size(head, 0))
        if not 0 <= size <= framing.max_body:
            raise ValueError(size)
        others = framing.other_bytes(head, 0) if framing is self._answered else b""
        return others + await reader.readexactly(size), came_s


class Replay:
    """The replay of a log."""

    def __init__(self, capture: Capture, chosen: Wanted, target: Target) -> None:
        """``chosen``: conditions on single requests."""
        self.report = Report()
        self.target = target
        self.trouble: OSError | None = None  # why the log could not be read to its end
        self.chosen = chosen
        self._capture = capture
        # as many connections are open as were captured: at the speed max their times do not keep them apart
        self.open_slots = asyncio.Semaphore(max(1, capture.most_open()) if not target.speed else sys.maxsize)
        self._waiting = 0  # bytes that sessions have not taken
        self._room = asyncio.Event()
        self._begin_s = 0.0
        self._begin_ns = 0
        self._count_missing()

    def _count_missing(self) -> None:
        """Count the requests that are not in the log."""
        missing = self.report.not_sent
        for reason, frames in self._capture.unplaced.items():
            missing[reason] += frames
        for connection in self._capture.connections.values():
            begin = 0 if self.chosen.since_ns is None else max(0, connection.first[REQUEST])
            unrecorded = connection.unrecorded(REQUEST, begin)
            if unrecorded:
                missing["not_recorded"] += unrecorded
            for lost in connection.lost[REQUEST]:
                missing[lost.reason] += lost.frames

    async def run(self) -> None:
        """Replay all connections; the report is complete afterwards. Raises CancelledError: Ctrl-C."""
        task = asyncio.current_task()
        assert task is not None, "it runs in a task"
        # the handler of asyncio.run cancels in the middle of any callback, also of one that is about to set a thread's result
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        frames = self._capture.frames()
        sessions: dict[Connection, _Session] = {}
        async with asyncio.TaskGroup() as group:
            while batch := await self._read(frames):
                for connection, frame in batch:
                    if not connection.stored[REQUEST]:
                        continue
                    if connection not in sessions:
                        sessions[connection] = _Session(self, connection)
                        group.create_task(sessions[connection].run())
                    sessions[connection].queue.put_nowait(frame)
                    if frame is None:
                        del sessions[connection]
                    else:
                        self._waiting += len(frame.kept) + _FRAME_COST
                while self._waiting > _AHEAD:
                    self._room.clear()
                    await self._room.wait()
            for session in sessions.values():  # the log could not be read to its end
                session.queue.put_nowait(None)

    async def _read(self, frames: Iterator[_Item]) -> list[_Item]:
        try:
            return await asyncio.to_thread(lambda: list(itertools.islice(frames, _BATCH)))
        except OSError as error:
            self.trouble = error
            return []

    def release(self, frame: Frame) -> None:
        """A session has taken a frame."""
        self._waiting -= len(frame.kept) + _FRAME_COST
        self._room.set()

    async def wait_for(self, at_ns: int) -> None:
        """Wait until the time of a frame. The first call sets when the replay begins."""
        now_s = asyncio.get_running_loop().time()
        if not self._begin_ns:
            self._begin_s, self._begin_ns = now_s, at_ns
        if self.target.speed:
            due_s = self._begin_s + (at_ns - self._begin_ns) / 1e9 / self.target.speed
            await asyncio.sleep(max(0.0, due_s - now_s))
            self.report.late_us = max(self.report.late_us, round((asyncio.get_running_loop().time() - due_s) * 1e6))
