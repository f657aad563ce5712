"""Whatever is done to a complete log, ``tap verify``, a strict batch and a strict stream notice; who goes on has a row of it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from framegate.proxy.pipeline.loss import DataLossError, Loss
from framegate.proxy.pipeline.planner import Planner
from framegate.proxy.pipeline.pyspark_framegate import register
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.slices import read_slice
from framegate.proxy.pipeline.source import FramegateDataSource
from framegate.proxy.pipeline.tables import TableWriter
from framegate.proxy.pipeline.views import register_views
from framegate.proxy.tap.acceptance import accept
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.ledger import LEDGER_NAME
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import end_offset
from framegate.proxy.tap.record import LOCK_NAME, SEGMENT_HEADER_BYTES
from tests.fakes.tap_files import chop, flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAPPED = [("main", "request"), ("main", "response")]
NAMES = ("edge.0.a", "edge.1.b", "edge.recovery.a")


class Damage(NamedTuple):
    """What is done, and how: to a log's directory."""

    name: str
    harm: Callable[[Path], object]


def build(root: Path) -> None:
    """A log that ended in order: three streams of four segments each, of as many blocks."""
    root.mkdir()
    ledger = LedgerWriter(str(root))
    for name in NAMES:
        node, slot, boot_id = name.split(".")
        ledger.born(name, TAPPED, START_NS)
        processor = FakeProcessor(root, node=node, slot=slot, boot_id=boot_id, segment_size=1000)
        for number in range(4):
            processor.block([bytes([number]) * 600], at_ns=START_NS + number)
        processor.close()
        ledger.ended(name, end_offset(str(root), name), START_NS, settled=True)
    ledger.close()
    (root / LOCK_NAME).touch()


def lines(root: Path, keep: slice) -> None:
    content = (root / LEDGER_NAME).read_bytes().splitlines(keepends=True)
    (root / LEDGER_NAME).write_bytes(b"".join(content[keep]))


def swap(root: Path, one: str, other: str) -> None:
    shutil.rmtree(root / one)
    shutil.copytree(root / other, root / one)


def copy_over(root: Path, stream: str, source: int, target: int) -> None:
    files = segment_files(root, stream)
    shutil.copyfile(files[source], files[target])


def as_open(root: Path, stream: str, lost: int) -> None:
    path = segment_files(root, stream)[-1]
    chop(path, path.stat().st_size - lost)
    path.rename(path.with_suffix(".open"))


def longer(root: Path, stream: str) -> None:
    processor = FakeProcessor(root / "other", node="edge", slot=stream.split(".")[1], boot_id=stream.split(".")[2])
    processor.writer.thread._log.offset = end_offset(str(root), stream)
    processor.block([b"more"])
    processor.close()
    (path,) = segment_files(root / "other")
    path.rename(root / stream / path.name)
    shutil.rmtree(root / "other")


def of_streams(stream: str) -> Iterator[Damage]:
    yield Damage(f"{stream} is gone", lambda root: shutil.rmtree(root / stream))
    yield Damage(f"{stream} is empty", lambda root: [path.unlink() for path in segment_files(root, stream)])
    yield Damage(f"{stream} has more", lambda root: longer(root, stream))
    for lost in (1, 700):
        yield Damage(f"{stream} lost {lost} bytes and its name", lambda root, lost=lost: as_open(root, stream, lost))
    for other in NAMES:
        if other != stream:
            yield Damage(f"{stream} is {other}", lambda root, other=other: swap(root, stream, other))


def of_segments(stream: str, index: int) -> Iterator[Damage]:
    at = f"{stream} segment {index}"
    yield Damage(f"{at} is gone", lambda root: segment_files(root, stream)[index].unlink())
    yield Damage(f"{at} and what follows is gone", lambda root: [path.unlink() for path in segment_files(root, stream)[index:]])
    if index:
        yield Damage(f"{at} and before is gone", lambda root: [path.unlink() for path in segment_files(root, stream)[:index]])
    for size in (0, 100, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 200):
        yield Damage(f"{at} is cut to {size}", lambda root, size=size: chop(segment_files(root, stream)[index], size))
    for place in (20, 3970, SEGMENT_HEADER_BYTES + 8, SEGMENT_HEADER_BYTES + 300):
        yield Damage(f"{at} differs at {place}", lambda root, place=place: flip(segment_files(root, stream)[index], place))
    for source in {0, 1, 2, 3} - {index}:
        yield Damage(f"{at} is segment {source}", lambda root, source=source: copy_over(root, stream, source, index))


def of_ledger() -> Iterator[Damage]:
    yield Damage("no ledger", lambda root: (root / LEDGER_NAME).unlink())
    yield Damage("an empty ledger", lambda root: lines(root, slice(0)))
    yield Damage("the ledger's first line", lambda root: lines(root, slice(1)))
    yield Damage("the ledger's first stream", lambda root: lines(root, slice(2)))
    yield Damage("all but the ledger's first line", lambda root: lines(root, slice(1, None)))
    yield Damage("a ledger without a line in the middle", lambda root: lines(root, slice(0, None, 2)))
    yield Damage("a ledger that differs", lambda root: flip(root / LEDGER_NAME, 30))


def damages() -> list[Damage]:
    places = [*((NAMES[0], index) for index in range(4)), *((stream, 1) for stream in NAMES[1:])]
    segments = [damage for stream, index in places for damage in of_segments(stream, index)]
    return [*(damage for stream in NAMES for damage in of_streams(stream)), *segments, *of_ledger()]


def batch(root: Path, **options: str) -> list[str]:
    """All rows, as the batch source reads them: why some are lost. Raises DataLossError."""
    source = FramegateDataSource({"path": str(root), "parallelism": "2", **options})
    reader = source.reader(CHUNK_SCHEMA)
    rows = [row for partition in reader.partitions() for found in reader.read(partition) for row in found.to_pylist()]
    return [row["reason"] for row in rows if row["certainty"] == "unknown"]


def stream(root: Path) -> None:
    """The same as a strict stream that takes little at a time. Raises DataLossError."""
    planner = Planner(root, parallelism=2)
    at = planner.first()
    while (end := planner.advance(at, 500)) != at:
        for parts in planner.partitions(at, end):
            for part in parts:
                assert not isinstance(part, Loss), "it is strict"
                list(read_slice(part))
        at = end


def notices(read: Callable[[], object]) -> bool:
    try:
        read()
    except DataLossError:
        return True
    return False


@pytest.mark.extended
@pytest.mark.slow
def test_each_damage_is_noticed_by_verify_by_a_strict_batch_and_by_a_strict_stream_and_who_goes_on_has_a_row(tmp_path: Path) -> None:
    good = tmp_path / "good"
    build(good)
    assert verify(str(good)).complete
    assert batch(good) == []
    stream(good)
    silent: list[str] = []
    tried = 0
    for number, (name, harm) in enumerate(damages()):
        root = tmp_path / str(number)
        shutil.copytree(good, root)
        harm(root)
        tried += 1
        readings = {
            "verify": not verify(str(root)).complete,
            "batch": notices(lambda root=root: batch(root)),
            "stream": notices(lambda root=root: stream(root)),
            "go on": name.endswith("has more") or bool(batch(root, failondataloss="false")),
        }
        silent += [f"{name}: {reading}" for reading, noticed in readings.items() if not noticed]
        shutil.rmtree(root)
    assert tried > 100
    assert silent == []


def test_a_ledger_whose_loss_was_accepted_ends_no_strict_query(tmp_path: Path) -> None:
    root = tmp_path / "tap"
    build(root)
    flip(root / LEDGER_NAME, 30)
    with pytest.raises(DataLossError):
        batch(root)
    accept(str(root), verify(str(root)), "restored from a copy", "ann", START_NS)
    batch(root)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_a_tail_that_is_gone_ends_a_strict_query_and_is_in_the_table_completeness_of_one_that_goes_on(spark: "SparkSession", tmp_path: Path) -> None:
    register(spark)
    root = tmp_path / "tap"
    build(root)
    for path in segment_files(root, NAMES[0])[2:]:
        path.unlink()
    read = spark.read.format("framegate")
    with pytest.raises(Exception, match=r"offsets \d+ to \d+ are not in"):
        read.load(str(root)).count()
    output = str(tmp_path / "out")
    TableWriter(output, compact_ms=0)(read.options(failOnDataLoss="false", output=output).load(str(root)), 0)
    register_views(spark, tmp_path / "out")
    found = spark.sql("select direction, state from completeness where stream = 'edge.0.a' order by 1, 2").collect()
    assert {tuple(row) for row in found} == {("request", "unknown"), ("response", "unknown")}
