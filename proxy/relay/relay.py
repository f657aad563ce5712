"""The relay: all the pairs of one processor. The sinks of their channels are legs (``leg``)."""

import socket
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.connection_id import ConnectionIds
from framegate.proxy.relay import ending, opening, tapping
from framegate.proxy.relay.client_use import ClientUse
from framegate.proxy.relay.cluster import BOOTSTRAP
from framegate.proxy.relay.counters import Counters
from framegate.proxy.relay.ending import CLOSED_BY
from framegate.proxy.relay.leg import RelayLeg
from framegate.proxy.relay.opening import ACCEPTED
from framegate.proxy.relay.pair import Leg, LegMaker, Pair, PairOwner, PairWatcher
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.session_leg import SessionLeg
from framegate.proxy.relay.state import PairState
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.record import DIRECTION_REQUEST
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter

TAP: Final = mute.TAP


class _Pairs(PairOwner):
    """The pairs, and what they ask for."""

    def __init__(self, counters: Counters, watcher: PairWatcher, rules: TapRules | None, writer: TapWriter | None, handled: LegMaker | None) -> None:
        super().__init__(counters.loop, watcher)
        self._handled: LegMaker | None = handled
        self.open: dict[int, Pair] = {}  # those that are not CLOSED, by id, oldest first
        self.rules = rules  # of the tap, those in force; None: there is no tap
        self.use: Final = ClientUse()  # what each client uses
        self._writer: Final = writer
        self._starved: dict[Leg, None] = {}  # in the order in which they came

    def match(self, pair: Pair, direction: int) -> FrameTap | None:
        client = pair.client.channel
        if self.rules is None or client is None:
            return None
        route = pair.route
        source = client if direction == DIRECTION_REQUEST or route.upstream is None else pair.upstream.channel
        assert source is not None, "a leg is tapped when its channel is READY"
        framing = source.options.framing.name
        return self.rules.match(route.listener, route.protocol, direction, client.principal or None, client.peer, int(pair.id), framing)

    @property
    def has_handlers(self) -> bool:
        """Whether frames can be handed to handlers."""
        return self._handled is not None

    def handle(self, handled: LegMaker) -> None:
        """Set what hands frames to handlers, before the first route with one."""
        self._handled = handled

    @property
    def has_log(self) -> bool:
        """Whether there is a log for frames to go to."""
        return self._writer is not None

    def tap_full(self, leg: Leg) -> None:
        self._starved[leg] = None

    def tap_accepts(self) -> None:
        """Unmute what waits for the log, if it accepts."""
        if self._starved and self._writer is not None and self._writer.accepts():
            self.ask_again()

    def ask_again(self) -> None:
        """Unmute what waits for the log: each is asked before it is read, and may be muted again."""
        starved = self._starved
        self._starved = {}
        for leg in starved:
            channel = leg.channel
            if channel is not None:
                try:
                    channel.unmute(TAP)
                except Exception as error:  # the others wait, too
                    channel.crash(error)

    def make_leg(self, pair: Pair, *, is_client: bool) -> Leg:
        if pair.route.handler is None:
            return SessionLeg(pair, is_client=is_client) if pair.route.authenticates else RelayLeg(pair, is_client=is_client)
        assert self._handled is not None, "a route with a handler comes with what hands frames over"
        return self._handled.make_leg(pair, is_client=is_client)

    def pair_closed(self, pair: Pair) -> None:
        self.open.pop(int(pair.id), None)
        if self._starved:
            self._starved.pop(pair.client, None)
            self._starved.pop(pair.upstream, None)
        self.use.ended(pair)
        self.watcher.pair_closed(pair)


class Relay:
    """Takes connections over, and sees that their pairs follow the rules."""

    def __init__(
        self,
        ids: ConnectionIds,
        counters: Counters,
        watcher: PairWatcher,
        rules: TapRules | None = None,
        writer: TapWriter | None = None,
        handled: LegMaker | None = None,
    ) -> None:
        # the owner of the pairs; ``pairs.open`` has those that are not CLOSED, by id, oldest first
        self.pairs: Final = _Pairs(counters, watcher, rules, writer, handled)
        self._ids: Final = ids

    def take_over(self, sock: socket.socket, route: Route, peer: str, accepted_ns: i64, broker: i64 = BOOTSTRAP) -> Pair:
        """Begin a pair with an accepted connection. ``broker``: see ``Pair.broker``. Raises OSError: the socket cannot be used; it stays the
        caller's.
        """
        pairs = self.pairs
        pair = Pair(pairs, route, self._ids.next(), accepted_ns)
        pair.broker = broker
        try:
            channel = pairs.selector.register(sock, pair.id, route.options, pair.client, peer=peer)
        except OSError:
            self._ids.give_back()
            raise
        pairs.open[int(pair.id)] = pair
        opening.start(pair, channel)
        return pair

    def retap(self, rules: TapRules | None) -> None:
        """Let other rules be in force, for open pairs too: from the next frame on, on each direction. Arguments and errors as ``put_rules``."""
        self.put_rules(rules)
        for pair in list(self.pairs.open.values()):
            self.follow(pair)

    def put_rules(self, rules: TapRules | None) -> None:
        """Let other rules be in force for pairs that open from here on; those that are open are to ``follow``. ``rules``: with the writer that the
        relay was given; None: nothing is tapped. Raises ValueError: there is no tap, so there is no log to write to.
        """
        pairs = self.pairs
        if rules is not None:
            if not pairs.has_log:
                raise ValueError("the configuration has no tap section, so there is no log that rules could write to")
            rules.begin(pairs.selector.now_ns + pairs.wall_offset_ns)
        pairs.rules = rules

    def note_end(self, row: str, route: Route, pair_id: i64, principal: str, peer: str, accepted_ns: i64, closed_ns: i64) -> None:
        """Have the tap record the end of a connection. ``row``: its row ``closed``; times are of the selector's clock."""
        pairs = self.pairs
        if pairs.rules is not None:
            opened_ns, ended_ns = accepted_ns + pairs.wall_offset_ns, closed_ns + pairs.wall_offset_ns
            pairs.rules.note_end(row, route.listener, route.protocol, principal or None, peer, int(pair_id), opened_ns, ended_ns)

    def follow(self, pair: Pair) -> None:
        """Have an open pair do as the rules in force say."""
        try:
            tapping.retap(pair)
        except Exception as error:  # the others are to follow
            ending.crash(pair, error, "tap")

    def follow_limits(self, pair: Pair) -> None:
        """Have the limits in force apply to an open pair."""
        try:
            if pair.state is not PairState.CLOSING and pair.state is not PairState.CLOSED:
                pair.client.match_limits()
        except Exception as error:  # the others are to follow
            ending.crash(pair, error, "command")

    def end_revoked(self, pair: Pair) -> None:
        """End an open pair if its client is revoked."""
        try:
            ending.end_revoked(pair)
        except Exception as error:  # the others are to be looked at
            ending.crash(pair, error, "command")

    def refuse(self, route: Route, cause: Cause) -> i64:
        """Count a connection that never became a pair; its id."""
        cells = route.counters.counts.cells
        cells[ACCEPTED] += 1
        cells[CLOSED_BY[cause, "internal"]] += 1
        return self._ids.next()
