from pathlib import Path

from framegate.control.doctor.surroundings import most_connections
from framegate.proxy.config.limits import LimitsConfig, ListenerLimits
from framegate.proxy.config.model import ListenerConfig, ProxyConfig
from tests.fakes.surroundings import around


def test_the_most_connections_are_what_node_and_listeners_let_in() -> None:
    def most(listeners: dict[str, int], node: int, protected: str | None) -> int | None:
        sides = (ListenerConfig(name=name, address="127.0.0.1:0", limits=ListenerLimits(connections=most)) for name, most in listeners.items())
        return most_connections(
            ProxyConfig(node="n", listeners=tuple(sides), upstreams=(), limits=LimitsConfig(connections=node, protected_listener=protected))
        )

    for listeners, node, protected, expected in (
        ({"a": 0}, 0, None, None),
        ({"a": 5}, 0, None, 5),
        ({"a": 5, "b": 0}, 0, None, None),
        ({"a": 5, "b": 7}, 0, None, 12),
        ({"a": 5, "b": 7}, 11, None, 11),
        ({"a": 5, "b": 7}, 13, None, 12),
        ({"a": 0, "b": 0}, 9, None, 9),
        ({"a": 0, "b": 0}, 9, "b", None),
        ({"a": 0, "b": 3}, 9, "b", 12),
    ):
        assert most(listeners, node, protected) == expected, (listeners, node, protected)


def test_a_pod_and_a_container_are_known_by_their_signs(tmp_path: Path) -> None:
    wrong = []
    for number, (files, environment, expected) in enumerate(
        (
            ({}, {}, (False, False)),
            ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, (True, True)),
            ({"var/run/secrets/kubernetes.io/serviceaccount/token": "x"}, {}, (True, True)),
            ({".dockerenv": ""}, {}, (False, True)),
            ({"run/.containerenv": ""}, {}, (False, True)),
        )
    ):
        found = around(tmp_path / str(number), files, environment=environment)
        wrong += [(files, environment)] * ((found.in_kubernetes, found.in_container) != expected)
    assert wrong == []
