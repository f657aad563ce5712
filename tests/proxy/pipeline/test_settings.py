"""The settings of the job, and the options of the source."""

from pathlib import Path

import pytest

from framegate.proxy.pipeline.place import local_path
from framegate.proxy.pipeline.settings import OptionError, PipelineSettings, SourceOptions
from framegate.proxy.pipeline.wanted import Wanted
from tests.fakes.cases import each_of
from tests.fakes.tap_log import START_NS

MIB = 1 << 20


def test_places_are_of_this_host_or_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("s3a://bucket/x") is None
    assert local_path("out") == local_path(Path("out")) == local_path(f"file:{tmp_path}/out") == tmp_path / "out"
    assert PipelineSettings(source=tmp_path, output="out").place_of_checkpoint == f"{tmp_path}/out/_checkpoint"
    assert PipelineSettings(source=tmp_path, output="hdfs://n/out").place_of_checkpoint == "hdfs://n/out/_checkpoint"


def test_the_heap_is_shared_out_as_told(tmp_path: Path) -> None:
    plan = PipelineSettings(source=tmp_path, output=tmp_path, memory="2g", cores=3, payload="4k", max_bytes_per_trigger=MIB).budget()
    assert (plan.heap, plan.cores, plan.frame, plan.batch) == (2048 * MIB, 3, 4096, MIB)
    assert PipelineSettings(source=tmp_path, output=tmp_path, payload="none").budget().frame == 0
    assert PipelineSettings(source=tmp_path, output=tmp_path).budget().cores >= 1


@each_of(
    ("options", "fault"),
    [
        ({}, "path"),
        ({"startingoffsets": "middle"}, "startingOffsets: earliest, latest or a time like .*, not middle"),
        ({"startingoffsets": "2026-05-01T08:00:00"}, "startingOffsets"),
        ({"payload": "some"}, "payload: none, full or bytes like 64 or 4k, not some"),
        ({"maxpartitionbytes": "x"}, "maxPartitionBytes"),
        ({"failondataloss": "perhaps"}, "failOnDataLoss"),
        ({"consumer": "../x"}, "consumer"),
        ({"maxbytespertrigger": "0"}, "maxBytesPerTrigger"),
        ({"maxbytespertrigger": "a lot"}, "maxBytesPerTrigger"),
        ({"parallelism": "0"}, "parallelism"),
        ({"direction": "request,up"}, "direction: request or response, not up"),
        ({"since": "latest"}, "since: a time like .*, not latest"),
        ({"until": "2026-05-01T08:00:00"}, "until"),
        ({"path": "s3://key:secret@bucket/a"}, "path: .* must have no user"),
        ({"path": "http://bucket/a"}, "path: http://bucket/a must begin with s3://"),
        ({"path": "s3://bucket/a", "consumer": "job"}, "consumer: retention does not know the readers of an object store"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict[str, str], fault: str) -> None:
    path = {} if fault == "path" else {"path": "/tap"}
    with pytest.raises(OptionError, match=fault):
        SourceOptions.parse({**path, **options})


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(OptionError, match=r"startingoffset, topic: no such option; there are path, startingOffsets, .*, owner"):
        SourceOptions.parse({"path": "/tap", "topic": "x", "startingoffset": "latest", "startingOffsets": "latest"})


def test_rows_are_wanted_by_name_and_time_and_a_url_has_no_slash_at_its_end() -> None:
    told = {"path": "s3://bucket/taps/", "node": "a, b", "direction": "request", "since": "2023-11-14T22:13:20Z"}
    options = SourceOptions.parse(told)
    assert options.path == "s3://bucket/taps"
    assert options.wanted == Wanted(node=frozenset({"a", "b"}), direction=frozenset({"request"}), since_ns=START_NS)
    assert SourceOptions.parse({"path": "/tap"}).wanted == Wanted()


@each_of(("text", "size"), [("1", 1), ("64m", 64 << 20), ("64MiB", 64 << 20), ("2 KB", 2048), ("1g", 1 << 30), ("10b", 10)])
def test_sizes_are_read_as_spark_writes_them(text: str, size: int) -> None:
    assert SourceOptions.parse({"path": "/tap", "maxbytespertrigger": text}).max_bytes_per_trigger == size


@each_of(("text", "keep"), [("full", None), ("none", 0), ("64", 64), ("4k", 4096)])
def test_payload_is_all_or_nothing_or_bytes(text: str, keep: int | None) -> None:
    assert SourceOptions.parse({"path": "/tap", "payload": text}).keep == keep


@each_of("text", ["2023-11-14T22:13:20.000001Z", "2023-11-15T00:13:20.000001+02:00"])
def test_a_time_is_one_of_the_wall_clock(text: str) -> None:
    assert SourceOptions.parse({"path": "/tap", "startingoffsets": text}).since_ns == START_NS + 1000
