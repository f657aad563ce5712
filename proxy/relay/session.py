"""Clients that authenticate again within a connection (KIP-368), and those whose time is over. No runs come here but those of listeners with SASL.

A SaslHandshake that stands between the frames of a READY client is not passed on: it begins the session anew. What came before it goes on, and the
answers that are owed leave first; then the client and an authenticator talk as before the first frame, between the frames of the traffic, and a
client that has said that it is who it was goes on. As with Kafka's brokers it is refused to be anybody else, to use another mechanism, and to do it
within a second of the last time; and the first other frame behind the end of the session ends the connection.

SaslAuthenticate by itself, and SaslHandshake where sessions do not end, are refused: the upstream would take them for ours.
"""

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from proxy.cause import Cause
from proxy.errors import AuthenticationError
from proxy.network.authenticator import Authenticator, Waker
from proxy.network.channel import Channel
from proxy.network.frame_exchange import FrameExchange
from proxy.network.int32 import HEADER, INT32
from proxy.network.run import Run
from proxy.network.timer import NEVER, CallbackTimer
from proxy.network.transport import DONE
from proxy.relay import ending, losses
from proxy.relay.leg import RelayLeg
from proxy.relay.pair import Leg, Pair
from proxy.relay.state import PairState

__all__ = ["ChannelFrames", "Session", "SessionLeg", "body_of", "check", "first_sasl"]

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
KEY_SIZE: Final = 2
LATE: Final = "a request of a client that did not authenticate again"
LEAST_NS: Final = 1_000_000_000  # between two; Kafka's
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED


def _is_sasl(key: i64) -> bool:
    return key == SASL_AUTHENTICATE if key != SASL_HANDSHAKE else True


def first_sasl(run: Run) -> tuple[i64, i64]:
    """Which of a run's frames is the first of SASL, and its key; -1 when none is."""
    index: i64 = 0
    if run.head is not None:
        head = run.prefix(HEADER + KEY_SIZE)
        if INT32.body_size(head, 0) >= KEY_SIZE:
            key = i64(read_i16_be(head, HEADER))
            if _is_sasl(key):
                return 0, key
        index = 1
    data, pos, end = run.data, run.first, run.end
    while pos < end:
        size = INT32.body_size(data, pos)
        if size >= KEY_SIZE:
            key = i64(read_i16_be(data, pos + HEADER))
            if _is_sasl(key):
                return index, key
        pos += HEADER + size
        index += 1
    return -1, 0


def check(pair: Pair, channel: Channel, run: Run) -> None:
    """End a pair whose client cannot authenticate again, since a handler has its frames, and sends what it may not: SASL, or anything too late."""
    if channel.expires_ns < pair.owner.selector.now_ns:
        ending.end(pair, Cause.SESSION_EXPIRED, LATE, "downstream")
    elif run.part == 0 and first_sasl(run)[0] >= 0:
        ending.end(pair, Cause.AUTH_FAILED, "SASL where nobody authenticates again", "downstream")


class ChannelFrames(FrameExchange):
    """Frames of an authenticator between those of the traffic.

    Attributes:
        came: the one that was received last, until it is taken.
    """

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.came: bytes | None = None
        self._channel: Final = channel

    @property
    def is_sending(self) -> bool:
        return not self._channel.can_send

    def receive(self) -> bytes | None:
        came = self.came
        self.came = None
        if came is not None and len(came) > self.max_size:
            raise AuthenticationError(f"frame of {len(came)} bytes where at most {self.max_size} are taken to authenticate")
        return came

    def send(self, body: bytes) -> bool:
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
        self._frames: Final = ChannelFrames(channel)
        self._authenticator: Authenticator | None = None
        self._refusal: AuthenticationError | None = None
        self._since_ns: i64 = channel.ready_ns
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

    def begin(self, key: i64, body: bytes) -> None:
        """A frame of SASL came, of a client that does not authenticate now."""
        channel, now_ns = self._channel, self._pair_clock()
        if key != SASL_HANDSHAKE:
            self.refuse("SaslAuthenticate without SaslHandshake")
        elif channel.expires_ns == NEVER:
            self.refuse("SaslHandshake of a client whose session does not end")
        elif now_ns - self._since_ns < LEAST_NS:
            self.refuse("SaslHandshake within a second of the last")
        else:
            self._frames.came = body
            self.waits = True
            self.advance()

    def take(self, body: bytes) -> None:
        """The next frame of a client that authenticates."""
        if self._refusal is not None:
            return
        if self.waits or self._frames.came is not None:
            self.refuse("a request while the one before it is not answered, of a client that authenticates again")
            return
        self._frames.came = body
        self._step()

    def advance(self) -> None:
        """What was to leave first may have left."""
        pair = self._pair
        if pair is None or self._refusal is not None:
            return
        if self.waits and self._owes_nothing(pair):
            self.waits = False
            self._start()
        elif self._authenticator is not None:
            self._step()

    def refuse(self, reason: str) -> None:
        """The end, of which the client is told nothing."""
        self._refuse(AuthenticationError(reason))

    def close(self) -> None:
        """The client's channel is closed. Harmless twice."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.owner.selector.cancel(self._timer)
            self._timer.release()
        self.waits = False
        self._end_authenticator()

    def _pair_clock(self) -> i64:
        pair = self._pair
        return 0 if pair is None else pair.owner.selector.now_ns

    def _owes_nothing(self, pair: Pair) -> bool:
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
        authenticator.start(self._frames, self)
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
            self._since_ns = self._pair_clock()
            self._end_authenticator()

    def _refuse(self, error: AuthenticationError) -> None:
        """After the listener's delay the answer, then the end."""
        pair = self._pair
        if pair is None:
            return
        error.__traceback__ = None  # it holds the authenticator
        self._refusal = error
        self.waits = False
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
        except Exception as error:  # nobody else ends a client that waits for its answer
            ending.crash(pair, error)


class SessionLeg(RelayLeg):
    """The sink of a channel of a pair whose client may have to authenticate again.

    Attributes:
        session: of the client, on its leg, once it is READY.
    """

    def __init__(self, pair: Pair, *, is_client: bool) -> None:
        super().__init__(pair, is_client=is_client)
        self.session: Session | None = None
        self._answers: bool = False  # frames came that were answered here

    def counts(self) -> bool:
        return not self._answers and super().counts()

    def received(self, run: Run) -> None:
        session = self.session
        if session is None:
            super().received(run)
            if not self.is_client:
                _advance(self.pair)
        elif self.pair.state is CLOSING:
            super().received(run)
        else:
            self._of_client(session, run)

    def _of_client(self, session: Session, run: Run) -> None:
        """Frames of a client that is READY."""
        if session.is_busy:
            self._to_authenticator(session, run)
            return
        index: i64 = -1
        key: i64 = 0
        if run.part == 0:
            index, key = first_sasl(run)
        if index != 0 and session.is_over:
            ending.end(self.pair, Cause.SESSION_EXPIRED, LATE, "downstream")
            self._drop(run)
        elif index < 0:
            super().received(run)
        else:
            self._begin(session, run, index, key)

    def _begin(self, session: Session, run: Run, index: i64, key: i64) -> None:
        """A frame of SASL, and those before it, which go on as ever."""
        self._answers = True
        body = body_of(run, index)
        is_last = index + 1 == run.frames
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        if index > 0:
            super().received(run.give_lease(run.first_frames(index)))
        else:
            channel.discard(run)
        if not channel.is_open or self.pair.state is CLOSING:
            return
        if is_last:
            session.begin(key, body)
        else:
            session.refuse("requests behind SaslHandshake, before it is answered")

    def _to_authenticator(self, session: Session, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        self._answers = True
        body = b"" if run.part != 0 or run.frames != 1 else body_of(run, 0)
        channel.discard(run)
        if run.part != 0 or run.frames != 1:
            session.refuse("requests of a client that authenticates again")
        else:
            session.take(body)

    def _drop(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        if run.part != 0:
            losses.drop_part(self.pair, self, channel, run)
        else:
            losses.drop(self.pair, self, run.frames, run.size, run)
        channel.discard(run)

    def passed_by(self, size: i64, frames: i64) -> None:
        super().passed_by(size, frames)
        if not self.is_client:
            _advance(self.pair)

    def ready(self) -> None:
        if self.is_client and self.channel is not None:
            self.session = Session(self.pair, self.channel)
        super().ready()

    def sent(self) -> None:
        super().sent()
        if self.session is not None:
            self.session.advance()

    def closed(self) -> None:
        session = self.session
        self.session = None
        if session is not None:
            session.close()
        super().closed()


def _advance(pair: Pair) -> None:
    """An answer has passed."""
    client: Leg = pair.client
    if isinstance(client, SessionLeg) and client.session is not None and client.session.waits:
        client.session.advance()


def body_of(run: Run, index: i64) -> bytes:
    """The body of one frame of a run."""
    data = b"".join(run.pieces())
    start = i64(run.starts()[index])
    return data[start + HEADER : start + HEADER + INT32.body_size(data, start)]
