"""``framegate pool``: the memory pool and the processors."""

from typing import TYPE_CHECKING

import click

from control.cli.kinds import SIZE
from control.cli.options import admin_options, example

if TYPE_CHECKING:
    from control.gen.framegate.control.v1 import pool_service_pb2 as pb2
    from control.gen.framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub

__all__ = ["pool"]

_MAX_PROCESSORS = 64


@click.group(epilog=example("framegate pool set --size 64MiB"))
def pool() -> None:
    """What the processors share: memory, and how many there are."""


@pool.command(epilog=example("framegate pool get"))
@admin_options
def get(address: str, output: str) -> None:
    """Show the memory pool and the processors."""
    from control.cli.client import calling
    from control.gen.framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub

    with calling(address) as channel:
        memory, processors = _read(PoolServiceStub(channel))
    _print(memory, processors, output)


@pool.command(
    "set",
    short_help="Change the size or the number of processors.",
    epilog=example("framegate pool set --size 64MiB", "framegate pool set --processors 3"),
)
@click.option("--size", type=SIZE, help="Bytes that all processors together may retain, as 64MiB.")
@click.option("--processors", type=click.IntRange(1, _MAX_PROCESSORS), help="How many processors there shall be.")
@admin_options
def set_(size: int | None, processors: int | None, address: str, output: str) -> None:
    """Change the memory pool's size, or the number of processors; returns when that is in force.

    Processors that go end their connections first, which may take as long as a drain.
    """
    from control.cli.client import CALL_TIMEOUT_S, calling
    from control.gen.framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub

    if size is None and processors is None:
        raise click.UsageError("give --size, --processors or both")
    if size is not None and size < 1:
        raise click.BadParameter("must be at least 1 byte", param_hint="--size")
    with calling(address, change=True) as channel:
        stub = PoolServiceStub(channel)
        grows = size is not None and size > stub.GetMemoryPool(_memory_request(), timeout=CALL_TIMEOUT_S).memory_pool.size_bytes
        # A pool that grows makes room for processors; one that shrinks waits until they have gone.
        if size is not None and grows:
            _set_size(stub, size)
        if processors is not None:
            _set_processors(stub, processors)
        if size is not None and not grows:
            _set_size(stub, size)
        memory, known = _read(stub)
    _print(memory, known, output)


def _memory_request() -> "pb2.GetMemoryPoolRequest":
    from control.gen.framegate.control.v1.pool_service_pb2 import GetMemoryPoolRequest

    return GetMemoryPoolRequest()


def _set_size(stub: "PoolServiceStub", size: int) -> None:
    from control.cli.client import CALL_TIMEOUT_S, metadata
    from control.gen.framegate.control.v1 import pool_service_pb2 as pb2

    request = pb2.UpdateMemoryPoolRequest(memory_pool=pb2.MemoryPool(size_bytes=size))
    stub.UpdateMemoryPool(request, timeout=CALL_TIMEOUT_S, metadata=metadata())


def _set_processors(stub: "PoolServiceStub", count: int) -> None:
    from control.cli.client import metadata
    from control.gen.framegate.control.v1 import pool_service_pb2 as pb2

    stub.UpdateProcessorPool(pb2.UpdateProcessorPoolRequest(processor_pool=pb2.ProcessorPool(size=count)), metadata=metadata())


def _read(stub: "PoolServiceStub") -> "tuple[pb2.MemoryPool, pb2.ProcessorPool]":
    from control.cli.client import CALL_TIMEOUT_S
    from control.gen.framegate.control.v1.pool_service_pb2 import GetProcessorPoolRequest

    memory = stub.GetMemoryPool(_memory_request(), timeout=CALL_TIMEOUT_S).memory_pool
    return memory, stub.GetProcessorPool(GetProcessorPoolRequest(), timeout=CALL_TIMEOUT_S).processor_pool


def _print(memory: "pb2.MemoryPool", processors: "pb2.ProcessorPool", output: str) -> None:
    from control.cli.output import as_dict, counted, print_json, print_line, print_table, size_text, word

    if output == "json":
        print_json({"memory_pool": as_dict(memory), "processor_pool": as_dict(processors)})
        return
    shares = {share.processor_slot: share for share in memory.shares}
    rows = []
    for item in processors.processors:
        share = shares.get(item.slot)
        state = word(type(item).State.Name(item.state), "STATE_")
        sizes = ("-", "-") if share is None else (size_text(share.size_bytes), size_text(share.usage_bytes))
        rows.append((item.slot, item.pid or "-", state, *sizes, item.restart_count))
    print_line(f"memory pool {size_text(memory.size_bytes)}, {size_text(memory.usage_bytes)} in use; {counted(processors.size, 'processor')}")
    print_table(("PROCESSOR", "PID", "STATE", "SHARE", "IN USE", "RESTARTS"), rows)
