"""A login to an upstream that does not last (KIP-368): it is renewed in the connection that there is, before the upstream ends it.

Theory of operation. At ``Channel.renew_ns``, when 85 to 95 % of the session are over, the client is muted for ``peer``, as it was at the beginning.
The answers that are owed leave first: a broker answers in order, so it would not come to us before. Then an authenticator talks to the upstream as
it did before the first frame, and what the upstream sends is its own; nothing of it is paired, tapped, or passed on. Then the client goes on. So our
ids never meet the client's. A login that is not renewed by the end of the session ends the pair (``session_expired``), but for answers that are owed:
a broker that holds one back, for a consumer that waits for records or a member that joins a group, takes the login afterwards as well (Kafka's ends
a connection at the first other request behind its session), and as long as it does nothing else could come past it.

Where nobody knows what is owed, since a handler has the frames or pairing is lost, nothing can be told apart: from ``renew_ns`` on such a pair ends
as soon as nothing seems to be under way, and with its session at the latest.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, LoginError
from framegate.proxy.network import mute
from framegate.proxy.network.authenticator import Authenticator, Waker
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.network.transport import DONE
from framegate.proxy.relay import ending
from framegate.proxy.relay.login import Login, LoginTry
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.session import ChannelFrames
from framegate.proxy.relay.state import PairState

__all__ = ["AGAIN_NS", "Renewal"]

AGAIN_NS: Final = 20_000_000  # between two looks at what nobody tells of
LATE_NS: Final = 300_000_000_000  # behind the session, for an answer: as long as JoinGroup may take by default
LOOK_NS: Final = 1_000_000_000  # between two looks whether pairing was lost meanwhile
PEER: Final = mute.PEER
OPEN: Final = PairState.OPEN


class _Waker(Waker):
    """Wakes the authenticator of a renewal."""

    def __init__(self, renewal: "Renewal") -> None:
        self._renewal: Renewal | None = renewal

    def now_ns(self) -> i64:
        return 0 if self._renewal is None else self._renewal.now_ns()

    def wake(self) -> None:
        if self._renewal is not None:
            self._renewal.wake_at(self._renewal.now_ns())

    def wake_at(self, deadline_ns: i64) -> None:
        if self._renewal is not None:
            self._renewal.wake_at(deadline_ns)

    def release(self) -> None:
        """Wake nobody any more."""
        self._renewal = None


class Renewal:
    """Renews the login of one pair at its upstream, until the pair ends.

    Attributes:
        mutes_client: the client is muted for the renewal.
        owns_input: the upstream's frames belong to the renewal.
    """

    def __init__(self, pair: Pair, channel: Channel, login: Login) -> None:
        self.mutes_client: bool = False
        self.owns_input: bool = False
        self._pair: Pair | None = pair
        self._channel: Final = channel
        self._login: Final = login
        self._frames: Final = ChannelFrames(channel, channel.options.account or pair.owner.selector.pool.common)
        self._waker: Final = _Waker(self)
        self._authenticator: Authenticator | None = None
        self._until_ns: i64 = 0  # for what is said
        self._due: Final = CallbackTimer(self._on_due)
        self._wake: Final = CallbackTimer(self._on_wake)
        pair.owner.selector.call_at(channel.renew_ns, self._due)

    def now_ns(self) -> i64:
        """The selector's clock."""
        return 0 if self._pair is None else self._pair.owner.selector.now_ns

    def wake_at(self, deadline_ns: i64) -> None:
        """Have the authenticator's next step made at a time; NEVER: not at all."""
        pair = self._pair
        if pair is None:
            return
        if deadline_ns == NEVER:
            pair.owner.selector.cancel(self._wake)
        else:
            pair.owner.selector.call_at(deadline_ns, self._wake)

    def advance(self) -> None:
        """An answer has passed, or a pending send to the upstream is out."""
        pair = self._pair
        if pair is None or pair.state is not OPEN:
            return
        if self.owns_input:
            self._step(pair)
        elif self._has_no_open_request(pair):
            self._begin(pair)

    def take(self, run: Run) -> None:
        """Take a run of the upstream's, while ``owns_input``."""
        pair = self._pair
        if pair is not None:
            pair.upstream.retains_frames = True
            self._put(pair, run)
        self._channel.discard(run)
        if pair is not None:
            self._step(pair)

    def _put(self, pair: Pair, run: Run) -> None:
        if run.part != 0 or run.frames != 1 or self._frames.came is not None:
            ending.end(pair, Cause.AUTH_FAILED, "the upstream sent something else while we logged in again", "upstream")
            return
        try:
            self._frames.put(run, 0)
        except AuthenticationError as error:
            self._refused(pair, error)

    def close(self) -> None:
        """The pair ends."""
        pair, self._pair = self._pair, None
        self.mutes_client = self.owns_input = False
        self._waker.release()
        if pair is not None:
            for timer in (self._due, self._wake):
                pair.owner.selector.cancel(timer)
                timer.release()
        self._frames.close()
        self._end_authenticator()

    # The steps.

    def _on_due(self) -> None:
        """It is time to renew it, to look again, or to give up."""
        pair = self._pair
        if pair is None:
            return
        try:
            if pair.state is OPEN:
                self._look(pair)
        except Exception as error:  # nobody else ends a client that is held
            ending.crash(pair, error)

    def _look(self, pair: Pair) -> None:
        client, now_ns = pair.client.channel, self.now_ns()
        if self.mutes_client and self._may_be_late(pair, now_ns):
            pair.owner.selector.call_at(self._until_ns if self.owns_input else now_ns + LOOK_NS, self._due)
        elif now_ns >= self._channel.expires_ns:
            why = "the login to the upstream was not renewed in time" if self.mutes_client else "the login to the upstream could not be renewed here"
            ending.end(pair, Cause.SESSION_EXPIRED, why, "upstream")
        elif self.mutes_client or client is None:
            return
        elif pair.route.handler is not None or not pair.counts_responses:
            if pair.has_no_open_request():
                ending.end(pair, Cause.SESSION_EXPIRED, "the login to the upstream cannot be renewed here", "upstream")
            else:
                self._look_again(pair)
        elif client.read_half.receive.is_within_cut:  # the upstream has the beginning of a frame
            self._look_again(pair)
        else:
            self.mutes_client = True
            client.mute(PEER)
            pair.owner.selector.call_at(self._channel.expires_ns, self._due)
            self.advance()

    def _may_be_late(self, pair: Pair, now_ns: i64) -> bool:
        """Whether the session may be over while the upstream is waited for."""
        if self.owns_input:
            return now_ns < self._until_ns
        pairing = pair.pairing
        return pairing is not None and not pairing.lost and now_ns < self._channel.expires_ns + LATE_NS

    def _look_again(self, pair: Pair) -> None:
        pair.owner.selector.call_at(min(self.now_ns() + AGAIN_NS, self._channel.expires_ns), self._due)

    def _has_no_open_request(self, pair: Pair) -> bool:
        """Whether the stream is between two frames, both ways, and all answers have passed."""
        pairing = pair.pairing
        if pairing is None or pairing.lost:  # from now on nobody knows: it ends with the session
            return False
        return pairing.open == 0 and self._channel.can_send and not self._channel.read_half.receive.within

    def _begin(self, pair: Pair) -> None:
        identity = self._channel.identity
        assert identity is not None, "the channel is READY"
        self.owns_input = True
        expires_ns, now_ns = self._channel.expires_ns, self.now_ns()
        self._until_ns = expires_ns if now_ns < expires_ns else now_ns + expires_ns - self._channel.renew_ns
        pair.owner.selector.call_at(self._until_ns, self._due)
        authenticator = self._authenticator = self._login.factory.again(identity, self._channel.principal)
        assert authenticator is not None, "who logs in may do it again"
        authenticator.start(self._frames, self._waker)
        self._step(pair)

    def _on_wake(self) -> None:
        pair = self._pair
        if pair is None:
            return
        try:
            self._step(pair)
        except Exception as error:
            ending.crash(pair, error)

    def _step(self, pair: Pair) -> None:
        authenticator = self._authenticator
        if authenticator is None or not self._channel.is_open:
            return
        try:
            code = authenticator.step()
        except AuthenticationError as error:
            self._refused(pair, error)
            return
        if code == DONE:
            self._finish(pair, authenticator)

    def _refused(self, pair: Pair, error: AuthenticationError) -> None:
        refused = not isinstance(error, LoginError) or error.refused
        if refused:
            LoginTry(self._login, self.now_ns(), alone=False).refused(str(error), self.now_ns())
        ending.end(pair, Cause.AUTH_FAILED, f"{pair.endpoint}: to go on: {error}", "upstream" if refused else "internal")

    def _finish(self, pair: Pair, authenticator: Authenticator) -> None:
        """The client goes on."""
        channel, client = self._channel, pair.client.channel
        channel.expires_ns, channel.renew_ns = authenticator.expires_ns, authenticator.renew_ns
        self._end_authenticator()
        self.mutes_client = self.owns_input = False
        if channel.renew_ns == NEVER:
            pair.owner.selector.cancel(self._due)
        else:
            pair.owner.selector.call_at(channel.renew_ns, self._due)
        if client is not None and channel.can_send and not pair.full:
            client.unmute(PEER)

    def _end_authenticator(self) -> None:
        authenticator, self._authenticator = self._authenticator, None
        if authenticator is not None:
            authenticator.close()
