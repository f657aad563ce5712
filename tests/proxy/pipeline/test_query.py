"""SQL over an output folder: the demo's questions find what is wrong in what they are asked about."""

import contextlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from framegate.control.demo.load import FRAME_HEADER, Payloads
from framegate.control.demo.report import CONTENT_QUERIES
from framegate.proxy.pipeline.query import ask
from framegate.proxy.pipeline.tables import TableWriter
from tests.fakes.tap_log import FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]


def body(number: int, sequence: int, payload: bytes, checksum: int | None = None) -> bytes:
    return FRAME_HEADER.pack(0, number, sequence, zlib.crc32(payload) if checksum is None else checksum)[4:] + payload


def asked(spark: "SparkSession", folder: Path, bodies: list[bytes]) -> dict[str, list[dict[str, object]]]:
    """What the demo's questions say of one connection's requests."""
    processor = FakeProcessor(folder / "log")
    for start in range(0, len(bodies), 3):
        processor.block(bodies[start : start + 3])
    processor.close()
    with contextlib.closing(TableWriter(folder / "out", compact_ms=0)) as writer:
        writer(spark.read.format("framegate").load(str(folder / "log")), 0)
    return ask(spark, folder / "out", CONTENT_QUERIES)


def test_good_bodies_are_good(spark: "SparkSession", tmp_path: Path) -> None:
    payloads = Payloads()
    bodies = [body(2**31 - 1, sequence, payloads.of(7, sequence)) for sequence in range(10)]
    answers = asked(spark, tmp_path, bodies)
    assert answers == {
        "frames": [{"direction": "request", "frames": 10, "bytes": sum(len(body) + 4 for body in bodies)}],
        "content": [{"direction": "request", "wrong_checksums": 0, "misplaced": 0}],
        "sequences": [{"direction": "request", "missing": 0, "doubled": 0}],
        "gaps": [{"lost": 0}],
        "completeness": [{"direction": "request", "state": "complete", "windows": 1, "seen": 10, "accounted": 10}],
    }


def test_each_fault_is_counted(spark: "SparkSession", tmp_path: Path) -> None:
    bodies = [
        body(1, 0, b"good"),
        body(1, 1, b"changed", checksum=7),
        body(1, 4, b"two are missing before it"),
        body(1, 4, b"and here it is again"),
        body(1, 2, b"late"),
    ]
    answers = asked(spark, tmp_path, bodies)
    assert answers["content"] == [{"direction": "request", "wrong_checksums": 1, "misplaced": 3}]
    assert answers["sequences"] == [{"direction": "request", "missing": 1, "doubled": 1}]
