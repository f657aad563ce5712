"""framegate in a real cgroup: it chooses its size by it, follows it while traffic flows, and lives on in one that is too small."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, Row, Witness
from tests.fakes.waiting import until

ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


class Resizable:
    """A cgroup whose CPUs and memory are changed while something runs in it, as the kubelet does when it resizes a pod in place. ``folders``: one or,
    of cgroups version 1, one for each controller.
    """

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @property
    def prefix(self) -> tuple[str, ...]:
        """What goes before a command that is to run here from its first instruction on."""
        enter = " && ".join(f'echo $$ > "{folder}/cgroup.procs"' for folder in self.folders)
        return ("sh", "-c", f'{enter} && exec "$@"', "sh")

    def set(self, *, memory: int | None = None, millicpus: int | None = None) -> None:
        """New limits; what is None stays."""
        if memory is not None:
            self._write({"memory.max": str(memory), "memory.limit_in_bytes": str(memory)})
        if millicpus is not None:
            quota = str(millicpus * _PERIOD_US // 1000)
            self._write({"cpu.max": f"{quota} {_PERIOD_US}", "cpu.cfs_quota_us": quota})

    def killed(self) -> int:
        """How often the kernel killed something here for want of memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                words = (folder / name).read_text().split() if (folder / name).exists() else []
                if "oom_kill" in words:
                    return int(words[words.index("oom_kill") + 1])
        return 0

    def _write(self, values: dict[str, str]) -> None:
        for folder in self.folders:
            for name, value in values.items():
                if (folder / name).exists():
                    (folder / name).write_text(value)


def _parents() -> list[Path]:
    """The folders, one or two, in which a group is made; none where there is no use of one."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    mounts = {name: ROOT / name for name in ("memory", "cpu")}
    if all(mount.is_dir() for mount in mounts.values()):
        paths = {name: next((path for names, path in own.items() if name in names.split(",")), "/") for name in mounts}
        below = [mount / paths[name].lstrip("/") for name, mount in mounts.items()]
        return [folder if folder.is_dir() else mount for folder, mount in zip(below, mounts.values(), strict=True)]
    below_v2 = ROOT / own.get("", "/").lstrip("/")
    parent = below_v2 if below_v2.is_dir() else ROOT
    controllers = parent / "cgroup.subtree_control"
    if not controllers.exists():
        return []
    controllers.write_text("+memory +cpu")
    return [parent]


def _is_removed(folder: Path) -> bool:
    """A process that was ended leaves its group a moment later."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        return True
    return False


MIB = 1024 * 1024
SIZES = {"processors": 0, "memory_pool": {"size": 0}}


@pytest.fixture
def group() -> Iterator[Resizable]:
    """A group of the test's own; a test is skipped where none can be made."""
    made: list[Path] = []
    try:
        for parent in _parents():
            folder = parent / f"framegate-test-{os.getpid()}"
            folder.mkdir()
            made.append(folder)
        reason = "" if made else f"{ROOT} has no controllers for memory and CPUs"
    except OSError as error:
        reason = f"no cgroup can be made: {error}"
    try:
        if reason:
            pytest.skip(reason)
        yield Resizable(made)
    finally:
        for folder in made:
            until(lambda folder=folder: _is_removed(folder), f"{folder} is not empty")


def resized(proxy: Framegate, seen: list[Row]) -> Row:
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
        assert "(from the memory available)" in text.splitlines()[0]
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
        (warning,) = proxy.events("configuration_warning")
        assert (warning["key"], warning["value"]) == ("memory_pool.size", "100MiB")
        assert warning["reason"].startswith("does not fit into the container's 160MiB")
        with Witness(proxy, "plain"):
            assert "does not fit into the container's 160MiB" in proxy.cli("status").stdout
    assert proxy.process.returncode == 0
    assert group.killed() == 0
