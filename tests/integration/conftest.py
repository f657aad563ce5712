"""What the integration tests share: an echo upstream, certificates, configurations."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.upstream import ScriptedUpstream


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """Sends every frame back."""
    started = ScriptedUpstream()
    yield started
    started.close()


@pytest.fixture
def plain(upstream: ScriptedUpstream) -> dict[str, Any]:
    """The configuration of one plaintext listener ``plain`` before the echo upstream."""
    return {
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1MiB"}],
        "upstreams": [{"name": "echo", "endpoints": [upstream.address]}],
    }
