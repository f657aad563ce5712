"""Runs of frames as the network layer hands them over."""

import struct
from collections.abc import Sequence

from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST, Run


def framed(bodies: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def run_of(bodies: Sequence[bytes], *, head: Sequence[int] = (), behind: bytes = b"") -> Run:
    """A run.

    Args:
        bodies: of its frames.
        head: sizes of the pieces in which earlier reads gave the beginning of the first frame; together less than the frame.
        behind: what the last read gave behind the run: the beginning of the next frame.
    """
    raw = framed(bodies)
    pieces: list[bytes | memoryview] = []
    at = 0
    for size in head:
        pieces.append(raw[at : at + size])
        at += size
    data = raw[at:] + behind
    first = len(bodies[0]) + 4 - at if pieces else 0
    return Run(pieces or None, at, data, first, len(raw) - at, len(bodies), 0)


def piece_of(data: bytes, bits: int, *, head: int = 0) -> Run:
    """A piece of a frame that is cut through; ``head``: how many of its bytes earlier reads gave."""
    rest = data[head:]
    return Run([data[:head]] if head else None, head, rest, len(rest), len(rest), 1 if bits & PART_LAST else 0, 0, PART | bits)


def pieces_of(body: bytes, sizes: Sequence[int], *, head: int = 0) -> list[Run]:
    """A frame in pieces.

    Args:
        body: the frame's.
        sizes: of its pieces as far as they go, header counted; the rest is the last one.
        head: of the first piece, how many bytes earlier reads gave.
    """
    raw = framed([body])
    cuts = [0]
    for size in sizes:
        if cuts[-1] + size < len(raw):
            cuts.append(cuts[-1] + size)
    ends = [*cuts[1:], len(raw)]
    return [
        piece_of(raw[start:end], (PART_FIRST if start == 0 else 0) | (PART_LAST if end == len(raw) else 0), head=0 if start else min(head, end - 1))
        for start, end in zip(cuts, ends, strict=True)
    ]
