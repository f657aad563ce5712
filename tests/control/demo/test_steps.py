"""The script of steps, over a fake proxy and generator that behave, or do not."""

import dataclasses
from typing import Any, cast

import pytest

from framegate.control.demo import steps
from framegate.control.demo.processes import Child
from framegate.control.demo.steering import Steering
from framegate.control.demo.steps import Steps
from framegate.control.v1 import channel_service_pb2 as channels
from framegate.control.v1 import pool_service_pb2 as pools

MIB = 1024 * 1024
TITLES = ["maxReceiveSize lowered", "one connection muted", "memory pool shrunk"]


@dataclasses.dataclass
class Connection:
    number: int
    begun: int = 0
    answered: int = 0
    muted: bool = False
    waiting: int = 0
    held: int = 0
    closed: str | None = None


class Pretended:
    """Generator and control plane of one proxy with two processors, both in one object."""

    def __init__(self, *lies: str) -> None:
        self.lies = lies  # names of what it does wrong
        self.connections: dict[int, Connection] = {}
        self.limit_value = 4 * MIB
        self.pool_size = 64 * MIB
        self.phases: list[str] = []

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        if do == "phase":
            self.phases.append(fields["phase"])
            return {}
        if do == "open":
            number = 1000 + len(self.connections)
            self.connections[number] = Connection(number)
        else:
            number = fields["connection"]
            getattr(self, f"_{do}")(self.connections[number], fields)
        connection = self.connections[number]
        return {
            "connection": number,
            "local_port": number,
            "answered": connection.answered,
            "outbox_bytes": connection.waiting * 65536,
            "blocked_ms": 1000 if connection.waiting else 0,
            "wrong": 0,
            "closed": connection.closed,
        }

    def _send(self, connection: Connection, fields: dict[str, Any]) -> None:
        if fields["size"] > self.limit_value:
            connection.closed = "end of stream"
        elif connection.muted and "mute" not in self.lies:
            connection.waiting += fields["count"]
        else:
            connection.answered += fields["count"]

    def _begin(self, connection: Connection, fields: dict[str, Any]) -> None:
        connection.held = fields["part"]

    def _finish(self, connection: Connection, _fields: dict[str, Any]) -> None:
        connection.held = 0
        connection.answered += 1

    def _inspect(self, connection: Connection, _fields: dict[str, Any]) -> None: ...

    def _shut(self, connection: Connection, _fields: dict[str, Any]) -> None:
        connection.closed = "client"

    def find(self, port: int) -> channels.Channel:
        return self.describe(str(port))

    def describe(self, channel_id: str) -> channels.Channel:
        connection = self.connections[int(channel_id)]
        before = [other for other in self.connections.values() if other.number < connection.number]
        earlier = sum(other.held for other in before if other.number % 2 == connection.number % 2)
        waits = bool(connection.held) and earlier >= self.pool_size // 2 and "memory" not in self.lies
        causes = [channels.MUTE_CAUSE_ADMIN] if connection.muted else [channels.MUTE_CAUSE_MEMORY] if waits else []
        return channels.Channel(
            id=channel_id,
            processor_slot=connection.number % 2,
            request=channels.Traffic(frame_count=connection.answered),
            leased_bytes=0 if waits else connection.held + 16,
            mute_causes=causes,
        )

    def find_closed(self, port: int) -> channels.Channel:
        cause = channels.CAUSE_PEER_RESET if "cause" in self.lies else channels.CAUSE_FRAME_TOO_LARGE
        return channels.Channel(id=str(port), request=channels.Traffic(frame_count=1), close=channels.Close(cause=cause, detail="too large"))

    def mute(self, channel_id: str, reason: str) -> None:
        self.connections[int(channel_id)].muted = True

    def unmute(self, channel_id: str, reason: str) -> None:
        connection = self.connections[int(channel_id)]
        connection.muted = False
        connection.answered += connection.waiting
        connection.waiting = 0

    def limit(self) -> int:
        return self.limit_value

    def set_limit(self, size: int) -> None:
        self.limit_value = size

    def set_pool_size(self, size: int) -> None:
        self.pool_size = size

    def pool(self) -> pools.MemoryPool:
        return pools.MemoryPool(size_bytes=self.pool_size, usage_bytes=5, shares=[pools.MemoryShare(), pools.MemoryShare()])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(steps, "_STILL_S", 0.01)


def perform(pretended: Pretended) -> tuple[Steps, list[str]]:
    said: list[str] = []
    script = Steps(cast("Steering", pretended), cast("Child", pretended), 64 * MIB, said.append)
    for step in script.script():
        step()
    return script, said


def test_everything_is_seen_and_put_back() -> None:
    pretended = Pretended()
    script, said = perform(pretended)
    assert [(step.title, step.failure) for step in script.done] == [(title, None) for title in TITLES]
    assert [(check.text.partition(":")[0], check.good) for check in script.checks()] == [(title, True) for title in TITLES]
    assert script.refused == ["frame_too_large"]
    assert len(said) == sum(len(step.seen) for step in script.done) == 8
    assert (pretended.limit_value, pretended.pool_size) == (4 * MIB, 64 * MIB)
    assert pretended.phases == ["steps", "steady"] * 3
    assert all(connection.closed for connection in pretended.connections.values())


def test_what_is_not_seen_fails_its_step_only() -> None:
    not_seen = {"cause": "the cause frame_too_large, not peer_reset", "mute": "the client's send blocked", "memory": "a frame that waits for memory"}
    for (lie, text), title in zip(not_seen.items(), TITLES, strict=True):
        script, said = perform(Pretended(lie))
        assert {step.title: step.failure for step in script.done if step.failure} == {title: text}
        assert f"{title}: NOT SEEN: {text}" in said
        assert [check.text.endswith(f"NOT SEEN: {text}") for check in script.checks() if not check.good] == [True]


def test_steps_that_were_skipped_count_as_not_seen() -> None:
    script = Steps(cast("Steering", Pretended()), cast("Child", pretended := Pretended()), 64 * MIB, lambda line: None)
    script.skip()
    assert [step.failure for step in script.done] == ["interrupted before it"] * 3
    assert pretended.connections == {}
