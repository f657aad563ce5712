"""The socket to one handler process: requests, replies, and the queue of connections that wait for room.

- *Requests* of one poll leave in one send, at its end (``_end_poll``). Requests during a pending send are kept and booked.
- *The queue.* At most ``queue`` requests have no reply. Connections that find no room wait, and get room in the order in which they came, each for
  up to ``TURN`` frames that were read. A connection whose next frame is not read yet gets a *token*, which reserves its place until it was asked for
  the frame, and one poll longer.
- *Replies* of one read are processed one after the other; then ``flush`` of each connection that had any is called once.
- *Long replies* stay in the process until there is memory for them (``deferred_replies``).
- *Connections that end* with requests in flight: the replies come late and are dropped, or never, because a handler may be cancelled. Such requests
  count until the socket has taken the record CLOSED.
- *The end* of the socket is the end of the process for all its connections. The process may get another socket.

The process runs users' code and is not trusted: a reply without a request closes the socket.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import InternalError
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, Account
from framegate.proxy.network.run import Body, Buffer, Run, held
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.network.translation import refer
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.deferred_replies import DeferredReplies
from framegate.proxy.relay.handled_connection import HandledConnection, HandledParty, Request

if TYPE_CHECKING:
    from framegate.proxy.relay.request_channel import RequestChannel

NO_LIMIT: Final = 1 << 31
REFER_FROM: Final = 16384  # bytes; bodies of this size or more are not copied
NOBODY: Final = -1
TURN: Final = 16  # frames of one connection that are submitted before the next one's, so that their answers leave with one write
SIZE: Final = 4  # of a record's size header
HELLO: Final = wire.HELLO
REPLY: Final = wire.REPLY
REPLY_HEAD: Final = 44  # bytes of a reply before its body
HELD: Final = wire.HELD
LONG: Final = wire.LONG


class HandlerProcess(ChannelSink):
    """One handler process. ``name``: ``slot.generation``."""

    def __init__(self, owner: "RequestChannel", selector: Selector, account: Account, name: str, queue: i64) -> None:
        self.name: Final = name
        self.channel: Channel | None = None  # to the process; set after the socket was registered
        self.handles: Final[dict[str, tuple[bool, bool]]] = {}  # by listener, whether its handler gets requests, and responses; empty before HELLO
        self.retired: bool = False  # it gets no connections any more
        # those that belong to it, and those that are over and whose replies have not arrived, by id
        self.connections: Final[dict[int, HandledConnection]] = {}
        self.active: i64 = 0  # the number of the former
        self.under_way: i64 = 0  # frames that were submitted and have no reply
        self.kept: i64 = 0  # how many of those are kept here, because they may be passed on
        self.on_parted: Callable[[str], None] | None = None  # called when the socket is closed, with the reason; empty: the process closed it
        self.pool: Final = account.pool  # the memory pool
        self._owner: Final = owner
        self._selector: Final = selector
        self._account: Final = account
        self._queue: Final[i64] = queue
        self._waiting: Final[dict[int, HandledParty]] = {}  # by twice the id plus the direction, oldest first
        self._turn: i64 = NOBODY  # the key of the connection that may submit now
        self._turns: i64 = 0  # and how many frames
        self._tokens: Final[dict[int, i64]] = {}  # by such a key, the poll in which each was given
        self._writer: Final = BytesWriter()
        self._pieces: list[Buffer] = []
        self._records: i64 = 0
        self._booked: i64 = 0
        self._closing: list[HandledConnection] = []  # over, with requests in flight, whose CLOSED is not written
        self._sending: list[HandledConnection] = []  # likewise, whose CLOSED is in the pending send
        self._late: Final[deque[HandledConnection]] = deque()  # likewise, whose CLOSED was sent
        self._long: Final = DeferredReplies(self._ask_for, self.pool, selector)
        self._tick: Final = CallbackTimer(self._end_poll)

    @property
    def is_gone(self) -> bool:
        """Its socket is closed."""
        return self.channel is None or not self.channel.is_open

    # Called by connections.

    def has_room(self, connection: i64, direction: i64, party: HandledParty) -> bool:
        """Whether a frame of a connection may be read now; False: its party is woken when it may."""
        key = 2 * connection + direction
        if self._tokens.pop(key, None) is not None:
            self._turn = key
            self._turns = TURN
            self._arm()  # without a whole frame the place is given to another connection
            return True
        if not self._waiting and self.under_way + i64(len(self._tokens)) < self._queue:
            return True
        self._waiting[key] = party
        return False

    def takes(self, connection: i64, direction: i64, party: HandledParty) -> bool:
        """Whether a frame that was read may be submitted now: if none waits, or this connection has its turn; False: its party is woken."""
        key = 2 * connection + direction
        if self.under_way < self._queue:
            if not self._waiting:
                return True
            if key == self._turn and self._turns > 0:
                self._turns -= 1
                return True
        self._waiting[key] = party
        return False

    def wait(self, connection: i64, direction: i64, party: HandledParty) -> None:
        """Wake a party when replies have arrived, or the pending send has left."""
        self._waiting[2 * connection + direction] = party

    def leave(self, connection: i64, direction: i64) -> None:
        """A connection does not wait any more. No effect if it did not."""
        key = 2 * connection + direction
        self._waiting.pop(key, None)
        self._tokens.pop(key, None)

    def open(self, connection: HandledConnection) -> None:
        """A connection belongs to this process from now on; OPEN is sent with its first frame."""
        self.connections[int(connection.id)] = connection
        self.active += 1

    def close(self, connection: HandledConnection) -> None:
        connection.party = None
        self.active -= 1
        self.leave(connection.id, 0)
        self.leave(connection.id, 1)
        self._long.forget(connection.id)
        if connection.under_way == 0:
            self.connections.pop(int(connection.id), None)
        else:
            self._closing.append(connection)
        if not self.is_gone and connection.facts is None:
            self._write(wire.encode_closed(connection.id))

    def submit(self, connection: HandledConnection, direction: i64, request: Request, run: Run) -> None:
        """Submit a frame. ``run``: the one frame; it stays the caller's. Raises WireError: it does not fit a record. Nothing is submitted."""
        header, body = run.first_sizes()
        pieces = run.pieces()
        head = wire.request_head(direction, header, connection.id, request.sequence, body)
        facts = connection.facts
        if facts is not None:
            connection.facts = None
            self._write(wire.encode_open(connection.id, facts))
        (connection.requests if direction == 0 else connection.responses).append(request)
        self.under_way += 1
        connection.metrics.begin()
        self._write(head)
        left = header + body  # without a delimiter after the body
        for piece in pieces:
            size = i64(len(piece))
            self._write(piece if size <= left else piece[:left])
            left -= size
            if left <= 0:
                break
        self._records += 1

    # Writing.

    def _ask_for(self, key: int) -> None:
        self._write(wire.encode_send(key >> 1, key & 1))

    def _write(self, piece: Buffer) -> None:
        size: i64 = len(piece)
        if self.channel is not None and not self.channel.can_send:
            self._charge(size if size < REFER_FROM else held(piece) + 2 * PIECE_OVERHEAD)
        if size < REFER_FROM:
            self._writer.write(piece if isinstance(piece, bytes) else bytes(piece))
        else:
            self._cut()
            self._pieces.append(piece)
        self._arm()

    def _charge(self, size: i64) -> None:
        self._account.charge(BEGUN, size, self)
        self._booked += size

    def _cut(self) -> None:
        if len(self._writer) != 0:
            self._pieces.append(self._writer.getvalue())
            self._writer.truncate(0)

    def _arm(self) -> None:
        if self._tick.deadline_ns == NEVER:
            self._selector.call_at(self._selector.now_ns, self._tick)

    def _end_poll(self) -> None:
        tokens = self._tokens
        self._turn = NOBODY
        for key in [key for key, given in tokens.items() if given + 1 < self._selector.polls]:
            del tokens[key]
        self.flush()
        self._wake()
        if tokens:
            self._arm()

    def flush(self) -> None:
        """Write what was submitted, unless a send is pending."""
        channel = self.channel
        if channel is None or not channel.can_send:
            return
        self._cut()
        pieces = self._pieces
        if not pieces:
            return
        size: i64 = 0
        for piece in pieces:
            size += len(piece)
        first = pieces[0]
        if len(pieces) == 1 and isinstance(first, bytes):
            run = Run(None, 0, first, 0, size, self._records, 0)
        else:
            run = Run(pieces, size, b"", 0, 0, self._records, 0)
        booked = self._booked
        self._pieces = []
        self._records = 0
        self._booked = 0
        closing = self._closing
        self._closing = []
        if channel.send(run):
            self._release(closing)
        else:
            self._sending = closing
        self._account.release(BEGUN, booked, self)  # not before ``send``, which books what is pending

    def _release(self, closing: list[HandledConnection]) -> None:
        """Connections that are over do not count any more. The last ``queue`` of them are kept, for their late replies."""
        for connection in closing:
            connection.released = True
            self.under_way -= connection.under_way
            connection.metrics.forget(connection.under_way)
            self._late.append(connection)
        while i64(len(self._late)) > self._queue:
            self.connections.pop(int(self._late.popleft().id), None)

    def _drop(self) -> None:
        booked = self._booked
        self._booked = 0
        self._pieces = []
        self._writer.truncate(0)
        self._account.release(BEGUN, booked, self)

    def _wake(self) -> None:
        waiting, tokens = self._waiting, self._tokens
        while waiting and self.under_way + i64(len(tokens)) < self._queue:
            key = next(iter(waiting))
            party = waiting.pop(key)
            self._turn = key
            self._turns = TURN
            try:
                if party.wake(key & 1):
                    tokens[key] = self._selector.polls
                    self._arm()
            except Exception as error:
                party.crash(error)

    # Events of the channel.

    def ready(self) -> None:
        pass

    def received(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "it was registered"
        touched: dict[HandledParty, None] = {}
        now_ns = self._selector.read_clock()
        try:
            if run.head is not None:
                self._take_begun(run, run.head, now_ns, touched)
            data = run.data
            position = run.first
            while position < run.end:
                end = position + SIZE + i64(read_i32_be(data, position))
                self._take(data, position, end, now_ns, touched)
                position = end
        except wire.WireError as error:
            raise InternalError(f"handler process {self.name}: {error}") from error
        finally:
            for party in touched:
                try:
                    party.flush()
                except Exception as error:
                    party.crash(error)
            channel.discard(run)  # not before ``flush``, which books what is pending
            self._long.end_slots()
        self._wake()

    def _take_begun(self, run: Run, head: list[Buffer], now_ns: i64, touched: dict[HandledParty, None]) -> None:
        """The record whose beginning came with earlier reads. The bytes of a long one are not copied."""
        size = run.head_size + run.first
        if size <= REPLY_HEAD + LONG:
            whole = b"".join([*head, run.data[: run.first]])
            self._take(whole, 0, size, now_ns, touched)
            return
        begin = run.prefix(REPLY_HEAD)
        kind = i64(begin[SIZE])
        if not self.handles or kind != REPLY:
            raise wire.WireError(f"a record of kind {kind} and {size} bytes")
        pieces: list[Buffer] = []
        refer([*head, memoryview(run.data)[: run.first]], REPLY_HEAD, size - REPLY_HEAD, pieces)
        self._take_reply(begin, 0, size, now_ns, touched, pieces)

    def _take(self, data: bytes, position: i64, end: i64, now_ns: i64, touched: dict[HandledParty, None]) -> None:
        if wire.record_end(data, position) != end:
            raise wire.WireError(f"a record of {end - position} bytes")
        kind = i64(data[position + SIZE])
        if self.handles:
            if kind != REPLY:
                raise wire.WireError(f"a record of kind {kind}")
            self._take_reply(data, position, end, now_ns, touched, None)
            return
        if kind != HELLO:
            raise wire.WireError(f"a record of kind {kind} before HELLO")
        hello = wire.read_hello(data, position, end)
        for listener, facts in hello["handlers"].items():
            self.handles[listener] = ("request" in facts["directions"], "response" in facts["directions"])
        self._owner.process_ready(self)

    def _take_reply(self, data: bytes, position: i64, end: i64, now_ns: i64, touched: dict[HandledParty, None], pieces: list[Buffer] | None) -> None:
        action, direction, throttle_ms, number, sequence, began_ns, ended_ns, begin = wire.read_reply(data, position, end)
        connection = self.connections.get(number)
        key = 2 * i64(number) + direction
        if end - begin > LONG:
            self._long.came(key, end - begin)
        if connection is None:  # over, and not kept any more
            return
        queue = connection.requests if direction == 0 else connection.responses
        if not queue or queue[0].sequence != sequence:
            raise wire.WireError(f"a reply to frame {sequence} of connection {number}, which it was not asked for")
        if action == HELD:
            if connection.party is not None:
                self._long.announce(key, wire.held_size(data, begin))
            return
        request = queue.popleft()
        if not connection.released:
            self.under_way -= 1
            connection.metrics.forget(1)
        connection.metrics.replied(action, request.enqueued_ns, began_ns, ended_ns, now_ns)
        party = connection.party
        if party is None:
            if connection.under_way == 0:
                del self.connections[number]
            return
        touched[party] = None
        try:
            party.replied(request, direction, action, throttle_ms, _body(data, begin, end) if pieces is None else pieces)
        except Exception as error:
            party.crash(error)

    def may_read(self) -> bool:
        return True

    def room_for(self) -> tuple[i64, bool]:
        return NO_LIMIT, True

    def wait_for_room(self) -> None:
        pass

    def pipe_target(self) -> WriteHalf | None:
        return None

    def was_piped(self, size: i64, frames: i64) -> None:
        pass

    def sent(self) -> None:
        closing = self._sending
        self._sending = []
        self._release(closing)
        self.flush()
        self._wake()

    def muted(self) -> None:
        pass

    def end_of_stream(self) -> None:
        if self.channel is not None:
            self.channel.close(Cause.PEER_CLOSED)

    def write_ended(self) -> None:
        pass

    def closed(self) -> None:
        self._selector.cancel(self._tick)
        self._drop()
        self.kept = 0
        self._waiting.clear()
        self._tokens.clear()
        self._long.drop()
        self._owner.process_gone(self)
        for connection in list(self.connections.values()):
            party = connection.party
            if not connection.released:
                connection.metrics.forget(connection.under_way)
                self.under_way -= connection.under_way
            if party is not None:
                try:
                    party.process_gone(f"handler process {self.name.partition('.')[0]} is gone")
                except Exception as error:
                    party.crash(error)
        self.connections.clear()
        on_parted, self.on_parted = self.on_parted, None
        if on_parted is not None:
            on_parted(self._why())

    def _why(self) -> str:
        channel = self.channel
        if channel is None or channel.close_cause is Cause.PEER_CLOSED:
            return ""
        return channel.detail or f"{channel.close_cause}"


def _body(data: bytes, begin: i64, end: i64) -> Body:
    return data[begin:end] if end - begin < REFER_FROM else memoryview(data)[begin:end]
