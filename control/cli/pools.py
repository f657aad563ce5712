"""``framegate pool``: show and change the memory pool and the processors."""

import time
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.kinds import SIZE
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import age_text, as_dict, counted, field_word, field_words, print_json, print_line, print_table, size_text

if TYPE_CHECKING:
    import grpc

    from framegate.control.v1 import pool_service_pb2 as pb2

POOLS: Final = Service("pool")
_MAX_PROCESSORS = 64
_MAX_HOLDERS = 100


@click.group(epilog=example("framegate pool set --size 64MiB"))
def pool() -> None:
    """The memory pool and the number of processors."""


@pool.command(epilog=example("framegate pool get", "framegate pool get --top 50 --output json"))
@click.option(
    "--top", type=click.IntRange(0, _MAX_HOLDERS), default=10, show_default=True, help="Number of channels to list: those that hold the most memory."
)
@admin_options
def get(top: int, address: str, output: str) -> None:
    """Show the use of the memory pool, by purpose and processor, and the channels that hold the most memory.

    BEGUN is memory of frames that have arrived in part. PENDING is data that a peer has not taken yet. TLS is ciphertext that waits for a socket.
    WAITING counts large frames that wait for an admission slot. TAP is the memory of the tap's queues, which is not part of the pool. A peer that
    is slow to take a frame that is cut through is listed with 0 B pending, because the rest of the frame waits in the kernel.
    """
    with calling(address) as channel:
        memory, processors = _read(channel, top)
    _print(memory, processors, output)


@pool.command(
    "set",
    short_help="Change the pool's size or the number of processors.",
    epilog=example("framegate pool set --size 64MiB", "framegate pool set --processors 3"),
)
@click.option("--size", type=SIZE, help="Size of the memory pool of all processors together, for example 64MiB.")
@click.option("--processors", type=click.IntRange(1, _MAX_PROCESSORS), help="Number of processors.")
@change_options()
@admin_options
def set_(size: int | None, processors: int | None, change: Change, address: str, output: str) -> None:
    """Change the size of the memory pool or the number of processors. Returns when the change is in force.

    Removed processors end their connections first, which may take as long as a drain. Changes are lost at a restart, when the configuration file
    applies again.
    """
    if size is None and processors is None:
        raise click.UsageError("give --size, --processors or both")
    if change.etag and size is not None and processors is not None:
        raise click.UsageError("--etag is that of the memory pool or of the processors: give --size or --processors, not both")
    with calling(address, change=not change.dry_run) as channel:
        grows = size is not None and size > POOLS.ask(channel, "GetMemoryPool").memory_pool.size_bytes
        # A larger pool comes before new processors, a smaller one after processors are removed: each needs a share of it.
        if grows:
            POOLS.change(channel, "UpdateMemoryPool", change, memory_pool={"size_bytes": size})
        if processors is not None:
            POOLS.change(channel, "UpdateProcessorPool", change, None, processor_pool={"processor_count": processors})
        if size is not None and not grows:
            POOLS.change(channel, "UpdateMemoryPool", change, memory_pool={"size_bytes": size})
        memory, known = _read(channel)
    _print(memory, known, output)


def _read(channel: "grpc.Channel", holders: int = 0) -> "tuple[pb2.GetMemoryPoolResponse, pb2.ProcessorPool]":
    return POOLS.ask(channel, "GetMemoryPool", holder_count=holders), POOLS.ask(channel, "GetProcessorPool").processor_pool


def _print(got: "pb2.GetMemoryPoolResponse", processors: "pb2.ProcessorPool", output: str) -> None:
    memory = got.memory_pool
    if output == "json":
        print_json({**as_dict(got), "processor_pool": as_dict(processors)})
        return
    used = f"{size_text(memory.usage_bytes)} in use"
    size, count = f"{size_text(memory.size_bytes)}{origin_text(memory.size_origin, 'memory')}", f"{counted(processors.processor_count, 'processor')}"
    print_line(f"memory pool {size}, {field_word(memory, 'kind')}, {used}; {count}{origin_text(processors.size_origin, 'CPUs')}")
    tap = f"; tap queues {size_text(memory.tap_bytes)} of {size_text(memory.tap_limit_bytes)}" if memory.tap_limit_bytes else ""
    waiting = f"{counted(memory.waiting_count, 'frame')} waiting for admission slots"
    kinds = (("begun", memory.begun_bytes), ("pending", memory.pending_bytes), ("TLS", memory.tls_bytes))
    print_line(f"{', '.join(f'{name} {size_text(size)}' for name, size in kinds)}; {waiting}{tap}")
    if memory.guaranteed_percents:
        print_line("guaranteed: " + ", ".join(f"{name} {percent} %" for name, percent in sorted(memory.guaranteed_percents.items())))
    _print_processors(memory, processors)
    _print_holders(got)


def origin_text(origin: int, resource: str) -> str:
    """The origin of a size, in brackets; empty when it is the configuration. ``resource`` (memory or CPUs) is what an automatic size follows."""
    if origin == POOLS.messages.ORIGIN_CONTAINER:
        return f" (from the {resource} available)"
    return " (set at run time, until the next start)" if origin == POOLS.messages.ORIGIN_OPERATOR else ""


def _print_processors(memory: "pb2.MemoryPool", processors: "pb2.ProcessorPool") -> None:
    shares = {share.processor_slot: share for share in memory.shares}
    rows = []
    for item in processors.processors:
        share = shares.get(item.slot)
        cells = ["-"] * 7
        if share is not None:
            sizes = (share.size_bytes, share.usage_bytes, share.begun_bytes, share.pending_bytes, share.tls_bytes, share.tap_bytes)
            cells = [*map(size_text, sizes), str(share.waiting_count)]
        rows.append((item.slot, item.pid or "-", field_word(item, "state"), *cells, item.restart_count))
    print_table(("PROCESSOR", "PID", "STATE", "SHARE", "IN USE", "BEGUN", "PENDING", "TLS", "TAP", "WAITING", "RESTARTS"), rows)


def _print_holders(got: "pb2.GetMemoryPoolResponse") -> None:
    now = time.time()
    rows = []
    for item in got.holders:
        causes = ", ".join(field_words(item, "mute_causes"))
        muted = f"{causes} for {age_text(now - item.mute_time.ToNanoseconds() / 1e9)}" if item.mute_causes else "-"
        side, kind = field_word(item, "side"), field_word(item, "kind")
        moved = f"{age_text(now - item.last_active_time.ToNanoseconds() / 1e9)} ago"
        rows.append((item.channel_id, item.listener, side, item.peer_address, kind, size_text(item.held_bytes), moved, muted))
    if rows:
        print_line("")
    print_table(("CHANNEL", "LISTENER", "SIDE", "PEER", "KIND", "HOLDS", "LAST MOVED", "MUTED"), rows)
