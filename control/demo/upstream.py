"""The demo's upstream: a handler in a framegate of its own (``Stage.start_upstream``)."""

import json

from framegate.proxy.handler import Context

__all__ = ["Upstream"]


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
        """Print the counts; ``bytes`` are those of frames, size headers included."""
        print(json.dumps({"frames": self.frame_count, "bytes": self.body_bytes + 4 * self.frame_count}), flush=True)
