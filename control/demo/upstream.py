"""The demo's upstream: handlers in a framegate of its own (``Stage.start_upstream``). One answers every frame with itself and counts them, the other
Kafka's requests with as much as their API gives.
"""

import json
from typing import Final

from proxy.handler import Context

__all__ = ["KafkaUpstream", "Upstream"]

_ANSWERS: Final = {0: 40, 1: 20_000, 3: 600, 8: 60, 18: 400}
"""Bytes by the key of the API: Produce, Fetch, Metadata, OffsetCommit, ApiVersions."""


class Upstream:
    """Answers every frame with itself; what it counted it prints at its end, in one JSON line."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.body_bytes = 0

    def handle(self, frame: bytes, context: Context) -> bytes:
        self.frame_count += 1
        self.body_bytes += len(frame)
        return frame

    def stop(self) -> None:
        """Tell what was counted; ``bytes`` are those of frames, size headers included."""
        print(json.dumps({"frames": self.frame_count, "bytes": self.body_bytes + 4 * self.frame_count}), flush=True)


class KafkaUpstream:
    """Answers requests of Kafka with their correlation id and zeros: no broker, but one request and one answer of a broker's sizes."""

    def handle(self, frame: bytes, context: Context) -> bytes:
        return frame[4:8] + bytes(_ANSWERS.get(int.from_bytes(frame[:2], "big"), 20))
