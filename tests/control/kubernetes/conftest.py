"""An API server, and the environment of a pod that reaches it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.api_server import FakeApiServer


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    server = FakeApiServer(tmp_path)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()
