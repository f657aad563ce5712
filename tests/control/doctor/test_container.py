import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from framegate.control.configuration.capacity import memory_need
from framegate.control.doctor.container import DESCRIPTORS, FEW_CONNECTIONS, look_at_cpus, look_at_limits, look_at_memory, tasks_needed
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.limits import LimitsConfig
from framegate.proxy.config.model import GIB, MIB, BrokersConfig, ListenerConfig, MemoryPoolConfig
from tests.fakes.surroundings import around, config_of, levels, one

TABLE = """Limit                     Soft Limit           Hard Limit           Units
Max processes             {processes:<20} {processes:<20} processes
Max open files            100                  {files:<20} files
Max address space         {space:<20} {space:<20} bytes
"""


def table(**limits: object) -> dict[str, str]:
    return {"proc/self/limits": TABLE.format(**{"processes": "unlimited", "files": "unlimited", "space": "unlimited", **limits})}


def test_each_connection_needs_two_descriptors(tmp_path: Path) -> None:
    config = config_of(limits=LimitsConfig(connections=5_000))
    for spare, level in ((-1, "fault"), (0, "ok"), (1, "ok")):
        found = one(look_at_limits(around(tmp_path, table(files=10_000 + DESCRIPTORS + spare), config=config)), "RLIMIT_NOFILE")
        assert (found.level, found.figures["needed"]) == (level, 10_000 + DESCRIPTORS)
        assert ("set limits.connections to 4999" in found.advice) == (spare < 0)
    for connections, level in ((FEW_CONNECTIONS - 1, "warning"), (FEW_CONNECTIONS, "ok"), (FEW_CONNECTIONS + 1, "ok")):
        for unlimited in (None, config_of()):
            found = one(look_at_limits(around(tmp_path, table(files=2 * connections + DESCRIPTORS), config=unlimited)), "RLIMIT_NOFILE")
            assert (found.level, found.figures["connections"]) == (level, connections)


def test_each_port_of_a_broker_needs_one_more(tmp_path: Path) -> None:
    cluster = ListenerConfig(name="c", address="h:1", protocol="kafka", brokers=BrokersConfig(ports="2-101"))
    config = dataclasses.replace(config_of(limits=LimitsConfig(connections=5_000)), listeners=(cluster,))
    for spare, level in ((-1, "fault"), (0, "ok")):
        found = one(look_at_limits(around(tmp_path, table(files=10_100 + DESCRIPTORS + spare), config=config)), "RLIMIT_NOFILE")
        assert (found.level, found.figures["needed"]) == (level, 10_100 + DESCRIPTORS)


def test_what_is_not_limited_is_good_and_what_cannot_be_read_not_known(tmp_path: Path) -> None:
    assert levels(look_at_limits(around(tmp_path, table(), config=config_of(limits=LimitsConfig(connections=10**7))))) == ["ok"] * 4
    assert levels(look_at_limits(around(tmp_path / "none"))) == ["unknown", "ok"]
    found = one(look_at_limits(around(tmp_path / "few", table(space=1 << 32))), "RLIMIT_AS")
    assert (found.level, found.figures["limit_bytes"]) == ("warning", 1 << 32)


def test_of_a_running_framegate_its_own_limits_are_looked_at(tmp_path: Path) -> None:
    files = {**table(files=10), "proc/77/limits": table()["proc/self/limits"]}
    assert one(look_at_limits(around(tmp_path, files, pid=77)), "RLIMIT_NOFILE) of framegate, process 77").level == "ok"
    assert one(look_at_limits(around(tmp_path, files)), "RLIMIT_NOFILE) of this process").level == "warning"


def test_few_processes_are_a_fault_but_for_root(tmp_path: Path) -> None:
    config = config_of(processors=8)
    need = tasks_needed(around(tmp_path, config=config))
    few, enough = (around(tmp_path / str(spare), table(processes=need + spare), config=config) for spare in (-1, 0))
    if os.geteuid() == 0:
        assert one(look_at_limits(few), "RLIMIT_NPROC").level == "ok"
        os.chown(few.process, 65534, 65534)
    assert (one(look_at_limits(few), "RLIMIT_NPROC").level, one(look_at_limits(enough), "RLIMIT_NPROC").level) == ("fault", "ok")


def test_the_container_has_room_for_all_tasks_or_beside_a_running_framegate_for_replacements(tmp_path: Path) -> None:
    config = config_of(processors=2)
    need = tasks_needed(around(tmp_path, config=config))
    for pid, left, level in ((None, need - 1, "fault"), (None, need, "ok"), (5, 15, "warning"), (5, 16, "ok")):
        files = {"sys/fs/cgroup/pids.current": "10", "sys/fs/cgroup/pids.max": str(10 + left), "proc/5/limits": table()["proc/self/limits"]}
        assert one(look_at_limits(around(tmp_path, {**table(), **files}, config=config, pid=pid)), "pids cgroup").level == level, (pid, left)


SCRIPT = """
import dataclasses, json
from framegate.control.doctor.container import look_at_limits
from framegate.control.doctor.surroundings import Surroundings
print(json.dumps([dataclasses.asdict(item) for item in look_at_limits(Surroundings())]))
"""


def test_a_real_process_with_few_descriptors_sees_its_own_limit() -> None:
    command = ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = next(row for row in json.loads(done.stdout) if "RLIMIT_NOFILE" in row["subject"])
    assert (found["level"], found["figures"]) == ("warning", {"limit": 128, "connections": 32})


CONFIG = config_of(listener={"max_receive_size": MIB}, memory_pool=MemoryPoolConfig(size=64 * MIB))
POD = {"KUBERNETES_SERVICE_HOST": "x"}


def limited(root: Path, limit: int, used: int = 0, **fields: object) -> Surroundings:
    files = {"memory.max": str(limit), "memory.current": str(used), "memory.stat": "inactive_file 0"}
    return around(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()}, **fields)


def test_use_is_a_warning_from_nine_tenths_of_the_limit_on_and_no_limit_is_one_in_a_pod(tmp_path: Path) -> None:
    for used, level in ((899, "ok"), (900, "warning")):
        found = list(look_at_memory(limited(tmp_path, 1000 * MIB, used * MIB)))
        assert one(found, "memory limit").figures == {"limit_bytes": 1000 * MIB}
        assert one(found, "memory in use").level == level
    assert one(look_at_memory(around(tmp_path / "half", {"sys/fs/cgroup/memory.max": "1000"})), "memory in use").level == "unknown"
    assert one(look_at_memory(around(tmp_path / "none")), "memory limit").level == "ok"
    in_pod = one(look_at_memory(around(tmp_path / "none", environment=POD)), "memory limit")
    assert (in_pod.level, "resources.limits.memory" in in_pod.advice) == ("warning", True)


def test_what_may_be_needed_is_shown_with_its_parts_and_check_warns_if_it_does_not_fit(tmp_path: Path) -> None:
    found = one(look_at_memory(limited(tmp_path, 4 * GIB, config=CONFIG)), "memory that may be needed")
    assert (found.level, found.figures["need_bytes"]) == ("ok", memory_need(CONFIG, 1).total)
    assert "memory pool 80MiB" in found.found
    assert "connections of in are not counted" in found.found
    chosen = limited(tmp_path, GIB, config=config_of(listener={"max_receive_size": MIB}, memory_pool=MemoryPoolConfig(size=0)))
    found = one(look_at_memory(chosen), "memory that may be needed")
    assert (found.level, found.figures["need_bytes"]) == ("ok", memory_need(chosen.fitted, chosen.processors).total)
    assert chosen.fitted.memory_pool.size > 100 * MIB
    small = look_at_memory(limited(tmp_path, 100 * MIB, config=CONFIG))
    assert [item.subject for item in small] == ["memory limit of the container", "memory in use", "processes killed for memory"]
    for spare, level in ((-1, "fault"), (0, "ok"), (1, "ok")):  # without a container
        kib = -(-memory_need(CONFIG, 1).total // 1024) + spare
        machine = around(tmp_path / "machine", {"proc/meminfo": f"MemTotal:       {kib} kB\nMemFree: 1 kB\n"}, config=CONFIG)
        assert one(look_at_memory(machine), "memory that may be needed").level == level, spare


def test_processes_that_were_killed_for_memory_are_a_warning(tmp_path: Path) -> None:
    for killed, level in ((0, "ok"), (1, "warning")):
        assert one(look_at_memory(around(tmp_path, {"sys/fs/cgroup/memory.events": f"oom_kill {killed}"})), "killed").level == level
    assert one(look_at_memory(around(tmp_path / "none")), "killed").level == "unknown"


def test_cpus_and_their_quota(tmp_path: Path) -> None:
    cases: list[tuple[float, tuple[int, int] | None, int, str, str]] = [
        (2, (1000, 49), 1, "throttling", "ok"),
        (2, (1000, 50), 1, "throttling", "warning"),
        (2, (99, 99), 1, "throttling", "ok"),
        (2, (100, 100), 1, "throttling", "warning"),
        (2, (0, 0), 1, "throttling", "ok"),
        (2, None, 1, "throttling", "unknown"),
        (0.99, None, 1, "quota", "warning"),
        (1, None, 1, "quota", "ok"),
        (1, None, 1, "processors", "ok"),
        (1, None, 2, "processors", "warning"),
        (1, None, 0, "processors", "ok"),
    ]
    wrong: list[Any] = []
    for number, (quota, stat, processors, subject, level) in enumerate(cases):
        files = {"sys/fs/cgroup/cpu.max": f"{quota * 100_000:.0f} 100000"}
        if stat is not None:
            files["sys/fs/cgroup/cpu.stat"] = "nr_periods {}\nnr_throttled {}\nthrottled_usec 2500000\n".format(*stat)
        found = one(look_at_cpus(around(tmp_path / str(number), files, config=config_of(processors=processors))), subject)
        wrong += [(quota, stat, processors, found)] * (found.level != level)
    assert wrong == []
    assert levels(look_at_cpus(around(tmp_path / "none"))) == ["ok"], "without a quota nothing is throttled"
