import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framegate.control.configuration.capacity import memory_need
from framegate.control.doctor.container import DESCRIPTORS, FEW_CONNECTIONS, look_at_cpus, look_at_limits, look_at_memory, tasks_needed
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.limits import LimitsConfig
from framegate.proxy.config.model import GIB, MIB, MemoryPoolConfig
from tests.fakes.surroundings import around, config_of, levels, one

TABLE = """Limit                     Soft Limit           Hard Limit           Units
Max processes             {processes:<20} {processes:<20} processes
Max open files            100                  {files:<20} files
Max address space         {space:<20} {space:<20} bytes
"""


def table(**limits: str) -> dict[str, str]:
    return {"proc/self/limits": TABLE.format(**{"processes": "unlimited", "files": "unlimited", "space": "unlimited", **limits})}


@pytest.mark.parametrize(("spare", "level"), [(-1, "fault"), (0, "ok"), (1, "ok")])
def test_two_descriptors_for_each_connection_and_some(tmp_path: Path, spare: int, level: str) -> None:
    config = config_of(limits=LimitsConfig(connections=5_000))
    found = one(look_at_limits(around(tmp_path, table(files=str(10_000 + DESCRIPTORS + spare)), config=config)), "RLIMIT_NOFILE")
    assert (found.level, found.figures["needed"]) == (level, 10_000 + DESCRIPTORS)
    assert ("set limits.connections to 4999" in found.advice) == (spare < 0)


@pytest.mark.parametrize(("connections", "level"), [(FEW_CONNECTIONS - 1, "warning"), (FEW_CONNECTIONS, "ok"), (FEW_CONNECTIONS + 1, "ok")])
def test_where_connections_are_not_limited_room_for_few_is_told(tmp_path: Path, connections: int, level: str) -> None:
    for config in (None, config_of()):
        found = one(look_at_limits(around(tmp_path, table(files=str(2 * connections + DESCRIPTORS)), config=config)), "RLIMIT_NOFILE")
        assert (found.level, found.figures["connections"]) == (level, connections)


def test_what_is_not_limited_is_good_and_what_cannot_be_read_not_known(tmp_path: Path) -> None:
    assert levels(look_at_limits(around(tmp_path, table(), config=config_of(limits=LimitsConfig(connections=10**7))))) == ["ok"] * 4
    assert levels(look_at_limits(around(tmp_path / "none"))) == ["unknown", "ok"]
    found = one(look_at_limits(around(tmp_path / "few", table(space="4294967296"))), "RLIMIT_AS")
    assert (found.level, found.figures["limit_bytes"]) == ("warning", 1 << 32)


def test_of_a_running_framegate_its_own_limits_are_looked_at(tmp_path: Path) -> None:
    files = {**table(files="10"), "proc/77/limits": table()["proc/self/limits"]}
    assert one(look_at_limits(around(tmp_path, files, pid=77)), "RLIMIT_NOFILE) of framegate, process 77").level == "ok"
    assert one(look_at_limits(around(tmp_path, files)), "RLIMIT_NOFILE) of this process").level == "warning"


def test_few_processes_are_a_fault_but_for_root(tmp_path: Path) -> None:
    config = config_of(processors=8)
    need = tasks_needed(around(tmp_path, config=config))
    few, enough = (around(tmp_path / str(spare), table(processes=str(need + spare)), config=config) for spare in (-1, 0))
    if os.geteuid() == 0:
        assert one(look_at_limits(few), "RLIMIT_NPROC").level == "ok"
        os.chown(few.process, 65534, 65534)
    assert (one(look_at_limits(few), "RLIMIT_NPROC").level, one(look_at_limits(enough), "RLIMIT_NPROC").level) == ("fault", "ok")


@pytest.mark.parametrize(("spare", "level"), [(-1, "fault"), (0, "ok")])
def test_the_containers_tasks(tmp_path: Path, spare: int, level: str) -> None:
    config = config_of(processors=2)
    most = str(10 + tasks_needed(around(tmp_path, config=config)) + spare)
    files = {"sys/fs/cgroup/pids.current": "10", "sys/fs/cgroup/pids.max": most}
    assert one(look_at_limits(around(tmp_path, {**table(), **files}, config=config)), "pids cgroup").level == level


@pytest.mark.parametrize(("left", "level"), [(15, "warning"), (16, "ok")])
def test_beside_a_running_framegate_room_for_replacements_is_enough(tmp_path: Path, left: int, level: str) -> None:
    files = {"sys/fs/cgroup/pids.current": "10", "sys/fs/cgroup/pids.max": str(10 + left), "proc/5/limits": table()["proc/self/limits"]}
    assert one(look_at_limits(around(tmp_path, files, pid=5)), "pids cgroup").level == level


SCRIPT = """
import dataclasses, json
from framegate.control.doctor.container import look_at_limits
from framegate.control.doctor.surroundings import Surroundings
print(json.dumps([dataclasses.asdict(item) for item in look_at_limits(Surroundings())]))
"""


def test_a_process_with_few_descriptors_sees_its_own_limit() -> None:
    """The real one, in a child."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    done = subprocess.run([sys.executable, "-c", SCRIPT], preexec_fn=lower, capture_output=True, text=True, timeout=30, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    found = next(row for row in rows if "RLIMIT_NOFILE" in row["subject"])
    assert (found["level"], found["figures"]) == ("warning", {"limit": 128, "connections": 32})


MEMORY = {"sys/fs/cgroup/memory.max": "{limit}", "sys/fs/cgroup/memory.current": "{used}", "sys/fs/cgroup/memory.stat": "inactive_file 0"}
CONFIG = config_of(listener={"max_receive_size": MIB}, memory_pool=MemoryPoolConfig(size=64 * MIB))


def limited(root: Path, limit: object, used: object = 0, **fields: object) -> Surroundings:
    return around(root, {name: text.format(limit=limit, used=used) for name, text in MEMORY.items()}, **fields)


@pytest.mark.parametrize(("used", "level"), [(899, "ok"), (900, "warning")])
def test_use_is_told_from_nine_tenths_of_the_limit_on(tmp_path: Path, used: int, level: str) -> None:
    found = list(look_at_memory(limited(tmp_path, 1000 * MIB, used * MIB)))
    assert one(found, "memory limit").figures == {"limit_bytes": 1000 * MIB}
    assert one(found, "memory in use").level == level
    assert one(look_at_memory(around(tmp_path / "none", {"sys/fs/cgroup/memory.max": "1000"})), "memory in use").level == "unknown"


def test_no_limit_is_a_warning_in_a_pod_only(tmp_path: Path) -> None:
    assert one(look_at_memory(around(tmp_path)), "memory limit").level == "ok"
    found = one(look_at_memory(around(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "x"})), "memory limit")
    assert (found.level, "resources.limits.memory" in found.advice) == ("warning", True)


def test_a_pool_without_a_size_is_the_one_that_fits(tmp_path: Path) -> None:
    config = config_of(listener={"max_receive_size": MIB}, memory_pool=MemoryPoolConfig(size=0))
    at = limited(tmp_path, GIB, config=config)
    found = one(look_at_memory(at), "memory that may be needed")
    assert (found.level, found.figures["need_bytes"]) == ("ok", memory_need(at.fitted, at.processors).total)
    assert at.fitted.memory_pool.size > 100 * MIB


def test_what_may_be_needed_is_told_with_its_parts(tmp_path: Path) -> None:
    found = one(look_at_memory(limited(tmp_path, 4 * GIB, config=CONFIG)), "memory that may be needed")
    assert (found.level, found.figures["need_bytes"]) == ("ok", memory_need(CONFIG, 1).total)
    assert "memory pool 80MiB" in found.found
    assert "connections of in are not counted" in found.found


def test_that_it_does_not_fit_into_the_container_is_told_by_check_and_not_here(tmp_path: Path) -> None:
    found = list(look_at_memory(limited(tmp_path, 100 * MIB, config=CONFIG)))
    assert [item.subject for item in found] == ["memory limit of the container", "memory in use", "processes killed for memory"]


@pytest.mark.parametrize(("spare", "level"), [(-1, "fault"), (0, "ok"), (1, "ok")])
def test_without_a_container_the_machine_must_have_it(tmp_path: Path, spare: int, level: str) -> None:
    kib = -(-memory_need(CONFIG, 1).total // 1024) + spare
    files = {"proc/meminfo": f"MemTotal:       {kib} kB\nMemFree: 1 kB\n"}
    assert one(look_at_memory(around(tmp_path, files, config=CONFIG)), "memory that may be needed").level == level


@pytest.mark.parametrize(("killed", "level"), [(0, "ok"), (1, "warning")])
def test_who_was_killed_for_memory_is_told(tmp_path: Path, killed: int, level: str) -> None:
    assert one(look_at_memory(around(tmp_path, {"sys/fs/cgroup/memory.events": f"oom_kill {killed}"})), "killed").level == level
    assert one(look_at_memory(around(tmp_path / "none")), "killed").level == "unknown"


def stat(periods: int, throttled: int) -> dict[str, str]:
    return {"sys/fs/cgroup/cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 2500000\n"}


@pytest.mark.parametrize(
    ("quota", "files", "processors", "subject", "level"),
    [
        (2, stat(1000, 49), 1, "throttling", "ok"),
        (2, stat(1000, 50), 1, "throttling", "warning"),
        (2, stat(99, 99), 1, "throttling", "ok"),
        (2, stat(100, 100), 1, "throttling", "warning"),
        (2, stat(0, 0), 1, "throttling", "ok"),
        (2, {}, 1, "throttling", "unknown"),
        (0.99, {}, 1, "quota", "warning"),
        (1, {}, 1, "quota", "ok"),
        (1, {}, 1, "processors", "ok"),
        (1, {}, 2, "processors", "warning"),
        (1, {}, 0, "processors", "ok"),
    ],
)
def test_cpus_and_their_quota(tmp_path: Path, quota: float, files: dict[str, str], processors: int, subject: str, level: str) -> None:
    files = {"sys/fs/cgroup/cpu.max": f"{quota * 100_000:.0f} 100000", **files}
    assert one(look_at_cpus(around(tmp_path, files, config=config_of(processors=processors))), subject).level == level
    assert levels(look_at_cpus(around(tmp_path / "none"))) == ["ok"], "without a quota nothing is throttled"
