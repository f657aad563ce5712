"""A keeper of a tap's directory, and what it is told: processors that were born, wrote and died."""

import time
from pathlib import Path
from typing import Any

from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.meters import Meters
from framegate.control.tap.keeper import ProcessorExit, TapKeeper
from framegate.control.tap.segment_watch import SegmentTold
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, TapConfig, TapRule, UpstreamConfig
from tests.fakes.fleet import MemoryLog
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.tap_read import read_gaps


def keeper(directory: Path, *, on_segment: SegmentTold | None = None, **tap: Any) -> tuple[TapKeeper, MemoryLog, Meters]:
    log, meters = MemoryLog(), Meters()
    config = ProxyConfig(
        node="n",
        listeners=(ListenerConfig(name="a", address="127.0.0.1:0", upstream="u"),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
        tap=TapConfig(**{"directory": str(directory), "rules": (TapRule(name="all"),), **tap}),
    )
    assert config.tap is not None
    return TapKeeper(config, config.tap, meters, log, TaskMonitor(log, meters), on_segment), log, meters


def death(boot_id: str, request: int = 0, response: int = 0, *, orderly: bool = False, **dropped: int) -> ProcessorExit:
    seen = {("a", "request"): request, ("a", "response"): response}
    reserved = dict(seen)
    none = dict.fromkeys(("disk_full", "disk_error", "closed"), 0)
    return ProcessorExit(0, boot_id, time.time_ns(), ProcessorTotals({}, orderly, request + response, seen, reserved, {**none, **dropped}))


def processor(directory: Path, boot_id: str, **facts: Any) -> FakeProcessor:
    """A processor of listener ``a``'s that the keeper's node runs."""
    made = FakeProcessor(directory, boot_id=boot_id, node="n", **facts)
    for direction in ("request", "response"):
        made.point(1, direction, listener="a")
    return made


def written(tap: TapKeeper, directory: Path, boot_id: str) -> None:
    """A processor that is born, writes three frames, and ends in order."""
    tap.born(0, boot_id)
    writer = processor(directory, boot_id)
    writer.send([b"x"] * 3)
    writer.close()
    tap.died(death(boot_id, orderly=True))


def gaps(directory: Path) -> list[tuple[str, str | None, str, int, str, str]]:
    found = list(read_gaps(str(directory)))
    return [(gap.stream, gap.listener, gap.direction, gap.frames, gap.reason, gap.certainty) for gap in found]


def crash(tap: TapKeeper) -> None:
    """Let go of the directory as the kernel does when control is killed: nothing is finished, nothing is said."""
    tap._jobs.put(None)
    tap._thread.join(10)
    tap._lock.release()
