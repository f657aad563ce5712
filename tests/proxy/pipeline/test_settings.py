from pathlib import Path

import pytest

from framegate.proxy.pipeline.settings import PipelineSettings, local_path

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
