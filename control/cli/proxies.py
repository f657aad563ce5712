"""``framegate status`` and ``framegate drain``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from control.cli.handlers import ask_handlers
from control.cli.kinds import DURATION
from control.cli.options import admin_options, example
from control.cli.pools import origin_text

if TYPE_CHECKING:
    from control.gen.framegate.control.v1.handler_service_pb2 import HandlerProcess
    from control.gen.framegate.control.v1.pool_service_pb2 import MemoryPool, ProcessorPool
    from control.gen.framegate.control.v1.proxy_service_pb2 import Memory, Proxy

__all__ = ["drain", "status"]


@click.command(epilog=example("framegate status"))
@admin_options
def status(address: str, output: str) -> None:
    """Show what a running framegate is and how it is, and what an operator should know."""
    from control.cli.client import CALL_TIMEOUT_S, calling
    from control.cli.output import as_dict, print_fields, print_json
    from control.gen.framegate.control.v1.pool_service_pb2 import GetMemoryPoolRequest, GetProcessorPoolRequest
    from control.gen.framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub
    from control.gen.framegate.control.v1.proxy_service_pb2 import GetProxyRequest
    from control.gen.framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub

    with calling(address) as channel:
        proxy = ProxyServiceStub(channel).GetProxy(GetProxyRequest(), timeout=CALL_TIMEOUT_S).proxy
        pools = PoolServiceStub(channel)
        pool = pools.GetMemoryPool(GetMemoryPoolRequest(), timeout=CALL_TIMEOUT_S).memory_pool
        processors = pools.GetProcessorPool(GetProcessorPoolRequest(), timeout=CALL_TIMEOUT_S).processor_pool
        handlers = ask_handlers(channel)
    if output == "json":
        parts = {"memory_pool": as_dict(pool), "processor_pool": as_dict(processors), "handler_processes": [as_dict(item) for item in handlers]}
        print_json({**as_dict(proxy), **parts})
        return
    print_fields(_fields(proxy, pool, processors, handlers))


def _fields(proxy: "Proxy", pool: "MemoryPool", processors: "ProcessorPool", handlers: "list[HandlerProcess]") -> Iterator[tuple[str, Any]]:
    import time

    from control.cli.output import age_text, as_dict, counted, size_text, time_text, word

    started = f"{time_text(as_dict(proxy).get('start_time'))} ({age_text(time.time() - proxy.start_time.ToNanoseconds() / 1e9)} ago)"
    running = sum(item.state == type(item).STATE_RUNNING for item in processors.processors)
    waiting = f", {counted(pool.waiting_count, 'frame')} waiting for a turn" if pool.waiting_count else ""
    yield "node", proxy.node
    yield "state", word(type(proxy).State.Name(proxy.state), "STATE_")
    yield "version", proxy.version
    yield "data path", "compiled" if proxy.compiled else "plain Python"
    yield "pid", proxy.pid
    yield "started", started
    yield "open connections", proxy.open_connection_count
    yield "config revision", proxy.config_revision
    yield "processors", f"{running} of {processors.size} running{origin_text(processors.size_origin)}"
    if handlers:
        yield "handler processes", f"{sum(item.state == type(item).STATE_RUNNING for item in handlers)} of {len(handlers)} running"
    yield "memory pool", f"{size_text(pool.usage_bytes)} of {size_text(pool.size_bytes)} in use{origin_text(pool.size_origin)}{waiting}"
    yield "memory", _memory_text(proxy.memory)
    if proxy.HasField("certificate_end_time"):
        left = proxy.certificate_end_time.ToNanoseconds() / 1e9 - time.time()
        ends = f"ends in {age_text(left)}" if left > 0 else "has ended"
        yield "certificates", f"the first {ends}: {proxy.certificate_owner}, {time_text(as_dict(proxy).get('certificate_end_time'))}"
    for warning in proxy.warnings:
        yield "warning", warning


def _memory_text(memory: "Memory") -> str:
    """What our processes use, what is used of the container's memory, and what may be needed."""
    from control.cli.output import size_text

    container = ", and the container sets no limit"
    if memory.HasField("limit_bytes"):
        used = size_text(memory.usage_bytes) if memory.HasField("usage_bytes") else "an unknown part"
        container = f"; the container uses {used} of its {size_text(memory.limit_bytes)}"
    besides = f", and connections of {', '.join(memory.uncounted_listeners)}" if memory.uncounted_listeners else ""
    return f"{size_text(memory.process_bytes)} in framegate's processes{container}; up to {size_text(memory.need_bytes)} may be needed{besides}"


@click.command(
    short_help="Take no new connections and end the open ones.",
    epilog=example("framegate drain --timeout 20s", "framegate drain --no-wait      # a preStop hook"),
)
@click.option("--timeout", type=DURATION, help="Close what is still open after this time, as 20s.  [default: drain.timeout of the configuration]")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when no connection is left, or as soon as draining has begun.")
@click.option(
    "--accept",
    type=click.Choice(["refuse", "until-stop"]),
    help="Take no new connections and end the open ones, or serve both until SIGTERM.  [default: drain.accept of the configuration; refuse with "
    "--wait or --timeout]",
)
@click.option("--reason", default="", help="Why; for the audit record.")
@admin_options
def drain(timeout: int | None, wait: bool, accept: str | None, reason: str, address: str, output: str) -> None:
    """Be no longer ready, take no new connections and end the open ones in order; says how many ended and how many are left.

    With --no-wait, as a preStop hook, connections go on until SIGTERM by default: the application beside framegate may need them for its own end.

    The process goes on; a drain cannot be taken back. What is still open after the timeout is closed with the cause drain_timeout.
    """
    from google.protobuf.duration_pb2 import Duration

    from control.cli.client import CALL_TIMEOUT_S, calling, metadata
    from control.cli.output import as_dict, counted, print_json, print_line
    from control.gen.framegate.control.v1.proxy_service_pb2 import DrainProxyRequest
    from control.gen.framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub

    if accept == "until-stop" and (timeout is not None or wait):
        raise click.UsageError("--accept until-stop has no end before SIGTERM: give --no-wait, and no --timeout")
    chosen = DrainProxyRequest.Accept.Value(f"ACCEPT_{(accept or 'unspecified').upper().replace('-', '_')}")
    request = DrainProxyRequest(wait=wait, reason=reason, accept=chosen)
    if timeout is not None:
        request.timeout.CopyFrom(Duration(seconds=timeout // 1000, nanos=timeout % 1000 * 10**6))
    with calling(address, change=True) as channel:
        answer = ProxyServiceStub(channel).DrainProxy(request, timeout=None if wait else CALL_TIMEOUT_S, metadata=metadata())
    if output == "json":
        print_json(as_dict(answer))
        return
    ended, left = counted(answer.closed_connection_count, "connection"), answer.open_connection_count
    print_line(f"{'draining' if left else 'drained'}: {ended} ended, {left or 'none'} left")
