"""The sink of a channel of a pair whose client may have to authenticate again; see ``session``."""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network.run import PART_LAST, Run
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay import ending, losses
from framegate.proxy.relay.leg import RelayLeg
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.session import LATE, Session, begins, first_sasl
from framegate.proxy.relay.state import PairState

NO_LIMIT: Final = 1 << 31
CLOSING: Final = PairState.CLOSING


class SessionLeg(RelayLeg):
    """The sink of a channel of a pair whose client may have to authenticate again."""

    def __init__(self, pair: Pair, *, is_client: bool) -> None:
        super().__init__(pair, is_client=is_client)
        self.session: Session | None = None  # of the client, on its leg, once it is READY
        self._answers: bool = False  # frames came for the authenticator
        self._refuses_part: bool = False  # all pieces of the present frame are dropped

    def counts_frames(self) -> bool:
        return not self._answers and super().counts_frames()

    def received(self, run: Run) -> None:
        session = self.session
        if self._refuses_part:
            self._discard_part(run)
        elif session is None:
            super().received(run)
            if not self.is_client:
                _advance(self.pair)
        elif self.pair.state is CLOSING:
            super().received(run)
        else:
            self._of_client(session, run)

    def _of_client(self, session: Session, run: Run) -> None:
        if session.is_busy:
            self._to_authenticator(session, run)
            return
        index, key = first_sasl(run)
        if index != 0 and session.is_over and begins(run):
            ending.end(self.pair, Cause.SESSION_EXPIRED, LATE, "downstream")
            self._drop(run)
        elif index < 0:
            super().received(run)
        else:
            self._begin(session, run, index, key)

    def _begin(self, session: Session, run: Run, index: i64, key: i64) -> None:
        """A frame of SASL, and those before it, which are passed on."""
        self._answers = True
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        if run.part != 0:
            self._refuses_part = True
            self._discard_part(run)
            session.refuse("a frame to authenticate with that passes in pieces, since memory is short")
            return
        if index > 0:
            super().received(run.give_lease(run.first_frames(index)))
        if channel.is_open and self.pair.state is not CLOSING:
            if index + 1 == run.frames:
                session.begin(key, run, index)
            else:
                session.refuse("requests behind SaslHandshake, before it is answered")
        channel.discard(run)
        session.advance()

    def _to_authenticator(self, session: Session, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        self._answers = True
        session.take(run)
        channel.discard(run)
        session.advance()

    def _discard_part(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        self._refuses_part = run.part & PART_LAST == 0
        channel.discard(run)

    def room_for(self) -> tuple[i64, bool]:
        """Frames for an authenticator come whole, and need no room at the upstream."""
        return (NO_LIMIT, True) if self._is_busy() else super().room_for()

    def pipe_target(self) -> WriteHalf | None:
        return None if self._is_busy() else super().pipe_target()

    def _is_busy(self) -> bool:
        return self._refuses_part or (self.session is not None and self.session.is_busy)

    def _drop(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        if run.part != 0:
            losses.drop_part(self.pair, self, channel, run)
        else:
            losses.drop(self.pair, self, run.frames, run.size, run)
        channel.discard(run)

    def was_piped(self, size: i64, frames: i64) -> None:
        super().was_piped(size, frames)
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
    client: Leg = pair.client
    if isinstance(client, SessionLeg) and client.session is not None and client.session.waits:
        client.session.advance()
