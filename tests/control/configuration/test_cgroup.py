"""The limits of a container, read from its cgroup, from within and from outside."""

import os
import pathlib
from typing import Any

import pytest

from framegate.control.configuration import cgroup
from framegate.control.configuration.cgroup import Container, Throttling, container, memory_limit, memory_usage, process_memory
from framegate.proxy.config.model import MIB

CPUS = len(os.sched_getaffinity(0))


def write(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def own(root: pathlib.Path, *lines: str) -> pathlib.Path:
    path = root / "self-cgroup"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_cpu_limit_is_the_quota_rounded_up_and_bounded_by_the_machine(tmp_path: pathlib.Path) -> None:
    quotas = {"max 100000": CPUS, "100000 100000": 1, "100001 100000": min(CPUS, 2), "1 100000": 1, "50000 100000": 1, "9900000 100000": CPUS}
    found = {quota: container(write(tmp_path, {"cpu.max": quota}), own(tmp_path, "0::/")).cpus for quota in quotas}
    assert found == quotas
    for quota, expected in (("100000", 1), ("-1", CPUS), ("50000", 1)):
        older = write(tmp_path / "older", {"cpu/cpu.cfs_quota_us": f"{quota}\n", "cpu/cpu.cfs_period_us": "100000\n"})
        assert container(older, own(tmp_path, "3:cpu,cpuacct:/")).cpus == expected


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        # a container with a cgroup namespace of its own sees itself as the root
        (["0::/"], {"memory.max": "1000", "cpu.max": "50000 100000"}),
        # one without is told its path on the node, and has its own cgroup mounted as the root
        (["0::/pods/a/b"], {"memory.max": "1000", "cpu.max": "50000 100000"}),
        # or the node's, where its own lies below
        (["0::/pods/a"], {"pods/a/memory.max": "1000", "pods/a/cpu.max": "50000 100000", "pods/memory.max": "max", "pods/cpu.max": "max 100000"}),
        # and the pod's limit holds for it as well
        (["0::/pod/b"], {"pod/memory.max": "1000", "pod/cpu.max": "50000 100000", "pod/b/memory.max": "2000", "pod/b/cpu.max": "max 100000"}),
        # it was moved out of what it can see
        (["0::/../../other"], {"memory.max": "1000", "cpu.max": "50000 100000"}),
        # the older version, in the same ways
        (
            ["4:memory:/", "3:cpu,cpuacct:/"],
            {"memory/memory.limit_in_bytes": "1000", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
        ),
        (
            ["4:memory:/docker/a", "3:cpuacct,cpu:/docker/a", "0::/docker/a"],
            {"memory/memory.limit_in_bytes": "1000", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000", "unified/cgroup.procs": ""},
        ),
        (
            ["4:memory:/docker/a", "3:cpu,cpuacct:/docker/a"],
            {
                "memory/docker/a/memory.limit_in_bytes": "1000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/docker/a/cpu.cfs_quota_us": "50000",
                "cpu/docker/a/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
        ),
        # both versions at once, the memory in the older and the CPUs in the newer
        (["4:memory:/x", "0::/x"], {"memory/x/memory.limit_in_bytes": "1000", "unified/x/cpu.max": "50000 100000"}),
    ],
)
def test_the_tightest_limit_is_found_from_whichever_side_the_cgroup_is_seen(tmp_path: pathlib.Path, lines: list[str], files: dict[str, str]) -> None:
    root = tmp_path / "cgroup"
    write(root, files)
    found = container(root, own(tmp_path, *lines))
    assert (found.cpus, found.memory) == (1, 1000)


def test_a_file_that_cannot_be_parsed_is_ignored(tmp_path: pathlib.Path) -> None:
    def sources(name: str, content: bytes | None) -> int:
        root = write(tmp_path, {"memory.max": "1000", "cpu.max": "100000 100000"})
        assert container(root, tmp_path / "nothing") == Container(1, 1000, 2)
        (root / name).unlink()
        if content is not None:
            (root / name).write_bytes(content)
        return container(root, tmp_path / "nothing").sources

    memory = (None, b"", b"many", b"-5", b"1e9", "\ud800".encode("utf-8", "surrogatepass"))
    assert [sources("memory.max", content) for content in memory] == [1] * 6
    assert [sources("cpu.max", content) for content in (None, b"100000", b"100000 0", b"a b")] == [1] * 4


def test_memory_limit_memory_in_use_and_quota_of_both_versions(tmp_path: pathlib.Path) -> None:
    limit = [
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "268435456\n"}, 256 * MIB),
        ({"memory/memory.limit_in_bytes": "268435456\n"}, 256 * MIB),
        ({"memory/memory.limit_in_bytes": f"{2**60 - 1}\n"}, 2**60 - 1),
        ({"memory/memory.limit_in_bytes": f"{2**60}\n"}, None),
    ]
    usage = [
        ({"memory.current": "max"}, None),
        ({"memory.current": "1000"}, 1000),
        ({"memory.current": "1000", "memory.stat": "anon 5\ninactive_file 300\nactive_file 7\n"}, 700),
        ({"memory.current": "100", "memory.stat": "inactive_file 300\n"}, 0),
        ({"memory/memory.usage_in_bytes": "1000", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 400\n"}, 600),
        ({"memory.current": "1000", "a/memory.current": "300"}, 300),
    ]
    quota = [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "150000 0\n"}, None),
        ({"cpu.max": "what\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
    ]
    group, number, wrong = own(tmp_path, "0::/a"), 0, []
    asked: dict[Any, Any] = {memory_limit: limit, memory_usage: usage, cgroup.cpu_quota: quota}
    for ask, cases in asked.items():
        for files, expected in [({}, None), *cases]:
            number += 1
            root = write(tmp_path / str(number), files)
            found = ask(root, group)
            wrong += [(files, found)] * (found != expected)
    assert wrong == []


def test_the_memory_of_a_process_is_its_own_and_that_of_all_it_started(tmp_path: pathlib.Path) -> None:
    def process(pid: int, children: str, pss: int | None, pages: int = 0) -> None:
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "task" / str(pid) / "children").write_text(children)
        (folder / "statm").write_text(f"9999 {pages} 1 1 0 1 0\n")
        if pss is not None:
            (folder / "smaps_rollup").write_text(f"0-1 ---p 0 00:00 0 [rollup]\nRss: 999 kB\nPss: {pss} kB\nPss_Dirty: 7 kB\n")

    process(10, "11 12 13 ", 100)
    process(11, "14 ", 20)
    process(12, "", None, pages=3)  # no proportional size: the resident one
    process(14, "", 4)
    assert process_memory(10, tmp_path) == 124 * 1024 + 3 * os.sysconf("SC_PAGE_SIZE"), "13 is gone"
    assert process_memory(99, tmp_path) == 0
    assert process_memory(os.getpid()) > 5 << 20


NOWHERE = pathlib.Path("/proc/none/cgroup")


def test_throttling_of_both_versions_is_the_same(tmp_path: pathlib.Path) -> None:
    second = write(tmp_path / "2", {"cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 10\nthrottled_usec 1500000\n"})
    first = write(tmp_path / "1", {"cpu/cpu.stat": "nr_periods 200\nnr_throttled 10\nthrottled_time 1500000000\n"})
    assert cgroup.throttling(second, NOWHERE) == cgroup.throttling(first, NOWHERE) == Throttling(200, 10, 1.5)
    assert Throttling(200, 10, 1.5).percent == 5
    assert Throttling(0, 0, 0.0).percent == 0
    assert cgroup.throttling(write(tmp_path / "root", {"cpu.stat": "usage_usec 9\n"}), NOWHERE) is None  # of the root there are no periods
    assert cgroup.throttling(tmp_path / "none", NOWHERE) is None


def test_killed_processes_of_both_versions(tmp_path: pathlib.Path) -> None:
    assert cgroup.killed_for_memory(write(tmp_path / "2", {"memory.events": "low 0\noom 3\noom_kill 2\n"}), NOWHERE) == 2
    assert (
        cgroup.killed_for_memory(write(tmp_path / "1", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}), NOWHERE) == 4
    )
    assert cgroup.killed_for_memory(write(tmp_path / "old", {"memory/memory.oom_control": "under_oom 0\n"}), NOWHERE) is None
    assert cgroup.killed_for_memory(tmp_path / "none", NOWHERE) is None


def test_tasks_of_both_versions(tmp_path: pathlib.Path) -> None:
    assert cgroup.tasks(write(tmp_path / "2", {"pids.current": "7\n", "pids.max": "100\n"}), NOWHERE) == (7, 100)
    assert cgroup.tasks(write(tmp_path / "1", {"pids/pids.current": "8\n", "pids/pids.max": "50\n"}), NOWHERE) == (8, 50)
    assert cgroup.tasks(write(tmp_path / "free", {"pids.current": "7\n", "pids.max": "max\n"}), NOWHERE) is None
    assert cgroup.tasks(tmp_path / "none", NOWHERE) is None


def test_the_group_of_the_process_below_the_mount_is_looked_at_first(tmp_path: pathlib.Path) -> None:
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
