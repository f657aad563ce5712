"""The entry of a processor: ``python -P -m framegate.proxy.server --slot N --handover-fd A --command-fd B --cells-fd C``.

It waits for the ``start`` message, builds the data path, sends ``ready`` (or ``failed``), and serves until it is told to end.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence

from framegate.proxy.cells import CellWriter
from framegate.proxy.clock import MonotonicClock
from framegate.proxy.network.connection_id import ConnectionIds
from framegate.proxy.network.pool_kinds import make_pool
from framegate.proxy.network.run_delay import RunDelay
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.drain import Drain
from framegate.proxy.relay.publisher import CellReserve, Publisher
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.retirement import Retirement
from framegate.proxy.server.heap import Heap
from framegate.proxy.server.link import LinkReader, encode
from framegate.proxy.server.loop import Loop, Watcher
from framegate.proxy.server.messages import FailedMessage, ReadyMessage, StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION, read_start
from framegate.proxy.server.settings import Settings
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter


def _arguments(arguments: Sequence[str]) -> dict[str, int]:
    """The options and their numbers. Only control writes them, so there is no help."""
    return {name: int(number) for name, number in zip(arguments[::2], arguments[1::2], strict=True)}


def _modules() -> dict[str, str]:
    """Our loaded modules and their files, which show whether the hot path is compiled."""
    return {
        name: str(module.__file__)
        for name, module in sorted(sys.modules.items())
        if name.startswith("framegate.proxy.") and getattr(module, "__file__", None)
    }


def _signals() -> socket.socket:
    """A socket on which SIGTERM arrives as a byte, because compiled loops run no Python signal handlers."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    return receiver


def _build(message: StartMessage, slot: int, cells_fd: int, sockets: tuple[socket.socket, socket.socket, socket.socket], reader: LinkReader) -> Loop:
    clock = MonotonicClock()
    pool = make_pool(message["config"]["memory_pool"]["kind"], message["share"], clock.now_ns)
    settings = Settings(message, pool)
    config = settings.config
    cells = CellWriter(cells_fd, settings.in_force.layout)
    cells.start(os.getpid(), message["generation"], clock.now_ns())
    tap: TapWriter | None = None
    rules: TapRules | None = None
    tap_fd = -1
    if config.tap is not None:
        tap_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        tap = TapWriter(config.tap, config.node, str(slot), message["boot_id"], wakeup_fd=tap_fd, reserve=CellReserve(cells))
        rules = TapRules(config.tap.rules, tap)
        rules.begin(time.time_ns())
        tap.start()
    watcher = Watcher()
    relay = Relay(ConnectionIds(slot, message["generation"]), settings.counters, watcher, rules, tap)
    selector = Selector(clock, pool, RunDelay())
    relay.pairs.attach(selector)
    relay.pairs.reports_open = message.get("rows_at_open", False)
    relay.pairs.sampler.set_share(message.get("request_sample", 0.0))
    quiet_ns = config.drain.quiet_ms * 1_000_000
    drain = Drain(selector, clock, relay.pairs.open, watcher, quiet_ns)
    settings.attach(relay, tap, Retirement(selector, clock, relay.pairs.open, quiet_ns, config.drain.timeout_ms * 1_000_000), drain)
    publisher = Publisher(cells, settings.counters, settings.limits, pool, tap)
    settings.attach_cells(publisher)
    command, handover, wakeup = sockets
    return Loop(
        relay=relay,
        selector=selector,
        settings=settings,
        watcher=watcher,
        drain=drain,
        cells=cells,
        publisher=publisher,
        tap=tap,
        tap_fd=tap_fd,
        command=command,
        handover=handover,
        wakeup=wakeup,
        reader=reader,
        heap=Heap(),
    )


def main(arguments: Sequence[str]) -> int:
    """Run a processor; the exit code is 0 unless it could not start, or an error of its own ended it."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes; control handles them
        signal.signal(number, signal.SIG_IGN)
    options = _arguments(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each pair needs two descriptors
    command = socket.socket(fileno=options["--command-fd"])
    handover = socket.socket(fileno=options["--handover-fd"])
    reader = LinkReader()
    try:
        messages = reader.wait(command)
        if not messages:
            return 0
        command.setblocking(False)
        handover.setblocking(False)
        loop = _build(read_start(messages[0]), options["--slot"], options["--cells-fd"], (command, handover, _signals()), reader)
    except Exception as error:  # control waits for an answer, whatever it is
        command.setblocking(True)
        with contextlib.suppress(ConnectionError):  # control may be gone
            command.sendall(encode(FailedMessage(type="failed", error=f"{type(error).__name__}: {error}")))
        return 1
    loop.announce(ReadyMessage(type="ready", wire=WIRE_VERSION, pid=os.getpid(), modules=_modules()))
    return 0 if loop.run(messages[1:]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
