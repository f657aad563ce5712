"""Another configuration on top of one gives what a start with it gives, and keeps what is the same."""

import dataclasses
import enum
import json
import random
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from framegate.proxy.cells import LISTENER, CellLayout
from framegate.proxy.config.limits import LimitsConfig, ListenerLimits
from framegate.proxy.config.model import (
    MIB,
    BrokersConfig,
    DrainConfig,
    EjectionConfig,
    EndpointConfig,
    Forwarding,
    HeaderConfig,
    KafkaCluster,
    KafkaRule,
    KafkaRules,
    ListenerConfig,
    ListenerTimeouts,
    MemoryPoolConfig,
    ProxyConfig,
    ProxyProtocolConfig,
    SocketConfig,
    UpstreamConfig,
    UpstreamTimeouts,
    difference_to_wire,
    to_wire,
)
from framegate.proxy.config.sasl import ListenerSasl, UpstreamSasl
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.server.messages import AdvertisedRow, BrokerRow, ClusterRow
from framegate.proxy.server.settings import Settings
from tests.fakes.changes import prepare
from tests.fakes.world import World

INET = 2
SHARE = 4096 * MIB
KEYS: Mapping[str, tuple[object, ...]] = {
    "max_receive_size": (MIB, 2 * MIB),
    "limits": (ListenerLimits(), ListenerLimits(request_bytes_rate=1000)),
    "socket": (SocketConfig(), SocketConfig(send_buffer=9000)),
    "timeouts": (ListenerTimeouts(), ListenerTimeouts(idle_ms=1000, half_close_ms=5, handshake_ms=200, stall_ms=2000)),
    "half_close_before_data": ("close", "wait"),
    "min_rate": (1024, 0),
    "forwarding": (Forwarding(), Forwarding(requests="cut_through", responses="whole")),
    "proxy_protocol": (None, ProxyProtocolConfig(trusted=("10.0.0.0/8",))),
    "allowed_principals": ((), ("alice",)),
    "close_revoked": (True, False),
    "address": ("0.0.0.0:0", "127.0.0.1:0"),
}
KAFKA: Mapping[str, tuple[object, ...]] = {
    "kafka": (None, KafkaRules(), KafkaRules(report_only=True, rules=(KafkaRule(deny=("DeleteTopics",)),)), KafkaRules(unknown_versions="pass")),
    "sasl": (None, ListenerSasl(mechanisms=("PLAIN",), users="/users"), ListenerSasl(mechanisms=("PLAIN",), users="/users", max_frame=2048)),
}
UPSTREAM: Mapping[str, tuple[object, ...]] = {
    "balance": ("round_robin", "least_connections", "random_two"),
    "max_connections": (0, 7),
    "ejection": (None, EjectionConfig(failures=2)),
    "max_receive_size": (MIB, 3 * MIB),
    "timeouts": (UpstreamTimeouts(), UpstreamTimeouts(connect_ms=77)),
    "socket": (SocketConfig(), SocketConfig(receive_buffer=9000)),
    "send_proxy_protocol": (None, "v2"),
    "sasl": (None, UpstreamSasl(mechanism="PLAIN", user="u", password_file="/p")),
}
HEADERS = ({"framing": "int32"}, {"framing": "uint32_le"}, {"framing": "header", "header": HeaderConfig(size=6, offset=2)})
PLAIN = ("127.0.0.1:1", "127.0.0.1:2", EndpointConfig(address="127.0.0.1:3", weight=4, zone="a"))


def any_of(chance: random.Random, keys: Mapping[str, tuple[object, ...]]) -> dict[str, Any]:
    return {name: chance.choice(values) for name, values in keys.items() if chance.random() < 0.4}


def any_config(chance: random.Random) -> ProxyConfig:
    """Some of four listeners in front of two upstreams and a cluster."""
    endpoints = tuple(chance.sample(PLAIN, chance.randrange(1, 4)))
    upstreams = [UpstreamConfig(name=name, endpoints=endpoints, **any_of(chance, UPSTREAM)) for name in "uv"]
    cluster = {name: value for name, value in any_of(chance, UPSTREAM).items() if name != "sasl"}
    upstreams.append(UpstreamConfig(name="k", kafka=KafkaCluster(bootstrap=("127.0.0.1:9",)), **cluster))
    listeners = []
    for name in chance.sample("abcd", chance.randrange(1, 5)):
        behind = chance.choice(upstreams)
        given = any_of(chance, KEYS)
        if behind.name == "k":
            given |= {"protocol": "kafka", "brokers": BrokersConfig(ports=chance.choice(("100-200", "300-400"))), **any_of(chance, KAFKA)}
        elif chance.random() < 0.3:
            given |= chance.choice(HEADERS)
        handled = behind.name != "k" and chance.random() < 0.2
        listeners.append(
            ListenerConfig(name=name, **({"handler": "m:h"} if handled else {"upstream": behind.name}), **{"address": "0.0.0.0:0", **given})
        )
    used = {item.upstream for item in listeners}
    return ProxyConfig(
        node="n",
        listeners=tuple(listeners),
        upstreams=tuple(item for item in upstreams if item.name in used),
        zone=chance.choice(("", "a")),
        memory_pool=MemoryPoolConfig(size=64 * MIB, shares={item.name: 10 for item in listeners if chance.random() < 0.3}),
        limits=chance.choice((LimitsConfig(), LimitsConfig(response_frames_rate=9))),
        drain=chance.choice((DrainConfig(), DrainConfig(quiet_ms=3, timeout_ms=4))),
    )


def near(chance: random.Random, config: ProxyConfig) -> ProxyConfig:
    """The same, but for one key of each listener and upstream."""

    def other(item: Any, keys: Mapping[str, tuple[object, ...]]) -> Any:
        name = chance.choice(sorted(keys))
        return dataclasses.replace(item, **{name: chance.choice(keys[name])})

    listeners = tuple(other(item, KEYS | KAFKA if item.brokers is not None else KEYS) for item in config.listeners)
    upstreams = tuple(other(item, {key: UPSTREAM[key] for key in UPSTREAM if key != "sasl" or item.kafka is None}) for item in config.upstreams)
    return dataclasses.replace(config, listeners=listeners, upstreams=upstreams)


def rest_of(config: ProxyConfig) -> dict[str, Any]:
    """What control sends beside it."""
    rows = {
        item.name: [[host, INET, host, int(port)] for host, _, port in (text.rpartition(":") for text in item.addresses)] for item in config.upstreams
    }
    clusters = {}
    for item in config.upstreams:
        if item.kafka is not None:
            told = AdvertisedRow(bootstrap=["edge", 90], brokers=[[1, "edge", 91]])
            fronts = {each.name: told for each in config.listeners if each.upstream == item.name}
            clusters[item.name] = ClusterRow(brokers=[BrokerRow(id=1, rack="", addresses=[["k1", INET, "127.0.0.1", 9001]])], listeners=fronts)
    return {"endpoints": rows, "brokers": clusters}


class Node:
    """The settings of a processor over a world of pairs; ``apply`` is what control does."""

    def __init__(self, config: ProxyConfig, layout: CellLayout | None = None) -> None:
        self.world = World()
        self.layout = layout or CellLayout.of(config)
        start: Any = {"config": to_wire(config), "share": SHARE, "cells": self.layout.wire, **rest_of(config)}
        self.settings = Settings(json.loads(json.dumps(start)), MemoryPool(SHARE, lambda: 0))
        self.settings.attach(self.world.relay, None)

    def apply(self, config: ProxyConfig, kept: Callable[[tuple[str, str]], bool] = lambda place: False) -> None:
        before = self.settings.config
        self.layout = self.layout.after(config, {place for place in self.layout.places if kept(place)})
        change = {"config": difference_to_wire(before, config), "cells": self.layout.wire, **rest_of(config)}
        prepare(self.settings, 1, json.loads(json.dumps(change)))
        assert self.settings.commit(1) is not None


STATE = frozenset({"_random", "number", "_number", "counters", "_counters", "stats", "_cells", "_loop", "_pool", "account", "report", "refused"})
"""Attributes that hold no configuration, or the same objects whatever it is."""


def shown(item: Any, path: tuple[int, ...] = ()) -> Any:
    """What an object holds, as plain values."""
    if item is None or isinstance(item, bool | int | float | str | bytes | enum.Enum):
        return item
    if id(item) in path:
        return "…"
    path = (*path, id(item))
    if isinstance(item, dict):
        return {str(key): shown(value, path) for key, value in sorted(item.items(), key=lambda each: str(each[0]))}
    if isinstance(item, list | tuple | set | frozenset):
        found = [shown(each, path) for each in item]
        return sorted(found, key=str) if isinstance(item, set | frozenset) else found
    if callable(item) and not type(item).__module__.startswith("framegate.proxy"):
        return getattr(item, "__qualname__", type(item).__name__)
    names = (
        vars(item) if hasattr(item, "__dict__") else [name for name, each in vars(type(item)).items() if isinstance(each, types.GetSetDescriptorType)]
    )
    if not type(item).__module__.startswith("framegate") or "counters" in type(item).__module__:
        return type(item).__name__
    return {name: shown(getattr(item, name), path) for name in sorted(names) if name not in STATE and not name.startswith("__")}


def view(node: Node) -> dict[str, Any]:
    """All that new connections are treated by."""
    made, config = node.settings.in_force, node.settings.config
    return {
        "config": config,
        "routes": {name: shown(made.routes[name]) for name in made.listeners},
        "upstreams": {name: shown(made.upstreams[name]) for name in made.upstream_configs},
        "clusters": shown(made.clusters),
        "shares": {name: made.accounts[name].percent for name in made.listeners},
        "largest": (int(node.settings.pool.requests.largest), int(node.settings.pool.answers.largest)),
        "quotas": shown(node.world.relay.pairs.quotas.limits),
        "leaving": node.settings.leaving - set(node.layout.names(LISTENER)),
    }


def differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two views differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [each for key in one.keys() | other.keys() for each in differing(one.get(key), other.get(key), f"{path}.{key}")]
    return [] if one == other else [f"{path}: {str(one)[:200]} and {str(other)[:200]}"]


@pytest.mark.parametrize("seed", range(40))
def test_a_configuration_on_another_gives_what_a_start_with_it_gives_and_back_again(seed: int) -> None:
    chance = random.Random(seed)
    first, second = any_config(chance), any_config(chance)
    node = Node(first)
    try:
        for config in (*(near(chance, first) for _ in range(6)), second, near(chance, second), first):
            node.apply(config, lambda place: chance.random() < 0.5)
            fresh = Node(config, node.layout)  # with places of owners that it has never known
            assert differing(view(node), view(fresh)) == []
            fresh.world.close()
    finally:
        node.world.close()


def test_what_is_the_same_stays_the_same_object() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        config = any_config(chance)
        node = Node(config)
        before = node.settings.in_force
        node.apply(dataclasses.replace(config, listeners=config.listeners[::-1], limits=LimitsConfig(connections=5)))
        after = node.settings.in_force
        for kind in ("routes", "upstreams", "counters", "limits", "accounts", "logins", "clusters"):
            known = getattr(before, kind)
            assert {name: each is known[name] for name, each in getattr(after, kind).items()} == dict.fromkeys(known, True), kind
        assert cast(Any, node.settings)._replaced == []
        node.world.close()
