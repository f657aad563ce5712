"""framegate in a real cgroup: it chooses its size by it, follows it while traffic flows, and lives on in one that is too small."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.container import Resizable, resizable
from tests.fakes.framegate import Framegate, Row, Witness

MIB = 1024 * 1024
SIZES = {"processors": 0, "memory_pool": {"size": 0}}


@pytest.fixture
def group() -> Iterator[Resizable]:
    with resizable() as made:
        if isinstance(made, str):
            pytest.skip(made)
        yield made


def resized(proxy: Framegate, seen: list[Row]) -> Row:
    """The next row of that name."""
    row = proxy.wait_row(lambda row: row["event"] == "container_resized" and row not in seen, timeout=20)
    seen.append(row)
    return row


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="processors follow CPUs, and there is one")
def test_both_follow_a_pod_that_is_resized_while_traffic_flows(tmp_path: Path, plain: dict[str, Any], group: Resizable) -> None:
    """Each size takes two looks, two seconds apart, and there are four."""
    group.set(memory=400 * MIB, millicpus=500)
    seen: list[Row] = []
    listeners = [{**plain["listeners"][0], "limits": {"connections": 100}}]
    with Framegate(tmp_path, {**plain, **SIZES, "listeners": listeners}, prefix=group.prefix) as proxy, Witness(proxy, "plain"):
        status = proxy.json("status")
        small = status["memory_pool"]["size_bytes"]
        assert (proxy.serving["processors"], status["memory_pool"]["size_origin"]) == (1, "ORIGIN_CONTAINER")
        assert 100 * MIB < small < 250 * MIB
        assert status.get("warnings", []) == []
        group.set(memory=600 * MIB, millicpus=2000)
        row = resized(proxy, seen)
        assert (row["processors"]["after"], row["refused"], row["warning"]) == (2, None, None)
        assert row["memory"] == {"before": 400 * MIB, "after": 600 * MIB}
        assert row["memory_pool"]["after"] > small
        assert len(proxy.processors) == 2
        text = proxy.cli("pool", "get").stdout
        assert "(from the container's limits)" in text.splitlines()[0]
        proxy.cli("pool", "set", "--size", "64MiB")
        group.set(memory=400 * MIB, millicpus=1000)
        row = resized(proxy, seen)
        assert (row["processors"]["after"], row["memory_pool"]["after"], row["memory_pool"]["set_by"]) == (1, 64 * MIB, "operator")
        assert "64MiB (set at run time, until the next start)" in proxy.cli("pool", "get").stdout.replace(" MiB", "MiB")
    assert group.killed() == 0
    assert [row["event"] for row in proxy.rows if row["level"] == "error"] == []


@pytest.mark.slow
def test_a_container_that_is_too_small_is_told_and_served_in(tmp_path: Path, plain: dict[str, Any], group: Resizable) -> None:
    group.set(memory=160 * MIB, millicpus=1000)
    listeners = [{**plain["listeners"][0], "max_receive_size": "100MiB"}]
    with Framegate(tmp_path, {**plain, **SIZES, "listeners": listeners}, prefix=group.prefix) as proxy:
        (warning,) = [row for row in proxy.rows if row["event"] == "configuration_warning"]
        assert (warning["key"], warning["value"]) == ("memory_pool.size", "100MiB")
        assert warning["reason"].startswith("does not fit into the container's 160MiB")
        with Witness(proxy, "plain"):
            assert "does not fit into the container's 160MiB" in proxy.cli("status").stdout
    assert proxy.process.returncode == 0
    assert group.killed() == 0
