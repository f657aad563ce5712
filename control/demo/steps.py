"""The changes that the demo makes over gRPC while the load runs, and their effects.

Each step uses connections of its own and checks each effect that it reports: an effect that was not seen fails the step, and the demo.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import grpc

from framegate.control.demo.load import BODY_HEADER_SIZE
from framegate.control.demo.processes import Child, ChildError
from framegate.control.demo.report import Check
from framegate.control.demo.steering import Channel, Steering, cause_text
from framegate.control.v1.channel_service_pb2 import MuteCause

Found = TypeVar("Found")

KIB: Final = 1024
MIB: Final = 1024 * KIB
_PATIENCE_S: Final = 10.0
_STILL_S: Final = 0.5


class NotSeenError(Exception):
    """An expected effect was not seen."""


@dataclasses.dataclass(slots=True)
class Step:
    """One step: ``title`` says what is changed, ``seen`` has the effects in order, ``failure`` the effect that was not seen."""

    title: str
    seen: list[str] = dataclasses.field(default_factory=list)
    failure: str | None = None


class _Client(NamedTuple):
    """A connection of a step: the generator's number, the client's port, the proxy's channel."""

    number: int
    port: int
    channel: Channel


class Steps:
    """The steps. ``pool_size``: of the memory pool at start, which is restored."""

    def __init__(self, steering: Steering, generator: Child, pool_size: int, note: Callable[[str], None]) -> None:
        self.done: list[Step] = []
        self.refused: list[str] = []
        self._steering, self._generator, self._pool_size, self._note = steering, generator, pool_size, note
        self._step = Step("")
        self._initial_limit = steering.limit()
        self._titles = {
            "maxReceiveSize lowered": self._lower_the_limit,
            "one connection muted": self._mute_one,
            "memory pool shrunk": self._shrink_the_pool,
        }

    def script(self) -> list[Callable[[], None]]:
        """The steps in order; each may be called once and never raises."""
        return [functools.partial(self._perform, title, step) for title, step in self._titles.items()]

    def skip(self) -> None:
        """Mark the steps that have not begun as not seen."""
        begun = {step.title for step in self.done}
        self.done += [Step(title, failure="interrupted before it") for title in self._titles if title not in begun]

    def checks(self) -> list[Check]:
        failed = {step.title: f"; NOT SEEN: {step.failure}" if step.failure is not None else "" for step in self.done}
        return [Check(f"{step.title}: {'; '.join(step.seen)}{failed[step.title]}", step.failure is None) for step in self.done]

    def _perform(self, title: str, step: Callable[[], None]) -> None:
        self._step = Step(title)
        self.done.append(self._step)
        try:
            self._generator.ask("phase", phase="steps")
            try:
                step()
            finally:
                self._generator.ask("phase", phase="steady")
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)
            self._fail(f"a call failed: {call.code().name}: {call.details()}")
        except (NotSeenError, ChildError) as error:
            self._fail(str(error))

    def _fail(self, text: str) -> None:
        self._step.failure = text
        self._note(f"{self._step.title}: NOT SEEN: {text}")

    def _saw(self, text: str) -> None:
        self._step.seen.append(text)
        self._note(f"{self._step.title}: {text}")

    def _lower_the_limit(self) -> None:
        client = self._open()
        self._send(client, 1, 2 * MIB)
        self._until_answered(client, "a frame of 2 MiB", 1)
        self._steering.set_limit(MIB)
        self._check(self._steering.limit() == MIB, "the limit that was set")
        self._saw(f"from {_size(self._initial_limit)} to 1 MiB; a frame of 2 MiB had passed before")
        self._send(client, 1, 2 * MIB)
        self._until(client, "the connection ended", lambda seen: seen["closed"] is not None)
        closed = self._wait("the closed connection in the API", lambda: self._steering.find_closed(client.port))
        cause = cause_text(closed.close.cause)
        self._check(cause == "frame_too_large", f"the cause frame_too_large, not {cause}")
        self._check(closed.request.frame_count == 1, "one frame forwarded on it")
        self.refused.append(cause)
        self._saw(f"the next frame of 2 MiB was refused: {cause} ({closed.close.detail}), connection {closed.id}")
        another = self._open()
        self._send(another, 1, 512 * KIB)
        self._until_answered(another, "a good frame", 1)
        self._saw("a frame of 512 KiB on a new connection passed")
        self._ask("shut", another)

    def _mute_one(self) -> None:
        client = self._open()
        self._send(client, 10, KIB)
        self._until_answered(client, "ten frames", 10)
        self._steering.mute(client.channel.id, "demo: show what a mute does")
        try:
            self._send(client, 64, 64 * KIB)
            blocked = self._until(client, "the client's send blocked", lambda seen: seen["blocked_ms"] >= 1000 * _STILL_S)
            first = self._steering.describe(client.channel.id)
            self._check(MuteCause.MUTE_CAUSE_ADMIN in first.mute_causes, "admin among the causes of the mute")
            time.sleep(_STILL_S)
            counts = [first.request.frame_count, self._steering.describe(client.channel.id).request.frame_count]
            self._check(counts == [10, 10], f"a frame count that stands at 10, not {counts}")
            waiting = _size(blocked["outbox_bytes"])
            self._saw(f"{client.channel.id} muted: its client's send blocks ({waiting} of 4 MiB not taken), its frame count stands at 10")
        finally:
            self._steering.unmute(client.channel.id, "demo: go on")
        self._until_answered(client, "all bytes after the unmute:", 74)
        self._saw("unmuted: the other 64 frames arrived, in order, every byte as sent")
        self._ask("shut", client)

    def _shrink_the_pool(self) -> None:
        """Two large frames that are held back use all the memory: small frames pass, the next large one waits."""
        clients = self._on_one_processor(4)
        first, second, waiter, other = clients
        self._steering.set_limit(MIB)
        self._steering.set_pool_size(len(self._steering.pool().shares) * MIB)
        try:
            self._begin_and_stop(first, 700 * KIB)
            self._begin_and_stop(second, MIB - 4 * KIB)  # beyond the pool, where there is room for one frame
            self._ask("begin", waiter, size=512 * KIB, part=256 * KIB)
            self._until_proxy(waiter, "a frame that waits for memory", lambda channel: MuteCause.MUTE_CAUSE_MEMORY in channel.mute_causes)
            pool = self._steering.pool()
            sizes = f"{_size(pool.size_bytes)} in {len(pool.shares)} shares, {_size(pool.usage_bytes)} in use"
            self._saw(f"to {sizes}: {waiter.channel.id} waits with a frame of 512 KiB, muted for memory")
            self._send(other, 10, KIB)
            self._until_answered(other, "ten small frames", 10)
            self._saw("ten frames of 1 KiB on another connection of that processor passed meanwhile")
        finally:
            self._steering.set_pool_size(self._pool_size)
        self._until_proxy(waiter, "an end of the wait", lambda channel: MuteCause.MUTE_CAUSE_MEMORY not in channel.mute_causes)
        self._ask("finish", waiter)
        self._until_answered(waiter, "the frame", 1)
        self._saw(f"grown to {_size(self._pool_size)}: that frame went on and was answered")
        for holder in (first, second):
            # on a slow machine the proxy may have evicted it, because other frames waited for its memory
            self._ask("finish", holder)
            if self._until(holder, "the frame answered", lambda seen: seen["answered"] == 1 or bool(seen["closed"]))["closed"]:
                self.refused.append("incomplete")
        for client in clients:
            self._ask("shut", client)
        self._steering.set_limit(self._initial_limit)

    def _begin_and_stop(self, client: _Client, size: int) -> None:
        self._ask("begin", client, size=MIB - BODY_HEADER_SIZE, part=size)
        self._until_proxy(client, "most of a frame held", lambda channel: channel.leased_bytes >= size - 16 * KIB)

    def _on_one_processor(self, count: int) -> list[_Client]:
        """Connections that share a processor's part of the pool; the others are closed again."""
        clients: list[_Client] = []
        while True:
            clients.append(self._open())
            slot = clients[-1].channel.processor_slot
            found = [client for client in clients if client.channel.processor_slot == slot]
            if len(found) == count:
                for client in clients:
                    if client not in found:
                        self._ask("shut", client)
                return found

    def _open(self) -> _Client:
        opened = self._generator.ask("open")
        port = opened["local_port"]
        return _Client(opened["connection"], port, self._wait("the connection in the API", lambda: self._steering.find(port)))

    def _ask(self, do: str, client: _Client, **fields: Any) -> dict[str, Any]:
        return self._generator.ask(do, connection=client.number, **fields)

    def _send(self, client: _Client, count: int, size: int) -> None:
        self._ask("send", client, count=count, size=size)

    def _until_answered(self, client: _Client, what: str, count: int) -> None:
        self._until(client, f"{what} answered", lambda seen: seen["answered"] == count)

    def _until(self, client: _Client, what: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:

        def look() -> dict[str, Any] | None:
            seen = self._ask("inspect", client)
            self._check(not seen["wrong"], "answers as sent")
            return seen if wanted(seen) else None

        return self._wait(what, look)

    def _until_proxy(self, client: _Client, what: str, wanted: Callable[[Channel], bool]) -> None:
        self._wait(what, lambda: wanted(self._steering.describe(client.channel.id)))

    def _wait(self, what: str, look: Callable[[], Found | None]) -> Found:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                raise NotSeenError(what)
            time.sleep(0.05)

    def _check(self, good: bool, what: str) -> None:
        if not good:
            raise NotSeenError(what)


def _size(count: int) -> str:
    return f"{count / MIB:.4g} MiB" if count >= MIB else f"{count / KIB:.0f} KiB"
