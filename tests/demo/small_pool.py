"""Answers larger than the memory pool: consumers fetch them while the pool is small, and the memory of pool and processors is watched.

Requests pass whole, so the bound of the pool includes one request. Answers of this size are cut through and add nothing to it.
"""

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from framegate.control.demo.stage import LISTENER, Stage
from framegate.control.demo.steering import Metrics, Steering
from framegate.proxy.config.model import TapConfig
from tests.demo import records

MIB: Final = 1024 * 1024
TOPIC: Final = "large"
POOL_BYTES: Final = 16 * MIB
BATCHES: Final = 2
CONSUMERS: Final = 3
RECORDS: Final = BATCHES * records.BATCH_RECORDS
KEPT_BYTES: Final = 8 * MIB
"""The tap keeps so much of each body, which is all of any other body. A few rows of 50 MiB at once are more than Spark's default memory holds."""
_LIMIT_BYTES: Final = 4 * MIB  # above what a producer puts into one request, and within each processor's share of the pool
_READ_BYTES: Final = 256 * 1024  # by which one read may pass the pool
_BOUND_BYTES: Final = POOL_BYTES + _LIMIT_BYTES + _READ_BYTES
_TAP_QUEUE_BYTES: Final = TapConfig(directory="").queue_size  # of each processor
_LOOK_S: Final = 0.01
_WORK_S: Final = 240.0
_SETTLE_S: Final = 10.0

QUERIES: Final[dict[str, str]] = {
    "large": f"""
        SELECT count(*) AS frames, count_if(size > {records.BATCH_BYTES} AND kept_size = {KEPT_BYTES}) AS good, coalesce(max(size), 0) AS largest
        FROM frames WHERE direction = 'response' AND size > {POOL_BYTES}"""
}


class Peak(NamedTuple):
    """The most memory that was in use."""

    booked: int  # bytes in use of the whole pool
    before: int  # resident bytes of all processors together before the clients began
    resident: int  # the most of these
    samples: int  # number of looks


class Fetched(NamedTuple):
    """``clients``: their final row (``records.fetch_large``); ``peak``: of the memory meanwhile; ``processors``: their number."""

    clients: Mapping[str, Any]
    peak: Peak
    processors: int


def perform(stage: Stage, admin: str, bootstrap: str, on_row: Callable[[dict[str, Any]], None]) -> Fetched:
    """Make the pool small, produce and fetch through the proxy, and restore the pool.

    Args:
        stage: starts the clients.
        admin: address of the control API.
        bootstrap: ``host:port`` of the listener in front of the broker, which has ``TOPIC`` with one partition.
        on_row: called with the clients' rows.

    Raises ChildError: the clients ended without a result, or had none in time; grpc.RpcError: the proxy refused a change, or did not answer; OSError:
    a processor is gone.
    """
    options = records.Options(bootstrap=bootstrap, topic=TOPIC, count=RECORDS, ca=str(stage.certificates.ca), consumers=CONSUMERS)
    command = [sys.executable, str(Path(__file__).parent), "fetches", json.dumps(dataclasses.asdict(options))]
    with Steering(admin, LISTENER) as steering:
        limit, size = steering.limit(), steering.pool().size_bytes
        try:
            steering.set_limit(_LIMIT_BYTES)  # first: each share must hold the largest request
            steering.set_pool_size(POOL_BYTES)
            done = threading.Event()
            with ThreadPoolExecutor(1, "peak") as executor:
                watching = executor.submit(_watch, steering, _resident(steering), done)
                try:
                    clients = stage.start("fetches", command, on_row=on_row)
                    final = clients.wait_for_event("final", _WORK_S)
                    clients.wait(_SETTLE_S)
                finally:
                    done.set()
            return Fetched(final, watching.result(), len(steering.pool().shares))
        finally:
            steering.set_pool_size(size)
            steering.set_limit(limit)


def _watch(steering: Steering, before: int, done: threading.Event) -> Peak:
    """Look a hundred times a second at most. A processor publishes what it has booked once a millisecond while it works."""
    booked, resident, samples = 0, before, 0
    while not done.wait(_LOOK_S):
        booked = max(booked, steering.pool().usage_bytes)
        resident = max(resident, _resident(steering))
        samples += 1
    return Peak(booked, before, resident, samples)


def _resident(steering: Steering) -> int:
    """Resident bytes of all processors."""
    lines = [line for pid in steering.processor_pids() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def checks(fetched: Fetched) -> list[tuple[str, bool]]:
    """Whether every byte arrived, and memory stayed within its bound."""
    clients, peak = fetched.clients, fetched.peak
    faults = {name: clients[name] for name in ("wrong", "missing", "doubled", "out_of_order")}
    complete = (clients["produced"], clients["consumed"]) == (RECORDS, RECORDS * CONSUMERS)
    batches = f"{CONSUMERS} consumers at once fetched {BATCHES} batches of {_mib(records.BATCH_BYTES)} each in {clients['fetch_ms'] / 1000:.1f} s"
    words = ", ".join(f"{value} {name}" for name, value in faults.items())
    # a piece may be a view of a read that is a quarter larger; the tap's queues are no part of the pool
    allowed = _BOUND_BYTES * 5 // 4 + fetched.processors * _TAP_QUEUE_BYTES
    growth = peak.resident - peak.before
    used = f"at most {_mib(peak.booked)} in use ({_mib(_BOUND_BYTES)} allowed: with one request and one read), {peak.samples:,} looks"
    grown = f"at most {_mib(growth)} above the {_mib(peak.before)} before ({_mib(allowed)} allowed: 1.25 times that, and the tap's queues)"
    return [
        (f"{batches}; {clients['consumed']:,} records checked: {words}", complete and not any(faults.values())),
        (f"memory pool of {_mib(POOL_BYTES)}: {used}", peak.samples > 0 and peak.booked <= _BOUND_BYTES),
        (f"processors' resident memory: {grown}", growth <= allowed),
    ]


def answer_check(metrics: Metrics, tables: Mapping[str, list[dict[str, Any]]]) -> tuple[str, bool]:
    """Whether the answers larger than the pool were one frame each to the proxy, held a batch each, and have a row each in Spark's tables.
    ``metrics``: the proxy's, after everything has passed. ``tables``: answers to ``QUERIES``.
    """
    rows = {name: int(value) for name, value in tables["large"][0].items()}
    labels = {"framegate_side": "upstream", "framegate_listener": LISTENER}
    counted = metrics.sum("framegate_frame_size_bytes_count", **labels)
    large = counted - metrics.sum("framegate_frame_size_bytes_bucket", le=f"{POOL_BYTES:.1f}", **labels)
    expected = BATCHES * CONSUMERS
    text = f"answers above {_mib(POOL_BYTES)}: {large} by the proxy's counters = {rows['frames']} rows = a batch for each consumer, {expected} in all"
    return f"{text}; the largest of {rows['largest']:,} bytes", large == rows["frames"] == rows["good"] == expected


def _mib(count: int) -> str:
    return f"{count / MIB:.4g} MiB"
