import pathlib
from collections.abc import Iterable
from typing import Any

import pytest

from framegate.control.demo.certificates import Certificates, create
from tests.fakes.configuration import put, warnings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def data(made: Certificates) -> dict[str, Any]:
    return {
        "node": "edge-1",
        "processors": 2,
        "admin": {"address": f"unix:{made.ca.parent}/admin.sock"},
        "health": {"address": "127.0.0.1:9901"},
        "memory_pool": {"size": "8MiB"},
        "listeners": [
            {
                "name": "kafka",
                "address": "127.0.0.1:9093",
                "upstream": "brokers",
                "max_receive_size": "1MiB",
                "tls": {"certificate": str(made.server), "key": str(made.server_key), "client_auth": "required", "client_ca": str(made.ca)},
            },
            {"name": "plain", "address": "127.0.0.1:0", "upstream": "brokers", "max_receive_size": "1MiB"},
        ],
        "upstreams": [
            {
                "name": "brokers",
                "endpoints": ["127.0.0.1:9092"],
                "tls": {"ca": str(made.ca), "certificate": str(made.client), "key": str(made.client_key)},
            }
        ],
        "tap": {"directory": "var/tap", "rules": [{"name": "all", "listeners": ["kafka"], "networks": ["10.0.0.0/8"]}]},
        "telemetry": {"otlp": {"endpoint": "http://127.0.0.1:4317"}, "prometheus": {"address": "127.0.0.1:9464"}},
    }


def unwarned(data: dict[str, Any], folder: pathlib.Path, cases: Iterable[tuple[str, object, str, str]]) -> list[object]:
    """The cases that go wrong. Each is a path and the value put there (as of ``put``), the key of the only warning, and a part of its reason."""
    wrong = []
    for path, value, key, part in cases:
        found = warnings(put(data, path, value), folder)
        if [(item, part in reason) for item, reason in found] != [(key, True)]:
            wrong.append((path, value, found))
    return wrong
