"""Answers larger than the memory pool: real consumers fetch them while the pool is small, and what it and the processors hold is watched.

Requests pass whole, so the pool's bound leaves room for one of them; answers of this size are cut through, so they add nothing to it.
"""

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from framegate.control.demo.metrics import Metrics
from framegate.control.demo.stage import LISTENER, Stage
from framegate.control.demo.steering import Steering
from framegate.proxy.config.model import TapConfig
from tests.demo import fetches

__all__ = ["QUERIES", "TOPIC", "Fetched", "Peak", "Peaks", "answer_check", "checks", "perform"]

MIB: Final = 1024 * 1024

TOPIC: Final = "large"
POOL_BYTES: Final = 16 * MIB
BATCHES: Final = 2
CONSUMERS: Final = 3
RECORDS: Final = BATCHES * fetches.BATCH_RECORDS
KEPT_BYTES: Final = 8 * MIB
"""What the tap is to keep of each body: all of any other. A few rows of 50 MiB at once are more than Spark's memory holds by default."""

_LIMIT_BYTES: Final = 4 * MIB  # above what a producer puts into one request, and within each processor's share of the pool
_READ_BYTES: Final = 256 * 1024  # by which one read may pass the pool
_BOUND_BYTES: Final = POOL_BYTES + _LIMIT_BYTES + _READ_BYTES
_TAP_QUEUE_BYTES: Final = TapConfig(directory="").queue_size  # of each processor, as the demo leaves it
_LOOK_S: Final = 0.01
_WORK_S: Final = 240.0
_SETTLE_S: Final = 10.0

QUERIES: Final[dict[str, str]] = {
    "large": f"""
        SELECT count(*) AS frames, count_if(size > {fetches.BATCH_BYTES} AND kept_size = {KEPT_BYTES}) AS good, coalesce(max(size), 0) AS largest
        FROM frames WHERE direction = 'response' AND size > {POOL_BYTES}""",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What was seen.

    Attributes:
        booked: the most bytes in use of the whole pool.
        before: resident bytes of all processors together when the block began.
        resident: the most of these.
        samples: how many were taken.
    """

    booked: int
    before: int
    resident: int
    samples: int

    @property
    def grown(self) -> int:
        """Resident bytes above those before."""
        return self.resident - self.before


class Peaks:
    """Looks a hundred times a second at most, on a thread of its own, for the length of a block.

    A processor stores what it has booked once a millisecond while it works, so what lasts longer than a look and its call is seen.

    Args:
        steering: the proxy's control plane.
        every_s: between two looks.
    """

    def __init__(self, steering: Steering, every_s: float = _LOOK_S) -> None:
        self._steering = steering
        self._every_s = every_s
        self._pids = steering.processor_pids()
        self._ended = threading.Event()
        self._executor = ThreadPoolExecutor(1, "peaks")
        self._watching: Future[Peak] | None = None

    def __enter__(self) -> "Peaks":
        before = self._resident()
        self._watching = self._executor.submit(self._watch, before)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._executor.shutdown()

    def result(self) -> Peak:
        """What was seen, once the block has been left.

        Raises:
            grpc.RpcError: the proxy did not answer a look.
            OSError: a processor is gone.
        """
        assert self._watching is not None, "the block was entered"
        return self._watching.result()

    def _watch(self, before: int) -> Peak:
        booked, resident, samples = 0, before, 0
        while not self._ended.wait(self._every_s):
            booked = max(booked, self._steering.pool().usage_bytes)
            resident = max(resident, self._resident())
            samples += 1
        return Peak(booked=booked, before=before, resident=resident, samples=samples)

    def _resident(self) -> int:
        return sum(resident_bytes(pid) for pid in self._pids)


def resident_bytes(pid: int) -> int:
    """A process's resident memory.

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What was seen.

    Attributes:
        clients: the clients' final row, see ``fetches.exchange``.
        peak: of the pool and the processors meanwhile.
        processors: how many there were.
    """

    clients: Mapping[str, Any]
    peak: Peak
    processors: int


def perform(stage: Stage, admin: str, bootstrap: str, on_row: Callable[[dict[str, Any]], None]) -> Fetched:
    """Make the pool small, produce and fetch through the proxy, and put the pool back.

    Args:
        stage: starts the clients.
        admin: the control plane's address.
        bootstrap: ``host:port`` of the listener in front of the broker, which has ``TOPIC`` with one partition.
        on_row: called with what the clients say meanwhile.

    Raises:
        ChildError: the clients ended without a result, or had none in time.
        grpc.RpcError: the proxy refused a change, or did not answer.
    """
    options = fetches.Options(bootstrap=bootstrap, topic=TOPIC, count=RECORDS, ca=str(stage.certificates.ca), consumers=CONSUMERS)
    with Steering(admin, LISTENER) as steering:
        limit, size = steering.limit(), steering.pool().size_bytes
        try:
            steering.set_limit(_LIMIT_BYTES)  # first: each share must hold the largest request
            steering.set_pool_size(POOL_BYTES)
            with Peaks(steering) as peaks:
                command = [sys.executable, str(Path(__file__).parent), "fetches", json.dumps(dataclasses.asdict(options))]
                clients = stage.start("fetches", command, on_row=on_row)
                final = clients.wait_for_event("final", _WORK_S)
                clients.wait(_SETTLE_S)
            return Fetched(clients=final, peak=peaks.result(), processors=len(steering.pool().shares))
        finally:
            steering.set_pool_size(size)
            steering.set_limit(limit)


def checks(fetched: Fetched) -> list[tuple[str, bool]]:
    """Whether every byte arrived, and memory stayed within its bound."""
    clients, peak = fetched.clients, fetched.peak
    faults = {name: clients[name] for name in ("wrong", "missing", "doubled", "out_of_order")}
    complete = (clients["produced"], clients["consumed"]) == (RECORDS, RECORDS * CONSUMERS)
    batches = f"{CONSUMERS} consumers at once fetched {BATCHES} batches of {_mib(fetches.BATCH_BYTES)} each in {clients['fetch_ms'] / 1000:.1f} s"
    words = ", ".join(f"{value} {name}" for name, value in faults.items())
    allowed = _allowed_growth(fetched.processors)
    used = f"at most {_mib(peak.booked)} in use ({_mib(_BOUND_BYTES)} allowed: with one request and one read), {peak.samples:,} looks"
    grown = f"at most {_mib(peak.grown)} above the {_mib(peak.before)} before ({_mib(allowed)} allowed: 1.25 times that, and the tap's queues)"
    return [
        (f"{batches}; {clients['consumed']:,} records checked: {words}", complete and not any(faults.values())),
        (f"memory pool of {_mib(POOL_BYTES)}: {used}", peak.samples > 0 and peak.booked <= _BOUND_BYTES),
        (f"processors' resident memory: {grown}", peak.grown <= allowed),
    ]


def answer_check(metrics: Metrics, tables: Mapping[str, list[dict[str, Any]]]) -> tuple[str, bool]:
    """Whether the answers larger than the pool were one frame each to the proxy, held a batch each, and have a row each in Spark's tables.

    Args:
        metrics: the proxy's, after everything has passed.
        tables: answers to ``QUERIES``.
    """
    rows = {name: int(value) for name, value in tables["large"][0].items()}
    labels = {"framegate_side": "upstream", "framegate_listener": LISTENER}
    counted = metrics.sum("framegate_frame_size_bytes_count", **labels)
    large = counted - metrics.sum("framegate_frame_size_bytes_bucket", le=f"{POOL_BYTES:.1f}", **labels)
    expected = BATCHES * CONSUMERS
    text = f"answers above {_mib(POOL_BYTES)}: {large} by the proxy's counters = {rows['frames']} rows = a batch for each consumer, {expected} in all"
    return f"{text}; the largest of {rows['largest']:,} bytes", large == rows["frames"] == rows["good"] == expected


def _allowed_growth(processors: int) -> int:
    """Of resident memory: a piece may be a view of a read that is a quarter larger; the tap's queues are no part of the pool."""
    return _BOUND_BYTES * 5 // 4 + processors * _TAP_QUEUE_BYTES


def _mib(count: int) -> str:
    return f"{count / MIB:.4g} MiB"
