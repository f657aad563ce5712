from pathlib import Path

import pytest

from control.doctor import cgroup
from control.doctor.cgroup import Throttling

NOWHERE = Path("/proc/none/cgroup")


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
    assert cgroup.cpu_quota(write(tmp_path, files), NOWHERE) == expected


def test_throttling_of_both_versions_is_the_same(tmp_path: Path) -> None:
    second = write(tmp_path / "2", {"cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 10\nthrottled_usec 1500000\n"})
    first = write(tmp_path / "1", {"cpu/cpu.stat": "nr_periods 200\nnr_throttled 10\nthrottled_time 1500000000\n"})
    assert cgroup.throttling(second, NOWHERE) == cgroup.throttling(first, NOWHERE) == Throttling(200, 10, 1.5)
    assert Throttling(200, 10, 1.5).percent == 5
    assert Throttling(0, 0, 0.0).percent == 0
    assert cgroup.throttling(write(tmp_path / "root", {"cpu.stat": "usage_usec 9\n"}), NOWHERE) is None  # of the root there are no periods
    assert cgroup.throttling(tmp_path / "none", NOWHERE) is None


def test_killed_processes_of_both_versions(tmp_path: Path) -> None:
    assert cgroup.killed_for_memory(write(tmp_path / "2", {"memory.events": "low 0\noom 3\noom_kill 2\n"}), NOWHERE) == 2
    assert (
        cgroup.killed_for_memory(write(tmp_path / "1", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}), NOWHERE) == 4
    )
    assert cgroup.killed_for_memory(write(tmp_path / "old", {"memory/memory.oom_control": "under_oom 0\n"}), NOWHERE) is None
    assert cgroup.killed_for_memory(tmp_path / "none", NOWHERE) is None


def test_tasks_of_both_versions(tmp_path: Path) -> None:
    assert cgroup.tasks(write(tmp_path / "2", {"pids.current": "7\n", "pids.max": "100\n"}), NOWHERE) == (7, 100)
    assert cgroup.tasks(write(tmp_path / "1", {"pids/pids.current": "8\n", "pids/pids.max": "50\n"}), NOWHERE) == (8, 50)
    assert cgroup.tasks(write(tmp_path / "free", {"pids.current": "7\n", "pids.max": "max\n"}), NOWHERE) is None
    assert cgroup.tasks(tmp_path / "none", NOWHERE) is None


def test_the_group_of_the_process_below_the_mount_is_looked_at_first(tmp_path: Path) -> None:
    own = write(tmp_path, {"own": "0::/system.slice/framegate.service\n"}) / "own"
    inner = "2/system.slice/framegate.service"
    files = {
        f"{inner}/memory.events": "oom_kill 1\n",
        "2/system.slice/memory.events": "oom_kill 9\n",
        f"{inner}/pids.current": "5",
        f"{inner}/pids.max": "100",
        "2/system.slice/pids.current": "90",
        "2/system.slice/pids.max": "100",
        f"{inner}/cpu.max": "200000 100000",
        "2/system.slice/cpu.max": "150000 100000",
        f"{inner}/cpu.stat": "nr_periods 10\nnr_throttled 1\nthrottled_usec 1000000\n",
    }
    root = write(tmp_path, files) / "2"
    assert cgroup.killed_for_memory(root, own) == 1
    assert cgroup.tasks(root, own) == (90, 100)
    assert cgroup.cpu_quota(root, own) == 1.5
    assert cgroup.throttling(root, own) == Throttling(10, 1, 1.0)
