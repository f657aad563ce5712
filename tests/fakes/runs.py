"""Runs of frames as the network layer hands them over."""

import struct
from collections.abc import Sequence

from proxy.network.run import Run


def framed(bodies: Sequence[bytes]) -> bytes:
    """Whole frames back to back."""
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
