import dataclasses
from typing import Any

import pytest

from control.configuration.capacity import UNLIMITED_POOL, fitted, memory_need, memory_warning, processor_count
from control.configuration.cgroup import Container
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


def test_zero_processors_means_as_many_as_cpus_and_shares_allow() -> None:
    assert processor_count(3, 1, 1, 8) == 3
    assert processor_count(0, 256 * MIB, 100 * MIB, 8) == 2
    assert processor_count(0, 256 * MIB, 1 * MIB, 8) == 8
    assert processor_count(0, 1 * MIB, 2 * MIB, 8) == 1


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


def test_the_judge_of_certificates_counts_where_there_are_any() -> None:
    tls = ListenerTls(certificate="c", key="k")
    for kind, size in (({}, 0), ({"tls": tls}, 28 * MIB), ({"upstream_tls": UpstreamTls()}, 28 * MIB)):
        assert dict(memory_need(config(MIB, **kind), 1).parts).get("judge of certificates", 0) == size


def test_handler_processes_count_once_a_listener_has_a_handler_each_with_what_it_may_hold() -> None:
    def part(memory: int, **listener: Any) -> int:
        chosen = dataclasses.replace(config(MIB, **listener), handlers=HandlersConfig(processes=3, memory=memory))
        return dict(memory_need(chosen, 1).parts).get("handler processes", 0)

    assert [part(0), part(0, handler="m:h"), part(100 * MIB, handler="m:h", upstream=None)] == [0, 123 * MIB, 300 * MIB]


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


def chosen(limit: int | None, cpus: int = 1, processors: int = 0, **listener: Any) -> tuple[int, int]:
    found = fitted(dataclasses.replace(config(0, limits=RateLimits(connections=1024), **listener), processors=processors), Container(cpus, limit, 2))
    return found.processors, found.memory_pool.size // MIB


@pytest.mark.parametrize("cpus", [1, 2, 4])
@pytest.mark.parametrize("size", [256, 512, 1000, 4096])
@pytest.mark.parametrize("tap", [None, TapConfig(directory="t")])
def test_a_pool_of_0_is_the_largest_that_fits(cpus: int, size: int, tap: TapConfig | None) -> None:
    asked = config(0, tap, max_receive_size=16 * MIB, limits=RateLimits(connections=1000))
    found = fitted(asked, Container(cpus, size * MIB, 2))
    pool = found.memory_pool
    assert memory_warning(found, found.processors, size * MIB) is None
    larger = dataclasses.replace(found, memory_pool=dataclasses.replace(pool, size=pool.size + MIB))
    assert memory_warning(larger, found.processors, size * MIB) is not None
    assert pool.size >= found.processors * 16 * MIB


def test_as_many_processors_are_chosen_as_there_is_memory_for() -> None:
    assert [chosen(limit * MIB, 4, max_receive_size=MIB)[0] for limit in (128, 160, 224, 1024)] == [1, 1, 3, 4]
    assert chosen(1024 * MIB, 4, processors=2)[0] == 2  # what is given stays
    assert fitted(config(64 * MIB), Container(8, 64 * MIB, 2)).memory_pool.size == 64 * MIB


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


def test_connections_that_nobody_limits_are_left_a_quarter_of_the_rest() -> None:
    limited = fitted(config(0, max_receive_size=MIB, limits=RateLimits(connections=1)), Container(1, GIB, 2)).memory_pool.size
    unlimited = fitted(config(0, max_receive_size=MIB), Container(1, GIB, 2)).memory_pool.size
    assert 0 <= limited * 3 // 4 - unlimited <= MIB
