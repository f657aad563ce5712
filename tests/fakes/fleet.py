"""Supervisor, acceptor and steering over fake processors, for the length of one coroutine."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.listening import Listening
from framegate.control.accept.resolver import Names, Resolution, Resolver
from framegate.control.configuration.child import Loaded
from framegate.control.configuration.tls_files import describe_files, first_stores, read_tls_files
from framegate.control.events import Bus, Event
from framegate.control.fleet.child import Reaper, SpawnOptions
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.handlers import Handlers, handler_names
from framegate.control.fleet.processor import KIND, Processor, Slot
from framegate.control.fleet.slot_cells import ProcessorTotals, SlotCells
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import Levels, RowLog
from framegate.control.meters import Meters
from framegate.control.rotation.questions import answer
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.steering.identities import Identities
from framegate.control.steering.pool import equal_shares
from framegate.control.steering.steering import Steering
from framegate.control.steering.taps import Rules
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.cells import CellLayout
from framegate.proxy.config.limits import UNLIMITED_NODE, LimitsConfig
from framegate.proxy.config.log import LogFormat
from framegate.proxy.config.model import (
    MIB,
    HandlersConfig,
    KafkaCluster,
    ListenerConfig,
    MemoryPoolConfig,
    ProxyConfig,
    TapConfig,
    UpstreamConfig,
    to_wire,
)
from framegate.proxy.server.messages import ErrorReply, StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION, Message, Request

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("processor.py")))
HANDLER_COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("handler.py")))
ECHO = "framegate.proxy.handler.echo:echo"
Row = dict[str, Any]


_PROGRESS = ("processor_ready", "handler_ready", "drain_began", "drain_asked_again", "drain_ended", "change_settled")


class MemoryLog(RowLog):
    """Keeps rows in a list."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.written = Bus(on_failure=repr)
        self.room = True
        self.behind = False
        self.dropped = 0
        self.fault = ""
        self.levels = Levels()
        self.connection_fields = None

    @property
    def format(self) -> LogFormat:
        return "json"

    @property
    def is_behind(self) -> bool:
        return self.behind

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        if self.levels.passes(event, level):
            self.rows.append({"event": event, "level": level, **fields})

    def write_encoded(self, event: str, text: str, *, level: str = "info") -> None:
        self.write(event, level=level, **json.loads(text))

    def write_lines(self, event: str, texts: Sequence[str], *, level: str = "info") -> None:
        for text in texts:
            self.write_encoded(event, text, level=level)

    def reserve(self) -> bool:
        return self.room

    def write_reserved(self, event: str, fields: Row) -> None:
        self.write(event, **fields)

    def close(self, timeout: float = 2.0) -> None:
        """There is no thread."""

    def events(self, event: str) -> list[Row]:
        return [row for row in self.rows if row["event"] == event]


def fleet_config(
    processors: int,
    tap: TapConfig | None = None,
    handlers: HandlersConfig | None = None,
    node_limits: LimitsConfig = UNLIMITED_NODE,
    others: Sequence[str] = (),
    **listener: Any,
) -> ProxyConfig:
    """Listener a and others like it before upstream u, which is a cluster if they have ``brokers``."""
    upstream = UpstreamConfig(name="u", endpoints=("127.0.0.1:1",))
    if "brokers" in listener:
        upstream = UpstreamConfig(name="u", kafka=KafkaCluster(bootstrap=("127.0.0.1:1",)))
    given = {"address": "127.0.0.1:0", "upstream": "u", "max_receive_size": MIB, **listener}
    return ProxyConfig(
        node="test",
        processors=processors,
        listeners=tuple(ListenerConfig(**{"name": name, **given}) for name in ("a", *others)),
        upstreams=(upstream,),
        memory_pool=MemoryPoolConfig(size=12 * MIB),
        limits=node_limits,
        tap=tap,
        handlers=handlers or HandlersConfig(),
    )


class Client:
    """A connection through the acceptor to a fake processor, which echoes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def peer(self) -> str:
        return "{}:{}".format(*self.writer.get_extra_info("sockname")[:2])

    async def echo(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.read(65536)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Fleet:
    """What a test gets. ``ends`` holds slot and life of every processor that ended, ``events`` what was published, ``failures`` what
    subscribers raised, ``tapped`` what the tap's keeper was told.
    """

    def __init__(
        self,
        config: ProxyConfig,
        *,
        command: tuple[str, ...] = COMMAND,
        endpoint: tuple[str, int] = ("127.0.0.1", 1),
        handlers: tuple[str, ...] = HANDLER_COMMAND,
    ) -> None:
        self.log = MemoryLog()
        self.meters = Meters()
        self.task_monitor = TaskMonitor(self.log, self.meters)
        self.ends: list[tuple[int, ProcessorTotals]] = []
        listenings = [Listening(listener) for listener in config.listeners]
        self.acceptor = Acceptor(listenings, self.meters, self.log, self.task_monitor, config.limits)
        self.reaper = Reaper()
        self.failures: list[Exception] = []
        events = Bus((self.log,), on_failure=self.failures.append)
        self._subscription = events.subscribe()
        self._events: list[Row] = []
        addresses = {"u": Resolution([[endpoint[0], 2, *endpoint]])}
        self.desired = DesiredState(config, {"u": addresses["u"].addresses}, equal_shares(config.memory_pool.size, config.processors))
        files = read_tls_files(config)
        described = describe_files(files)
        self.desired.stores = first_stores(config, files, described)
        self.judged = 0
        self.handlers: Handlers | None = None
        if handler_names(config):
            self.handlers = Handlers(config, self.reaper, self.meters, self.log, self.task_monitor, events=events, command=handlers)
        self.supervisor = Supervisor(
            self.desired,
            self.acceptor,
            self.reaper,
            self.meters,
            self.log,
            self.task_monitor,
            events=events,
            on_end=self._ended,
            handlers=self.handlers,
            command=command,
        )
        self.resolver = Resolver(Names(()), addresses, lambda: None, self.log)
        self.tapped: list[Rules] = []
        self.rotation = Rotation(config.rotation, events, self.meters, self.task_monitor)
        self.certificates = TlsStores(self.supervisor, self._check, described)
        for source in self.certificates.sources():
            self.rotation.watch(source)
        self.identities = Identities(self.supervisor, self.rotation, self.meters, self.log, self.task_monitor)
        self.steering = Steering(
            self.supervisor,
            self.acceptor,
            self.resolver,
            self.meters,
            self.log,
            events,
            self.task_monitor,
            self.tapped.append,
            self.rotation,
            self.certificates,
            self.identities,
            Loaded(config, [], files, described, "/nowhere/framegate.yaml"),
            self._check,
            lambda config: Handlers(config, self.reaper, self.meters, self.log, self.task_monitor, events=events, command=handlers),
        )
        self._clients: list[Client] = []

    async def _check(self, question: Row) -> Row:
        self.judged += 1
        return answer(question)

    @property
    def events(self) -> list[Row]:
        """The same list each time; what only says how far things are is in the log."""
        self._events += [item.row for item in self._subscription.take() if isinstance(item, Event) and item.name not in _PROGRESS]
        return self._events

    def _ended(self, slot: Slot, life: ProcessorTotals) -> None:
        self.ends.append((slot.number, life))

    async def connect(self, listener: str = "a", broker: int = -1) -> Client:
        listening = self.acceptor.listeners[listener]
        host, _, port = (listening if broker < 0 else listening.brokers[broker]).address.rpartition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.acceptor.stop()
        self.steering.close()
        await self.supervisor.stop()
        if self.supervisor.handlers is not None:
            await self.supervisor.handlers.stop()
        await self.identities.stop()
        self.supervisor.close()
        self.acceptor.close()
        self.reaper.close()
        assert self.failures == [], "no subscriber raised"


@contextlib.asynccontextmanager
async def fleet(processors: int = 2, mode: str = "", *, start: bool = True, timeout: float = 20, **listener: Any) -> AsyncIterator[Fleet]:
    """A fleet that serves; ``mode`` is how its processors misbehave (see ``tests.fakes.processor``)."""
    os.environ["FAKE_PROCESSOR"] = mode
    made = Fleet(fleet_config(processors, **listener))
    try:
        async with asyncio.timeout(timeout):
            if start:
                await made.supervisor.start_slots(range(processors))
                if made.handlers is not None:
                    await made.handlers.start()
                made.acceptor.start()
                made.steering.state.serving = True
            yield made
    finally:
        await made.close()
        del os.environ["FAKE_PROCESSOR"]


def run(
    scenario: Callable[[Fleet], Awaitable[None]],
    processors: int = 2,
    mode: str = "",
    *,
    runner: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    **options: Any,
) -> None:
    """Run a test's coroutine beside a fleet; arguments as of ``fleet``."""

    async def main() -> None:
        async with fleet(processors, mode, **options) as made:
            await scenario(made)

    runner(main())


START = StartMessage(type="start", wire=WIRE_VERSION, config=to_wire(fleet_config(1)), slot=0, generation=7, boot_id="b", share=1, endpoints={})


@contextlib.asynccontextmanager
async def one_processor(log: MemoryLog, command: tuple[str, ...] = COMMAND, inherited: Sequence[int] = ()) -> AsyncIterator[Processor]:
    """A processor without a supervisor, which is killed at the end; ``START`` starts it."""
    reaper = Reaper()
    cells = SlotCells(0, CellLayout.of(fleet_config(1)))
    processor = Processor(0, 7, cells, SpawnOptions(KIND, command, reaper, log, inherited), lambda _, message: None)
    try:
        yield processor
    finally:
        processor.kill("test")
        await processor.ended
        processor.close()
        reaper.close()
        cells.close()


def run_processor(scenario: Callable[[Processor, MemoryLog], Awaitable[None]], command: tuple[str, ...] = COMMAND) -> MemoryLog:
    """Run a test's coroutine beside ``one_processor``."""
    log = MemoryLog()

    async def main() -> None:
        async with asyncio.timeout(20), one_processor(log, command) as processor:
            await scenario(processor, log)

    asyncio.run(main())
    return log


async def open_channels(made: Fleet, count: int) -> list[int]:
    """Ids of all channels, in the order of the list, after so many new ones are open."""
    for _ in range(count):
        assert await (await made.connect()).echo(b"x") == b"x"
    rows, _ = await made.steering.channels.page(page_size=1000)
    await until(lambda: made.acceptor.listeners["a"].open == len(rows))  # the acceptor's thread counts what it has handed over already
    return [look.row["id"] for look in rows]


async def facts(made: Fleet) -> list[Row]:
    """What is in force in each processor, as they say themselves."""
    return [(await processor.request(FakeRequest("facts"), 5000))["facts"] for processor in made.supervisor.running]


class FakeRequest(Request[Row]):
    """A command that only a fake processor knows; its answer is taken as it is."""

    def __init__(self, kind: str) -> None:
        super().__init__(cast(Any, {"type": kind}))

    def read(self, answer: Message) -> Row | ErrorReply:
        return answer


async def until(condition: Any) -> None:
    """Wait until a condition is true; the fleet's timeout ends the wait."""
    while not condition():
        await asyncio.sleep(0.005)
