"""Part `packing`: bytes on disk for each captured byte, as blocks are and with zstd over each block, and the processor time of that.

A prototype outside the format: nothing of it is read or written by framegate. Packed is all behind a block's header.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
import zlib
from collections.abc import Callable
from functools import partial

import pyarrow as pa
from figures import Figure, add
from pipeline_log import BLOCK_SIZE, SHAPES, Body, Shape
from stage import Stage, short

from framegate.proxy.tap import record

__all__ = ["run"]

BLOCKS = 64
QUICK_BLOCKS = 16
LEVELS = (1, 3)
SEED = 10


def _records(size: int) -> bytes:
    """JSON records as applications send them: the same names, values that differ."""
    dice = random.Random(SEED)
    text = bytearray()
    while len(text) < size:
        order = {"id": dice.getrandbits(64), "customer": f"c-{dice.randrange(100_000)}", "amount": dice.randrange(1, 100_000) / 100}
        order |= {"currency": dice.choice(["EUR", "USD", "JPY"]), "at": 1_700_000_000_000 + dice.randrange(10**9), "token": dice.randbytes(16).hex()}
        text += json.dumps(order).encode()
    return bytes(text[:size])


CONTENTS: dict[str, Callable[[int], bytes]] = {"JSON records": _records, "random bytes": os.urandom}


def run(stage: Stage) -> dict[str, object]:
    """Every shape and content."""
    count = QUICK_BLOCKS if stage.quick else BLOCKS
    rows = [_measure(shape, content, count, stage.rounds) for shape in SHAPES for content in CONTENTS]
    titles = ("content", "off", *(f"zstd {level}" for level in LEVELS), "CRC ns/B", *(f"zstd {level} ns/B" for level in LEVELS), "unpack ns/B")
    lines = []
    for row in rows:
        costs = [f"{row[key]:.2f}" for key in ("crc_ns", *(f"zstd{level}_ns" for level in LEVELS), "unpack_ns")]
        lines.append((f"{row['shape']}, {row['content']}", *(f"{row[key]:.3f}" for key in ("off", *(f"zstd{level}" for level in LEVELS))), *costs))
    stage.table("packing: bytes on disk for a captured byte, and processor time for a byte", titles, lines)
    figures = [
        Figure(f"disk bytes ÷ captured, {row['shape']}, {row['content']}", "said", float(row["off"]), "off", {}, True, _note(row)) for row in rows
    ]
    return add({"rows": rows}, figures)


def _note(row: dict[str, float | str]) -> str:
    packed, cost, crc = float(row["zstd1"]), float(row["zstd1_ns"]), float(row["crc_ns"])
    return f"with zstd 1: {packed:.3f}, for {short(cost)} ns a byte more (CRC: {short(crc)})"


def _measure(shape: Shape, content: str, count: int, rounds: int) -> dict[str, float | str]:
    chunks = max(1, BLOCK_SIZE // (shape.frames * (shape.size + record.FRAME_HEADER_BYTES)))
    size = chunks * shape.frames * shape.size
    payload = CONTENTS[content](count * size)
    blocks = []
    for number in range(count):
        block = b"".join(Body(shape, chunks, payload[number * size : (number + 1) * size]).at(time.time_ns(), 0, number))
        blocks.append(block[record.BLOCK_HEADER_BYTES :])
    stored = sum(map(len, blocks))
    captured = count * chunks * shape.frames * (shape.size + record.FRAME_HEADER_BYTES)
    header = count * record.BLOCK_HEADER_BYTES
    row: dict[str, float | str] = {"shape": shape.name, "content": content, "off": (stored + header) / captured}
    row["crc_ns"] = _ns(lambda: [zlib.crc32(block) for block in blocks], rounds) / stored
    for level in LEVELS:
        codec = pa.Codec("zstd", compression_level=level)
        packed = [codec.compress(block) for block in blocks]
        row[f"zstd{level}"] = (sum(len(part) for part in packed) + header) / captured
        row[f"zstd{level}_ns"] = _ns(partial(_pack, codec, blocks), rounds) / stored
        row["unpack_ns"] = _ns(partial(_unpack, codec, packed, len(blocks[0])), rounds) / stored
    return row


def _pack(codec: pa.Codec, blocks: list[bytes]) -> None:
    for block in blocks:
        codec.compress(block)


def _unpack(codec: pa.Codec, packed: list[bytes], size: int) -> None:
    for part in packed:
        codec.decompress(part, size)


def _ns(work: Callable[[], object], rounds: int) -> float:
    """Processor nanoseconds, the median."""
    costs = []
    for _ in range(rounds):
        before = time.process_time_ns()
        work()
        costs.append(time.process_time_ns() - before)
    return statistics.median(costs)
