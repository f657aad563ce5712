from pathlib import Path

import pytest

from framegate.control.doctor.surroundings import most_connections
from framegate.proxy.config.limits import LimitsConfig, RateLimits
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from tests.fakes.surroundings import around


def config(listeners: dict[str, int], node: int = 0, protected: str | None = None) -> ProxyConfig:
    return ProxyConfig(
        node="n",
        listeners=tuple(
            ListenerConfig(name=name, address="127.0.0.1:0", upstream="u", limits=RateLimits(connections=most)) for name, most in listeners.items()
        ),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
        limits=LimitsConfig(connections=node, protected_listener=protected),
    )


@pytest.mark.parametrize(
    ("listeners", "node", "protected", "most"),
    [
        ({"a": 0}, 0, None, None),
        ({"a": 5}, 0, None, 5),
        ({"a": 5, "b": 0}, 0, None, None),
        ({"a": 5, "b": 7}, 0, None, 12),
        ({"a": 5, "b": 7}, 11, None, 11),
        ({"a": 5, "b": 7}, 13, None, 12),
        ({"a": 0, "b": 0}, 9, None, 9),
        ({"a": 0, "b": 0}, 9, "b", None),
        ({"a": 0, "b": 3}, 9, "b", 12),
    ],
)
def test_the_most_connections_are_what_node_and_listeners_let_in(
    listeners: dict[str, int], node: int, protected: str | None, most: int | None
) -> None:
    assert most_connections(config(listeners, node, protected)) == most


@pytest.mark.parametrize(
    ("files", "environment", "kubernetes", "container"),
    [
        ({}, {}, False, False),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True, True),
        ({"var/run/secrets/kubernetes.io/serviceaccount/token": "x"}, {}, True, True),
        ({".dockerenv": ""}, {}, False, True),
        ({"run/.containerenv": ""}, {}, False, True),
    ],
)
def test_a_pod_and_a_container_are_known_by_their_signs(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], kubernetes: bool, container: bool
) -> None:
    found = around(tmp_path, files, environment=environment)
    assert (found.in_kubernetes, found.in_container) == (kubernetes, container)
