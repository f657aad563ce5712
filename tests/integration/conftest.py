"""What the integration tests share: an echo upstream, certificates, configurations."""

from typing import Any

import pytest

from framegate.control.demo.certificates import Certificates, create
from tests.fakes.framegate import config_before
from tests.fakes.upstream import ScriptedUpstream


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates, made once for all tests."""
    return create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def plain(upstream: ScriptedUpstream) -> dict[str, Any]:
    """The configuration of one plaintext listener ``plain`` before the echo upstream."""
    return config_before(upstream.address)
