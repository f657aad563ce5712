import os
import pathlib

import pytest

from control.configuration.capacity import cpu_limit, largest_frame, memory_limit, memory_warning, processor_count
from proxy.config.model import MIB, ListenerConfig, MemoryPoolConfig, ProxyConfig, UpstreamConfig

CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("content", "expected"), [("max 100000", CPUS), ("100000 100000", 1), ("50000 100000", 1), ("9900000 100000", CPUS)])
def test_the_cpu_limit_is_the_quota_rounded_up_and_bounded_by_the_machine(tmp_path: pathlib.Path, content: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert cpu_limit(tmp_path) == expected


def test_the_cpu_limit_of_the_older_cgroups_is_read_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cpu_limit(tmp_path) == 1


def test_the_memory_limit_is_none_without_one(tmp_path: pathlib.Path) -> None:
    assert memory_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("268435456\n")
    assert memory_limit(tmp_path) == 256 * MIB


def test_zero_processors_means_as_many_as_cpus_and_shares_allow() -> None:
    assert processor_count(3, 1, 1, 8) == 3
    assert processor_count(0, 256 * MIB, 100 * MIB, 8) == 2
    assert processor_count(0, 256 * MIB, 1 * MIB, 8) == 8
    assert processor_count(0, 1 * MIB, 2 * MIB, 8) == 1
    assert largest_frame([]) == 1


def config(pool: int) -> ProxyConfig:
    return ProxyConfig(
        node="n",
        listeners=(ListenerConfig(name="a", address="127.0.0.1:0", upstream="u"),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
        memory_pool=MemoryPoolConfig(size=pool),
    )


def test_a_pool_that_does_not_fit_the_container_is_warned_about() -> None:
    assert memory_warning(config(256 * MIB), 2, None) is None
    assert memory_warning(config(256 * MIB), 2, 1024 * MIB) is None
    warning = memory_warning(config(256 * MIB), 2, 256 * MIB)
    assert warning is not None
    assert "256MiB does not fit" in warning
