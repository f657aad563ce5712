"""The entry of a handler process: ``python -P -m framegate.proxy.handler --slot N --handover-fd A --command-fd B --cells-fd C``.

It waits for the message ``start``, imports and starts the handlers, sends ``ready`` (or ``failed``), and serves until it is to end. The control
process reads what users' code prints, line by line.
"""

import asyncio
import io
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from framegate.proxy.handler.activity import Activity, HeartbeatCells, Interrupted
from framegate.proxy.handler.load import LoadedHandler, LoadError, extend_path, load
from framegate.proxy.handler.reporter import Reporter
from framegate.proxy.handler.runtime import Runtime
from framegate.proxy.server.link import LinkReader
from framegate.proxy.server.messages import FailedMessage, HandlerStartMessage
from framegate.proxy.server.protocol import read_handler_start


def _arguments(arguments: Sequence[str]) -> dict[str, int]:
    """The options and their numbers, as the control process writes them."""
    return {name: int(number) for name, number in zip(arguments[::2], arguments[1::2], strict=True)}


def _print_lines() -> None:
    """Flush each line; to a pipe Python would buffer some KiB."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _load(message: HandlerStartMessage) -> dict[str, LoadedHandler]:
    """Import the handlers, by listener. Raises LoadError: the first that cannot be imported; the text names its listener."""
    extend_path(message["path"])
    handlers: dict[str, LoadedHandler] = {}
    for listener, name in message["handlers"].items():
        try:
            handlers[listener] = load(name)
        except LoadError as error:
            raise LoadError(f"listener {listener}, handler {error}") from error
    return handlers


async def _serve(slot: int, handlers: Mapping[str, LoadedHandler], handover: socket.socket, reporter: Reporter, activity: Activity) -> int:
    return await Runtime(slot, handlers, handover, reporter, activity).serve()


def main(arguments: Sequence[str]) -> int:
    """Run a handler process. Returns the exit code; 1: it could not start, or ended by an error of its own."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes; the control process handles them
        signal.signal(number, signal.SIG_IGN)
    _print_lines()
    options = _arguments(arguments)
    command = socket.socket(fileno=options["--command-fd"])
    handover = socket.socket(fileno=options["--handover-fd"])
    handover.setblocking(False)
    reader = LinkReader()
    first = reader.wait(command)
    if not first:
        return 0
    activity = Activity()
    reporter = Reporter(command, reader, activity, HeartbeatCells(options["--cells-fd"]))
    reporter.start()
    if any(message["type"] == "stop" for message in first[1:]):
        reporter.begin_end()
    try:
        message = read_handler_start(first[0])
        return asyncio.run(_serve(message["slot"], _load(message), handover, reporter, activity))
    except Interrupted:  # it is to end while a module is imported
        return 0
    except Exception as error:  # control waits for a message
        if reporter.is_ending:
            return 0
        text = str(error) if isinstance(error, LoadError) else f"{type(error).__name__}: {error}"
        reporter.notify(FailedMessage(type="failed", error=text))
        return 1
    finally:
        reporter.is_interruptible = False
        reporter.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
