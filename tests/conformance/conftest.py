"""What the suites share: certificates, an echo upstream, a place for each suite's kinds."""

from collections.abc import Iterator

import pytest

from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import ScriptedUpstream


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    """Certificates, made once for all tests."""
    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """Sends every frame back."""
    with ScriptedUpstream() as started:
        yield started
