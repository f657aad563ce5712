"""What the container gives, from cgroups as the kernel writes them."""

import os
import pathlib

from framegate.control.telemetry.container import Container
from tests.control.configuration.test_cgroup import own, write

CPU_PRESSURE = "some avg10=1.00 avg60=2.00 avg300=3.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n"


def measured(root: pathlib.Path, files: dict[str, str], *lines: str) -> dict[str, float]:
    folder = write(root, {name: text for name, text in files.items() if not name.startswith("proc")})
    machine = write(root / "proc", {name.removeprefix("proc/"): text for name, text in files.items() if name.startswith("proc")})
    found = Container(lambda: 77.0, folder, own(root, *lines), machine).measurements()
    return {".".join([name.removeprefix("framegate."), *(value for _, value in at)]): value for (name, at), value in found.items()}


def test_a_container_says_what_it_may_use_and_what_it_waited_for(tmp_path: pathlib.Path) -> None:
    files = {
        "memory.max": "1000",
        "memory.current": "700",
        "memory.stat": "inactive_file 100\n",
        "memory.events": "oom 4\noom_kill 3\n",
        "cpu.max": "10000 100000",
        "cpu.stat": "usage_usec 7\nnr_periods 20\nnr_throttled 15\nthrottled_usec 1500000\n",
        "cpu.pressure": CPU_PRESSURE,
        "memory.pressure": CPU_PRESSURE.replace("2500000", "4000000"),
        "proc/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
    }
    assert measured(tmp_path, files, "0::/") == {
        "memory.limit": 1000,
        "memory.usage": 600,
        "container.memory.kills": 3,
        "container.cpu.limit": 0.1,
        "container.cpu.periods": 20,
        "container.cpu.throttled.periods": 15,
        "container.cpu.throttled.time": 1.5,
        "container.pressure.time.cpu.some": 2.5,
        "container.pressure.time.cpu.full": 0.5,
        "container.pressure.time.memory.some": 4.0,
        "container.pressure.time.memory.full": 0.5,
        "container.pressure.time.io.some": 1.0,
    }


def test_without_limits_memory_is_that_of_our_processes_beside_the_machines(tmp_path: pathlib.Path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for files in ({}, {"memory.max": "max", "memory.current": "5", "cpu.max": "max 100000", "cpu.stat": "nr_periods 0\nnr_throttled 0\n"}):
        assert measured(tmp_path, files, "0::/") == {"memory.limit": machine, "memory.usage": 77}


def test_pressure_in_another_form_is_not_guessed(tmp_path: pathlib.Path) -> None:
    found = measured(tmp_path, {"cpu.pressure": "nothing\n", "memory.pressure": "some a b c total=x\n", "proc/cpu": CPU_PRESSURE}, "0::/")
    assert {name: value for name, value in found.items() if "pressure" in name} == {
        "container.pressure.time.cpu.some": 2.5,
        "container.pressure.time.cpu.full": 0.5,
    }
