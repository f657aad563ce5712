"""A processor as the tap's log sees it: the real writer and real rules, fed by hand, writing in the caller's thread."""

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from librt.vecs import append, vec
from mypy_extensions import i32

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.run import Run
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.record import DIRECTIONS
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.rows import closed_row
from tests.fakes.runs import framed, pieces_of

START_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000
DEMO_HEADER = struct.Struct(">iqI")


def ints(values: Sequence[int] | None) -> "vec[i32] | None":
    """A native vector, as the relay hands over."""
    if values is None:
        return None
    numbers = vec[i32]()
    for value in values:
        numbers = append(numbers, i32(value))
    return numbers


def demo_body(connection: int, sequence: int, payload: bytes) -> bytes:
    """A body that carries its own number and the checksum of the rest."""
    return DEMO_HEADER.pack(connection, sequence, zlib.crc32(payload)) + payload


class FakeProcessor:
    """Appends runs to one stream of a log; nothing is on disk before ``flush``."""

    def __init__(
        self, directory: Path, *, boot_id: str = "b0", node: str = "edge", slot: int | str = 0, rule: TapRule | None = None, **tap: int
    ) -> None:
        self.config = TapConfig(directory=str(directory), **tap)  # type: ignore[arg-type]
        self.writer = TapWriter(self.config, node, str(slot), boot_id)
        self.stream = self.writer.stream  # its name
        self.sent: dict[tuple[int, str], int] = {}  # frames appended so far by (connection, direction): the numbering of the next run
        self._rules = TapRules((rule or TapRule(name="all"),), self.writer)
        self._points: dict[tuple[int, str], FrameTap] = {}

    def point(self, connection: int, direction: str, *, listener: str = "main", protocol: str = "framed", principal: str | None = "CN=a") -> FrameTap:
        key = (connection, direction)
        if key not in self._points:
            found = self._rules.match(listener, protocol, DIRECTIONS.index(direction), principal, f"10.0.0.1:{connection}", connection)
            assert found is not None
            self._points[key] = found
        return self._points[key]

    def send(
        self,
        bodies: Sequence[bytes],
        *,
        connection: int = 1,
        direction: str = "request",
        at_ns: int = START_NS,
        protocol: str = "framed",
        keys: Sequence[int] | None = None,
        latencies: Sequence[int] | None = None,
        correlations: Sequence[int] | None = None,
        sensitive: Sequence[int] | None = None,
    ) -> None:
        run = framed(bodies)
        first = self.sent.get((connection, direction), 0)
        point = self.point(connection, direction, protocol=protocol)
        sizes = None if correlations is None else [-1] * len(bodies)
        facts = (ints(sensitive), ints(keys), ints(latencies), ints(sizes), ints(correlations))
        point.append(Run(None, 0, run, 0, len(run), len(bodies), 0), first, at_ns, *facts)
        self.sent[connection, direction] = first + len(bodies)

    def part(
        self,
        run: Run,
        body_size: int,
        *,
        connection: int = 1,
        direction: str = "request",
        at_ns: int = START_NS,
        protocol: str = "framed",
        withheld: bool = False,
        key: int | None = None,
        latency: int | None = None,
    ) -> bool:
        """Append one piece of a frame, of the body size that its header says."""
        number = self.sent.get((connection, direction), 0)
        taken = self.point(connection, direction, protocol=protocol).append_part(run, number, at_ns, withheld, key, latency)
        self.sent[connection, direction] = number + run.frames
        return taken

    def parts(self, body: bytes, sizes: Sequence[int], *, flush: bool = False, **facts: Any) -> None:
        """Append a frame in pieces of these sizes and the rest; with ``flush`` each in a block of its own."""
        for run in pieces_of(body, sizes):
            self.part(run, len(body), **facts)
            if flush:
                self.flush()

    def end(
        self, connection: int = 1, *, at_ns: int = START_NS, lasted_ns: int = 1_500_000_000, principal: str | None = "CN=a", **facts: Any
    ) -> None:
        """End a connection; ``facts``: members of its row that are others than those of a client that has closed."""
        own = {"listener": "main", "upstream": "u", "endpoint": "10.0.0.9:7", "tls": None, "detail": "", "handshake_ns": None} | facts
        peer, opened_ns = f"10.0.0.1:{connection}", at_ns - lasted_ns
        times = {"opened_ns": opened_ns, "closed_ns": at_ns, "duration_ms": lasted_ns / 1e6}
        row = {**closed_row(peer=peer, principal=principal, **times, **own), "id": format_connection_id(connection)}
        self._rules.note_end(json.dumps(row, ensure_ascii=False), own["listener"], "framed", principal, peer, connection, opened_ns, at_ns)

    def flush(self) -> None:
        self.writer.poll_due(1)
        self.writer.poll_due(1 + self.config.flush_ms * 1_000_000)
        self.writer.write_queued()

    def block(self, bodies: Sequence[bytes], **facts: int | str) -> None:
        self.send(bodies, **facts)  # type: ignore[arg-type]
        self.flush()

    def close(self) -> None:
        assert self.writer.flush_and_close(1000)
