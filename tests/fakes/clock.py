"""A clock that stands still until a test moves it."""

from framegate.proxy.clock import Clock

MS = 1_000_000
SECOND = 1_000 * MS


class FakeClock(Clock):
    """Starts at ``now`` ns."""

    def __init__(self, now: int = SECOND) -> None:
        self.now = now

    def now_ns(self) -> int:
        return self.now

    def advance_ms(self, milliseconds: float) -> None:
        self.now += int(milliseconds * MS)
