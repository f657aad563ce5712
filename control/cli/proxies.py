"""``framegate status`` and ``framegate drain``."""

import collections
import functools
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, Service, calling
from framegate.control.cli.handlers import HANDLERS
from framegate.control.cli.kinds import DURATION
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import age_text, as_dict, counted, field_word, print_fields, print_json, print_line, size_text, time_text
from framegate.control.cli.pods import Table, over_pods
from framegate.control.cli.pools import POOLS, origin_text

if TYPE_CHECKING:
    import grpc

    from framegate.control.v1.handler_service_pb2 import HandlerProcess
    from framegate.control.v1.pool_service_pb2 import MemoryPool, ProcessorPool
    from framegate.control.v1.proxy_service_pb2 import Memory, Proxy

_DIFFERENCES: Final = 5
_LONGEST_DRAIN_S: Final = 600.0
"""How long a drain of one of many pods is waited for, if no timeout is given: that of its configuration is not known here."""
_STATUS_COLUMNS: Final = ("STATE", "VERSION", "STARTED", "OPEN CONNECTIONS", "PROCESSORS", "MEMORY POOL", "CONFIGURATION", "WARNINGS")
EXIT_STARTING: Final = 1
_SEVERITIES: Final = ("critical", "warning", "info")  # with which a warning about a problem begins
_SERVICE: Final = Service("proxy")


@click.command(epilog=example("framegate status"))
@admin_options
@over_pods(lambda **given: Table(_STATUS_COLUMNS, lambda document: [_status_cells(document)]))
def status(address: str, output: str) -> None:
    """Show the state of a running framegate, and its warnings.

    The exit code is 1 while framegate starts and does not accept connections yet, so a script can wait for it.
    """
    with calling(address) as channel:
        proxy = _SERVICE.ask(channel, "GetProxy").proxy
        pool = POOLS.ask(channel, "GetMemoryPool").memory_pool
        processors = POOLS.ask(channel, "GetProcessorPool").processor_pool
        handlers = HANDLERS.listed(channel, "ListHandlers")
    if output == "json":
        parts = {"memory_pool": as_dict(pool), "processor_pool": as_dict(processors), "handler_processes": [as_dict(item) for item in handlers]}
        print_json({**as_dict(proxy), **parts})
    else:
        print_fields(_fields(proxy, pool, processors, handlers))
    if proxy.state == proxy.STATE_STARTING:
        sys.exit(EXIT_STARTING)


def _fields(proxy: "Proxy", pool: "MemoryPool", processors: "ProcessorPool", handlers: "list[HandlerProcess]") -> Iterator[tuple[str, Any]]:
    started = f"{time_text(as_dict(proxy).get('start_time'))} ({age_text(time.time() - proxy.start_time.ToNanoseconds() / 1e9)} ago)"
    running = sum(item.state == type(item).STATE_RUNNING for item in processors.processors)
    waiting = f", {counted(pool.waiting_count, 'frame')} waiting for admission slots" if pool.waiting_count else ""
    yield "node", proxy.node
    yield "state", field_word(proxy, "state")
    yield "version", proxy.version
    yield "data path", "compiled" if proxy.compiled else "plain Python"
    yield "pid", proxy.pid
    yield "started", started
    yield "open connections", proxy.open_connection_count
    yield "configuration", _configuration_text(proxy)
    yield "processors", f"{running} of {processors.processor_count} running{origin_text(processors.size_origin, 'CPUs')}"
    if handlers:
        yield "handler processes", f"{sum(item.state == type(item).STATE_RUNNING for item in handlers)} of {len(handlers)} running"
    yield "memory pool", f"{size_text(pool.usage_bytes)} of {size_text(pool.size_bytes)} in use{origin_text(pool.size_origin, 'memory')}{waiting}"
    yield "memory", _memory_text(proxy.memory)
    if proxy.HasField("certificate_end_time"):
        left = proxy.certificate_end_time.ToNanoseconds() / 1e9 - time.time()
        ends = f"expires in {age_text(left)}" if left > 0 else "has expired"
        yield "certificates", f"the first {ends}: {proxy.certificate_owner}, {time_text(as_dict(proxy).get('certificate_end_time'))}"
    if proxy.configuration.file_error:
        yield "warning", f"the configuration file is not applied: {proxy.configuration.file_error}"
    for warning in proxy.warnings:
        severity, _, problem = warning.partition(": ")
        yield (severity, problem) if severity in _SEVERITIES else ("warning", warning)
    if not proxy.warnings and not proxy.configuration.file_error and proxy.state != proxy.STATE_STARTING:
        yield "warnings", "no problems"


def _status_cells(document: dict[str, Any]) -> list[Any]:
    """The state of one of many pods, from its JSON; fields that only one of the two versions has are left out."""
    from google.protobuf.json_format import ParseDict

    from framegate.control.v1 import handler_service_pb2, pool_service_pb2, proxy_service_pb2

    read = functools.partial(ParseDict, ignore_unknown_fields=True)
    found = collections.defaultdict(list)
    for name, value in _fields(
        read(document, proxy_service_pb2.Proxy()),
        read(document["memory_pool"], pool_service_pb2.MemoryPool()),
        read(document["processor_pool"], pool_service_pb2.ProcessorPool()),
        [read(item, handler_service_pb2.HandlerProcess()) for item in document["handler_processes"]],
    ):
        found["warnings" if name in (*_SEVERITIES, "warnings") else name].append(f"{name}: {value}" if name in _SEVERITIES else str(value))
    return ["; ".join(found[name.lower()]) or "-" for name in _STATUS_COLUMNS]


def _configuration_text(proxy: "Proxy") -> str:
    found = proxy.configuration
    states = {
        found.FILE_STATE_CHANGED: ", which has changed since and is not applied",
        found.FILE_STATE_REFUSED: ", which has changed and is refused",
    }
    keys = ", ".join(item.path for item in found.differences[:_DIFFERENCES])
    more = f" and {found.difference_count - _DIFFERENCES} more" if found.difference_count > _DIFFERENCES else ""
    set_ = f"; {counted(found.difference_count, 'value')} set by hand: {keys}{more}" if found.difference_count else ""
    return (
        f"revision {proxy.config_revision}, of {found.file}{states.get(found.file_state, '')}{set_}{''.join(f'; {text}' for text in found.pending)}"
    )


def _memory_text(memory: "Memory") -> str:
    """The memory of framegate's processes and of the container, and the most that framegate may need."""
    container = "; the container has no memory limit"
    if memory.HasField("limit_bytes"):
        used = size_text(memory.usage_bytes) if memory.HasField("usage_bytes") else "an unknown amount"
        container = f"; the container uses {used} of its {size_text(memory.limit_bytes)}"
    besides = f", plus connections of {', '.join(memory.uncounted_listeners)}" if memory.uncounted_listeners else ""
    return f"{size_text(memory.process_bytes)} in framegate's processes{container}; up to {size_text(memory.need_bytes)} may be needed{besides}"


@click.command(
    short_help="Stop accepting connections and end the open ones.",
    epilog=example("framegate drain --timeout 20s", "framegate drain --no-wait      # a preStop hook"),
)
@click.option(
    "--timeout",
    type=DURATION,
    help="Close connections that are still open after this time, for example 20s.  [default: drain.timeout of the configuration]",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when no connection is left, or at once.")
@click.option(
    "--accept",
    type=click.Choice(["refuse", "until-stop"]),
    help="refuse: accept no new connections and end the open ones. until-stop: accept connections until SIGTERM, and end those of other pods "
    "one by one.  [default: drain.accept of the "
    "configuration; with --wait or --timeout: refuse]",
)
@change_options("reason")
@admin_options
@over_pods(lambda **given: _drain_table(**given), question="Drain framegate")
def drain(timeout: int | None, wait: bool, accept: str | None, change: Change, address: str, output: str) -> None:
    """Drain framegate: report not ready, accept no new connections and end the open ones when nothing is in flight.

    Connections that are still open after the timeout are closed with the cause drain_timeout. The process keeps running. A drain cannot be undone;
    restart framegate to accept connections again.

    With --no-wait, as in a preStop hook, the default is until-stop: connections are accepted until SIGTERM, those of other pods end one by one
    within drain.timeout, after drain.delay, and those at loopback addresses stay: the application may need them until it has stopped.
    """
    if accept == "until-stop" and (timeout is not None or wait):
        raise click.UsageError("--accept until-stop needs --no-wait, and cannot be used with --timeout: it lasts until SIGTERM")
    chosen = f"ACCEPT_{(accept or 'unspecified').upper().replace('-', '_')}"
    limit = None if timeout is None else {"seconds": timeout // 1000, "nanos": timeout % 1000 * 10**6}
    with calling(address, change=True) as channel:
        answer = _SERVICE.change(channel, "DrainProxy", change, None if wait else CALL_TIMEOUT_S, wait=wait, accept=chosen, timeout=limit)
        found = {**as_dict(answer), "accepting": not wait and _accepting(channel)}
    if output == "json":
        print_json(found)
    else:
        print_line(_drain_text(found))


def _drain_text(found: dict[str, Any]) -> str:
    if found.get("accepting"):
        return "not ready; connections are accepted until SIGTERM, and those of other pods end one by one"
    ended, left = counted(found["closed_connection_count"], "connection"), found["open_connection_count"]
    return f"{'draining' if left else 'drained'}: {ended} ended, {left or 'none'} left"


def _drain_table(*, timeout: int | None, wait: bool, **given: Any) -> Table:
    del given
    patience_s = 0.0 if not wait else _LONGEST_DRAIN_S if timeout is None else timeout / 1000
    return Table(("RESULT",), lambda found: [(_drain_text(found),)], patience_s, changes=True)


def _accepting(channel: "grpc.Channel") -> bool:
    """Whether connections are still accepted; False when the call fails, because the drain itself has begun."""
    import grpc

    try:
        return any(item.accepting for item in Service("listener").listed(channel, "ListListeners"))
    except grpc.RpcError:
        return False
