"""Pairs whose frames are tapped: what their ends, the counters and the log say of them must agree."""

import itertools
from pathlib import Path
from typing import Any

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.relay.ending import LOST
from framegate.proxy.tap.log_block import GapRecord
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.kafka_frames import answer, request
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.world import World, frame

LIMIT = 1 << 20  # of a frame's body, both ways


class Accounts:
    """A world whose frames are tapped, and what each side of it says of them."""

    def __init__(self, folder: Path, protocol: str = "framed", rule: TapRule | None = None, *, queue_size: int = 1 << 18, **options: Any) -> None:
        self.folder = str(folder)
        rules = (rule or TapRule(name="all"),)
        self.writer = TapWriter(TapConfig(directory=self.folder, rules=rules, queue_size=queue_size, flush_size=1 << 17), "n", "0", "b")
        self.kafka = protocol == "kafka"
        self.world = World(protocol, limit=LIMIT, rules=TapRules(rules, self.writer), writer=self.writer, **options)
        # asked, answered: numbers of the next request and answer, for Kafka's correlation ids
        self.asked = 0
        self.answered = 0

    def ask(self, size: int) -> bytes:
        self.asked += 1
        return request(3, 9, self.asked, bytes(size)) if self.kafka else frame(bytes(size))

    def reply(self, size: int) -> bytes:
        self.answered += 1
        return answer(self.answered, bytes(size)) if self.kafka else frame(bytes(size))

    def settle(self) -> list[dict[str, Any]]:
        """End the world and the log; every count must agree. Returns the closed rows."""
        self.world.close()
        assert self.writer.flush_and_close(1000)
        rows = self.world.rows
        stored = list(read_frames(self.folder))
        gaps = list(read_gaps(self.folder))
        for row in rows:
            for direction in ("request", "response"):
                self.compare(row, direction, [item.number for item in stored if (item.connection, item.direction) == (row["id"], direction)], gaps)
        counters = self.world.counters.listeners["l"]
        assert counters.downstream.frames_received == self.writer.frames_matched_request == sum(row["frames"]["request"] for row in rows)
        assert counters.upstream.frames_received == self.writer.frames_matched_response == sum(row["frames"]["response"] for row in rows)
        assert self.writer.thread.frames_flushed_request + self.writer.thread.frames_flushed_response == len(stored)
        assert self.writer.thread.frames_gapped == self.writer.frames_dropped == sum(gap.frames for gap in gaps)
        sent, received = counters.downstream.bytes_sent + counters.upstream.bytes_sent, sum(sum(row["bytes"].values()) for row in rows)
        lost = int(counters.downstream_counts.cells[LOST] + counters.upstream_counts.cells[LOST])
        assert received == sent + lost
        assert lost == sum(row["lost"]["bytes"] for row in rows)
        return rows

    def compare(self, row: dict[str, Any], direction: str, numbers: list[int], gaps: list[GapRecord]) -> None:
        """One direction of one connection: its frames in the log, in order, and its gaps make up what the row counts, each number once."""
        missing = [gap for gap in gaps if (gap.connection, gap.direction) == (row["id"], direction)]
        counted = [*numbers, *itertools.chain.from_iterable(range(gap.first_frame, gap.first_frame + gap.frames) for gap in missing)]
        assert sorted(counted) == list(range(row["frames"][direction])), (direction, row, numbers, missing)
