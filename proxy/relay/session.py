"""Clients that authenticate again within a connection (KIP-368), and sessions that expire. Only for listeners with SASL.

A SaslHandshake between the frames of a READY client is not passed on. Frames before it are passed on, and their responses leave first. Then the
client and an authenticator exchange frames as they did before the first frame of the traffic. As in Kafka, the client must use the same principal and
mechanism, and may not authenticate again within a second. The first other frame after the end of the session closes the connection.

SaslAuthenticate alone, and SaslHandshake where sessions do not end, are refused, because the upstream would take them for framegate's.
"""

import abc
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

KEY_SIZE: Final = 2
LATE: Final = "a request of a client that did not authenticate again"
LEAST_NS: Final = 1_000_000_000  # between two; Kafka's
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED


def first_sasl(run: Run) -> tuple[i64, i64]:
    """The index and the key of the first frame of SASL in a run; index -1: there is none. Of a frame in pieces only the first piece is known."""
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
    """End a pair with a handler, whose client cannot authenticate again, if it sends SASL, or anything after its session."""
    if not begins(run):
        return
    if channel.expires_ns < pair.owner.selector.now_ns:
        ending.end(pair, Cause.SESSION_EXPIRED, LATE, "downstream")
    elif first_sasl(run)[0] >= 0:
        ending.end(pair, Cause.AUTH_FAILED, "SASL on a listener without re-authentication", "downstream")


def begins(run: Run) -> bool:
    """Whether a frame begins in a run, which may be a later piece of one."""
    return run.part == 0 or run.part & PART_FIRST != 0


class ChannelFrames(FrameExchange):
    """The frames of an authenticator between those of the traffic."""

    def __init__(self, channel: Channel, account: Account) -> None:
        super().__init__()
        # the body that was received last, until it is taken. It stays booked until the next frame is received or sent, so the authenticator may keep
        # parts of it until then.
        self.came: bytes | None = None
        self._channel: Final = channel
        self._account: Final = account
        self._booked: i64 = 0

    @property
    def is_sending(self) -> bool:
        return not self._channel.can_send

    def put(self, run: Run, index: i64) -> None:
        """Take one of a run's frames; its size is checked before it is copied. Raises AuthenticationError: it is larger than ``max_size``."""
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
        self.came = None
        booked = self._booked
        self._booked = 0
        self._account.release(BEGUN, booked, self)

    def send(self, body: bytes) -> bool:
        self.close()
        data = INT32.header_of(len(body)) + body
        return self._channel.send(Run(None, 0, data, 0, len(data), 1, 0))


class Reauthentication(Waker):
    """An exchange of frames with an authenticator, between the frames of the traffic. Subclasses begin it, and say what its end means."""

    def __init__(self, pair: Pair, channel: Channel) -> None:
        self._pair: Pair | None = pair
        self._channel: Final = channel
        self._frames: Final = ChannelFrames(channel, channel.options.account or pair.owner.selector.pool.common)
        self._authenticator: Authenticator | None = None
        self._timer: Final = CallbackTimer(self._on_time)

    def now_ns(self) -> i64:
        pair = self._pair
        return 0 if pair is None else pair.owner.selector.now_ns

    def wake(self) -> None:
        self.wake_at(self.now_ns())

    def wake_at(self, deadline_ns: i64) -> None:
        pair = self._pair
        if pair is None:
            return
        if deadline_ns == NEVER:
            pair.owner.selector.cancel(self._timer)
        else:
            pair.owner.selector.call_at(deadline_ns, self._timer)

    def close(self) -> None:
        """The channel, or the pair, ends. A second call has no effect."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.owner.selector.cancel(self._timer)
            self._timer.release()
        self._frames.close()
        self._end_authenticator()

    @abc.abstractmethod
    def _finished(self, authenticator: Authenticator) -> None:
        """The authenticator has accepted."""

    @abc.abstractmethod
    def _failed(self, error: AuthenticationError) -> None:
        """The authenticator has refused."""

    def _start(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        authenticator.start(self._frames, self)

    def _step(self) -> None:
        authenticator = self._authenticator
        if authenticator is None or not self._channel.is_open:
            return
        try:
            code = authenticator.step()
        except AuthenticationError as error:
            self._failed(error)
            return
        if code == DONE:
            self._finished(authenticator)

    def _end_authenticator(self) -> None:
        authenticator, self._authenticator = self._authenticator, None
        if authenticator is not None:
            authenticator.close()

    def _on_time(self) -> None:
        pair = self._pair
        if pair is None:
            return
        try:
            self._woken(pair)
        except Exception as error:  # nothing else ends a client that waits
            ending.crash(pair, error)

    def _woken(self, pair: Pair) -> None:
        self._step()


class Session(Reauthentication):
    """The session of one client."""

    def __init__(self, pair: Pair, channel: Channel) -> None:
        super().__init__(pair, channel)
        self.waits: bool = False  # a SaslHandshake has come, and waits until the responses to earlier requests have left
        self._frames.max_size = channel.options.sasl_limit
        self._refusal: AuthenticationError | None = None
        self._since_ns: i64 = channel.ready_ns
        self._began_ns: i64 = 0

    @property
    def is_busy(self) -> bool:
        """The client authenticates: only frames for the authenticator may come."""
        return self.waits or self._authenticator is not None or self._refusal is not None

    @property
    def is_over(self) -> bool:
        """The session has expired."""
        return self._channel.expires_ns < self.now_ns()

    def wake_at(self, deadline_ns: i64) -> None:
        if self._refusal is None:
            super().wake_at(deadline_ns)

    def begin(self, key: i64, run: Run, index: i64) -> None:
        """A frame of SASL came, while the client does not authenticate. The run is left as it is."""
        channel = self._channel
        if key != SASL_HANDSHAKE:
            self.refuse("SaslAuthenticate without SaslHandshake")
        elif channel.expires_ns == NEVER:
            self.refuse("SaslHandshake of a client whose session does not end")
        elif self.now_ns() - self._since_ns < LEAST_NS:
            self.refuse("SaslHandshake within a second of the last")
        elif self._put(run, index):
            self.waits = True

    def take(self, run: Run) -> None:
        """Take what a client that authenticates has sent. The run is left as it is."""
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
            self._failed(error)
            return False
        return True

    def advance(self) -> None:
        pair = self._pair
        if pair is None or self._refusal is not None:
            return
        if self.waits and self._has_no_open_request(pair):
            self.waits = False
            self._begin_exchange()
        elif self._authenticator is not None:
            self._step()

    def refuse(self, reason: str) -> None:
        """End the session without an answer to the client."""
        self._failed(AuthenticationError(reason))

    def close(self) -> None:
        self.waits = False
        super().close()

    def _has_no_open_request(self, pair: Pair) -> bool:
        """Whether all known responses have left, and none is being passed on in pieces."""
        pairing, upstream = pair.pairing, pair.upstream.channel
        if pairing is not None and not pairing.lost and pairing.open != 0:
            return False
        within = upstream is not None and upstream.read_half.receive.passed != 0
        return not within and self._channel.can_send

    def _begin_exchange(self) -> None:
        channel = self._channel
        assert channel.identity is not None, "it was authenticated"
        authenticator = channel.options.authenticators.again(channel.identity, channel.principal)
        if authenticator is None:
            self.refuse("SASL on a listener without re-authentication")
            return
        self._began_ns = self.now_ns()
        self._start(authenticator)
        self._frames.max_size = min(self._frames.max_size, channel.options.sasl_limit)
        self._step()

    def _finished(self, authenticator: Authenticator) -> None:
        self._channel.expires_ns = authenticator.expires_ns
        self._channel.proof_began_ns = self._began_ns
        self._since_ns = self.now_ns()
        self._end_authenticator()

    def _failed(self, error: AuthenticationError) -> None:
        """After the listener's delay send the answer, then end. Only the first refusal counts."""
        pair = self._pair
        if pair is None or self._refusal is not None:
            return
        error.__traceback__ = None  # it refers to the authenticator
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

    def _woken(self, pair: Pair) -> None:
        if self._refusal is None:
            self._step()
        else:
            self._end(pair, self._refusal)


def size_of(run: Run, index: i64) -> i64:
    """Bytes of the body of one frame of a run."""
    if index == 0:
        return INT32.body_size(run.prefix(HEADER), 0)
    return INT32.body_size(run.data, run.starts()[index] - run.head_size)


def body_of(run: Run, index: i64) -> bytes:
    """The body of one frame of a run, copied without the others."""
    size = size_of(run, index)
    if index == 0 and run.head is not None:
        return run.prefix(HEADER + size)[HEADER:]
    begin = run.starts()[index] - run.head_size + HEADER
    return run.data[begin : begin + size]
