import dataclasses
import json
import pathlib

import pytest

from control.configuration.document import read_document
from control.configuration.schema import build, convert
from proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig, from_wire, to_wire

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
