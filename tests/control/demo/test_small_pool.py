"""The small pool over a pretended proxy and clients. Real ones are in tests/integration/test_kafka.py."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka")

from control.demo import fetches, small_pool
from control.demo.metrics import Metrics
from control.demo.peaks import Peak
from control.demo.processes import ChildError
from control.demo.small_pool import BATCHES, CONSUMERS, RECORDS, Fetched, answer_check, checks, perform
from control.demo.stage import Stage
from control.gen.framegate.control.v1.pool_service_pb2 import MemoryPool, MemoryShare

MIB = 1024 * 1024
CLIENTS: dict[str, Any] = {
    "produced": RECORDS,
    "consumed": RECORDS * CONSUMERS,
    "wrong": 0,
    "missing": 0,
    "doubled": 0,
    "out_of_order": 0,
    "fetch_ms": 1500,
}
PEAK = Peak(booked=3 * MIB, before=50 * MIB, resident=58 * MIB, samples=300)
FETCHED = Fetched(clients=CLIENTS, peak=PEAK, processors=2)
BOUND = 16 * MIB + 4 * MIB + 256 * 1024


class Pretended:
    """Control plane, stage and clients in one; notes what was done, in order.

    Attributes:
        fails: the clients end without a result.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, Any]] = []
        self.fails = False
        self.certificates = SimpleNamespace(ca=Path("ca.crt"))
        self._limit, self._size = 16 * MIB, 64 * MIB
        monkeypatch.setattr(small_pool, "Steering", lambda address, listener: self)

    def __enter__(self) -> "Pretended":
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append(("left", None))

    def limit(self) -> int:
        return self._limit

    def set_limit(self, size: int) -> None:
        assert size <= self._size // 2, "each share holds the largest frame"
        self._limit = size
        self.done.append(("limit", size))

    def pool(self) -> MemoryPool:
        return MemoryPool(size_bytes=self._size, usage_bytes=MIB, shares=[MemoryShare(), MemoryShare()])

    def set_pool_size(self, size: int) -> None:
        assert size // 2 >= self._limit, "each share holds the largest frame"
        self._size = size
        self.done.append(("pool", size))

    def processor_pids(self) -> list[int]:
        return []

    def start_module(self, module: str, arguments: str, on_row: Any) -> "Pretended":
        self.done.append((module, json.loads(arguments)))
        return self

    def wait_for_event(self, event: str, timeout_s: float) -> dict[str, Any]:
        if self.fails:
            raise ChildError("fetches ended")
        return CLIENTS

    def wait(self, timeout_s: float) -> int:
        return 0


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    return Pretended(monkeypatch)


def test_the_pool_is_small_while_the_clients_work_and_as_before_afterwards(pretended: Pretended) -> None:
    fetched = perform(cast("Stage", pretended), "unix:admin.sock", "127.0.0.1:5", lambda row: None)
    assert (fetched.clients, fetched.processors) == (CLIENTS, 2)
    module, options = pretended.done.pop(2)
    assert module == "control.demo.fetches"
    made = fetches.Options(**options)
    assert (made.bootstrap, made.topic, made.count, made.consumers, made.ca) == ("127.0.0.1:5", "large", RECORDS, CONSUMERS, "ca.crt")
    assert made.count == BATCHES * fetches.BATCH_RECORDS
    assert pretended.done == [("limit", 4 * MIB), ("pool", 16 * MIB), ("pool", 64 * MIB), ("limit", 16 * MIB), ("left", None)]


def test_the_pool_is_as_before_when_the_clients_fail(pretended: Pretended) -> None:
    pretended.fails = True
    with pytest.raises(ChildError, match="fetches ended"):
        perform(cast("Stage", pretended), "unix:admin.sock", "127.0.0.1:5", lambda row: None)
    assert pretended.done[-3:] == [("pool", 64 * MIB), ("limit", 16 * MIB), ("left", None)]


def test_everything_within_its_bound_is_good_and_told() -> None:
    told = checks(FETCHED)
    assert [good for _, good in told] == [True, True, True]
    assert [text for text, _ in told] == [
        "3 consumers at once fetched 2 batches of 50 MiB each in 1.5 s; 4,800 records checked: 0 wrong, 0 missing, 0 doubled, 0 out_of_order",
        "memory pool of 16 MiB: at most 3 MiB in use (20.25 MiB allowed: with one request and one read), 300 looks",
        "processors' resident memory: at most 8 MiB above the 50 MiB before (41.31 MiB allowed: 1.25 times that, and the tap's queues)",
    ]


@pytest.mark.parametrize("fault", ["wrong", "missing", "doubled", "out_of_order"])
def test_a_fault_of_the_content_is_found(fault: str) -> None:
    assert [good for _, good in checks(dataclasses.replace(FETCHED, clients={**CLIENTS, fault: 1}))] == [False, True, True]


@pytest.mark.parametrize("count", ["produced", "consumed"])
def test_records_too_few_are_found(count: str) -> None:
    assert [good for _, good in checks(dataclasses.replace(FETCHED, clients={**CLIENTS, count: CLIENTS[count] - 1}))] == [False, True, True]


@pytest.mark.parametrize(
    ("peak", "good"),
    [
        ({"booked": BOUND}, [True, True, True]),
        ({"booked": BOUND + 1}, [True, False, True]),
        ({"samples": 0}, [True, False, True]),
        ({"resident": 50 * MIB + BOUND * 5 // 4 + 16 * MIB}, [True, True, True]),
        ({"resident": 50 * MIB + BOUND * 5 // 4 + 16 * MIB + 1}, [True, True, False]),
    ],
)
def test_memory_beyond_its_bound_is_found(peak: dict[str, int], good: list[bool]) -> None:
    assert [one for _, one in checks(dataclasses.replace(FETCHED, peak=dataclasses.replace(PEAK, **peak)))] == good


def counted(large: int) -> Metrics:
    """The proxy's metrics after 100 answers, of which so many were above 16 MiB, and as many requests."""
    labels = '{{framegate_listener="demo",framegate_side="{side}"{le}}} {value}'
    lines = [
        f"framegate_frame_size_bytes_{suffix}" + labels.format(side=side, le=le, value=value)
        for side, small in (("upstream", 100 - large), ("downstream", 100))
        for suffix, le, value in (("bucket", ',le="4194304.0"', small - 1), ("bucket", ',le="16777216.0"', small), ("count", "", 100))
    ]
    return Metrics("\n".join(lines))


ROWS = {"frames": 6, "good": 6, "largest": 52_445_401}


def test_large_answers_are_one_frame_and_one_row_each() -> None:
    text, good = answer_check(counted(6), {"large": [ROWS]})
    assert good
    assert text == "answers above 16 MiB: 6 by the proxy's counters = 6 rows = a batch for each consumer, 6 in all; the largest of 52,445,401 bytes"


@pytest.mark.parametrize(
    ("large", "rows"),
    [
        (5, {}),
        (6, {"frames": 5}),
        (6, {"good": 5}),
        (7, {"frames": 7, "good": 7}),
        (0, {"frames": 0, "good": 0, "largest": 0}),
    ],
)
def test_answers_that_do_not_add_up_are_found(large: int, rows: dict[str, int]) -> None:
    assert not answer_check(counted(large), {"large": [{**ROWS, **rows}]})[1]
