import dataclasses
import json
import pathlib

import pytest

from control.configuration.document import read_document
from control.configuration.schema import build, convert
from proxy.config.model import (
    CUT_ABOVE,
    GIB,
    Forwarding,
    ListenerConfig,
    ProxyConfig,
    UpstreamConfig,
    from_wire,
    largest_whole,
    to_wire,
    whole_request,
)

MANUAL = pathlib.Path(__file__).parents[3] / "deploy" / "examples" / "framegate.yaml"


def test_a_model_with_every_key_survives_the_link() -> None:
    document = read_document(MANUAL)
    config = build(document, convert(document))
    assert document.faults == []
    assert config is not None
    assert from_wire(json.loads(json.dumps(to_wire(config)))) == config


def test_a_small_model_survives_the_link() -> None:
    config = ProxyConfig(
        node="n",
        listeners=(ListenerConfig(name="a", address="127.0.0.1:0", upstream="u"),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
    )
    assert from_wire(json.loads(json.dumps(to_wire(config)))) == config


def test_a_wrong_shape_is_our_bug_and_raises() -> None:
    with pytest.raises((KeyError, TypeError)):
        from_wire({"node": "n"})


def test_a_model_cannot_be_changed() -> None:
    config = UpstreamConfig(name="u", endpoints=("127.0.0.1:1",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.name = "v"  # type: ignore[misc]


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
                    forwarding=Forwarding(
                        requests="cut_through" if ways[0] == "c" else "whole", responses="cut_through" if ways[1] == "c" else "whole"
                    ),
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
    assert (whole_request(GIB, "whole"), whole_request(GIB, "cut_through"), whole_request(5, "cut_through")) == (GIB, CUT_ABOVE - 4, 5)
