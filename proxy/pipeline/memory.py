"""Divides a job's memory: batches, partitions, and the largest frame.

No frame comes into the Java heap. The Python process of a task holds a frame whole, and several times at once: as it is in the log, joined, as
Arrow's value, and in the Parquet writer before and after compression. That memory is outside of the heap, and about as large: each of the processes
may take its task's share. A frame that is too large for it is cut before it is written, and keeps its size on the wire: otherwise one legal frame
would kill the job, and again after every restart.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from framegate.proxy.pipeline.planner import Planner
from framegate.proxy.tap.log_reader import LogError, read_raw
from framegate.proxy.tap.record import BLOCK_PIECES, FLAG_PIECES, FRAME_HEADER_BYTES, KIND_FRAMES

BASE_BYTES: Final = 256 << 20  # of heap that Spark itself takes
COPIES: Final = 7  # of a large frame at the same moment
SLOT_BYTES: Final = 256 << 20  # of heap for each task slot, by default
MAX_BATCH_BYTES: Final = 128 << 20
MIN_BATCH_BYTES: Final = 8 << 20
LEAST_FRAME_BYTES: Final = 1 << 20  # there must be room for such a frame
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class HeapError(ValueError):
    """The heap is too small. The message is one line, with the sum and what to change."""


class Budget(NamedTuple):
    """How the memory is divided: bytes of log in a ``batch`` and in the ``partition`` of a task, and the most of a ``frame``'s body (larger ones are
    cut); ``heap`` is Java's, and ``cores`` the number of tasks at once.
    """

    heap: int
    cores: int
    batch: int
    partition: int
    frame: int


def heap_bytes(text: str) -> int:
    """Bytes of a heap as Java writes it: 512m, 1g. Raises ValueError for another text."""
    found = re.fullmatch(r"(\d+)([kmgt]?)", text.strip().lower())
    if found is None:
        raise ValueError(f"not a heap as Java writes it, like 512m or 1g: {text}")
    return int(found[1]) * _UNITS[found[2]]


def slots(heap: int, processors: int) -> int:
    """The default number of task slots: one for each processor, as far as the heap goes."""
    return max(1, min(processors, heap // SLOT_BYTES))


def budget(heap: int, cores: int, *, batch: int | None = None, keep: int | None = None) -> Budget:
    """Divide a heap.

    Args:
        heap: bytes, for ``cores`` tasks at once.
        batch: bytes of log in a batch; None: an eighth of the heap, within bounds.
        keep: bytes of each body to keep; None: as many as there is room for.

    Raises HeapError: the heap is too small.
    """
    frame = (heap - BASE_BYTES) // cores // COPIES
    wanted = LEAST_FRAME_BYTES if keep is None else keep
    if frame < wanted:
        needed = BASE_BYTES + cores * COPIES * wanted
        raise HeapError(
            f"--memory: {cores} tasks at once, each with {COPIES} copies of a frame of {_mib(wanted)}, beside {_mib(BASE_BYTES)} for "
            f"Spark, take {_mib(needed)}, and the heap has {_mib(heap)}: more --memory, fewer --cores or a smaller --payload"
        )
    chosen = batch or min(max(heap // 8, MIN_BATCH_BYTES), MAX_BATCH_BYTES)
    if chosen > 4 * heap:
        raise HeapError(f"--max-bytes-per-trigger: a batch of {_mib(chosen)} is more than four times the heap of {_mib(heap)}: more --memory")
    partition = max(min(chosen, heap // (2 * cores)), MIN_BATCH_BYTES)
    return Budget(heap, cores, chosen, partition, frame if keep is None else keep)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def large_frames(planner: Planner, start: Mapping[str, int], end: Mapping[str, int], limit: int) -> list[int]:
    """The body sizes of the frames between two positions of which the log has more than ``limit`` bytes. Reads only blocks that can have some."""
    sizes: list[int] = []
    for ref in planner.blocks(start, end):
        if ref.header.data_len <= limit and not ref.header.flags & BLOCK_PIECES:
            continue
        try:
            block = read_raw(ref)
        except LogError:
            continue  # the task that reads it reports it
        for row in block.rows:
            stored = row.original_bytes - row.lost_bytes if row.flags & FLAG_PIECES else row.data_length
            if row.kind == KIND_FRAMES and stored > limit:
                edges = [0, row.original_bytes] if row.flags & FLAG_PIECES else [*block.starts(row), row.data_length]
                sizes += [right - left - FRAME_HEADER_BYTES for left, right in itertools.pairwise(edges)]
    return [size for size in sizes if size > limit]
