import dataclasses
import json
import typing
from collections.abc import Iterator

import pytest

from framegate.control.configuration.manual import SOURCE
from framegate.control.configuration.reading import read_document
from framegate.control.configuration.schema import build
from framegate.proxy.config.key import field_types, keys
from framegate.proxy.config.limits import LimitRule, ListenerLimits
from framegate.proxy.config.model import (
    CUT_ABOVE,
    GIB,
    LISTS_WHOLE,
    MAX_PROCESSORS,
    BrokersConfig,
    Forward,
    Forwarding,
    KafkaCluster,
    ListenerConfig,
    ProxyConfig,
    UpstreamConfig,
    forwarding_of,
    from_wire,
    largest_whole,
    to_wire,
    whole_request,
)
from framegate.proxy.network.connection_id import SLOT_BITS
from tests.fakes.cases import each_of


def test_a_model_with_every_key_survives_the_link() -> None:
    document = read_document(SOURCE)
    config = build(document)
    assert document.faults == []
    assert from_wire(json.loads(json.dumps(to_wire(config)))) == config


def test_there_are_as_many_processors_as_a_connections_id_has_slots_for() -> None:
    assert 1 << SLOT_BITS == MAX_PROCESSORS
    assert keys(ProxyConfig)["processors"].most == MAX_PROCESSORS


def _models(model: type) -> Iterator[type]:
    yield model
    for kind in field_types(model).values():
        for part in (kind, *typing.get_args(kind)):
            if dataclasses.is_dataclass(part):
                yield from _models(typing.cast(type, part))


@each_of("model", dict.fromkeys(_models(ProxyConfig)))
def test_a_time_is_called_after_its_unit_and_a_default_is_within_its_range(model: type) -> None:
    for field in dataclasses.fields(model):
        said = keys(model)[field.name]
        assert (said.unit == "ms", said.unit == "ns") == (field.name.endswith("_ms"), field.name.endswith("_ns"))
        if said.range is not None and not isinstance(field.default_factory, type):
            assert said.least < said.most
            assert field.default in (dataclasses.MISSING, None) or said.takes(field.default)
            assert not said.takes(said.least - 1)
            assert not said.takes(said.most + 1)


def test_a_model_cannot_be_changed() -> None:
    config = UpstreamConfig(name="u", endpoints=("127.0.0.1:1",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.name = "v"  # type: ignore[misc]


WAYS: dict[str, Forward] = {"c": "cut_through", "w": "whole"}


def test_the_largest_frame_kept_whole_follows_from_limits_and_forwarding() -> None:
    def config(*listeners: tuple[int, str, str]) -> ProxyConfig:
        return ProxyConfig(
            node="n",
            listeners=tuple(
                ListenerConfig(
                    name=f"l{number}",
                    address="x",
                    upstream=upstream,
                    max_receive_size=limit,
                    forwarding=Forwarding(requests=WAYS[ways[0]], responses=WAYS[ways[1]]),
                )
                for number, (limit, ways, upstream) in enumerate(listeners)
            ),
            upstreams=(
                UpstreamConfig(name="u", endpoints=("x",), max_receive_size=77),
                UpstreamConfig(name="v", endpoints=("x",), max_receive_size=99),
            ),
        )

    assert largest_whole(config((10, "wc", "u"), (20, "wc", "v"))) == (20, 0)
    assert largest_whole(config((10, "ww", "u"), (GIB, "cc", "v"))) == (CUT_ABOVE - 4, 77)
    assert largest_whole(config((10, "cw", "u"), (5, "cw", "v"))) == (10, 99)
    handled = ListenerConfig(name="h", address="x", handler="m:h", max_receive_size=7)
    alone, before = ProxyConfig(node="n", listeners=(handled,)), dataclasses.replace(handled, upstream="u")
    assert largest_whole(alone) == (7, 0)
    assert largest_whole(dataclasses.replace(config((1, "cc", "v")), listeners=(before,))) == (7, 77)
    cluster = UpstreamConfig(name="u", kafka=KafkaCluster(bootstrap=("b:1",)), max_receive_size=GIB)
    front = ListenerConfig(name="b", address="x", upstream="u", brokers=BrokersConfig(ports="1-2"), max_receive_size=7)
    assert largest_whole(ProxyConfig(node="n", listeners=(front,), upstreams=(cluster,))) == (7, LISTS_WHOLE - 4)
    assert forwarding_of(before) == Forwarding(requests="whole", responses="whole")
    assert forwarding_of(dataclasses.replace(before, handler=None)) == Forwarding()
    cut = dataclasses.replace(front, forwarding=Forwarding(requests="cut_through"))
    assert (whole_request(GIB, front), whole_request(GIB, cut), whole_request(5, cut)) == (GIB, CUT_ABOVE - 4, 5)
    rules = (LimitRule(name="a"), LimitRule(name="b", max_receive_size=8), LimitRule(name="c", max_receive_size=6))
    ruled = dataclasses.replace(front, limits=ListenerLimits(rules=rules))
    assert largest_whole(ProxyConfig(node="n", listeners=(ruled,), upstreams=(cluster,)))[0] == 8, "that of a rule"
