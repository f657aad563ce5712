import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control.doctor.limits import DESCRIPTORS, FEW_CONNECTIONS, look, tasks_needed
from proxy.config.limits import LimitsConfig
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
    found = one(look(around(tmp_path, table(files=str(10_000 + DESCRIPTORS + spare)), config=config)), "RLIMIT_NOFILE")
    assert (found.level, found.figures["needed"]) == (level, 10_000 + DESCRIPTORS)
    assert ("set limits.connections to 4999" in found.advice) == (spare < 0)


@pytest.mark.parametrize(("connections", "level"), [(FEW_CONNECTIONS - 1, "warning"), (FEW_CONNECTIONS, "ok"), (FEW_CONNECTIONS + 1, "ok")])
def test_where_connections_are_not_limited_room_for_few_is_told(tmp_path: Path, connections: int, level: str) -> None:
    for config in (None, config_of()):
        found = one(look(around(tmp_path, table(files=str(2 * connections + DESCRIPTORS)), config=config)), "RLIMIT_NOFILE")
        assert (found.level, found.figures["connections"]) == (level, connections)


def test_what_is_not_limited_is_good(tmp_path: Path) -> None:
    assert levels(look(around(tmp_path, table(), config=config_of(limits=LimitsConfig(connections=10**7))))) == ["ok"] * 4


def test_of_a_running_framegate_its_own_limits_are_looked_at(tmp_path: Path) -> None:
    files = {**table(files="10"), "proc/77/limits": table()["proc/self/limits"]}
    assert one(look(around(tmp_path, files, pid=77)), "RLIMIT_NOFILE) of framegate, process 77").level == "ok"
    assert one(look(around(tmp_path, files)), "RLIMIT_NOFILE) of this process").level == "warning"


def test_limits_that_cannot_be_read_are_not_known(tmp_path: Path) -> None:
    assert levels(look(around(tmp_path))) == ["unknown", "ok"]


def test_an_address_space_that_is_limited_is_told(tmp_path: Path) -> None:
    found = one(look(around(tmp_path, table(space="4294967296"))), "RLIMIT_AS")
    assert (found.level, found.figures["limit_bytes"]) == ("warning", 1 << 32)


def test_few_processes_are_a_fault_but_for_root(tmp_path: Path) -> None:
    config = config_of(processors=8)
    need = tasks_needed(around(tmp_path, config=config))
    few, enough = (around(tmp_path / str(spare), table(processes=str(need + spare)), config=config) for spare in (-1, 0))
    if os.geteuid() == 0:
        assert one(look(few), "RLIMIT_NPROC").level == "ok"
        os.chown(few.process, 65534, 65534)
    assert (one(look(few), "RLIMIT_NPROC").level, one(look(enough), "RLIMIT_NPROC").level) == ("fault", "ok")


@pytest.mark.parametrize(("spare", "level"), [(-1, "fault"), (0, "ok"), (1, "ok")])
def test_the_containers_tasks_of_both_versions(tmp_path: Path, spare: int, level: str) -> None:
    config = config_of(processors=2)
    most = str(10 + tasks_needed(around(tmp_path, config=config)) + spare)
    for folder in ("", "pids/"):
        files = {f"sys/fs/cgroup/{folder}pids.current": "10", f"sys/fs/cgroup/{folder}pids.max": most}
        assert one(look(around(tmp_path / (folder or "2"), {**table(), **files}, config=config)), "pids cgroup").level == level


@pytest.mark.parametrize(("left", "level"), [(15, "warning"), (16, "ok")])
def test_beside_a_running_framegate_room_for_replacements_is_enough(tmp_path: Path, left: int, level: str) -> None:
    files = {"sys/fs/cgroup/pids.current": "10", "sys/fs/cgroup/pids.max": str(10 + left), "proc/5/limits": table()["proc/self/limits"]}
    assert one(look(around(tmp_path, files, pid=5)), "pids cgroup").level == level


SCRIPT = """
import dataclasses, json
from control.doctor.limits import look
from control.doctor.surroundings import Surroundings
print(json.dumps([dataclasses.asdict(item) for item in look(Surroundings())]))
"""


def test_a_process_with_few_descriptors_sees_its_own_limit() -> None:
    """The real one, in a child."""

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    done = subprocess.run([sys.executable, "-c", SCRIPT], preexec_fn=lower, capture_output=True, text=True, timeout=30, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    found = next(row for row in rows if "RLIMIT_NOFILE" in row["subject"])
    assert (found["level"], found["figures"]) == ("warning", {"limit": 128, "connections": 32})
