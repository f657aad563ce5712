"""Clients that authenticate again within a connection (KIP-368), and sessions that expire. Only for listeners with SASL.

A SaslHandshake between the frames of a READY client is not passed on. Frames before it are passed on, and their responses leave first. Then the
client and an authenticator exchange frames as they did before the first frame of the traffic. As in Kafka, the client must use the same principal and
mechanism, and may not authenticate again within a second. The first other frame after the end of the session closes the connection.

SaslAuthenticate alone, and SaslHandshake where sessions do not end, are refused, because the upstream would take them for framegate's.
"""

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import Authenticator, Waker
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.frame_exchange import SASL_HANDSHAKE, FrameExchange, is_sasl
from framegate.proxy.network.int32 import HEADER, INT32
from framegate.proxy.network.memory_pool import BEGUN, Account
from framegate.proxy.network.run import PART_FIRST, Run
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.network.transport import DONE
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.state import PairState

__all__ = ["LATE", "ChannelFrames", "Session", "begins", "body_of", "check", "first_sasl", "size_of"]

KEY_SIZE: Final = 2
LATE: Final = "a request of a client that did not authenticate again"
LEAST_NS: Final = 1_000_000_000  # between two; Kafka's
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED


def first_sasl(run: Run) -> tuple[i64, i64]:
    """Which of a run's frames is the first of SASL, and its key; -1 when none is. A piece of a frame says what the frame is if it is the first."""
    index: i64 = 0
    if run.part != 0 and run.part & PART_FIRST == 0:
        return -1, 0
    if run.head is not None or run.part != 0:
        head = run.prefix(HEADER + KEY_SIZE)
        if INT32.body_size(head, 0) >= KEY_SIZE:
            key = i64(read_i16_be(head, HEADER))
            if is_sasl(key):
                return 0, key
        if run.part != 0:
            return -1, 0
        index = 1
    data, pos, end = run.data, run.first, run.end
    while pos < end:
        size = INT32.body_size(data, pos)
        if size >= KEY_SIZE:
            key = i64(read_i16_be(data, pos + HEADER))
            if is_sasl(key):
                return index, key
        pos += HEADER + size
        index += 1
    return -1, 0


def check(pair: Pair, channel: Channel, run: Run) -> None:
    """End a pair whose client cannot authenticate again, since a handler has its frames, and sends what it may not: SASL, or anything too late."""
    if not begins(run):
        return
    if channel.expires_ns < pair.owner.selector.now_ns:
        ending.end(pair, Cause.SESSION_EXPIRED, LATE, "downstream")
    elif first_sasl(run)[0] >= 0:
        ending.end(pair, Cause.AUTH_FAILED, "SASL where nobody authenticates again", "downstream")


def begins(run: Run) -> bool:
    """Whether a frame begins in a run: a piece of one may only go on with it."""
    return run.part == 0 or run.part & PART_FIRST != 0


class ChannelFrames(FrameExchange):
    """Frames of an authenticator between those of the traffic.

    Attributes:
        came: the body of the one that was received last, until it is taken. It is booked until the next comes, or is sent: whoever takes it may keep
            what is in it until it answers.
    """

    def __init__(self, channel: Channel, account: Account) -> None:
        super().__init__()
        self.came: bytes | None = None
        self._channel: Final = channel
        self._account: Final = account
        self._booked: i64 = 0

    @property
    def is_sending(self) -> bool:
        return not self._channel.can_send

    def put(self, run: Run, index: i64) -> None:
        """Take one of a run's frames, whose size is judged before it is copied.

        Raises:
            AuthenticationError: it is larger than ``max_size``.
        """
        size = size_of(run, index)
        if size > self.max_size:
            raise AuthenticationError(f"frame of {size} bytes where at most {self.max_size} are taken to authenticate")
        self.close()
        self.came = body_of(run, index)
        self._booked = size
        self._account.charge(BEGUN, size, self)

    def receive(self) -> bytes | None:
        came = self.came
        self.came = None
        return came

    def close(self) -> None:
        """Give back what is booked. Harmless twice."""
        self.came = None
        booked = self._booked
        self._booked = 0
        self._account.release(BEGUN, booked, self)

    def send(self, body: bytes) -> bool:
        self.close()
        data = INT32.header_of(len(body)) + body
        return self._channel.send(Run(None, 0, data, 0, len(data), 1, 0))


class Session(Waker):
    """One client's.

    Attributes:
        waits: a handshake has come, and answers are owed that leave first.
    """

    def __init__(self, pair: Pair, channel: Channel) -> None:
        self.waits: bool = False
        self._pair: Pair | None = pair
        self._channel: Final = channel
        self._frames: Final = ChannelFrames(channel, channel.options.account or pair.owner.selector.pool.common)
        self._frames.max_size = channel.options.sasl_limit
        self._authenticator: Authenticator | None = None
        self._refusal: AuthenticationError | None = None
        self._since_ns: i64 = channel.ready_ns
        self._began_ns: i64 = 0
        self._timer: Final = CallbackTimer(self._on_time)

    @property
    def is_busy(self) -> bool:
        """The client authenticates: nothing but its next frame may come."""
        return self.waits or self._authenticator is not None or self._refusal is not None

    @property
    def is_over(self) -> bool:
        """The client should have authenticated again."""
        return self._channel.expires_ns < self._pair_clock()

    # What an authenticator calls.

    def now_ns(self) -> i64:
        return self._pair_clock()

    def wake(self) -> None:
        self.wake_at(self._pair_clock())

    def wake_at(self, deadline_ns: i64) -> None:
        pair = self._pair
        if pair is None or self._refusal is not None:
            return
        if deadline_ns == NEVER:
            pair.owner.selector.cancel(self._timer)
        else:
            pair.owner.selector.call_at(deadline_ns, self._timer)

    # What the leg calls.

    def begin(self, key: i64, run: Run, index: i64) -> None:
        """A frame of SASL came, of a client that does not authenticate now. The run is left as it is."""
        channel, now_ns = self._channel, self._pair_clock()
        if key != SASL_HANDSHAKE:
            self.refuse("SaslAuthenticate without SaslHandshake")
        elif channel.expires_ns == NEVER:
            self.refuse("SaslHandshake of a client whose session does not end")
        elif now_ns - self._since_ns < LEAST_NS:
            self.refuse("SaslHandshake within a second of the last")
        elif self._put(run, index):
            self.waits = True

    def take(self, run: Run) -> None:
        """What a client sent that authenticates. The run is left as it is."""
        if self._refusal is not None:
            return
        if run.part != 0 or run.frames != 1:
            self.refuse("requests of a client that authenticates again")
        elif self.waits or self._frames.came is not None:
            self.refuse("a request while the one before it is not answered, of a client that authenticates again")
        else:
            self._put(run, 0)

    def _put(self, run: Run, index: i64) -> bool:
        """Take a frame for the authenticator; False: it is refused."""
        try:
            self._frames.put(run, index)
        except AuthenticationError as error:
            self._refuse(error)
            return False
        return True

    def advance(self) -> None:
        """What was to leave first may have left."""
        pair = self._pair
        if pair is None or self._refusal is not None:
            return
        if self.waits and self._has_no_open_request(pair):
            self.waits = False
            self._start()
        elif self._authenticator is not None:
            self._step()

    def refuse(self, reason: str) -> None:
        """End the session without an answer to the client."""
        self._refuse(AuthenticationError(reason))

    def close(self) -> None:
        """The client's channel is closed. Harmless twice."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.owner.selector.cancel(self._timer)
            self._timer.release()
        self.waits = False
        self._frames.close()
        self._end_authenticator()

    def _pair_clock(self) -> i64:
        pair = self._pair
        return 0 if pair is None else pair.owner.selector.now_ns

    def _has_no_open_request(self, pair: Pair) -> bool:
        """Whether all answers are out, as far as is known, and none is within."""
        pairing, upstream = pair.pairing, pair.upstream.channel
        if pairing is not None and not pairing.lost and pairing.open != 0:
            return False
        within = upstream is not None and upstream.read_half.receive.passed != 0
        return not within and self._channel.can_send

    def _start(self) -> None:
        channel = self._channel
        assert channel.identity is not None, "it was authenticated"
        authenticator = channel.options.authenticators.again(channel.identity, channel.principal)
        if authenticator is None:
            self.refuse("SASL where nobody authenticates again")
            return
        self._authenticator = authenticator
        self._began_ns = self._pair_clock()
        authenticator.start(self._frames, self)
        self._frames.max_size = min(self._frames.max_size, channel.options.sasl_limit)
        self._step()

    def _step(self) -> None:
        authenticator = self._authenticator
        if authenticator is None or not self._channel.is_open:
            return
        try:
            code = authenticator.step()
        except AuthenticationError as error:
            self._refuse(error)
            return
        if code == DONE:
            self._channel.expires_ns = authenticator.expires_ns
            self._channel.proof_began_ns = self._began_ns
            self._since_ns = self._pair_clock()
            self._end_authenticator()

    def _refuse(self, error: AuthenticationError) -> None:
        """After the listener's delay the answer, then the end. The first refusal counts."""
        pair = self._pair
        if pair is None or self._refusal is not None:
            return
        error.__traceback__ = None  # it holds the authenticator
        self._refusal = error
        self.waits = False
        self._frames.close()
        self._end_authenticator()
        selector = pair.owner.selector
        delay_ns = self._channel.options.failed_authentication_delay_ns
        if delay_ns > 0:
            selector.call_at(selector.now_ns + delay_ns, self._timer)
        else:
            self._end(pair, error)

    def _end(self, pair: Pair, error: AuthenticationError) -> None:
        if error.answer and self._channel.can_send:
            self._frames.send(error.answer)
        ending.end(pair, Cause.AUTH_FAILED, str(error), "downstream")

    def _end_authenticator(self) -> None:
        authenticator, self._authenticator = self._authenticator, None
        if authenticator is not None:
            authenticator.close()

    def _on_time(self) -> None:
        pair, refusal = self._pair, self._refusal
        if pair is None:
            return
        try:
            if refusal is None:
                self._step()
            else:
                self._end(pair, refusal)
        except Exception as error:  # nothing else ends a client that waits for its answer
            ending.crash(pair, error)


def size_of(run: Run, index: i64) -> i64:
    """Bytes of the body of one frame of a run."""
    if index == 0:
        return INT32.body_size(run.prefix(HEADER), 0)
    return INT32.body_size(run.data, run.starts()[index] - run.head_size)


def body_of(run: Run, index: i64) -> bytes:
    """The body of one frame of a run; of no other frame is a copy made."""
    size = size_of(run, index)
    if index == 0 and run.head is not None:
        return run.prefix(HEADER + size)[HEADER:]
    begin = run.starts()[index] - run.head_size + HEADER
    return run.data[begin : begin + size]
