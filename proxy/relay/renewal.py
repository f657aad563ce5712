"""A login to an upstream that expires (KIP-368): it is renewed within the connection, before the upstream ends it.

Theory of operation. At ``Channel.renew_ns``, when 85 to 95 % of the session are over, the client is muted for ``peer``. The responses to its open
requests leave first, because a broker answers in order. Then an authenticator exchanges frames with the upstream as it did before the first frame;
nothing of that is paired, tapped or passed on, so framegate's correlation ids never meet the client's. Then the client is read again.

A login that is not renewed by the end of the session ends the pair (``session_expired``), except while a response is open: a broker that holds one
back, for a consumer that waits for records or a member that joins a group, accepts the login afterwards as well (Kafka ends a connection at the first
other request after its session).

Where open requests are not known, because a handler has the frames or pairing is lost, the login cannot be renewed: from ``renew_ns`` on such a pair
ends as soon as nothing seems to be in flight, and with its session at the latest.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, LoginError
from framegate.proxy.network import mute
from framegate.proxy.network.authenticator import Authenticator
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.relay import ending
from framegate.proxy.relay.login import Login, LoginTry
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.session import Reauthentication
from framegate.proxy.relay.state import PairState

AGAIN_NS: Final = 20_000_000  # between two checks whether nothing is in flight
LATE_NS: Final = 300_000_000_000  # after the session, for a response: as long as JoinGroup may take by default
LOOK_NS: Final = 1_000_000_000  # between two checks whether pairing was lost meanwhile
PEER: Final = mute.PEER
OPEN: Final = PairState.OPEN


class Renewal(Reauthentication):
    """Renews the login of one pair at its upstream, until the pair ends."""

    def __init__(self, pair: Pair, channel: Channel, login: Login) -> None:
        super().__init__(pair, channel)
        self.mutes_client: bool = False  # the client is muted for the renewal
        self.owns_input: bool = False  # the upstream's frames belong to the renewal
        self._login: Final = login
        self._until_ns: i64 = 0  # the deadline of the exchange
        self._due: Final = CallbackTimer(self._on_due)
        pair.owner.selector.call_at(channel.renew_ns, self._due)

    def advance(self) -> None:
        """An answer has passed, or a pending send to the upstream is out."""
        pair = self._pair
        if pair is None or pair.state is not OPEN:
            return
        if self.owns_input:
            self._step()
        elif self._has_no_open_request(pair):
            self._begin(pair)

    def take(self, run: Run) -> None:
        """Take a run of the upstream's, while ``owns_input``."""
        pair = self._pair
        if pair is not None:
            pair.upstream.retains_frames = True
            self._put(pair, run)
        self._channel.discard(run)
        self._step()

    def _put(self, pair: Pair, run: Run) -> None:
        if run.part != 0 or run.frames != 1 or self._frames.came is not None:
            ending.end(pair, Cause.AUTH_FAILED, "the upstream sent something else while we logged in again", "upstream")
            return
        try:
            self._frames.put(run, 0)
        except AuthenticationError as error:
            self._failed(error)

    def close(self) -> None:
        if self._pair is not None:
            self._pair.owner.selector.cancel(self._due)
            self._due.release()
        self.mutes_client = self.owns_input = False
        super().close()

    def _on_due(self) -> None:
        """It is time to renew the login, to check again, or to give up."""
        pair = self._pair
        if pair is None:
            return
        try:
            if pair.state is OPEN:
                self._look(pair)
        except Exception as error:  # nothing else ends a client that is muted
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
        """Whether framegate waits for the upstream although the session may be over."""
        if self.owns_input:
            return now_ns < self._until_ns
        pairing = pair.pairing
        return pairing is not None and not pairing.lost and now_ns < self._channel.expires_ns + LATE_NS

    def _look_again(self, pair: Pair) -> None:
        pair.owner.selector.call_at(min(self.now_ns() + AGAIN_NS, self._channel.expires_ns), self._due)

    def _has_no_open_request(self, pair: Pair) -> bool:
        """Whether both streams are between two frames, and all responses have passed."""
        pairing = pair.pairing
        if pairing is None or pairing.lost:  # not known: the pair ends with the session
            return False
        return pairing.open == 0 and self._channel.can_send and not self._channel.read_half.receive.within

    def _begin(self, pair: Pair) -> None:
        identity = self._channel.identity
        assert identity is not None, "the channel is READY"
        self.owns_input = True
        expires_ns, now_ns = self._channel.expires_ns, self.now_ns()
        self._until_ns = expires_ns if now_ns < expires_ns else now_ns + expires_ns - self._channel.renew_ns
        pair.owner.selector.call_at(self._until_ns, self._due)
        authenticator = self._login.factory.again(identity, self._channel.principal)
        assert authenticator is not None, "a login can always be renewed"
        self._start(authenticator)
        self._step()

    def _failed(self, error: AuthenticationError) -> None:
        pair = self._pair
        if pair is None:
            return
        refused = not isinstance(error, LoginError) or error.refused
        if refused:
            LoginTry(self._login, self.now_ns(), alone=False).refused(str(error), self.now_ns())
        ending.end(pair, Cause.AUTH_FAILED, f"{pair.endpoint}: to go on: {error}", "upstream" if refused else "internal")

    def _finished(self, authenticator: Authenticator) -> None:
        pair, channel = self._pair, self._channel
        channel.expires_ns, channel.renew_ns = authenticator.expires_ns, authenticator.renew_ns
        self._end_authenticator()
        self.mutes_client = self.owns_input = False
        if pair is None:
            return
        if channel.renew_ns == NEVER:
            pair.owner.selector.cancel(self._due)
        else:
            pair.owner.selector.call_at(channel.renew_ns, self._due)
        client = pair.client.channel
        if client is not None and channel.can_send and not pair.full:
            client.unmute(PEER)
