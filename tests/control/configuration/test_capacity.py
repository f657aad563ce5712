import dataclasses
import itertools
from typing import Any

from framegate.control.configuration.capacity import UNLIMITED_POOL, fitted, memory_need, memory_warning
from framegate.control.configuration.cgroup import Container
from framegate.proxy.config.limits import LimitsConfig, ListenerLimits
from framegate.proxy.config.model import (
    KIB,
    MIB,
    Forwarding,
    ListenerConfig,
    ListenerTls,
    MemoryPoolConfig,
    ProxyConfig,
    ShipConfig,
    TapConfig,
    UpstreamConfig,
    UpstreamTls,
)


def config(pool: int, tap: TapConfig | None = None, upstream_tls: UpstreamTls | None = None, **listener: Any) -> ProxyConfig:
    return ProxyConfig(
        node="n",
        listeners=(ListenerConfig(**{"name": "a", "address": "127.0.0.1:0", "upstream": "u", **listener}),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",), max_receive_size=50 * MIB, tls=upstream_tls),),
        memory_pool=MemoryPoolConfig(size=pool),
        tap=tap,
    )


def test_what_is_needed_is_the_sum_of_its_parts() -> None:
    need = memory_need(config(256 * MIB, TapConfig(directory="t"), limits=ListenerLimits(connections=1024)), 2)
    assert dict(need.parts) == {
        "processes": (64 + 2 * 29) * MIB,
        "validator": 21 * MIB,
        "memory pool": 320 * MIB,
        "a frame beyond it in each processor": 250 * MIB + 640 * KIB,
        "tap queues": 16 * MIB,
        "connections": 15 * MIB,
    }
    assert (need.total, need.uncounted) == (sum(size for _, size in need.parts), ())
    shipped = memory_need(config(256 * MIB, TapConfig(directory="t", ship=ShipConfig(to="s3://b")), limits=ListenerLimits(connections=1024)), 2)
    assert shipped.total - need.total == 64 * MIB


def test_the_frame_beyond_the_pool_is_the_largest_that_passes_whole() -> None:
    sides: dict[tuple[Any, Any], int] = {
        ("whole", "cut_through"): 100 * MIB,
        ("whole", "whole"): 150 * MIB,
        ("cut_through", "cut_through"): 256 * KIB - 4,
    }
    for (requests, responses), beyond in sides.items():
        need = memory_need(config(256 * MIB, forwarding=Forwarding(requests=requests, responses=responses)), 1)
        assert dict(need.parts)["a frame beyond it in each processor"] == (beyond + 256 * KIB) * 5 // 4


def test_a_configuration_that_does_not_fit_the_container_is_warned_about_with_its_parts() -> None:
    assert memory_warning(config(256 * MIB), 2, None) is None
    assert memory_warning(config(256 * MIB), 2, 1024 * MIB) is None
    assert memory_warning(config(256 * MIB), 2, 512 * MIB) == (
        "does not fit into the container's 512MiB: 714MiB may be needed, and 435MiB can be used (15 % are left to the kernel's buffers): "
        "processes 122MiB, validator 21MiB, memory pool 320MiB, a frame beyond it in each processor 251MiB; connections of a are not counted, for "
        "limits.connections is not set"
    )


def test_the_nodes_limit_bounds_all_connections_but_those_of_the_protected_listener() -> None:
    tls, base, wrong = ListenerTls(certificate="c", key="k"), config(MIB), []
    for node, protected, own, connections, uncounted in (
        (0, None, (0, 0), 0, ("a", "b")),
        (100, None, (0, 0), 100 * 55, ()),
        (100, None, (30, 0), 30 * 55 + 70 * 15, ()),
        (100, None, (30, 20), 30 * 55 + 20 * 15, ()),
        (100, None, (0, 20), 100 * 55, ()),
        (100, "b", (0, 0), 100 * 55, ("b",)),
        (100, "b", (0, 20), 100 * 55 + 20 * 15, ()),
        (100, "a", (20, 0), 20 * 55 + 100 * 15, ()),
    ):
        listeners = tuple(
            dataclasses.replace(base.listeners[0], name=name, limits=ListenerLimits(connections=most), tls=tls if name == "a" else None)
            for name, most in zip("ab", own, strict=True)
        )
        limits = LimitsConfig(connections=node, protected_listener=protected)
        need = memory_need(dataclasses.replace(base, listeners=listeners, limits=limits), 1)
        if (dict(need.parts).get("connections", 0), need.uncounted) != (connections * KIB, uncounted):
            wrong.append((node, protected, own, need))
    assert wrong == []


def chosen(limit: int | None, cpus: int = 1, processors: int = 0, **listener: Any) -> tuple[int, int]:
    found = fitted(
        dataclasses.replace(config(0, limits=ListenerLimits(connections=1024), **listener), processors=processors), Container(cpus, limit, 2)
    )
    return found.processors, found.memory_pool.size // MIB


def test_a_pool_of_0_is_the_largest_that_fits() -> None:
    for cpus, size, tap in itertools.product((1, 2, 4), (256, 512, 1000, 4096), (None, TapConfig(directory="t"))):
        asked = config(0, tap, max_receive_size=16 * MIB, limits=ListenerLimits(connections=1000))
        found = fitted(asked, Container(cpus, size * MIB, 2))
        pool = found.memory_pool
        larger = dataclasses.replace(found, memory_pool=dataclasses.replace(pool, size=pool.size + MIB))
        warned = [memory_warning(each, found.processors, size * MIB) is not None for each in (found, larger)]
        assert (warned, pool.size >= found.processors * 16 * MIB) == ([False, True], True), (cpus, size, tap)


def test_a_container_that_is_too_small_gets_the_least_that_works_and_a_warning() -> None:
    assert chosen(64 * MIB) == (1, 100)
    assert chosen(1, 8) == (1, 100)
    assert chosen(64 * MIB, 8, processors=2) == (2, 200)
    found = fitted(config(0, max_receive_size=1), Container(1, 1, 2))
    assert found.memory_pool.size == 64 * KIB
    assert memory_warning(found, 1, 64 * MIB) is not None


def test_without_a_limit_the_pool_has_the_most_that_is_stated_or_what_the_largest_frames_need() -> None:
    assert chosen(None, 2) == (2, UNLIMITED_POOL // MIB)
    assert chosen(None, 64) == (10, UNLIMITED_POOL // MIB)
    assert chosen(None, 8, processors=16) == (16, 1600)
    assert chosen(None, 100, max_receive_size=1)[0] == 64
