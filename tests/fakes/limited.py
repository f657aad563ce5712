"""A world of pairs under quotas: who sends as much as goes, and what came of it in each second of the test's clock."""

import dataclasses
import socket
from typing import Any

from framegate.proxy.config.limits import UNLIMITED, AddressLimits, LimitOverride, LimitsInForce, ListenerLimits, RateLimits
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.throttle import Meter
from tests.fakes.network import RecorderSink
from tests.fakes.world import World, frame

MS = 1_000_000


def limits(
    *,
    node: RateLimits = UNLIMITED,
    listener: RateLimits | ListenerLimits = UNLIMITED,
    address: RateLimits = UNLIMITED,
    overrides: tuple[LimitOverride, ...] = (),
) -> LimitsInForce:
    """Quotas of a world, whose one listener is ``l``."""
    own = listener if isinstance(listener, ListenerLimits) else ListenerLimits(**dataclasses.asdict(listener))
    return LimitsInForce(node, {"l": own}, AddressLimits(address, overrides))


@dataclasses.dataclass
class Talker:
    """One pair whose client, or whose upstream, sends the same frame again and again, as long as its socket takes it."""

    source: socket.socket
    sink: socket.socket
    pair: Pair
    message: bytes
    rest: bytes = b""
    received: int = 0
    sends: bool = True

    def step(self) -> bool:
        """Send what goes, receive what is there; whether anything moved."""
        moved = False
        try:
            while self.sends or self.rest:
                self.rest = self.rest or self.message * max(1, 16384 // len(self.message))
                self.rest = self.rest[self.source.send(self.rest) :]
                moved = True
        except BlockingIOError:
            pass
        try:
            while data := self.sink.recv(1 << 18):
                self.received += len(data)
                moved = True
        except BlockingIOError:
            pass
        return moved


class Limited:
    """A world and its talkers. ``options``: of ``World``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.talkers: list[Talker] = []

    def put(self, in_force: LimitsInForce) -> None:
        self.world.selector.close_lanes()  # as before each of control's commands
        self.world.relay.pairs.quotas.set_limits(in_force)
        for pair in list(self.world.relay.pairs.open.values()):
            self.world.relay.follow_limits(pair)

    def talk(self, body: int, *, answers: bool = False, message: bytes = b"", **options: Any) -> Talker:
        """Open a pair, and have one side of it talk."""
        client, upstream, pair = self.world.pair(**options)
        for sock in (client, upstream):
            sock.setblocking(False)
        source, sink = (upstream, client) if answers else (client, upstream)
        self.talkers.append(Talker(source, sink, pair, message or frame(b"x" * body)))
        return self.talkers[-1]

    def run(self, seconds: float, *, step_ms: float = 2) -> int:
        """Let time pass; how many bytes were received."""
        before = sum(talker.received for talker in self.talkers)
        until = self.world.clock.ns + int(seconds * 1e9)
        while self.world.clock.ns < until:
            for _ in range(50):
                moved = [talker.step() for talker in self.talkers]
                self.world.selector.poll(0)
                if not any(moved):
                    break
            self.world.clock.ns += int(step_ms * MS)
            self.world.selector.poll(0)
        for talker in self.talkers:
            talker.step()
        return sum(talker.received for talker in self.talkers) - before


class MeteredSink(RecorderSink):
    """A sink whose channel is under quotas."""

    meter: Meter

    def may_read(self) -> bool:
        return self.meter.may_read()

    def read_limit(self) -> int:
        return self.meter.read_limit()

    def was_read(self) -> None:
        self.meter.was_read()
