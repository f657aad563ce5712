from pathlib import Path

import pytest

from control.doctor import cgroup
from control.doctor.cgroup import Throttling


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "150000 0\n"}, None),
        ({"cpu.max": "what\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
    ],
)
def test_the_quota_of_both_versions(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert cgroup.cpu_quota(write(tmp_path, files)) == expected


def test_throttling_of_both_versions_is_the_same(tmp_path: Path) -> None:
    second = write(tmp_path / "2", {"cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 10\nthrottled_usec 1500000\n"})
    first = write(tmp_path / "1", {"cpu/cpu.stat": "nr_periods 200\nnr_throttled 10\nthrottled_time 1500000000\n"})
    assert cgroup.throttling(second) == cgroup.throttling(first) == Throttling(200, 10, 1.5)
    assert Throttling(200, 10, 1.5).percent == 5
    assert Throttling(0, 0, 0.0).percent == 0
    assert cgroup.throttling(write(tmp_path / "root", {"cpu.stat": "usage_usec 9\n"})) is None  # of the root there are no periods
    assert cgroup.throttling(tmp_path / "none") is None


def test_killed_processes_of_both_versions(tmp_path: Path) -> None:
    assert cgroup.killed_for_memory(write(tmp_path / "2", {"memory.events": "low 0\noom 3\noom_kill 2\n"})) == 2
    assert cgroup.killed_for_memory(write(tmp_path / "1", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"})) == 4
    assert cgroup.killed_for_memory(write(tmp_path / "old", {"memory/memory.oom_control": "under_oom 0\n"})) is None
    assert cgroup.killed_for_memory(tmp_path / "none") is None


def test_tasks_of_both_versions(tmp_path: Path) -> None:
    assert cgroup.tasks(write(tmp_path / "2", {"pids.current": "7\n", "pids.max": "100\n"})) == (7, 100)
    assert cgroup.tasks(write(tmp_path / "1", {"pids/pids.current": "8\n", "pids/pids.max": "50\n"})) == (8, 50)
    assert cgroup.tasks(write(tmp_path / "free", {"pids.current": "7\n", "pids.max": "max\n"})) is None
    assert cgroup.tasks(tmp_path / "none") is None


def test_a_limit_of_the_own_group_or_above_it_is_found_where_framegate_does_not_look(tmp_path: Path) -> None:
    process = write(tmp_path / "proc", {"cgroup": "0::/system.slice/framegate.service\n"})
    root = write(tmp_path / "2", {"system.slice/memory.max": "max\n", "system.slice/framegate.service/memory.max": "1000\n"})
    assert cgroup.own_path(process, "memory") == "/system.slice/framegate.service"
    assert cgroup.own_memory_limit(root, process) == ("/system.slice/framegate.service", 1000)
    write(root, {"system.slice/memory.max": "500\n"})
    assert cgroup.own_memory_limit(root, process) == ("/system.slice", 500)


def test_the_own_group_of_version_1_is_that_of_the_controller(tmp_path: Path) -> None:
    process = write(tmp_path / "proc", {"cgroup": "5:cpu,cpuacct:/c\n4:memory:/docker/1:2\n0::/\n"})
    root = write(tmp_path / "1", {"memory/docker/1:2/memory.limit_in_bytes": "2000\n"})
    assert cgroup.own_memory_limit(root, process) == ("/docker/1:2", 2000)
    assert cgroup.own_path(process, "cpuacct") == "/c"
    assert cgroup.own_path(process, "pids") == "/"
    assert cgroup.own_memory_limit(root, tmp_path / "none") is None
    write(root, {"memory/docker/1:2/memory.limit_in_bytes": f"{2**63 - 4096}\n"})
    assert cgroup.own_memory_limit(root, process) is None
