"""What the demo does over gRPC while the load runs, and what was seen of it.

Each act uses connections of its own, beside those of the load, and asserts what it says: what was not seen fails the act, and the demo.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import grpc

from control.demo.load import BODY_HEADER_SIZE
from control.demo.processes import Child, ChildError
from control.demo.steering import Channel, Steering, cause_text
from control.gen.framegate.control.v1.channel_service_pb2 import MuteCause

__all__ = ["Act", "Acts"]

Found = TypeVar("Found")

KIB: Final = 1024
MIB: Final = 1024 * KIB
_PATIENCE_S: Final = 10.0
_STILL_S: Final = 0.5


class NotSeenError(Exception):
    """What should have been seen was not."""


@dataclasses.dataclass(slots=True)
class Act:
    """One act.

    Attributes:
        title: what is done.
        seen: what was seen, in order.
        failure: what was not seen, or None.
    """

    title: str
    seen: list[str] = dataclasses.field(default_factory=list)
    failure: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Guest:
    """A connection of an act: the generator's number and port, the proxy's id."""

    number: int
    port: int
    channel: Channel


class Acts:
    """The script.

    Args:
        steering: the proxy's control plane.
        generator: the load generator's process.
        pool_size: of the memory pool at start, which is restored.
        say: called with every line that was seen.
    """

    def __init__(self, steering: Steering, generator: Child, pool_size: int, say: Callable[[str], None]) -> None:
        self.done: list[Act] = []
        self.refused: list[str] = []
        self._steering = steering
        self._generator = generator
        self._pool_size = pool_size
        self._say = say
        self._act = Act("")
        self._initial_limit = steering.limit()

    def script(self) -> list[Callable[[], None]]:
        """The acts in order; each may be called once and never raises."""
        return [functools.partial(self._perform, title, act) for title, act in self._titles()]

    def skip(self) -> None:
        """What has not been performed will not be, and counts as not seen."""
        begun = {act.title for act in self.done}
        self.done += [Act(title, failure="interrupted before it") for title, _ in self._titles() if title not in begun]

    def _titles(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("maxReceiveSize lowered", self._lower_the_limit),
            ("one connection muted", self._mute_one),
            ("memory pool shrunk", self._shrink_the_pool),
        ]

    def _perform(self, title: str, act: Callable[[], None]) -> None:
        self._act = Act(title)
        self.done.append(self._act)
        try:
            self._generator.ask("phase", phase="acts")
            try:
                act()
            finally:
                self._generator.ask("phase", phase="steady")
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)
            self._fail(f"a call failed: {call.code().name}: {call.details()}")
        except (NotSeenError, ChildError) as error:
            self._fail(str(error))

    def _fail(self, text: str) -> None:
        self._act.failure = text
        self._say(f"{self._act.title}: NOT SEEN: {text}")

    def _saw(self, text: str) -> None:
        self._act.seen.append(text)
        self._say(f"{self._act.title}: {text}")

    def _lower_the_limit(self) -> None:
        guest = self._open()
        self._send(guest, 1, 2 * MIB)
        self._until(guest, "a frame of 2 MiB answered", lambda seen: seen["answered"] == 1)
        self._steering.set_limit(MIB)
        self._check(self._steering.limit() == MIB, "the limit that was set")
        self._saw(f"from {_size(self._initial_limit)} to 1 MiB; a frame of 2 MiB had passed before")
        self._send(guest, 1, 2 * MIB)
        self._until(guest, "the connection ended", lambda seen: seen["closed"] is not None)
        closed = self._wait("the closed connection in the API", lambda: self._steering.find_closed(guest.port))
        cause = cause_text(closed.close.cause)
        self._check(cause == "frame_too_large", f"the cause frame_too_large, not {cause}")
        self._check(closed.request.frame_count == 1, "one frame forwarded on it")
        self.refused.append(cause)
        self._saw(f"the next frame of 2 MiB was refused: {cause} ({closed.close.detail}), connection {closed.id}")
        another = self._open()
        self._send(another, 1, 512 * KIB)
        self._until(another, "a good frame answered", lambda seen: seen["answered"] == 1 and not seen["wrong"])
        self._saw("a frame of 512 KiB on a new connection passed")
        self._generator.ask("shut", connection=another.number)

    def _mute_one(self) -> None:
        guest = self._open()
        self._send(guest, 10, KIB)
        self._until(guest, "ten frames answered", lambda seen: seen["answered"] == 10)
        self._steering.mute(guest.channel.id, "demo: show what a mute does")
        try:
            self._send(guest, 64, 64 * KIB)
            self._see_the_mute(guest)
        finally:
            self._steering.unmute(guest.channel.id, "demo: go on")
        self._until(guest, "all bytes after the unmute", lambda seen: seen["answered"] == 74)
        self._saw("unmuted: the other 64 frames arrived, in order, every byte as sent")
        self._generator.ask("shut", connection=guest.number)

    def _see_the_mute(self, guest: _Guest) -> None:
        blocked = self._until(guest, "the client's send blocked", lambda seen: seen["blocked_ms"] >= 1000 * _STILL_S)
        first = self._steering.describe(guest.channel.id)
        self._check(MuteCause.MUTE_CAUSE_ADMIN in first.mute_causes, "admin among the causes of the mute")
        time.sleep(_STILL_S)
        second = self._steering.describe(guest.channel.id)
        counts = [first.request.frame_count, second.request.frame_count]
        self._check(counts == [10, 10], f"a frame count that stands at 10, not {counts}")
        waiting = _size(blocked["outbox_bytes"])
        self._saw(f"{guest.channel.id} muted: its client's send blocks ({waiting} of 4 MiB not taken), its frame count stands at 10")

    def _shrink_the_pool(self) -> None:
        """Two large frames that stop before their end hold all the memory that there may be: small frames pass, the next large one waits."""
        first, second, waiter, other = self._on_one_processor(4)
        self._steering.set_limit(MIB)
        self._steering.set_pool_size(len(self._steering.pool().shares) * MIB)
        try:
            self._begin_and_stop(first, 700 * KIB)
            self._begin_and_stop(second, MIB - 4 * KIB)  # beyond the pool, where there is room for one frame
            self._begin(waiter, 512 * KIB, 256 * KIB)
            self._until_proxy(waiter, "a frame that waits for memory", lambda channel: MuteCause.MUTE_CAUSE_MEMORY in channel.mute_causes)
            pool = self._steering.pool()
            sizes = f"{_size(pool.size_bytes)} in {len(pool.shares)} shares, {_size(pool.usage_bytes)} in use"
            self._saw(f"to {sizes}: {waiter.channel.id} waits with a frame of 512 KiB, muted for memory")
            self._send(other, 10, KIB)
            self._until(other, "ten small frames answered", lambda seen: seen["answered"] == 10)
            self._saw("ten frames of 1 KiB on another connection of that processor passed meanwhile")
        finally:
            self._steering.set_pool_size(self._pool_size)
        self._until_proxy(waiter, "an end of the wait", lambda channel: MuteCause.MUTE_CAUSE_MEMORY not in channel.mute_causes)
        self._generator.ask("finish", connection=waiter.number)
        self._until(waiter, "the frame answered", lambda seen: seen["answered"] == 1)
        self._saw(f"grown to {_size(self._pool_size)}: that frame went on and was answered")
        for holder in (first, second):
            self._finish(holder)
        for guest in (first, second, waiter, other):
            self._generator.ask("shut", connection=guest.number)
        self._steering.set_limit(self._initial_limit)

    def _begin_and_stop(self, guest: _Guest, size: int) -> None:
        """A frame of 1 MiB, of which only `size` bytes come for now."""
        self._begin(guest, MIB - BODY_HEADER_SIZE, size)
        self._until_proxy(guest, "most of a frame held", lambda channel: channel.leased_bytes >= size - 16 * KIB)

    def _finish(self, guest: _Guest) -> None:
        """The rest of a frame begun; on a slow machine it may be gone: who holds memory that others wait for is closed after seconds."""
        self._generator.ask("finish", connection=guest.number)
        if self._until(guest, "the frame answered", lambda seen: seen["answered"] == 1 or bool(seen["closed"]))["closed"]:
            self.refused.append("incomplete")

    def _on_one_processor(self, count: int) -> list[_Guest]:
        """Connections that share a processor's part of the pool; the others are closed again."""
        guests: list[_Guest] = []
        while True:
            guests.append(self._open())
            slot = guests[-1].channel.processor_slot
            found = [guest for guest in guests if guest.channel.processor_slot == slot]
            if len(found) == count:
                for guest in guests:
                    if guest not in found:
                        self._generator.ask("shut", connection=guest.number)
                return found

    def _begin(self, guest: _Guest, size: int, part: int) -> None:
        self._generator.ask("begin", connection=guest.number, size=size, part=part)

    def _open(self) -> _Guest:
        opened = self._generator.ask("open")
        number, port = opened["connection"], opened["local_port"]
        self._wait("a handshake", lambda: self._generator.ask("inspect", connection=number)["ready"])
        return _Guest(number, port, self._wait("the connection in the API", lambda: self._steering.find(port)))

    def _send(self, guest: _Guest, count: int, size: int) -> None:
        self._generator.ask("send", connection=guest.number, count=count, size=size)

    def _until(self, guest: _Guest, what: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Look at the client's side until it is as wanted."""

        def look() -> dict[str, Any] | None:
            seen = self._generator.ask("inspect", connection=guest.number)
            self._check(not seen["wrong"], "answers as sent")
            return seen if wanted(seen) else None

        return self._wait(what, look)

    def _until_proxy(self, guest: _Guest, what: str, wanted: Callable[[Channel], bool]) -> Channel:
        """Look at the proxy's side until it is as wanted."""

        def look() -> Channel | None:
            channel = self._steering.describe(guest.channel.id)
            return channel if wanted(channel) else None

        return self._wait(what, look)

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
