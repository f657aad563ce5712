import dataclasses
import os
import pathlib
from typing import Any

import pytest

from control.configuration.capacity import cpu_limit, memory_limit, memory_need, memory_usage, memory_warning, processor_count
from proxy.config.limits import LimitsConfig, RateLimits
from proxy.config.model import (
    GIB,
    KIB,
    MIB,
    Forwarding,
    HandlersConfig,
    ListenerConfig,
    ListenerTls,
    MemoryPoolConfig,
    ProxyConfig,
    TapConfig,
    UpstreamConfig,
    UpstreamTls,
)
from proxy.config.sasl import ListenerSasl, TokenConfig

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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"memory.current": "max"}, None),
        ({"memory.current": "1000"}, 1000),
        ({"memory.current": "1000", "memory.stat": "anon 5\ninactive_file 300\nactive_file 7\n"}, 700),
        ({"memory.current": "100", "memory.stat": "inactive_file 300\n"}, 0),
        ({"memory/memory.usage_in_bytes": "1000", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 400\n"}, 600),
    ],
)
def test_the_memory_in_use_is_without_what_the_kernel_merely_remembers(tmp_path: pathlib.Path, files: dict[str, str], expected: int | None) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert memory_usage(tmp_path) == expected


def config(pool: int, tap: TapConfig | None = None, upstream_tls: UpstreamTls | None = None, **listener: Any) -> ProxyConfig:
    return ProxyConfig(
        node="n",
        listeners=(ListenerConfig(**{"name": "a", "address": "127.0.0.1:0", "upstream": "u", **listener}),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",), max_receive_size=50 * MIB, tls=upstream_tls),),
        memory_pool=MemoryPoolConfig(size=pool),
        tap=tap,
    )


def test_what_is_needed_is_the_sum_of_its_parts() -> None:
    need = memory_need(config(256 * MIB, TapConfig(directory="t"), limits=RateLimits(connections=1024)), 2)
    assert dict(need.parts) == {
        "processes": (64 + 2 * 29) * MIB,
        "memory pool": 320 * MIB,
        "a frame beyond it in each processor": 250 * MIB + 640 * KIB,
        "tap queues": 16 * MIB,
        "connections": 12 * MIB,
    }
    assert (need.total, need.uncounted) == (sum(size for _, size in need.parts), ())


def test_handler_processes_count_once_a_listener_has_a_handler_each_with_what_it_may_hold() -> None:
    def part(memory: int, **listener: Any) -> int:
        chosen = dataclasses.replace(config(MIB, **listener), handlers=HandlersConfig(processes=3, memory=memory))
        return dict(memory_need(chosen, 1).parts).get("handler processes", 0)

    assert [part(0), part(0, handler="m:h"), part(100 * MIB, handler="m:h", upstream=None)] == [0, 75 * MIB, 300 * MIB]


@pytest.mark.parametrize(
    ("requests", "responses", "beyond"),
    [("whole", "cut_through", 100 * MIB), ("whole", "whole", 150 * MIB), ("cut_through", "cut_through", 256 * KIB - 4)],
)
def test_the_frame_beyond_the_pool_is_the_largest_that_passes_whole(requests: Any, responses: Any, beyond: int) -> None:
    need = memory_need(config(256 * MIB, forwarding=Forwarding(requests=requests, responses=responses)), 1)
    assert dict(need.parts)["a frame beyond it in each processor"] == (beyond + 256 * KIB) * 5 // 4


def test_each_side_that_speaks_tls_makes_a_connection_dearer() -> None:
    tls = ListenerTls(certificate="c", key="k")
    for kind, kib in (({}, 12), ({"tls": tls}, 51), ({"tls": tls, "upstream_tls": UpstreamTls()}, 90)):
        assert dict(memory_need(config(MIB, limits=RateLimits(connections=1000), **kind), 1).parts)["connections"] == 1000 * kib * KIB


def test_a_configuration_that_does_not_fit_the_container_is_warned_about_with_its_parts() -> None:
    assert memory_warning(config(256 * MIB), 2, None) is None
    assert memory_warning(config(256 * MIB), 2, 1024 * MIB) is None
    assert memory_warning(config(256 * MIB), 2, 512 * MIB) == (
        "does not fit into the container's 512MiB: 693MiB may be needed, and 435MiB can be used (15 % are left to the kernel's buffers): "
        "processes 122MiB, memory pool 320MiB, a frame beyond it in each processor 251MiB; connections of a are not counted, for "
        "limits.connections is not set"
    )


def test_connections_alone_may_be_too_many() -> None:
    assert memory_warning(config(64 * MIB, max_receive_size=MIB, limits=RateLimits(connections=10_000)), 1, GIB) is None
    warning = memory_warning(
        config(64 * MIB, max_receive_size=MIB, limits=RateLimits(connections=10_000), tls=ListenerTls(certificate="c", key="k")), 1, 512 * MIB
    )
    assert warning is not None
    assert "connections 499MiB" in warning
    assert "not counted" not in warning


@pytest.mark.parametrize(
    ("node", "protected", "own", "connections", "uncounted"),
    [
        (0, None, (0, 0), 0, ("a", "b")),
        (100, None, (0, 0), 100 * 51, ()),
        (100, None, (30, 0), 30 * 51 + 70 * 12, ()),
        (100, None, (30, 20), 30 * 51 + 20 * 12, ()),
        (100, None, (0, 20), 100 * 51, ()),
        (100, "b", (0, 0), 100 * 51, ("b",)),
        (100, "b", (0, 20), 100 * 51 + 20 * 12, ()),
        (100, "a", (20, 0), 20 * 51 + 100 * 12, ()),
    ],
)
def test_the_nodes_limit_bounds_all_connections_but_those_of_the_protected_listener(
    node: int, protected: str | None, own: tuple[int, int], connections: int, uncounted: tuple[str, ...]
) -> None:
    tls = ListenerTls(certificate="c", key="k")
    base = config(MIB)
    listeners = tuple(
        dataclasses.replace(base.listeners[0], name=name, limits=RateLimits(connections=most), tls=tls if name == "a" else None)
        for name, most in zip("ab", own, strict=True)
    )
    limits = LimitsConfig(connections=node, protected_listener=protected)
    need = memory_need(dataclasses.replace(base, listeners=listeners, limits=limits), 1)
    assert (dict(need.parts).get("connections", 0), need.uncounted) == (connections * KIB, uncounted)


def test_who_takes_tokens_pays_for_what_checks_them_once() -> None:
    users = ListenerSasl(mechanisms=("PLAIN",), users="u")
    tokens = ListenerSasl(mechanisms=("OAUTHBEARER",), tokens=TokenConfig(jwks="j", issuer="i", audience="a"))

    def need(*sasl: ListenerSasl | None) -> int:
        listeners = tuple(ListenerConfig(name=f"l{place}", address="x", upstream="u", sasl=each) for place, each in enumerate(sasl))
        config = ProxyConfig(node="n", listeners=listeners, upstreams=(UpstreamConfig(name="u", endpoints=("x:1",)),))
        return dict(memory_need(config, 1).parts).get("checks of tokens", 0)

    assert [need(None), need(users), need(None, tokens), need(tokens, tokens)] == [0, 0, 12 * MIB, 12 * MIB]
