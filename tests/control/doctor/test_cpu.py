from pathlib import Path

import pytest

from control.doctor.cpu import look
from tests.fakes.surroundings import around, config_of, levels, one

QUOTA = {"sys/fs/cgroup/cpu.max": "200000 100000"}


def stat(periods: int, throttled: int) -> dict[str, str]:
    return {**QUOTA, "sys/fs/cgroup/cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 2500000\n"}


@pytest.mark.parametrize(
    ("periods", "throttled", "level"),
    [(1000, 49, "ok"), (1000, 50, "warning"), (1000, 51, "warning"), (99, 99, "ok"), (100, 100, "warning"), (0, 0, "ok")],
)
def test_throttling_is_told_when_it_is_often_and_of_long_enough(tmp_path: Path, periods: int, throttled: int, level: str) -> None:
    found = one(look(around(tmp_path, stat(periods, throttled))), "throttling")
    assert (found.level, found.figures["throttled_s"]) == (level, 2.5)


def test_version_1_is_read_as_well(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 1000\nnr_throttled 500\nthrottled_time 2500000000\n",
    }
    found = list(look(around(tmp_path, files)))
    assert (one(found, "quota").figures, one(found, "throttling").figures["throttled_percent"]) == ({"cpus": 2.0}, 50.0)


def test_without_a_quota_nothing_is_throttled(tmp_path: Path) -> None:
    assert levels(look(around(tmp_path))) == ["ok"]


def test_throttling_that_the_kernel_does_not_tell_is_not_known(tmp_path: Path) -> None:
    assert one(look(around(tmp_path, QUOTA)), "throttling").level == "unknown"


@pytest.mark.parametrize(("quota", "level"), [(99_000, "warning"), (100_000, "ok"), (101_000, "ok")])
def test_less_than_a_cpu_is_told(tmp_path: Path, quota: int, level: str) -> None:
    assert one(look(around(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota} 100000"})), "quota").level == level


@pytest.mark.parametrize(("processors", "level"), [(1, "ok"), (2, "warning"), (0, "ok")])
def test_more_processors_than_cpus_are_told(tmp_path: Path, processors: int, level: str) -> None:
    files = {"sys/fs/cgroup/cpu.max": "100000 100000"}
    assert one(look(around(tmp_path, files, config=config_of(processors=processors))), "processors").level == level
