"""The commands of a processor over a world of pairs: what a test asks, and what is answered."""

import dataclasses
from typing import Any

from framegate.proxy.config.model import ListenerConfig, ProxyConfig, TapConfig, TapRule, UpstreamConfig, to_wire
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.server.commands import Commands
from framegate.proxy.server.settings import Settings
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.world import World

CONFIG = ProxyConfig(
    node="n",
    listeners=(ListenerConfig(name="l", address="0.0.0.0:0", upstream="u"),),
    upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
)

ALL = TapRule(name="all")


class Steered:
    """A world with the commands of a processor."""

    def __init__(self, tap: TapWriter | None = None, world: World | None = None, start: dict[str, Any] | None = None) -> None:
        self.world = world or World(rules=None if tap is None else TapRules((ALL,), tap), writer=tap)
        self.answers: list[dict[str, Any]] = []
        self.access: list[str] = []
        self.drains: list[int] = []
        self.stops = 0
        config = CONFIG if tap is None else dataclasses.replace(CONFIG, tap=TapConfig(directory="unused", rules=(ALL,)))
        self.settings = Settings({"config": to_wire(config), **(start or {})}, MemoryPool(1 << 30, lambda: 0))
        self.settings.attach(self.world.relay, tap)
        self.commands = Commands(self.world.relay, self.settings, self.drains.append, self.answers.append, self.access.extend, self.stop)

    def stop(self) -> None:
        self.stops += 1

    def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """Do one command to its end; the answer."""
        self.commands.handle({"type": kind, "id": 7, **fields})
        self.work()
        answer = self.answers.pop()
        assert answer.pop("id") == 7
        return answer

    def work(self) -> None:
        while self.commands.busy:
            self.commands.work(0, lambda: 0)
