from typing import Any

import pytest

from framegate.control.demo.certificates import Certificates, create


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
                "tls": {
                    "certificate": str(made.server),
                    "key": str(made.server_key),
                    "client_auth": "required",
                    "client_ca": str(made.ca),
                },
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
