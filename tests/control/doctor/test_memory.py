from pathlib import Path

import pytest

from control.configuration.capacity import memory_need
from control.doctor.memory import look
from control.doctor.surroundings import Surroundings
from proxy.config.model import GIB, MIB, MemoryPoolConfig
from tests.fakes.surroundings import around, config_of, one

VERSION_2 = {"sys/fs/cgroup/memory.max": "{limit}", "sys/fs/cgroup/memory.current": "{used}", "sys/fs/cgroup/memory.stat": "inactive_file 0"}
VERSION_1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "{limit}",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "{used}",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0",
}
CONFIG = config_of(listener={"max_receive_size": MIB}, memory_pool=MemoryPoolConfig(size=64 * MIB))


def limited(root: Path, files: dict[str, str], limit: object, used: object = 0, **fields: object) -> Surroundings:
    return around(root, {name: text.format(limit=limit, used=used) for name, text in files.items()}, **fields)


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1])
@pytest.mark.parametrize(("used", "level"), [(899, "ok"), (900, "warning"), (901, "warning")])
def test_use_is_told_from_nine_tenths_of_the_limit_on(tmp_path: Path, files: dict[str, str], used: int, level: str) -> None:
    found = list(look(limited(tmp_path, files, 1000 * MIB, used * MIB)))
    assert one(found, "memory limit").figures == {"limit_bytes": 1000 * MIB}
    assert one(found, "memory in use").level == level


def test_use_that_the_kernel_does_not_tell_is_not_known(tmp_path: Path) -> None:
    assert one(look(around(tmp_path, {"sys/fs/cgroup/memory.max": "1000"})), "memory in use").level == "unknown"


def test_no_limit_is_a_warning_in_a_pod_only(tmp_path: Path) -> None:
    assert one(look(around(tmp_path)), "memory limit").level == "ok"
    found = one(look(around(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "x"})), "memory limit")
    assert (found.level, "resources.limits.memory" in found.advice) == ("warning", True)


def test_the_limit_of_the_processs_own_group_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/system.slice/framegate.service", "sys/fs/cgroup/system.slice/framegate.service/memory.max": str(512 * MIB)}
    found = one(look(around(tmp_path, files)), "memory limit")
    assert (found.level, found.figures["limit_bytes"]) == ("ok", 512 * MIB)


def test_a_pool_without_a_size_is_the_one_that_fits(tmp_path: Path) -> None:
    config = config_of(listener={"max_receive_size": MIB}, memory_pool=MemoryPoolConfig(size=0))
    at = limited(tmp_path, VERSION_2, GIB, config=config)
    found = one(look(at), "memory that may be needed")
    assert (found.level, found.figures["need_bytes"]) == ("ok", memory_need(at.fitted, at.processors).total)
    assert at.fitted.memory_pool.size > 100 * MIB


def test_what_may_be_needed_is_told_with_its_parts(tmp_path: Path) -> None:
    found = one(look(limited(tmp_path, VERSION_2, 4 * GIB, config=CONFIG)), "memory that may be needed")
    assert (found.level, found.figures["need_bytes"]) == ("ok", memory_need(CONFIG, 1).total)
    assert "memory pool 80MiB" in found.found
    assert "connections of in are not counted" in found.found


def test_that_it_does_not_fit_into_the_container_is_told_by_check_and_not_here(tmp_path: Path) -> None:
    found = list(look(limited(tmp_path, VERSION_2, 100 * MIB, config=CONFIG)))
    assert [item.subject for item in found] == ["memory limit of the container", "memory in use", "processes killed for memory"]


@pytest.mark.parametrize(("spare", "level"), [(-1, "fault"), (0, "ok"), (1, "ok")])
def test_without_a_container_the_machine_must_have_it(tmp_path: Path, spare: int, level: str) -> None:
    kib = -(-memory_need(CONFIG, 1).total // 1024) + spare
    files = {"proc/meminfo": f"MemTotal:       {kib} kB\nMemFree: 1 kB\n"}
    assert one(look(around(tmp_path, files, config=CONFIG)), "memory that may be needed").level == level


@pytest.mark.parametrize(("killed", "level"), [(0, "ok"), (1, "warning")])
def test_who_was_killed_for_memory_is_told(tmp_path: Path, killed: int, level: str) -> None:
    assert one(look(around(tmp_path, {"sys/fs/cgroup/memory.events": f"oom_kill {killed}"})), "killed").level == level
    assert one(look(around(tmp_path / "none")), "killed").level == "unknown"
